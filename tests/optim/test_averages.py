"""Averages of weights: their values, and that validation, best, checkpoints, stages and resumes take them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command import nnue
from needs import ROOT
from small_runs import last, split_sample, written

from nnue_trainer.files import checkpoint
from nnue_trainer.optim.averages import AVERAGES
from nnue_trainer.schedules import RunStep

VECTORS = ROOT / "tests" / "vectors" / "training" / "optimisers.json"
CASE = json.loads(VECTORS.read_text(encoding="utf-8"))["averaging"]


def averaged(section: dict[str, Any], snapshots: list[list[float]]) -> list[list[float]]:
    """The average after each snapshot; epochs are of one step."""
    average, found = AVERAGES.parse(section, trusted=False), []
    mean = torch.tensor(snapshots[0], dtype=torch.float64)
    for step, weights in enumerate(snapshots[1:], 1):
        mean = torch.lerp(mean, torch.tensor(weights, dtype=torch.float64), average.share(RunStep(step, 1, 99)))
        found.append(mean.tolist())
    return found


def test_averages_are_the_references() -> None:
    snapshots = CASE["snapshots"]
    ema = {"kind": "ema", "decay": CASE["decay"], "every": 1}
    assert averaged(ema, snapshots) == [pytest.approx(row) for row in CASE["ema_from_first"]]
    assert averaged(ema | {"warmup": True}, snapshots) == [pytest.approx(row) for row in CASE["ema_with_warmup"]]
    swa = {"kind": "swa", "start_epoch": 0}
    assert averaged(swa, [[0.0, 0.0], *snapshots])[-1] == pytest.approx(CASE["equal_average"])


def test_half_life_and_every() -> None:
    weights = [[1.0]] + [[0.0]] * 64
    by_step = averaged({"kind": "ema", "half_life": 32, "every": 1}, weights)
    by_default = averaged({"kind": "ema", "half_life": 32}, weights)
    assert by_step[31] == [pytest.approx(0.5)]
    assert by_default[31] == [pytest.approx(0.5)]
    assert by_default[30] == by_default[16]


@pytest.fixture(scope="module")
def data(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 4_000, 500)


def run(recipe: Path, folder: Path, *more: str) -> checkpoint.Checkpoint:
    nnue("train", "--config", recipe, "--run-dir", folder, *more)
    return last(folder)


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record["event"] == "validation"]


def assert_equal(one: checkpoint.Checkpoint, other: checkpoint.Checkpoint) -> None:
    for group, tensors in one.tensors.items():
        assert tensors.keys() == other.tensors[group].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, other.tensors[group][name]), name


def test_swa_of_a_run_is_the_mean_of_its_epochs(data: Path, tmp_path: Path) -> None:
    plain = written(tmp_path / "plain.yaml", data, training={"epochs": 4})
    run(plain, tmp_path / "plain")
    swa = written(tmp_path / "swa.yaml", data, training={"epochs": 4}, average={"kind": "swa", "start_epoch": 1})
    found = run(swa, tmp_path / "swa")
    epochs = [
        checkpoint.load(tmp_path / "plain" / "checkpoints" / f"epoch-{n:04}.safetensors").tensors["model"]
        for n in (2, 3, 4)
    ]
    for name, tensor in found.tensors["model"].items():
        torch.testing.assert_close(
            tensor, torch.stack([e[name].double() for e in epochs]).sum(0).float() / 3, rtol=0, atol=1e-7
        )
        assert torch.equal(found.tensors["optimizer"][f"trained/{name}"], epochs[-1][name]), (
            "training continues as before"
        )
    assert losses(tmp_path / "swa")[0] == losses(tmp_path / "plain")[0], "not begun yet"
    assert losses(tmp_path / "swa")[-1] != losses(tmp_path / "plain")[-1]
    # The loss that was recorded is that of the net in the file.
    again = written(tmp_path / "again.yaml", data, training={
        "epochs": 1, "initial_weights": str(tmp_path / "swa" / "checkpoints" / "last.safetensors"),
    }, optimizer={"lr": 1e-30, "weight_decay": 0.0})  # fmt: skip
    run(again, tmp_path / "again")
    assert losses(tmp_path / "again")[0] == pytest.approx(losses(tmp_path / "swa")[-1], rel=1e-6)


@pytest.mark.parametrize(
    "sections",
    [
        {"average": {"kind": "ema", "half_life": 3, "every": 2}},
        {"average": {"kind": "ema", "half_life": 3, "every": 1}, "training": {"precision": "mixed"}},
        {"average": {"kind": "swa", "start_epoch": 0}, "training": {"precision": "mixed"}},
        {"optimizer": {"kind": "schedule_free", "lr": 0.005}, "schedule": {"kind": "constant"}},
    ],
    ids=["ema", "ema in mixed precision", "swa in mixed precision", "schedule_free"],
)
def test_stopped_in_an_epoch_and_resumed(data: Path, tmp_path: Path, sections: dict[str, Any]) -> None:
    stop = tmp_path / "stop.py"
    stop.write_text(
        "from nnue_trainer.callbacks import Callback\nfrom nnue_trainer.schema import section\n\n"
        "@section\nclass Stop(Callback):\n    def step(self, trainer):\n"
        "        if trainer.step == 6:\n            trainer.stop('for a test')\n"
    )
    recipe = written(tmp_path / "recipe.yaml", data, **sections)
    whole = run(recipe, tmp_path / "whole")
    training = sections.get("training", {}) | {"callbacks": [{"kind": f"{stop}:Stop"}]}
    stopped = written(tmp_path / "stopped.yaml", data, **sections | {"training": training})
    run(stopped, tmp_path / "stopped")
    assert last(tmp_path / "stopped").state["step"] == 6
    assert_equal(whole, run(recipe, tmp_path / "stopped", "--resume", "auto"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "stopped")
    trained = whole.tensors["optimizer"]["trained/output.weight"]
    assert not torch.equal(trained, whole.tensors["model"]["output.weight"])


def test_stages_begin_from_the_average(data: Path, tmp_path: Path) -> None:
    stages = [
        {"name": "first", "training": {"epochs": 1}},
        {"name": "weights", "training": {"epochs": 1}},
        {"name": "average", "training": {"epochs": 1}, "carry": "optimizer", "take": "average"},
        {"name": "optimizer", "training": {"epochs": 1}, "carry": "optimizer"},
    ]
    still = {"lr": 1e-30, "weight_decay": 0.0}
    for section in stages[1:]:
        section["optimizer"] = still
    path = written(tmp_path / "recipe.yaml", data, average={"kind": "ema", "half_life": 3, "every": 1})
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"stages": stages}))
    run(path, tmp_path / "run")
    name, saved = "output.weight", {}
    for stage in ("first", "weights", "average"):
        saved[stage] = checkpoint.load(tmp_path / "run" / "checkpoints" / f"stage-{stage}.safetensors")
    net = saved["first"].tensors["model"][name]
    assert not torch.equal(net, saved["first"].tensors["optimizer"][f"trained/{name}"])
    for stage in ("weights", "average"):
        assert torch.equal(saved[stage].tensors["optimizer"][f"trained/{name}"], net)
