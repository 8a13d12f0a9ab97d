"""RangerLite and Ranger on the project's own operators: lookahead over momentum of two kinds, gradients clipped."""

from __future__ import annotations

import math

from pydantic import Field

from nnue_trainer import fused_optimizer
from nnue_trainer.optim.base import OPTIMIZERS, Rule, Work
from nnue_trainer.optim.fused import Betas, FusedConfig, FusedRule
from nnue_trainer.schema import section


@OPTIMIZERS.register("ranger_lite")
@section
class RangerLite(FusedConfig):
    """Adam's variance, positive-negative momentum (AdaPNM), lookahead."""

    lr: float = Field(8.75e-4, gt=0)
    """learning rate before the schedule"""
    betas: Betas = (0.9, 0.999)
    """decay of the running means of the gradient, which take turns, and of its square"""
    eps: float = Field(1e-7, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    positive: float = Field(1.0, ge=0)
    """p: a step is along (1 + p) of this step's running mean and −p of the other one"""
    lookahead_steps: int = Field(5, ge=1)
    """steps after which the slow weights move and the fast ones start anew from there"""
    lookahead_share: float = Field(0.5, gt=0, le=1)
    """share of the way to the fast weights that the slow ones move"""
    max_norm: float | None = Field(2.0, gt=0)
    """gradients are scaled down to this norm, virtual rows included; null: never"""

    def rule(self, work: Work) -> Rule:
        rule = fused_optimizer.Rule(
            "positive_negative", self.betas, self.eps, self.positive, self.lookahead_steps, self.lookahead_share
        )
        return FusedRule(work, rule, decay=self.weight_decay, max_norm=self.max_norm or math.inf)


@OPTIMIZERS.register("ranger")
@section
class Ranger(FusedConfig):
    """RAdam with lookahead."""

    lookahead_steps: int = Field(6, ge=1)
    """steps after which the slow weights move and the fast ones start anew from there"""
    lookahead_share: float = Field(0.5, gt=0, le=1)
    """share of the way to the fast weights that the slow ones move"""
    max_norm: float | None = Field(None, gt=0)
    """gradients are scaled down to this norm, virtual rows included; null: never"""

    def rule(self, work: Work) -> Rule:
        rule = fused_optimizer.ranger(self.betas, self.eps, self.lookahead_steps, self.lookahead_share)
        return FusedRule(work, rule, decay=self.weight_decay, max_norm=self.max_norm or math.inf)
