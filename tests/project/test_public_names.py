"""Names that `import nnue_trainer` shows, and that its modules and the documentation print."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import nnue_trainer
from nnue_trainer import FeatureTransformer, PerspectiveTransformer, StackedLinear, config
from nnue_trainer.errors import UserError


def test_dir_is_what_is_public() -> None:
    shown = [name for name in dir(nnue_trainer) if not name.startswith("_")]
    assert shown == sorted(nnue_trainer.__all__)
    assert {"FeatureTransformer", "PerspectiveTransformer", "StackedLinear", "Loader", "Batch", "ops"} <= set(shown)
    for name in nnue_trainer.__all__:
        assert getattr(nnue_trainer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'importlib'"):
        nnue_trainer.importlib  # noqa: B018


@pytest.mark.slow
def test_import_star_and_no_torch_before_it_is_needed() -> None:
    code = (
        "import sys, nnue_trainer; dir(nnue_trainer); assert 'torch' not in sys.modules\n"
        "from nnue_trainer import *; assert Loader and StackedLinear and ops"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_modules_say_what_they_are() -> None:
    assert repr(FeatureTransformer(768, 32)) == "FeatureTransformer(num_features=768, num_outputs=32)"
    half = FeatureTransformer(768, 32, dtype=torch.float16)
    assert repr(half) == "FeatureTransformer(num_features=768, num_outputs=32, dtype=torch.float16)"
    both = PerspectiveTransformer(768, 32, "pairwise", psqt_buckets=8, product_scale=0.5, bucket_size=64)
    assert repr(both) == (
        "PerspectiveTransformer(num_features=768, num_outputs=32, activation='pairwise', psqt_buckets=8, "
        "product_scale=0.5, bucket_size=64)"
    )
    assert repr(StackedLinear(8, 32, 16)) == "StackedLinear(num_stacks=8, in_features=32, out_features=16)"


def test_the_recipe_error_in_the_documentation_is_printed(project_root: Path) -> None:
    data = {
        "model": {"kind": "simple"},
        "data": {"train": ["a.binpack"]},
        "loss": {"kind": "sigmoid"},
        "optimizer": {"weightdecay": 0.1},
    }
    with pytest.raises(UserError) as caught:
        config.parse(data, [], "configs/mine.yaml")
    assert f"{caught.value}\n" in (project_root / "docs" / "training.md").read_text(encoding="utf-8")


def test_classes_to_derive_from_are_public(project_root: Path) -> None:
    """Each base class of the table of parts is in the `__all__` of its module, and so in the reference."""
    page = (project_root / "docs" / "extending.md").read_text(encoding="utf-8")
    bases = re.findall(r"^\| [^|]+ \| `(nnue_trainer\.[\w.]+)\.(\w+)` \|", page, re.M)
    assert len(bases) > 10
    for module, name in bases:
        assert name in importlib.import_module(module).__all__, f"{module}.{name}"


def test_public_modules_of_the_guide_exist(project_root: Path) -> None:
    page = (project_root / "docs" / "api.md").read_text(encoding="utf-8")
    table = "".join(line for line in page.splitlines() if line.startswith("|"))
    named = {name.partition(".")[0] for name in re.findall(r"`([a-z_]+[\w.]*)", table)}
    assert [name for name in named if not hasattr(nnue_trainer, name)] == []
    modules = {name for name in nnue_trainer.__all__ if inspect.ismodule(getattr(nnue_trainer, name))}
    assert modules - named == set()
