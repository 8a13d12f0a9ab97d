"""Every counter of a run at sizes where float32, int32, uint32 and float64 end, from a fabricated state."""

from __future__ import annotations

import copy

import pytest
import torch
from made_up import BATCH, trainer

from nnue_trainer import checkpoint
from nnue_trainer.checkpoint import Checkpoint

LONG = ("training.epochs=1048576", "training.positions_per_epoch=1099511627776")  # 2^55 steps of 32
RULES = {
    "adamw": "optimizer={kind: adamw}",
    "ranger": "optimizer={kind: ranger}",
    "ranger_lite": "optimizer={kind: ranger_lite}",
    "torch": "optimizer={kind: torch, name: RAdam}",
}


def fabricated(saved: Checkpoint, count: int) -> Checkpoint:
    """The checkpoint, as if `count` steps had been made before."""
    made = copy.deepcopy(saved)
    made.state["step"] += count
    made.state["batches"]["index"] += count
    for name, tensor in made.tensors["optimizer"].items():
        if name.startswith("step/"):
            made.tensors["optimizer"][name] = tensor + count
    return made


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("power", [24, 31, 32, 53])
def test_a_run_resumes_after_very_many_steps(tmp_path, rule, power):
    overrides = (*LONG, RULES[rule], "lambda={kind: linear, start: 1.0, end: 0.5, jitter: 0.1}")
    begun = trainer(tmp_path / "begun", *overrides)
    for _ in range(3):
        begun.advance()
    start = fabricated(begun.checkpoint(), 2**power - 5)
    path = tmp_path / "x.safetensors"

    def resumed(saved: Checkpoint):
        checkpoint.save(path, saved)
        run = trainer(tmp_path / "resumed", *overrides)
        run.resume(checkpoint.load(path), path)
        return run

    whole, stopped = resumed(start), resumed(start)
    for step in range(6):
        assert whole.step == stopped.step == 2**power - 2 + step
        whole.advance()
        stopped.advance()
        stopped = resumed(stopped.checkpoint())
    ends = [run.checkpoint() for run in (whole, stopped)]
    assert ends[0].state["step"] == ends[1].state["step"] == 2**power + 4
    assert ends[0].state["batches"] == ends[1].state["batches"]
    for group in ("model", "optimizer"):
        for name, tensor in ends[0].tensors[group].items():
            assert torch.equal(tensor, ends[1].tensors[group][name]), name
    if rule != "torch":
        assert {int(t) for n, t in ends[0].tensors["optimizer"].items() if n.startswith("step/")} == {2**power + 4}
        assert whole.optimizer.good_steps() == 2**power + 4
    assert whole.steps_per_epoch * BATCH == 2**40
