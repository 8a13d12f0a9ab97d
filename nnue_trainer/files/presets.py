"""Recipes that come with the package: a YAML file each in `nnue_trainer/presets/`; the first line is its purpose."""

from __future__ import annotations

import json
import re
from pathlib import Path

from nnue_trainer.errors import UserError, quoted

_FOLDER = Path(__file__).parents[1] / "presets"


def names() -> list[str]:
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def path(name: str) -> Path:
    """The recipe of a preset; UserError for a name that there is not."""
    if name not in names():
        raise UserError(f"preset {quoted(name)}: expected one of {', '.join(names())}")
    return _FOLDER / f"{name}.yaml"


def samples() -> Path | None:
    """The folder of the bundled positions: of the installed package, or of the checkout; None if there is none."""
    folders = (_FOLDER.parent / "samples", _FOLDER.parents[1] / "samples")
    return next((folder for folder in folders if folder.is_dir()), None)


def overrides(name: str) -> list[str]:
    """Overrides with which a preset finds the bundled positions from any folder. None are needed for other presets, or
    where the preset finds its files."""
    folder = samples()
    text = path(name).read_text(encoding="utf-8")
    named = re.findall(r"(?m)^  (train|validation): \[(samples/[\w.]+)\]$", text)
    if folder is None:
        return []
    missing = [(key, folder.parent / file) for key, file in named if not Path(file).exists()]
    return [f"data.{key}=[{json.dumps(str(file))}]" for key, file in missing]


def overrides_of(recipe: Path) -> list[str]:
    """The `overrides` of a recipe's file; none if it is not a preset."""
    return overrides(recipe.stem) if recipe.parent == _FOLDER else []


def description(name: str) -> str:
    """One line."""
    first, _, _ = path(name).read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("#").strip()
