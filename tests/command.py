"""The `nnue` command in the process of the test, which saves importing torch again."""

from typing import NamedTuple

from typer.testing import CliRunner

from nnue_trainer.cli.main import app


class Done(NamedTuple):
    """What came of a command; made by the fixture `nnue`, for tests that look at errors as users see them."""

    returncode: int
    stdout: str
    stderr: str


def nnue(*arguments: object) -> str:
    """What the command prints, on both streams; raises what it raises."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output
