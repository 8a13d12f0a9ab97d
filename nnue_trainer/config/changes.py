"""Recipes made from a recipe: of its stages and seeds, with the files that patterns stand for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nnue_trainer import schema
from nnue_trainer.config.sections import Precision, Recipe
from nnue_trainer.config.stages import changed
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.files.inputs import became, data_files
from nnue_trainer.optim.base import OptimizerConfig

T = TypeVar("T")


def stage_recipes(recipe: Recipe, origin: str = "recipe", *, trusted: bool = False) -> list[Recipe]:
    """The recipe of each stage, without stages of its own; of a recipe without stages, the recipe. UserError, one line
    naming the stage, for what a stage cannot change."""
    _check_outputs(recipe, origin)
    if not recipe.stages:
        return [recipe]
    base, found, names = schema.to_data(recipe), list[Recipe](), set[str]()
    for number, stage in enumerate(recipe.stages):
        where = f"{origin}: stage {stage.name}"
        if stage.name in names:
            raise UserError(f"{where}: the name is given twice, expected different names")
        names.add(stage.name)
        merged = schema.validate(Recipe, changed(base, stage), partial(_always, where), trusted=trusted)
        _check_outputs(merged, where)
        data = schema.to_data(merged)
        for key in _FIXED:
            if data["training"][key] != base["training"][key]:
                raise UserError(f"{where}: training.{key} belongs to the whole run: set it outside of the stages")
        if _without(data["model"], "quantisation") != _without(base["model"], "quantisation"):
            raise UserError(f"{where}: model: found other values, expected only changes of model.quantisation")
        for key, value, default in (("carry", stage.carry, "weights"), ("take", stage.take, "last")):
            if number == 0 and value != default:
                raise UserError(
                    f"{where}: {key}: found {value}, expected {default}, as no stage comes before the first one; "
                    "training.initial_weights begins from the weights of a file, --resume continues a run"
                )
        own, before = [_rules(each.optimizer) for each in (merged, found[-1] if number else merged)]
        if stage.carry == "optimizer" and own != before:
            raise UserError(
                f"{where}: optimizer.kind: found {own} with carry: optimizer, expected {before} as in the stage "
                "before; another one begins with carry: weights"
            )
        if number and stage.take == "average" and found[-1].average is None:
            raise UserError(f"{where}: take: found average, expected last, as the stage before has none")
        if number and stage.take == "best" and not found[-1].data.validation:
            raise UserError(f"{where}: take: found best, expected last, as the stage before has no validation files")
        found.append(merged)
    return found


def _rules(config: OptimizerConfig) -> str:
    """The rules of an optimizer."""
    groups = [f", {group.rule.kind!r} of {group.match!r}" for group in config.groups if group.rule is not None]
    return f"{config.kind!r}{''.join(groups)}"


def _check_outputs(recipe: Recipe, origin: str) -> None:
    """UserError for a loss that reads other outputs than the net has."""
    for where, loss in (("loss", recipe.loss), ("validation.loss", recipe.validation.loss)):
        if loss is not None and loss.reads not in (0, recipe.model.num_outputs):
            raise UserError(
                f"{origin}: {where}.kind: found {loss.kind!r}, which reads {loss.reads} outputs, but the net "
                f"{recipe.model.kind!r} gives {recipe.model.num_outputs}; expected a net with {loss.reads}, such as "
                "kind: layered with head: wdl for three"
            )


def _always(where: str, path: tuple[str, ...]) -> str:
    return where


_FIXED = ("seed", "device", "deterministic", "initial_weights")
"""Fields of `training` that are the whole run's."""


def _without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def only_stage(recipe: Recipe, name: str) -> Recipe:
    """The recipe of one stage, as a separate run. UserError if there is none of this name."""
    for stage, its in zip(recipe.stages, stage_recipes(recipe), strict=False):
        if stage.name == name:
            return its
    names = ", ".join(stage.name for stage in recipe.stages)
    raise UserError(f"stage {quoted(name)}: found {names or 'a recipe without stages'}, expected one of them")


_LISTS = ("train", "validation", "files")
"""The fields of a section that list data files."""


def with_files(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe with patterns and folders of data files replaced by the files they stand for now, and lines that list
    what each became. A resumed run thus reads the files it began with. UserError if nothing matches."""
    notes: list[str] = []

    def expanded(now: Mapping[str, Any], _: Any, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in _LISTS:
            names = now.get(key)
            if names is None:
                continue
            names = [names] if isinstance(names, str) else names
            files = [data_files([name], f"{where}{key}") for name in names]
            found[key] = [file for each in files for file in each]
            if key == "train" and now.get("weights"):
                weights = zip(now["weights"], files, strict=True)
                found["weights"] = [weight for weight, each in weights for _ in each]
            note = became(names, found[key])
            notes.extend([f"{where}{key}: {note}"] if note else [])
        return found

    return _with_lists(recipe, {}, expanded), notes


def with_known_files(recipe: Recipe, saved: Mapping[str, Any]) -> tuple[Recipe, list[str]]:
    """The recipe without the files that were added to its lists of data files since a run began, if they lie in the
    folders of others, and lines that name them. `saved`: the recipe in a checkpoint of that run, as plain data, which
    need not be a valid recipe."""
    notes: list[str] = []

    def known(now: Mapping[str, Any], then: Any, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in _LISTS:
            names, before = now.get(key), then.get(key) if isinstance(then, Mapping) else None
            if not isinstance(names, list) or not isinstance(before, list) or len(names) <= len(before):
                continue
            if not all(isinstance(file, str) for file in before):
                continue
            rest = iter(names)
            folders = {Path(str(file)).parent for file in before}
            added = [file for file in names if file not in set(before)]
            if not all(file in rest for file in before) or len(added) != len(names) - len(before):
                continue
            if not {Path(file).parent for file in added} <= folders:
                continue
            found[key] = before
            if key == "train" and now.get("weights"):
                weights = zip(names, now["weights"], strict=True)
                found["weights"] = [weight for file, weight in weights if file not in set(added)]
            more = f" and {len(added) - 1:,} more" if len(added) > 1 else ""
            notes.append(
                f"{where}{key}: {added[0]}{more} came after the run began, which continues with its {len(before):,} "
                "files; a new run, or training.initial_weights, uses all of them"
            )
        return found

    return _with_lists(recipe, saved, known), notes


def _with_lists(
    recipe: Recipe, saved: Mapping[str, Any], change: Callable[[Mapping[str, Any], Any, str], dict[str, Any]]
) -> Recipe:
    """The recipe with what `change` makes of each section that lists data files: it gets the section, the same section
    of the recipe `saved`, which need not be valid, and the words before a key in messages."""
    named = {key: getattr(recipe.data, key) for key in ("train", "weights", "validation")}
    data = recipe.data
    for key, value in change(named, saved.get("data"), "data.").items():
        data = _changed(data, key, value)
    old_stages = schema.value_at(saved, "stages", list) or []
    then = {str(stage.get("name")): stage for stage in old_stages if isinstance(stage, dict)}
    stages = []
    for stage in recipe.stages:
        # Weights are those of the entries as they stand in the recipe.
        own = {"train": named["train"], **stage.data} if "weights" in stage.data else stage.data
        found = change(own, then.get(stage.name, {}).get("data"), f"stage {stage.name}: data.")
        stages.append(_changed(stage, "data", stage.data | found))
    old_sets = schema.value_at(saved, "validation.sets", list) or []
    sets = list(recipe.validation.sets)
    for i, one in enumerate(sets):
        old = old_sets[i] if i < len(old_sets) else None
        for key, value in change({"files": one.files}, old, f"validation.sets.{one.name}.").items():
            sets[i] = _changed(one, key, value)
    recipe = _changed(recipe, "validation", _changed(recipe.validation, "sets", sets))
    return _changed(_changed(recipe, "data", data), "stages", stages)


def with_precision(recipe: Recipe, precision: Precision) -> Recipe:
    """The recipe with this `training.precision`."""
    return _changed(recipe, "training", _changed(recipe.training, "precision", precision))


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with this `training.seed`."""
    return _changed(recipe, "training", _changed(recipe.training, "seed", seed))


def with_only_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe of one of its seeds."""
    return _changed(with_seed(recipe, seed), "seeds", [])


def _changed(instance: T, name: str, value: Any) -> T:
    """A section with another value in one field; `dataclasses.replace` does not support aliases."""
    changed = copy.copy(instance)
    object.__setattr__(changed, name, value)  # frozen, as all sections are
    return changed
