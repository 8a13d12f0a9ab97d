"""Spare bytes of data files in training: filters, weights of positions and losses get those of their positions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import several
import torch
from command import nnue
from small_runs import last, split_sample, written

from nnue_trainer.data import Filters, PositionReader, RecordLoader
from nnue_trainer.data.fields import separate_spare
from nnue_trainer.data.transform import convert
from nnue_trainer.errors import UserError
from nnue_trainer.ops.expand import Expander

VECTORS = Path(__file__).parents[1] / "vectors" / "data2"

# Each of them fails unless the bytes are those of the position: the score, low byte first, and the number of pieces.
OWN = """
import torch
from typing import ClassVar
from nnue_trainer.data import fields
from nnue_trainer.data.filters import Filter
from nnue_trainer.losses import SigmoidLoss
from nnue_trainer.losses.position_weights import PositionWeight
from nnue_trainer.schema import section

@section
class PlainPieces(Filter):
    def keep(self, records):
        return fields.piece_counts(records) >= 12

@section
class Pieces(PlainPieces):
    def keep_spare(self, records, spare):
        assert (spare[:, 2] == fields.piece_counts(records)).all()
        assert not fields.rule50s(records).any() and not fields.plies(records).any()
        return spare[:, 2] >= 12

@section
class Weight(PositionWeight):
    uses_spare: ClassVar[bool] = True
    def of(self, batch):
        assert (batch.spare[:, 2] == batch.piece_count).all() and batch.piece_count.min() >= 12
        return (batch.spare[:, 2] < 20).float()

@section
class PlainWeight(PositionWeight):
    def of(self, batch):
        assert batch.spare is None
        return (batch.piece_count < 20).float()

@section
class Mine(SigmoidLoss):
    def per_position_spare(self, net, score, result, lam, spare):
        stored = spare[:, 0].int() | spare[:, 1].int() << 8
        assert (torch.where(stored >= 1 << 15, stored - (1 << 16), stored) == score).all()
        return self.per_position(net, score, result, lam)
"""


def bullet_data(project_root: Path, folder: Path) -> Path:
    """`folder` with train.binpack and val.binpack, in bulletformat, with such bytes."""
    split_sample(project_root, folder, 3_000, 250)
    for name in ("train", "val"):
        convert([folder / f"{name}.binpack"], folder / f"{name}.data", to="bulletformat")
        records = np.frombuffer((folder / f"{name}.data").read_bytes(), np.uint8).reshape(-1, 32).copy()
        records[:, 29:31] = records[:, 24:26]
        records[:, 31] = np.unpackbits(records[:, :8], axis=1).sum(axis=1)
        (folder / f"{name}.binpack").write_bytes(records.tobytes())
    return folder


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_own_filter_weight_and_loss_in_a_training(project_root: Path, tmp_path: Path, device: str) -> None:
    data, own = bullet_data(project_root, tmp_path), tmp_path / "own.py"
    own.write_text(OWN)
    runs = {"spare": ("Pieces", "Weight", f"{own}:Mine"), "plain": ("PlainPieces", "PlainWeight", "sigmoid")}
    for name, (only, weight, loss) in runs.items():
        recipe = written(
            tmp_path / f"{name}.yaml",
            data,
            data={"filters": {"soft_ply": 0, "extra": [{"kind": f"{own}:{only}"}]}},
            loss={"kind": loss},
            position_weight={"kind": f"{own}:{weight}"},
            # The asserts of these classes wait for the device.
            training={"device": device, "precision": "fp32", "cuda_graph": False},
        )
        nnue("train", "--config", recipe, "--run-dir", tmp_path / name)
    ends = [last(tmp_path / name).tensors["model"]["output.weight"] for name in runs]
    # On a GPU the built-in loss has a kernel, which rounds in another order.
    torch.testing.assert_close(*ends, rtol=0, atol=0 if device == "cpu" else 1e-3)


def with_own_parts(project_root: Path, folder: Path) -> Path:
    """The recipe of a training whose filter, weight and loss use spare bytes."""
    own = folder / "own.py"
    own.write_text(OWN)
    return written(
        folder / "mine.yaml",
        bullet_data(project_root, folder),
        data={"filters": {"soft_ply": 0, "extra": [{"kind": f"{own}:Pieces"}]}},
        loss={"kind": f"{own}:Mine"},
        position_weight={"kind": f"{own}:Weight"},
    )


def assert_same_end(one: Path, other: Path, *, rtol: float, atol: float) -> None:
    ends = [last(run).tensors["model"] for run in (one, other)]
    assert ends[0].keys() == ends[1].keys()
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=rtol, atol=atol)


def test_in_two_processes_and_over_a_resume(project_root: Path, tmp_path: Path) -> None:
    recipe = with_own_parts(project_root, tmp_path)
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "whole")
    first = tmp_path / "whole" / "checkpoints" / "epoch-0001.safetensors"
    nnue("train", "--resume", first, "--run-dir", tmp_path / "resumed")
    assert_same_end(tmp_path / "whole", tmp_path / "resumed", rtol=0, atol=0)
    several.train(2, tmp_path / "two", "--config", recipe, "--run-dir", tmp_path / "two")
    assert_same_end(tmp_path / "whole", tmp_path / "two", rtol=1e-4, atol=1e-6)
    # Resumed in another number of processes.
    first = tmp_path / "two" / "checkpoints" / "epoch-0001.safetensors"
    nnue("train", "--resume", first, "--run-dir", tmp_path / "one")
    assert_same_end(tmp_path / "two", tmp_path / "one", rtol=1e-4, atol=1e-6)


@pytest.mark.cuda
def test_on_a_gpu_and_over_a_resume(project_root: Path, tmp_path: Path) -> None:
    recipe = with_own_parts(project_root, tmp_path)
    device = ("training.device=cuda", "training.precision=fp32", "training.cuda_graph=false")  # as above
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "cpu")
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "whole", *device)
    assert_same_end(tmp_path / "cpu", tmp_path / "whole", rtol=1e-3, atol=1e-4)
    first = tmp_path / "whole" / "checkpoints" / "epoch-0001.safetensors"
    nnue("train", "--resume", first, "--run-dir", tmp_path / "resumed")
    assert_same_end(tmp_path / "whole", tmp_path / "resumed", rtol=0, atol=0)


@pytest.mark.parametrize(("name", "width"), [("vf-rules.vf", 1), ("vf-rules.marlin.bin", 1), ("vf-rules.data", 3)])
def test_records_hold_spare_bytes(tmp_path: Path, name: str, width: int) -> None:
    with PositionReader(VECTORS / name) as reader:
        blocks = list(reader.blocks())
    records, spare = (np.concatenate([getattr(block, what) for block in blocks]) for what in ("records", "spare"))
    options: dict[str, Any] = {"shuffle": False, "drop_last": False, "threads": 1, "filters": Filters.none()}
    with RecordLoader(VECTORS / name, 64, spare=True, **options) as loader:
        assert loader.spare == width
        found = next(iter(loader))
    batch = Expander("HalfKAv2_hm", "cpu", spare=width)(found)
    kept, bytes_ = separate_spare(found.numpy(), width)
    assert batch.spare is not None
    for made in (batch.spare.numpy(), bytes_):
        np.testing.assert_array_equal(made, spare)
    np.testing.assert_array_equal(kept, records)


def test_files_without_or_with_other_spare_bytes(project_root: Path, tmp_path: Path) -> None:
    sample = project_root / "samples" / "val.binpack"
    with RecordLoader(sample, 64, spare=True) as loader, pytest.raises(UserError, match="binpack has no spare bytes"):
        loader.open()
    files = [VECTORS / "vf-rules.vf", VECTORS / "vf-rules.data"]
    with RecordLoader(files, 2, spare=True) as loader, pytest.raises(UserError, match=r"3 spare bytes.*has 1"):
        _ = loader.spare
