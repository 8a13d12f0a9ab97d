"""Runs whose positions have weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command import nnue
from small_runs import last, split_sample, written

from nnue_trainer.data import expand, records_from_fens
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


def test_weights_by_the_ply_train_like_weights_of_a_user_and_resume(project_root: Path, tmp_path: Path) -> None:
    """The records reach the step unmixed: the same run as with weights from the piece count and ply by NumPy."""
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\nfrom nnue_trainer.data import fields\n"
        "from nnue_trainer.losses.position_weights import PositionWeight\n"
        "from nnue_trainer.schema import section\n\n@section\nclass Mine(PositionWeight):\n    reads_records = True\n\n"
        "    def of(self, batch):\n        records = batch.records.numpy()\n"
        "        assert (fields.scores(records) == batch.score.numpy()).all()\n"
        "        assert (fields.piece_counts(records) == batch.piece_count.numpy()).all()\n"
        "        assert (fields.rule50s(records) == batch.field('rule50').numpy()).all()\n"
        "        return torch.from_numpy(fields.plies(records)).float().sub(20).div(40).clamp(0, 1)\n"
    )
    data = split_sample(project_root, tmp_path, 2_000, 250)
    by_ply = {"kind": "knots", "by": "ply", "knots": [[20, 0.0], [60, 1.0]]}
    ends = {}
    for name, weight in {"ply": by_ply, "own": {"kind": f"{own}:Mine"}, "none": None}.items():
        sections: dict[str, Any] = {} if weight is None else {"position_weight": weight}
        recipe = written(tmp_path / f"{name}.yaml", data, **sections)
        nnue("train", "--config", recipe, "--run-dir", tmp_path / name)
        ends[name] = last(tmp_path / name).tensors["model"]["output.weight"]
    torch.testing.assert_close(ends["ply"], ends["own"], rtol=0, atol=1e-5)
    assert (ends["none"] - ends["ply"]).abs().max() > 1e-3
    epoch = tmp_path / "ply" / "checkpoints" / "epoch-0001.safetensors"
    nnue("train", "--resume", epoch, "--run-dir", tmp_path / "resumed")
    assert torch.equal(last(tmp_path / "resumed").tensors["model"]["output.weight"], ends["ply"])


def test_doubtful_weights_and_averages_are_lines_at_the_start(
    project_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = split_sample(project_root, tmp_path, 2_000, 250)
    pairs = {"late": [[900, 0.0], [901, 1.0]], "some": [[20, 0.0], [60, 1.0]]}
    for name, knots in pairs.items():
        weight = {"kind": "knots", "by": "ply", "knots": knots}
        recipe = written(tmp_path / f"{name}.yaml", data, training={"epochs": 1}, position_weight=weight)
        caplog.clear()
        changes = ["average={kind: swa, start_epoch: 1}", *(["data.implausible=ignore"] if name == "late" else [])]
        nnue("train", "--config", recipe, "--run-dir", tmp_path / name, *changes)
        assert ("position_weight: 0 for all positions of a sample of" in caplog.text) == (name == "late")
        assert "average: swa does not begin within 1 epoch, " in caplog.text


def test_a_class_that_did_not_request_records_is_told() -> None:
    batch = expand(records_from_fens(["4k3/8/8/8/8/8/8/4K3 w - - 7 30"]), "Chess768")
    with pytest.raises(ValueError, match="reads_records = True"):
        batch.field("ply")


@pytest.mark.parametrize("line", ["def of(self, batch): return batch.score", "def of(self, batch): return None"])
def test_wrong_weights_are_named(project_root: Path, tmp_path: Path, line: str) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from nnue_trainer.losses.position_weights import PositionWeight\nfrom nnue_trainer.schema import section\n\n"
        f"@section\nclass Mine(PositionWeight):\n    {line}\n"
    )
    data = split_sample(project_root, tmp_path, 2_000, 250)
    recipe = written(tmp_path / "mine.yaml", data, position_weight={"kind": f"{own}:Mine"})
    with pytest.raises(UserError, match=r"Mine.of.*expected a tensor float32 \[\d+\]"):
        nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
