"""Several seeds of a recipe: each is a separate run, and they are compared."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from command import nnue
from small_runs import last, split_sample, written

from nnue_trainer import config
from nnue_trainer.base import process_groups
from nnue_trainer.errors import UserError
from nnue_trainer.training.seeds import train_seeds
from nnue_trainer.training.trainer import Trainer


@pytest.fixture(scope="module")
def data(project_root, tmp_path_factory) -> Path:
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 4_000, 500)


@pytest.fixture
def recipe(tmp_path, data) -> Path:
    return written(tmp_path / "mine.yaml", data, training={"epochs": 1})


def same(one: Path, other: Path) -> bool:
    a, b = last(one).tensors["model"], last(other).tensors["model"]
    return all(torch.equal(a[name], b[name]) for name in a)


def test_seeds_in_turn(tmp_path: Path, recipe: Path) -> None:
    folder = tmp_path / "run"
    output = nnue("train", recipe, "--run-dir", folder, "seeds=[1, 2]")
    nnue("train", recipe, "--run-dir", tmp_path / "two", "training.seed=2")
    assert same(folder / "seed-2", tmp_path / "two")
    assert not same(folder / "seed-1", folder / "seed-2")
    found = json.loads((folder / "seeds.json").read_text())
    losses = [found["seeds"][seed]["loss"] for seed in "12"]
    assert found["mean"]["loss"] == pytest.approx(sum(losses) / 2)
    assert found["deviation"]["loss"] == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    assert f"loss: {sum(losses) / 2:.6f} ± " in output
    with pytest.raises(UserError, match="already holds a run"):
        nnue("train", recipe, "--run-dir", folder, "seeds=[1, 2]")


def test_seeds_go_on_where_they_were_stopped(tmp_path: Path, recipe: Path, monkeypatch) -> None:
    folder, advance = tmp_path / "run", Trainer.advance

    def stopping(self: Trainer) -> None:
        advance(self)
        if self.run.seed == 2 and self.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", stopping)
        output = nnue("train", recipe, "--run-dir", folder, "seeds=[1, 2, 3]")
    assert "--resume auto" in output
    assert not (folder / "seed-3").exists()
    nnue("train", recipe, "--run-dir", folder, "seeds=[1, 2, 3]", "--resume", "auto")
    nnue("train", recipe, "--run-dir", tmp_path / "whole", "seeds=[2]")
    assert same(folder / "seed-2", tmp_path / "whole" / "seed-2")
    assert json.loads((folder / "seeds.json").read_text())["seeds"].keys() == {"1", "2", "3"}


def test_seeds_that_ran_out_of_time_are_not_compared(tmp_path: Path, recipe: Path) -> None:
    folder = tmp_path / "run"
    output = nnue("train", recipe, "--run-dir", folder, "seeds=[1, 2]", "training.max_time=1e-9")
    assert re.search(r"seed 1 at step \d of 4", output)
    assert "not all seeds are finished" in output
    assert " ± " not in output
    output = nnue("train", recipe, "--run-dir", folder, "seeds=[1, 2]", "--resume", "auto")
    assert " ± " in output
    nnue("train", recipe, "--run-dir", tmp_path / "whole", "seeds=[1]")
    assert same(folder / "seed-1", tmp_path / "whole" / "seed-1")
    assert json.loads((folder / "seeds.json").read_text())["seeds"]["1"]["left"] == ""


@pytest.mark.slow
def test_seeds_at_once(tmp_path: Path, recipe: Path) -> None:
    folder = tmp_path / "run"
    output = nnue("train", recipe, "--run-dir", folder, "seeds=[1, 2]", "--at-once", "2")
    assert f"output in {folder / 'seed-2.log'}" in output
    assert all(last(folder / f"seed-{seed}").state["step"] == 4 for seed in (1, 2))
    assert "finished step 4 of 4" in (folder / "seed-1.log").read_text()
    with pytest.raises(UserError, match=r"seed \d: .*already holds a run"):
        nnue("train", recipe, "--run-dir", folder, "seeds=[1, 2]", "--at-once", "2")


def test_wrong_seeds(recipe: Path) -> None:
    with pytest.raises(UserError, match=r"seeds: found \[1, 1\], expected different numbers"):
        config.load(recipe, ["seeds=[1, 1]"])


def test_a_signal_while_a_seed_starts(tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process does not handle signals yet and is not in the list of those that run. It is ended, as interrupted."""
    start, processes = process_groups.start, []

    def starting(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        processes.append(start(["sleep", "600"], **options))
        if len(processes) == 2:
            signal.raise_signal(signal.SIGTERM)
        return processes[-1]

    monkeypatch.setattr(process_groups, "start", starting)
    runs = train_seeds(config.load(recipe, ["seeds=[1, 2, 3]"]), tmp_path / "run", at_once=2)
    assert [run.interrupted for run in runs] == [True] * 3
    assert [process.returncode for process in processes] == [-signal.SIGTERM] * 2
