"""The definition of a validation, apart from the weights: loss, filters, files, λ and what selects the best one.

A figure is plain JSON data by the keys of the recipe. Every checkpoint contains it; `best` compares only validations of
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nnue_trainer import registry
from nnue_trainer.errors import shown
from nnue_trainer.files.checkpoint import TrainerState
from nnue_trainer.training.figures import LOSS


def figure_of(recipe: Mapping[str, Any], lam: float | str, files: list[Any] | None) -> dict[str, Any]:
    """The figure of a run with a recipe in plain data. `lam`: λ of a validation, or "follow". `files` identify the
    validation files. Classes from outside count with the digest of their file."""
    data, validation, training = recipe["data"], recipe["validation"], recipe["training"]
    figure: dict[str, Any] = {"loss": validation["loss"] or recipe["loss"]}
    figure |= {f"data.{key}": data[key] for key in ("validation_positions", "filters", "formats", "skip_bad_chunks")}
    if validation["filters"] is not None:
        figure["data.filters"] = validation["filters"]
    figure |= {"validation.sample": validation["sample"], "training.best_by": training["best_by"]}
    if training["best_by"] != LOSS:
        figure |= {f"validation.{key}": validation[key] for key in ("scale", "sets")}
    figure |= {"training.precision": training["precision"], "lambda": lam}
    text = json.dumps([*figure.values(), recipe["model"], recipe["lambda"]])
    figure["data.validation"] = None if files is None else [_content(file) for file in files]
    figure["plugins"] = {name: found for name, found in registry.plugins().items() if name.rpartition(":")[2] in text}
    return dict(json.loads(json.dumps(figure, default=str)))


def changed(state: TrainerState, now: Mapping[str, Any]) -> list[str]:
    """The keys whose values in the figure of a checkpoint differ from those in `now`."""
    then = state.figure or {}
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
