"""Drops at regular intervals."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.lambdas.base import LAMBDAS, LambdaSchedule
from nnue_trainer.schedules.base import RunStep
from nnue_trainer.schema import section


@LAMBDAS.register("step")
@section
class StepLambda(LambdaSchedule):
    """start·gamma after every few epochs."""

    start: float = Field(1.0, ge=0, le=1)
    """λ at the first step: 1 trains on scores only, 0 on game results only"""
    epochs: int = Field(gt=0)
    """epochs between two drops"""
    gamma: float = Field(0.9, gt=0, le=1)
    """factor at a drop"""

    def at(self, now: RunStep) -> float:
        return self.start * self.gamma ** (now.epoch // self.epochs)
