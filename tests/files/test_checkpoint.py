"""Checkpoint files: what goes in comes out, nothing half written, and anything else is refused by name."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint


def example(value: float = 1.0) -> Checkpoint:
    return Checkpoint(
        architecture={"kind": "simple", "hidden": 8},
        recipe={"training": {"seed": 3}},
        state={"step": 7, "batches": {"place": [1, 2]}, "validation_loss": 0.1, "best_step": None},
        tensors={
            "model": {"a.weight": torch.full((2, 3), value), "bias": torch.arange(4)},
            "rng": {"cpu": torch.get_rng_state()},
            "optimizer": {"step/a": torch.tensor(5.0)},
        },
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_goes_in_comes_out(tmp_path):
    path = tmp_path / "deep" / "er" / "a.safetensors"
    checkpoint.save(path, example())
    got = checkpoint.load(path)
    assert (got.architecture, got.recipe, got.state) == (example().architecture, example().recipe, example().state)
    for group, tensors in example().tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(got.tensors[group][name], tensor)
            assert got.tensors[group][name].dtype == tensor.dtype
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode
    assert set(checkpoint.load(path, groups=("model",)).tensors) == {"model"}


def test_tensors_that_are_views_are_saved_whole(tmp_path):
    table = torch.arange(12.0).view(3, 4)
    checkpoint.save(tmp_path / "a", Checkpoint({}, {"model": {"t": table.t(), "column": table[:, 1]}}))
    got = checkpoint.load(tmp_path / "a").tensors["model"]
    assert torch.equal(got["t"], table.t())
    assert torch.equal(got["column"], table[:, 1])


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, example(1.0))

    def full_disk(file, tensors, metadata):
        file.write(b"half a ")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write_tensors", full_disk)
    with pytest.raises(UserError, match=r"a\.safetensors: cannot be written: .*No space left"):
        checkpoint.save(path, example(2.0))
    assert checkpoint.load(path).tensors["model"]["a.weight"][0, 0] == 1.0
    assert names(tmp_path) == ["a.safetensors"]


def test_a_checkpoint_cut_anywhere_is_refused(tmp_path):
    whole = tmp_path / "whole"
    checkpoint.save(whole, example())
    data = whole.read_bytes()
    for size in [0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(UserError, match="cut: not a readable safetensors checkpoint"):
            checkpoint.load(tmp_path / "cut")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="none: no such checkpoint"):
        checkpoint.load(tmp_path / "none")
    with pytest.raises(UserError, match="no such checkpoint"):
        checkpoint.load(tmp_path)
    save_file({"w": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(UserError, match="foreign: a safetensors file without the metadata key 'nnue'"):
        checkpoint.load(tmp_path / "foreign")
    for header, complaint in (
        ({"format_version": 99}, "format_version 99, expected 1"),
        ({"format_version": 1, "architecture": 3}, "metadata architecture is 3, expected a mapping"),
        ({"format_version": 1, "architecture": {}}, "metadata state is None, expected a mapping"),
    ):
        save_file({"w": torch.zeros(1)}, tmp_path / "other", metadata={"nnue": json.dumps(header)})
        with pytest.raises(UserError, match=complaint):
            checkpoint.load(tmp_path / "other")


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({"weight": torch.zeros(2, 3)}, "f: tensor model/bias is missing"),
        (
            {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "x": torch.zeros(1)},
            "tensor model/x does not belong to this architecture",
        ),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}, r"model/weight has shape \[3, 2\], expected \[2, 3\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(tensors, complaint):
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    with pytest.raises(UserError, match=complaint):
        checkpoint.load_into(tensors, module, "f")
    assert torch.equal(module.weight, before)
