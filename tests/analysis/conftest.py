"""A run of a small net on the bundled sample, trained once for all tests of this room."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from analysis_support import recipe

from nnue_trainer.training.run import train

Train = Callable[..., Path]


@pytest.fixture(autouse=True, scope="module")
def _one_thread(one_thread: None) -> None:
    """In fixtures of modules too: `trained` keeps what the first of them trained."""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> Train:
    """`trained("name", "optimizer.lr=1e-2")`: a copy of the run folder of that recipe, to do with as one likes."""
    made: dict[tuple[str, ...], Path] = {}

    def run(name: str = "run", *overrides: str) -> Path:
        if overrides not in made:
            made[overrides] = tmp_path_factory.mktemp("trained") / "run"
            train(recipe(project_root, *overrides), made[overrides])
        copy = tmp_path_factory.mktemp("copies") / name
        shutil.copytree(made[overrides], copy)
        return copy

    return run


@pytest.fixture
def nnue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command in this process: (exit status, standard output, standard error)."""
    from nnue_trainer.cli import main as cli

    def run(*arguments: str | os.PathLike[str]) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nnue", *map(str, arguments)])
        capsys.readouterr()
        status = cli._run()
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
