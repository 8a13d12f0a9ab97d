"""AdamW on the project's own operators: one pass over memory, see `nnue_trainer.optim.fused`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from nnue_trainer import fused_optimizer
from nnue_trainer.optim.base import OPTIMIZERS, OptimizerConfig, Rule, Work
from nnue_trainer.optim.fused import REPLACES, Betas, FusedRule
from nnue_trainer.schema import section


@OPTIMIZERS.register("adamw")
@section
class AdamW(OptimizerConfig):
    """AdamW with decoupled weight decay."""

    replaces: ClassVar[frozenset[str]] = REPLACES
    lr: float = Field(8.75e-4, gt=0)
    """learning rate before the schedule"""
    betas: Betas = (0.9, 0.999)
    """decay of the running mean of the gradient and of its square"""
    eps: float = Field(1e-8, gt=0)
    """added to the root of the mean square gradient"""
    weight_decay: float = Field(0.01, ge=0)
    """decoupled: weights shrink by lr·weight_decay per step"""

    def rule(self, work: Work) -> Rule:
        return FusedRule(work, fused_optimizer.adamw(self.betas, self.eps), decay=self.weight_decay)
