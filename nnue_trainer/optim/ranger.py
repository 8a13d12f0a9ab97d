"""RangerLite and Ranger on the project's own operators: lookahead over momentum of two kinds, gradients clipped."""

from __future__ import annotations

from pydantic import Field, model_validator

from nnue_trainer.optim.base import OPTIMIZERS, Betas
from nnue_trainer.optim.fused import FusedConfig
from nnue_trainer.optim.update_rule import UpdateRule
from nnue_trainer.schema import section


@OPTIMIZERS.register("ranger_lite")
@section
class RangerLite(FusedConfig):
    """Adam's variance, positive-negative momentum (AdaPNM), lookahead."""

    lr: float = Field(default=8.75e-4, gt=0)
    """learning rate before the schedule"""
    betas: Betas = (0.9, 0.999)
    """decay of the running means of the gradient, which take turns, and of its square"""
    eps: float = Field(default=1e-7, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    positive: float = Field(default=1.0, ge=0)
    """p: a step is along (1 + p) of this step's running mean and −p of the other one"""
    lookahead_steps: int = Field(default=5, ge=1)
    """steps after which the slow weights move and the fast ones restart from there"""
    lookahead_share: float = Field(default=0.5, gt=0, le=1)
    """share of the way to the fast weights that the slow ones move"""
    max_norm: float | None = Field(default=2.0, gt=0)
    """gradients are scaled down to this norm, virtual rows included; null: never"""

    stable_decay: bool = False
    """divide the weight decay by the root of the mean square gradient of all parameters, as nnue-pytorch does: a decay
    of 1e-3 then has a much larger effect"""

    def update(self) -> UpdateRule:
        return UpdateRule(
            "positive_negative",
            self.betas,
            self.eps,
            self.positive,
            self.lookahead_steps,
            self.lookahead_share,
            stable_decay=self.stable_decay,
        )

    @model_validator(mode="after")
    def _has_squares(self) -> RangerLite:
        if self.stable_decay and (self.max_value is not None or any(group.betas for group in self.groups)):
            raise ValueError(
                "stable_decay: found true with max_value or betas of groups; set it to false, or remove those"
            )
        return self


@OPTIMIZERS.register("ranger")
@section
class Ranger(FusedConfig):
    """RAdam with lookahead."""

    lookahead_steps: int = Field(default=6, ge=1)
    """steps after which the slow weights move and the fast ones restart from there"""
    lookahead_share: float = Field(default=0.5, gt=0, le=1)
    """share of the way to the fast weights that the slow ones move"""

    def update(self) -> UpdateRule:
        every, share = self.lookahead_steps, self.lookahead_share
        return UpdateRule("rectified", self.betas, self.eps, lookahead_every=every, lookahead_share=share)
