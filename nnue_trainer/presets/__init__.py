"""Recipes that come with the package. Each is a YAML file in this folder; its first line is its purpose."""

from __future__ import annotations

from pathlib import Path

from nnue_trainer.errors import UserError, quoted

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def path(name: str) -> Path:
    """The recipe of a preset; UserError for a name that there is not."""
    if name not in names():
        raise UserError(f"preset {quoted(name)}: expected one of {', '.join(names())}")
    return _FOLDER / f"{name}.yaml"


def where_samples_are() -> str:
    """Part of a message: where the bundled positions of `quickstart` can be found."""
    folder = _FOLDER.parents[1] / "samples"
    if folder.is_dir():
        return f" (this checkout has it in {folder.parent}: start there)"
    return " (the wheel has no sample positions; the repository and the source distribution do, in samples/)"


def description(name: str) -> str:
    """One line."""
    first, _, _ = path(name).read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("#").strip()
