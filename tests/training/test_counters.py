"""Every counter of a run at sizes where float32, int32, uint32 and float64 end, from a fabricated state."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from loader_states import stored
from made_up import BATCH, trainer

from nnue_trainer.data import LoaderOptions, RecordLoader
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.optim.base import OPTIMIZERS
from nnue_trainer.training.resuming import resume

LONG = ("training.epochs=1048576", "training.positions_per_epoch=1099511627776")  # 2^55 steps of 32
RULES = {kind: f"optimizer={{kind: {kind}}}" for kind in OPTIMIZERS.kinds() if kind != "torch"} | {
    "RAdam": "optimizer={kind: torch, name: RAdam}",
    "Adam": "optimizer={kind: torch, name: Adam}",
    "Adagrad": "optimizer={kind: torch, name: Adagrad, options: {lr_decay: 1.0e-7}}",
    "ema": "average={kind: ema}",
    "swa": "average={kind: swa, start_epoch: 1}",
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


@pytest.mark.slow
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
        resume(run, checkpoint.load(path), path)
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
    # torch's own counts are floats: wide ones here, which end at 2^53.
    counts = 2**power if power == 53 and rule in torch.optim.__dict__ else 2**power + 4
    assert {int(t) for n, t in ends[0].tensors["optimizer"].items() if n.startswith("step/")} == {counts}
    if rule not in torch.optim.__dict__:
        assert whole.optimizer.good_steps() == 2**power + 4
    assert whole.stage.steps_per_epoch * BATCH == 2**40


@pytest.mark.parametrize("power", [24, 31, 32, 53])
def test_a_loader_goes_on_after_very_many_epochs(project_root, power):
    """The last batches of an epoch and the first of the next one, in another loader as in the same."""
    options: LoaderOptions = {"shuffle": True, "shuffle_buffer": 2048, "seed": 3}
    loader = RecordLoader(project_root / "samples" / "val.binpack", 512, **options)
    state = loader.state_dict()
    state["places"][0, 0] = 2**power - 1
    loader.load_state_dict(state)
    last = [batch.numpy().copy() for batch in loader]
    assert loader.state_dict()["places"].tolist() == [[2**power, 0, 0, 0]]
    batches = iter(loader)
    first = next(batches).numpy().copy()
    assert not np.array_equal(first, last[0])
    state = stored(loader.state_dict())
    again = RecordLoader(project_root / "samples" / "val.binpack", 512, **options)
    again.load_state_dict(state)
    np.testing.assert_array_equal(next(iter(again)).numpy(), next(batches).numpy())
