"""`nnue data` in the process of the tests, and the positions of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from nnue_trainer.base.arrays import Records
from nnue_trainer.cli.main import app
from nnue_trainer.data import PositionReader
from nnue_trainer.errors import UserError

SUFFIXES = {
    "binpack": ".binpack",
    "bin": ".bin",
    "bulletformat": ".bullet",
    "marlinformat": ".marlin",
    "viriformat": ".vf",
    "text": ".txt",
    "plain": ".plain",
}
"""Of files in the formats that every tool reads and writes."""


def run(*arguments: object, code: int = 0) -> str:
    """The output of `nnue data ARGUMENTS`, which must end with the status `code`; its UserError is raised."""
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def read_all(path: Path) -> Records:
    with PositionReader(path) as reader:
        return np.concatenate([np.zeros((0, 32), np.uint8), *reader])
