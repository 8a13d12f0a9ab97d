"""AdamW on the project's own operators: one pass over memory, see `nnue_trainer.optim.fused`."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer import fused_optimizer
from nnue_trainer.optim.base import OPTIMIZERS, Rule, Work
from nnue_trainer.optim.fused import FusedConfig, FusedRule
from nnue_trainer.schema import section


@OPTIMIZERS.register("adamw")
@section
class AdamW(FusedConfig):
    """AdamW with decoupled weight decay."""

    lr: float = Field(8.75e-4, gt=0)
    """learning rate before the schedule"""

    def rule(self, work: Work) -> Rule:
        return FusedRule(work, fused_optimizer.adamw(self.betas, self.eps), decay=self.weight_decay)
