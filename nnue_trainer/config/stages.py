"""Stages of a recipe: what each changes of the rest of the recipe, as plain data.

`config` reads the result as a separate recipe; `training.stages` gives the steps of each stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from nnue_trainer import schema
from nnue_trainer.schema import section


@section
class Stage:
    """One stage: how it begins, and what it changes of the recipe. A section is merged with the recipe's, key by
    key; one that names another kind replaces it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    """name, for messages and for --stage"""
    carry: Literal["weights", "optimizer"] = "weights"
    """what the stage takes from the previous one. weights: only the net's weights, or their average if there is one;
    optimizer, schedules and λ start again. optimizer: also the state of the optimizer and of the average; schedules
    and λ continue to count steps and epochs"""
    take: Literal["last", "best", "average"] = "last"
    """checkpoint of the previous stage to start from; average: the last one, whose average becomes the weights also
    with carry: optimizer"""
    model: dict[str, Any] = Field(default_factory=dict)
    """changes of the model: quantisation (and with it quantisation-aware training) only"""
    data: dict[str, Any] = Field(default_factory=dict)
    """changes of data, such as other files, filters or batch size"""
    loss: dict[str, Any] = Field(default_factory=dict)
    """changes of the loss"""
    position_weight: dict[str, Any] = Field(default_factory=dict)
    """changes of the weights of positions"""
    lambda_: dict[str, Any] = Field(default_factory=dict, alias="lambda")
    """changes of λ"""
    optimizer: dict[str, Any] = Field(default_factory=dict)
    """changes of the optimizer"""
    schedule: dict[str, Any] = Field(default_factory=dict)
    """changes of the learning-rate schedule"""
    average: dict[str, Any] = Field(default_factory=dict)
    """changes of the average"""
    validation: dict[str, Any] = Field(default_factory=dict)
    """changes of the validation"""
    training: dict[str, Any] = Field(default_factory=dict)
    """changes of training, such as this stage's epochs"""

    def changes(self) -> dict[str, dict[str, Any]]:
        """The changes by section."""
        return {name: value for name, value in schema.to_data(self).items() if name in SECTIONS and value}


SECTIONS = frozenset(schema.to_data(Stage(name="any")).keys() - {"name", "carry", "take"})
"""The sections of a recipe that a stage may change."""


def changed(recipe: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    """The recipe of a stage in plain data, from that of the whole run."""
    merged = {name: value for name, value in recipe.items() if name not in ("stages", "seeds")}
    for name, change in stage.changes().items():
        merged[name] = _merge(merged.get(name), change)
    if "train" in stage.data and "weights" not in stage.data:
        merged["data"]["weights"] = []  # the recipe's are those of other files
    return merged


def _merge(before: Any, change: Any) -> Any:
    if not isinstance(before, Mapping) or not isinstance(change, Mapping):
        return change
    if change.get("kind", before.get("kind")) != before.get("kind"):
        return dict(change)
    return {**before, **{key: _merge(before.get(key), value) for key, value in change.items()}}
