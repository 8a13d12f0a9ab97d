"""Names that `import nnue_trainer` shows, and that its modules and the documentation print."""

from __future__ import annotations

import importlib
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


@pytest.mark.slow
def test_the_pages_of_the_public_api(project_root: Path) -> None:
    tool = project_root / "tools" / "api_page.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_pages_of_the_public_api_leave_other_pages_alone(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project_root / "tools")
    monkeypatch.setattr(sys, "argv", ["api_page.py"])
    tool = importlib.import_module("api_page")
    monkeypatch.setattr(tool, "DOCS", tmp_path)
    (tmp_path / "api-by-hand.md").write_text("by hand")
    assert tool.main() == 0
    assert {page.name for page in tmp_path.iterdir()} == {"api.md", "api-by-hand.md", *tool.SUBJECTS}
    assert (tmp_path / "api-by-hand.md").read_text() == "by hand"


@pytest.mark.parametrize(
    ("page", "name", "texts"),
    [
        (
            "api-loader",
            "Loader",
            ["features: str | FeatureSet", "shuffle: bool = True,", "- `state_dict() -> dict[str, "],
        ),
        ("api-loader", "LoaderOptions", ["| `shuffle_buffer` | `int` | `4194304` | positions that are mixed"]),
        ("api-loader", "RecordLoader", ["- and, as for [`Loader`](api-loader.md#loader): `epoch`"]),
        ("api-data", "Game", ["class Game(fen: str, chess960: bool = False)", "- `outcome() -> str`: "]),
        ("api-data", "Filters", ["| `max_score` | `int ≥ 0, ≤ 32767` | `0` |"]),
        ("api-modules", "FeatureTransformer", ["dtype: torch.dtype | None = None", "- `ValueError`: a size"]),
        ("api-nets", "NnueModel", ["- `weight_bounds() -> Iterator[WeightBound]`: "]),
        ("api-optim", "Optimizer", ["- `step(loss: Tensor) -> None`: ", "- `capturable: bool`: "]),
        ("api-optim", "AdamW", ["| `max_norm` | `float | None > 0` | `None` |", "- and those of [`OptimizerConfig`]"]),
        ("api-losses", "Loss", ["- `terms(net: Tensor, score: Tensor, result: Tensor, lam: Tensor | float, "]),
        ("api-match", "Sprt", ["| `model` | `Literal['normalized', 'logistic']` |"]),
        ("api-operators", "expand_features", ["**Args**", "- `records`: uint8 [B, 32]", "- `RuntimeError`: "]),
    ],
)
def test_an_entry_has_types_options_and_methods(project_root: Path, page: str, name: str, texts: list[str]) -> None:
    text = (project_root / "docs" / f"{page}.md").read_text(encoding="utf-8").replace("\\|", "|")
    (entry,) = re.findall(rf"(?ms)^### {name}$(.*?)(?=^##|\Z)", text)
    assert [part for part in texts if part not in entry] == []


def test_classes_to_derive_from_are_public(project_root: Path) -> None:
    """Each base class of the table of parts has an entry on the pages of the public API."""
    docs = project_root / "docs"
    bases = re.findall(r"^\| [^|]+ \| `(nnue_trainer\.[\w.]+)\.(\w+)` \|", (docs / "extending.md").read_text(), re.M)
    text = "\n".join(page.read_text(encoding="utf-8") for page in docs.glob("api*.md"))
    sections = re.findall(r"(?ms)^## (\S+)$(.*?)(?=^## |^# |\Z)", text)
    assert len(bases) > 10
    for module, name in bases:
        assert any(f"\n### {name}\n" in entries for room, entries in sections if room == module), f"{module}.{name}"
