"""A straight line with an optional bump."""

from __future__ import annotations

import math

from pydantic import Field

from nnue_trainer.lambdas.base import LAMBDAS, LambdaSchedule
from nnue_trainer.schedules.base import RunStep, interpolate
from nnue_trainer.schema import section


@LAMBDAS.register("linear")
@section
class LinearLambda(LambdaSchedule):
    """A straight line from start to end, and a cosine bump on top of it."""

    start: float = Field(1.0, ge=0, le=1)
    """λ at the first step: 1 trains on scores only, 0 on game results only"""
    end: float = Field(1.0, ge=0, le=1)
    """λ at the last step and in every validation"""
    steps: int | None = Field(None, gt=0)
    """steps in which λ goes from start to end; null: the whole run"""
    bump: float = Field(0.0, ge=-1, le=1)
    """height of a cosine bump that is added to λ, with its peak in the middle; λ stays within 0 and 1"""

    def at(self, now: RunStep) -> float:
        share = min(1.0, now.step / (self.steps or now.steps))
        bump = self.bump * 0.5 * (1 - math.cos(2 * math.pi * share))
        return interpolate(self.start, self.end, share) + bump

    def final(self, end: RunStep) -> float:
        return self.end
