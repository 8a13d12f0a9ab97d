"""The `nnue` command in the process of the test, which saves importing torch again."""

from typing import NamedTuple

from typer.testing import CliRunner

from nnue_trainer.cli.main import app


class Done(NamedTuple):
    """The result of a command; made by the fixture `nnue`, for tests of errors as users see them."""

    returncode: int
    stdout: str
    stderr: str


def nnue(*arguments: object) -> str:
    """The output of the command on both streams; raises the same exceptions."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output
