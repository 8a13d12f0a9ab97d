"""A cycle on top of a straight line, with a peak anywhere."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.lambdas.base import LAMBDAS, LambdaSchedule
from nnue_trainer.schedules.base import RunStep, cycle_height, interpolate
from nnue_trainer.schema import section


@LAMBDAS.register("cycle")
@section
class CycleLambda(LambdaSchedule):
    """A straight line from start to end, and on top of it a cosine up (or down) to height and back."""

    start: float = Field(1.0, ge=0, le=1)
    """λ at the first step: 1 trains on scores only, 0 on game results only"""
    end: float = Field(1.0, ge=0, le=1)
    """λ after the cycle and in every validation"""
    height: float = Field(ge=-1, le=1)
    """what is added to λ at the peak; λ stays within 0 and 1"""
    peak: float = Field(0.3, ge=0, le=1)
    """where the peak is, as a part of the cycle"""
    steps: int | None = Field(None, gt=0)
    """length of the cycle; null: the whole run"""

    def at(self, now: RunStep) -> float:
        return interpolate(self.start, self.end, now.share_of(self.steps)) + self.height * self.cycle(now)

    def cycle(self, now: RunStep) -> float:
        return cycle_height(now.share_of(self.steps), self.peak)

    def final(self, end: RunStep) -> float:
        return self.end
