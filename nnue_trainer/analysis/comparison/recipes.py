"""The recipes of a comparison, from the words of a command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnue_trainer import config, schema
from nnue_trainer.config import Recipe
from nnue_trainer.config.outline import outline
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.files import presets
from nnue_trainer.training.assembly import stages_of
from nnue_trainer.training.resuming import differences

_LONGEST_LABEL = 48
_CLOSE = 0.01  # share by which the positions of two recipes may differ, since an epoch has whole batches


@dataclass(frozen=True)
class Entrant:
    """A recipe of a comparison. `label` names it in tables, files and folders; `copy` is the number of equal recipes
    before it: each copy trains with other seeds."""

    label: str
    path: Path
    overrides: tuple[str, ...]
    copy: int = 0

    def recipe(self, *more: str) -> Recipe:
        """The recipe, with more fields overridden."""
        overrides = [*presets.overrides_of(self.path), *self.overrides, *more]
        found, _ = config.with_files(config.load(self.path, overrides))
        return found

    def with_overrides(self, *more: str) -> Entrant:
        return replace(self, overrides=(*self.overrides, *more))


def entrants_of(arguments: Sequence[str], common: Iterable[str] = ()) -> list[Entrant]:
    """The recipes that a command line names: files, presets, and texts of overrides, each of which stands for the file
    or preset before it with these changes; "NAME: …" names it. `common`: overrides for all. UserError, one line, for
    other words, fewer than two recipes, or changes that change nothing. A file or preset may be named again."""
    found: list[Entrant] = []
    base: Path | None = None
    for argument in arguments:
        named = re.fullmatch(r"([\w.+-]+):\s+(.*)", argument, re.DOTALL)
        label, text = (named[1], named[2]) if named else ("", argument)
        path = _recipe_file(text)
        if path is not None:
            base = path
            found.append(Entrant(label or path.stem, path, tuple(common)))
            continue
        if "=" not in text:
            raise UserError(f"compare: {quoted(text)}: no such file or preset, and no KEY=VALUE")
        if base is None:
            raise UserError(f"compare: {quoted(text)}: expected a RECIPE or a preset before it")
        changes = _words(text)
        found.append(Entrant(label or _label(changes), base, (*common, *changes)))
    if len(found) < 2:
        raise UserError(f"compare: found {len(found)} recipe{'s' * (len(found) != 1)}, expected two or more")
    return _with_copies(_distinct(found), tuple(common))


def _recipe_file(text: str) -> Path | None:
    try:
        if Path(text).is_file():
            return Path(text)
    except OSError:  # a long override
        return None
    return presets.path(text) if text in presets.names() else None


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"compare: {quoted(text)}: {error}") from None
    wrong = next((word for word in words if "=" not in word), None)
    if wrong is not None:
        raise UserError(f"compare: {quoted(text)}: {quoted(wrong)}: expected KEY=VALUE")
    return words


def _label(changes: Sequence[str]) -> str:
    """A name for changes of a recipe: the last words of their keys, and their values."""
    text = ",".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in (word.partition("=") for word in changes))
    return re.sub(r"[^\w.,=+-]+", "_", text).strip("._")[:_LONGEST_LABEL]


def _distinct(entrants: Sequence[Entrant]) -> list[Entrant]:
    found: list[Entrant] = []
    for entrant in entrants:
        label, number = entrant.label, 1
        while label.lower() in {other.label.lower() for other in found}:
            number += 1
            label = f"{entrant.label}-{number}"
        found.append(replace(entrant, label=label))
    return found


def _with_copies(entrants: Sequence[Entrant], common: tuple[str, ...]) -> list[Entrant]:
    found: list[Entrant] = []
    same: dict[str, list[str]] = {}
    for entrant in entrants:
        labels = same.setdefault(config.to_yaml(entrant.recipe()), [])
        if labels and entrant.overrides != common:
            raise UserError(
                f"compare: {labels[0]} and {entrant.label}: the same recipe, expected different ones; name a file or "
                "preset twice to compare it with itself, with other seeds"
            )
        found.append(replace(entrant, copy=len(labels)))
        labels.append(entrant.label)
    return found


def positions(recipe: Recipe) -> int:
    """The positions of a whole run."""
    last = stages_of(recipe)[-1]
    return last.positions_at(last.end)


def check_comparable(entrants: Sequence[Entrant], *, same_positions: bool, any_net: bool) -> None:
    """UserError for recipes that this command does not compare. `any_net`: whether nets play that no engine reads."""
    recipes = [entrant.recipe() for entrant in entrants]
    first = positions(recipes[0])
    for entrant, recipe in zip(entrants, recipes, strict=True):
        facts = outline(recipe)
        if facts.seeds:
            raise UserError(f"compare: {entrant.label}: the recipe has seeds; leave them out, and use --seeds")
        if facts.max_hours:
            raise UserError(f"compare: {entrant.label}: training.max_time ends the run early; set it to 0")
        if facts.unreadable is not None and not any_net:
            raise UserError(f"compare: {entrant.label}: model.{facts.unreadable}")
        own = positions(recipe)
        if same_positions and abs(own - first) > _CLOSE * first:
            raise UserError(
                f"compare: {entrant.label} trains on {own:,} positions, {entrants[0].label} on {first:,}: set "
                "training.epochs or training.positions_per_epoch, or use --equal time or --equal none"
            )


def changes(first: Recipe, other: Recipe) -> list[str]:
    """The fields in which a recipe differs from the first one, "key: value"."""
    return [f"{key}: {_short(value)}" for key, _, value in differences(schema.to_data(first), schema.to_data(other))]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
