"""The command line itself: a wrong one is answered by one line and exit status 2."""

from __future__ import annotations

import subprocess
import sys

import pytest


def nnue(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from nnue_trainer.cli.main import main; sys.argv[0] = 'nnue'; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["data", "inof"], ["No such command 'inof'", "see nnue data --help"]),
        (["train", "--nope"], ["No such option: --nope", "see nnue train --help"]),
        (["export"], ["Missing argument 'CHECKPOINT'", "see nnue export --help"]),
        (["data", "head", "x.binpack", "--count", "many"], ["'--count'", "integer", "see nnue data head --help"]),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(arguments: list[str], expected: list[str]) -> None:
    run = nnue(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("nnue: error: ")
    assert run.stderr.count("\n") == 1
    for part in expected:
        assert part in run.stderr


def test_no_command_shows_the_help() -> None:
    run = nnue("data")
    assert run.returncode == 2
    assert "Usage: nnue data" in run.stdout
    assert run.stderr == ""


def test_help_is_status_0() -> None:
    assert nnue("--help").returncode == 0
