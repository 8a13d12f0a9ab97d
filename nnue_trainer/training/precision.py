"""What `training.precision: auto` stands for.

Mixed precision has cost no validation loss, neither on the bundled recipe nor over 100 million positions of SFNNv5
(benchmarks/precision.py, docs/performance.md), so GPUs that multiply bfloat16 take it. A CPU gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from nnue_trainer.config import Precision, Recipe, with_precision


def settled(recipe: Recipe, device: torch.device, saved: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe with another precision than auto: that of the recipe `saved`, in plain data, which a resumed run
    began with; else what is best on the device."""
    if recipe.training.precision != "auto":
        return recipe
    began: Precision = (saved or {}).get("training", {}).get("precision", "auto")
    multiplies = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    chosen = began if began != "auto" else "mixed" if multiplies else "fp32"
    return with_precision(recipe, chosen)
