"""The meaning of `training.precision: auto`."""

import pytest
import torch
from made_up import recipe, trainer
from typed import present

from nnue_trainer import nets
from nnue_trainer.files import checkpoint
from nnue_trainer.modules.layer_stacks import LayerStacks
from nnue_trainer.nets.base import StackedModel
from nnue_trainer.training.assembly.precision import without_auto
from nnue_trainer.training.run import train

CUDA = torch.device("cuda")


def chosen(device=CUDA, saved=None, *overrides):
    asked = recipe("training.precision=auto", *overrides)
    model = nets.build(asked.model)
    found = without_auto(asked, model, device, saved)
    assert found.model == asked.model
    return found.training.precision


@pytest.fixture
def gpu(monkeypatch):
    """A GPU with kernels for the layers."""
    monkeypatch.setattr(LayerStacks, "may_be_fused", lambda _, device: device.type == "cuda")


def test_it_is_the_default():
    assert recipe().training.precision == "auto"


@pytest.mark.usefixtures("gpu")
def test_mixed_where_it_is_faster(monkeypatch):
    assert chosen() == "mixed"
    assert chosen(torch.device("cpu")) == "fp32"
    assert chosen(CUDA, None, "optimizer={kind: torch, name: RAdam}") == "fp32"  # it keeps no copy
    assert chosen(CUDA, None, "training.compile=true") == "fp32"
    monkeypatch.setattr(StackedModel, "layers_are_fused", nets.base.NnueModel.layers_are_fused)
    assert chosen() == "fp32"


def test_a_gpu_without_kernels():
    assert chosen() == "fp32"


@pytest.mark.parametrize("precision", ["fp32", "tf32", "mixed"])
def test_others_stay(precision):
    asked = recipe(f"training.precision={precision}")
    model = nets.build(asked.model)
    assert without_auto(asked, model, torch.device("cpu"), {"training": {"precision": "fp32"}}) is asked


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ({"training": {"precision": "mixed"}}, "mixed"),
        ({"training": {"precision": "tf32"}}, "tf32"),
        ({"training": {"precision": "fp32"}}, "fp32"),
    ],
)
def test_a_resumed_run_keeps_what_it_began_with(saved, expected):
    """On a GPU, where a new run would be mixed."""
    assert chosen(CUDA, saved) == expected


def test_a_run_says_what_it_took_and_resumes_with_it(tmp_path, project_root, capsys):
    file = project_root / "samples" / "val.binpack"
    settings = (
        f"data.train=[{file}]", "data.batch_size=500", "training.positions_per_epoch=2000", "data.shuffle_buffer=2000",
        "training.device=cpu",
    )  # fmt: skip
    path = tmp_path / "run" / "checkpoints" / "last.safetensors"
    train(recipe("training.precision=mixed", "training.epochs=1", *settings), tmp_path / "run")
    train(recipe("training.precision=auto", "training.epochs=2", *settings), tmp_path / "run", resume="auto")
    assert present(checkpoint.load(path).recipe)["training"]["precision"] == "mixed"
    said = capsys.readouterr().err
    assert said.count("on cpu in mixed precision") == 2
    assert "training.precision" not in said
    run = trainer(tmp_path / "new", "training.precision=auto")
    assert run.run.recipe.training.precision == "fp32"
