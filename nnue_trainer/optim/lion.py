"""Lion on the project's own operators: the sign of a running mean of the gradient, and no squares."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.optim.base import OPTIMIZERS, Betas
from nnue_trainer.optim.fused import FusedConfig
from nnue_trainer.optim.update_rule import UpdateRule
from nnue_trainer.schema import section


@OPTIMIZERS.register("lion")
@section
class Lion(FusedConfig):
    """Each weight moves by ±lr. Use a learning rate 3 to 10 times lower than AdamW's, and a decay higher by the same
    factor."""

    lr: float = Field(default=1e-4, gt=0)
    """learning rate before the schedule"""
    betas: Betas = (0.9, 0.99)
    """share of the running mean in the direction of a step, and its own decay"""
    eps: float = Field(default=1e-8, gt=0)
    """not used"""
    weight_decay: float = Field(default=0.0, ge=0)
    """decoupled: weights shrink by lr·weight_decay per step"""

    def update(self) -> UpdateRule:
        return UpdateRule("lion", self.betas, self.eps)
