"""What `training.precision: auto` stands for."""

import pytest
import torch
from made_up import trainer

from nnue_trainer import checkpoint, config
from nnue_trainer.training.precision import settled


@pytest.mark.parametrize(
    ("device", "capability", "expected"),
    [("cpu", None, "fp32"), ("cuda", (7, 5), "fp32"), ("cuda", (8, 0), "mixed"), ("cuda:1", (12, 0), "mixed")],
)
def test_auto_follows_the_device(monkeypatch, project_root, device, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    recipe = config.load(project_root / "configs" / "quickstart.yaml")
    assert recipe.training.precision == "auto"
    found = settled(recipe, torch.device(device))
    assert found.training.precision == expected
    assert found.model == recipe.model


@pytest.mark.parametrize("precision", ["fp32", "tf32", "mixed"])
def test_others_stay(project_root, precision):
    recipe = config.load(project_root / "configs" / "quickstart.yaml", [f"training.precision={precision}"])
    assert settled(recipe, torch.device("cpu"), {"training": {"precision": "fp32"}}) is recipe


def test_a_resumed_run_keeps_what_it_began_with(project_root):
    recipe = config.load(project_root / "configs" / "quickstart.yaml")
    for began in ("fp32", "mixed"):
        assert settled(recipe, torch.device("cpu"), {"training": {"precision": began}}).training.precision == began
    assert settled(recipe, torch.device("cpu"), {}).training.precision == "fp32"


def test_the_run_says_what_it_took(tmp_path):
    """Its recipe and checkpoints name a precision, so that another device continues with the same."""
    run = trainer(tmp_path / "run")
    assert run.recipe.training.precision == "fp32"
    run.train()
    saved = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert saved.recipe["training"]["precision"] == "fp32"
