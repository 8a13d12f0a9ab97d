"""Runs whose positions have weights."""

from pathlib import Path

import pytest
import torch
from command import nnue
from small_runs import last, split_sample, written

from nnue_trainer.errors import UserError


def test_weights_of_positions_train(project_root: Path, tmp_path: Path) -> None:
    data = split_sample(project_root, tmp_path, 2_000, 250)
    ends = {}
    for name, knots in {"none": None, "twice": [[2, 2.0]], "few": [[8, 1.0], [20, 0.0]]}.items():
        own = {} if knots is None else {"position_weight": {"kind": "knots", "by": "pieces", "knots": knots}}
        recipe = written(tmp_path / f"{name}.yaml", data, training={"epochs": 1}, **own)
        nnue("train", "--config", recipe, "--run-dir", tmp_path / name)
        ends[name] = last(tmp_path / name).tensors["model"]["output.weight"]
    torch.testing.assert_close(ends["none"], ends["twice"], rtol=0, atol=1e-5)
    assert (ends["none"] - ends["few"]).abs().max() > 1e-3


@pytest.mark.parametrize("line", ["def of(self, batch): return batch.score", "def of(self, batch): return None"])
def test_wrong_weights_are_named(project_root: Path, tmp_path: Path, line: str) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from nnue_trainer.position_weights import PositionWeight\nfrom nnue_trainer.schema import section\n\n"
        f"@section\nclass Mine(PositionWeight):\n    {line}\n"
    )
    data = split_sample(project_root, tmp_path, 2_000, 250)
    recipe = written(tmp_path / "mine.yaml", data, position_weight={"kind": f"{own}:Mine"})
    with pytest.raises(UserError, match=r"Mine.of.*expected a tensor float32 \[250\]"):
        nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
