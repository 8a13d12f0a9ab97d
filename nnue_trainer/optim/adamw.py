"""AdamW on the project's own operators: one pass over memory, see `nnue_trainer.optim.fused`."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.optim.base import OPTIMIZERS
from nnue_trainer.optim.fused import FusedConfig
from nnue_trainer.optim.update_rule import UpdateRule
from nnue_trainer.schema import section


@OPTIMIZERS.register("adamw")
@section
class AdamW(FusedConfig):
    """AdamW with decoupled weight decay."""

    lr: float = Field(default=8.75e-4, gt=0)
    """learning rate before the schedule"""
    correct_bias: bool = True
    """correct the bias of the running means, which start at zero; false: as in bullet"""

    def update(self) -> UpdateRule:
        return UpdateRule("adam", self.betas, self.eps, corrects_bias=self.correct_bias)
