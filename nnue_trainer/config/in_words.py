"""Recipes in words: a recipe in full, and the reference of all fields."""

from __future__ import annotations

import yaml

from nnue_trainer import schema
from nnue_trainer.config.sections import Recipe


def to_yaml(recipe: Recipe) -> str:
    """Every field, defaults included; `load` reads it back as the same recipe."""
    return yaml.safe_dump(schema.to_data(recipe), sort_keys=False, allow_unicode=True, width=120)


def reference() -> str:
    """All fields of a recipe with type, default and meaning, for people to read. A field of a class is "as above" if
    the last description of its key has the same type and meaning, and so is a whole section of equal fields. Sections
    that occur in several places are described once."""
    lines: list[str] = []
    described: dict[str, tuple[str, str, str]] = {}  # key -> type, meaning and default where it was last described
    rows: set[tuple[str, str, str, str]] = set()
    sections: dict[str, str] = {}  # "filters.min_ply" -> "data.filters.min_ply"
    head, prefix = 0, ""  # of the class whose fields come now: its line in `lines`, and what its keys begin with
    shared: dict[str, str] = {}  # key -> its default, if that differs

    def end_of_class() -> None:
        names: dict[str, None] = {}
        for key, differing in shared.items():
            section = prefix + key.removeprefix(prefix).split(".")[0]
            inside = [other for other in described if other == section or other.startswith(f"{section}.")]
            is_whole = all(shared.get(other) == "" for other in inside)
            names[(section if is_whole else key).removeprefix(prefix) + differing] = None
        if names:
            lines[head] += f"\n    also {', '.join(names)}: as above"
        shared.clear()

    for key, kind, default, text in schema.describe(Recipe):
        value = f" [{default}]" if default else ""
        inner, same = _seen_elsewhere(key, sections)
        rows.add((key, kind, text, default))
        if (same, kind, text, default) in rows:
            line = f"{key.removesuffix(inner)}: as {same.removesuffix(inner)}"
            if line not in lines:
                end_of_class()
                lines.append(line)
                prefix = key.removesuffix(inner)
            continue
        if not key.startswith(prefix):
            end_of_class()
        if kind.startswith("="):
            end_of_class()
            head, prefix = len(lines), key.removesuffix("kind")
        else:
            if text and key in described and described[key][:2] == (kind, text):
                shared[key] = "" if described[key][2] == default else value
                continue
            described[key] = (kind, text, default)
        start = f"{key} {kind}" if kind.startswith("=") else f"{key}: {kind}{value}"
        lines.append(f"{start}\n    {text}" if text else start)
    end_of_class()
    return "\n".join(lines)


def _seen_elsewhere(key: str, sections: dict[str, str]) -> tuple[str, str]:
    """For "validation.filters.min_ply": ".min_ply", and "data.filters.min_ply", the first key with this end. Empty for
    a key that is the first one with each of its ends."""
    parts = key.split(".")
    for at in range(1, len(parts) - 1):
        end = ".".join(parts[at:])
        if "N" not in parts[at : at + 2] and (first := sections.setdefault(end, key)) != key:
            return end.removeprefix(parts[at]), first
    return "", ""
