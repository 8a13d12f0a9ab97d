"""The operators of a step: `nnue::_optimizer_step` makes it for an optimiser that `nnue::_optimizer_describe` read.

It reads the loss and gradients before anything is written, takes their norm, counts the step, and computes the numbers
that the rule needs in this step. Then it reads gradients, weights and moments once and writes weights and moments once:
decay, virtual rows, clip to bounds, lookahead and a 16-bit copy of the weight included. Learning rate, step count and
the flag of failure live on the device, so a step can be captured in a CUDA graph. The contract is in csrc/optimizer.h;
`FusedOptimizer` calls them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnue_trainer.base._registration import register_fakes, writes_only

namespace = torch.ops.nnue
"""Where all calls of these operators find them; tests put the emulated ones here."""

# The numbers of a step, float64: the enum Number of csrc/optimizer.h.
NUMBERS = 16
GRADIENT = 5
NORM = 8
KEPT = slice(11, 14)
"""The numbers that are part of the state: kFirstKept to kLastKept."""


def _norm(gradients: object, shared_rows: object, rows: object, numbers: Tensor) -> Tensor:
    return numbers.new_empty(NUMBERS)


register_fakes(
    {f"nnue::_optimizer_{name}": writes_only for name in ("step", "update_matrices", "mark_rows", "catch_up")}
    | {"nnue::_optimizer_norm": _norm, "nnue::_optimizer_describe": lambda *_: 0}
)
