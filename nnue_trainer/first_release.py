"""Translates recipes of the first release, in files and in checkpoints, into the keys of today.

In that release λ was part of the loss, with opposite signs in the two losses that had it (`start_lambda` and
`start_wdl`), the optimizer section had no `kind`, and mixed precision was called bf16. No other file handles this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnue_trainer.errors import UserError

_LAMBDA = {"start_lambda": "start", "end_lambda": "end", "lambda_steps": "steps", "lambda_bump": "bump"}
_WDL = {"start_wdl": "start", "end_wdl": "end", "wdl_steps": "steps"}
_MOVED = _LAMBDA | _WDL


def translate(recipe: Mapping[str, Any], origin: str) -> tuple[dict[str, Any], list[str]]:
    """(the recipe in keys of today, one note for each thing that was translated). A recipe of today comes back as it
    is. UserError where keys of both define λ."""
    recipe = dict(recipe)
    notes: list[str] = []
    training = recipe.get("training")
    if isinstance(training, dict) and training.get("precision") == "bf16":
        recipe["training"] = {**training, "precision": "mixed"}
        notes.append("training.precision: bf16 of the first release: read as mixed")
    loss = recipe.get("loss")
    moved = [key for key in _MOVED if isinstance(loss, dict) and key in loss]
    if not isinstance(loss, dict) or not moved:
        return recipe, notes
    if "lambda" in recipe:
        raise UserError(f"{origin}: loss.{moved[0]} has moved to the section lambda, which this recipe has as well")
    recipe["loss"] = {key: value for key, value in loss.items() if key not in _MOVED}
    schedule = {_MOVED[key]: _game_result_to_score(key, loss[key]) for key in moved}
    start, end = schedule.get("start", 1.0), schedule.get("end", 1.0)
    if start == end and not schedule.get("bump"):
        recipe["lambda"] = {"kind": "constant", "value": start}
    else:
        recipe["lambda"] = {"kind": "linear", "start": start, "end": end, "steps": None, "bump": 0.0, **schedule}
    inner = ", ".join(f"{key}: {'null' if value is None else value}" for key, value in recipe["lambda"].items())
    notes.append(f"{', '.join(f'loss.{key}' for key in moved)} of the first release: read as lambda: {{{inner}}}")
    return recipe, notes


def translate_saved(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe in a checkpoint in keys of today, to be compared with one of today."""
    recipe, _ = translate(recipe, "checkpoint")
    optimizer = recipe.get("optimizer")
    if isinstance(optimizer, dict):
        recipe["optimizer"] = {"kind": "adamw", **optimizer}
    return recipe


def _game_result_to_score(key: str, value: Any) -> Any:
    """`start_wdl` was the share of the game's result; λ is that of the score."""
    if key not in ("start_wdl", "end_wdl") or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return round(1 - value, 12)  # 1 − 0.9 is 0.1, not 0.09999999999999998
