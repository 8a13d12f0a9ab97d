"""The choice of `training.precision: auto`.

No difference between the validation losses of mixed precision and fp32 was found (benchmarks/precision.py,
docs/training.md), so training takes mixed precision where it is faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import torch

from nnue_trainer import schema
from nnue_trainer.config import Precision, Recipe, with_precision
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim import per_group

_KNOWN = {*get_args(Precision)} - {"auto"}


def without_auto(
    recipe: Recipe, model: NnueModel, device: torch.device, saved: Mapping[str, Any] | None = None
) -> Recipe:
    """The recipe with another precision than auto. A resumed run keeps that of the recipe `saved`, in plain data."""
    if recipe.training.precision != "auto":
        return recipe
    began: Any = schema.value_at(saved, "training.precision", str)
    if began not in _KNOWN:
        began = "mixed" if _gains(recipe, model, device) else "fp32"
    return with_precision(recipe, began)


def _gains(recipe: Recipe, model: NnueModel, device: torch.device) -> bool:
    """Whether mixed precision is faster here and only the feature transformer computes in 16 bits: its optimiser keeps
    a copy of the weight, and operators compute the rest."""
    copies = "virtual_rows" in per_group.replaces(recipe.optimizer)
    return copies and not recipe.training.compile and model.layers_are_fused(device)
