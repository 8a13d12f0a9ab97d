"""The definition of a validation, apart from the weights: loss, filters, files, λ and what selects the best one.

A figure is plain JSON data by the keys of the recipe. Every checkpoint contains it; `best` compares only validations of
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nnue_trainer import config, registry, schema
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.checkpoint import Checkpoint, TrainerState
from nnue_trainer.training import best_by


def figure_of(recipe: Mapping[str, Any], lam: float | str, files: list[Any] | None) -> dict[str, Any]:
    """The figure of a run with a recipe in plain data. `lam`: λ of a validation, or "follow". `files` identify the
    validation files. Classes from outside count with the digest of their file."""
    precision = recipe["training"]["precision"]
    sections: dict[str, Any] = {**_sections(recipe), "training.precision": precision, "lambda": lam}
    text = json.dumps([*sections.values(), recipe["model"], recipe["lambda"]])
    plugins = {name: found for name, found in registry.plugins().items() if name.rpartition(":")[2] in text}
    contents = None if files is None else [_content(file) for file in files]
    figure = {**sections, "data.validation": contents, "plugins": plugins}
    return dict(json.loads(json.dumps(figure, default=str)))


def _sections(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a recipe in plain data that decide a validation loss as they are."""
    keys = ("validation_positions", "filters", "formats", "skip_bad_chunks")
    validation = recipe["validation"]
    found = {"loss": validation["loss"] or recipe["loss"]} | {f"data.{key}": recipe["data"][key] for key in keys}
    if validation["filters"] is not None:
        found["data.filters"] = validation["filters"]
    found |= {"validation.sample": validation["sample"], "training.best_by": recipe["training"]["best_by"]}
    if found["training.best_by"] != best_by.LOSS:
        found |= {f"validation.{key}": validation[key] for key in ("scale", "sets")}
    return found


def changed(saved: Checkpoint, state: TrainerState, now: Mapping[str, Any]) -> list[str]:
    """The keys whose values in the figure of a checkpoint differ from those in `now`. Checkpoints of
    earlier versions have only their recipe for that."""
    then = state.figure
    if then is None:
        try:
            then = _sections(schema.to_data(config.parse(saved.recipe or {})))
        except UserError:
            return []
    return [key for key in now if key in then and then[key] != now[key]]


def _content(file: Any) -> Any:
    """The data by which the loader identifies a file, without its name."""
    return file[1:] if isinstance(file, list) else file


def same_files(state: TrainerState, now: list[Any] | None) -> bool:
    """Whether the validation files have the sizes and contents that they had in the checkpoint; names may differ."""

    def contents(files: list[Any] | None) -> list[Any]:
        return [_content(file) for file in files or []]

    return contents(state.validation_files) == contents(now)


def names(files: list[Any] | None) -> str:
    return shown(
        ", ".join(str(file[0]) if isinstance(file, list) and file else str(file) for file in files or ["none"])
    )
