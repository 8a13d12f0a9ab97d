"""Schedule-free AdamW on the project's own operators.

Gradients are taken at y. The net that is validated, saved and exported is x, a mean of all steps, so that the learning
rate need not fall.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from nnue_trainer.optim.base import OPTIMIZERS
from nnue_trainer.optim.fused import FusedConfig
from nnue_trainer.optim.update_rule import UpdateRule
from nnue_trainer.schema import section


@OPTIMIZERS.register("schedule_free")
@section
class ScheduleFree(FusedConfig):
    """AdamW that averages its weights instead of lowering the learning rate: use the schedule constant."""

    lr: float = Field(default=2.5e-3, gt=0)
    """learning rate before the schedule"""
    weight_decay: float = Field(default=0.0, ge=0)
    """decoupled: weights shrink by lr·weight_decay per step"""
    warmup_steps: int = Field(default=0, ge=0)
    """steps over which the learning rate rises from zero"""
    weight_power: float = Field(default=0.0, ge=0)
    """step t counts as lr²·t^weight_power in the mean"""

    @model_validator(mode="after")
    def _has_mean(self) -> ScheduleFree:
        if not all(betas[0] > 0 for betas in (self.betas, *(group.betas or self.betas for group in self.groups))):
            raise ValueError(
                "betas: found 0 as the first number, expected more than 0: it is the share of the mean in y"
            )
        return self

    def update(self) -> UpdateRule:
        return UpdateRule(
            "schedule_free", self.betas, self.eps, warmup=self.warmup_steps, weight_power=self.weight_power
        )
