"""Recipes from YAML and plain data, with overrides from the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from nnue_trainer import schema
from nnue_trainer.base import programs
from nnue_trainer.config.changes import stage_recipes
from nnue_trainer.config.consent import named_programs
from nnue_trainer.config.sections import Recipe
from nnue_trainer.config.yaml_text import read_value, read_yaml
from nnue_trainer.errors import UserError, quoted


def load(path: str | os.PathLike[str], overrides: Iterable[str] = (), *, trusted: bool = True) -> Recipe:
    """The recipe in a YAML file. UserError, one line, for an unreadable file, an unknown key or a wrong value.
    `trusted` as for `parse`; False to print the recipe only."""
    return parse(read_yaml(path), overrides, str(path), trusted=trusted)


def parse(data: Any, overrides: Iterable[str] = (), origin: str = "recipe", *, trusted: bool = False) -> Recipe:
    """The recipe in plain data, with `dotted.key=value` overrides whose values are YAML. An override replaces the
    value or whole section of its key. UserError, one line, for an unknown key or a wrong value.

    With `trusted`, `kind: path/to/file.py:Class` imports that file, and programs that the recipe names may run: for a
    recipe that the user hands over, not for one that lies in a checkpoint. Without it, only programs that the overrides
    name may run."""
    if not isinstance(data, dict):
        found = "nothing" if data is None else "a list" if isinstance(data, list) else "a value without a key"
        raise UserError(f"{origin}: found {found}, expected the sections of a recipe")
    origins: dict[tuple[str, ...], str] = {}
    for override in overrides:
        name = f"override {quoted(override)}"
        key, equals, text = override.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.[\w-]+)*", key):
            raise UserError(f"{name}: expected key=value, such as optimizer.lr=1e-3")
        path, value = tuple(key.split(".")), read_value(text, name)
        origins |= {path[:n]: name for n in range(1, len(path)) if not _holds(data, path[:n])}
        data = _replace(data, path, value)
        origins[path] = name
    recipe = schema.validate(Recipe, data, partial(_origin, origins, origin), trusted=trusted)
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise UserError(f"{origin}: seeds: found {recipe.seeds}, expected different numbers")
    stage_recipes(recipe, origin, trusted=trusted)  # for its errors
    given = tuple(f"{'.'.join(path)}." for path in origins) if overrides and not trusted else ()
    for key, value in named_programs(recipe).items() if given else ():
        if f"{key}.".startswith(given):
            programs.allow(value)
    return recipe


def _origin(origins: dict[tuple[str, ...], str], recipe: str, path: tuple[str, ...]) -> str:
    """Where the value at `path` comes from. Paths are looked up from the innermost outwards, because the override that
    set the value last is the one to name."""
    for n in range(len(path), 0, -1):
        section = path[: n - 1]
        if path[:n] in origins:
            return origins[path[:n]]
        if section and (*section, "kind") in origins:
            key = ".".join(section)
            override = origins[*section, "kind"]
            return f"{recipe}, whose other fields of {key} remain after {override} ('{key}={{kind: …}}' replaces all)"
    return recipe


def _holds(data: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        data = _inner(data, part)
        if data is None:
            return False
    return True


def _inner(data: Any, part: str) -> Any:
    """The value of a section under a key, or of a list at a number or under a name: `stages.late.training.epochs`."""
    if isinstance(data, list):
        place = _place(data, part)
        return None if place is None else data[place]
    return data.get(part) if isinstance(data, dict) else None


def _place(items: list[Any], part: str) -> int | None:
    named = (i for i, item in enumerate(items) if isinstance(item, dict) and item.get("name") == part)
    number = int(part) if part.isdecimal() and int(part) < len(items) else None
    return next(named, number)


def _replace(data: Any, path: Sequence[str], value: Any) -> Any:
    head, *rest = path
    inner = _replace(_inner(data, head), rest, value) if rest else value
    if isinstance(data, list) and (place := _place(data, head)) is not None:
        return [*data[:place], inner, *data[place + 1 :]]
    return {**(data if isinstance(data, dict) else {}), head: inner}
