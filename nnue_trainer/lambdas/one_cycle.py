"""Up and down once."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.lambdas.base import LAMBDAS, LambdaSchedule
from nnue_trainer.schedules.base import RunStep, one_cycle
from nnue_trainer.schema import section


@LAMBDAS.register("one_cycle")
@section
class OneCycleLambda(LambdaSchedule):
    """From start to top and on to end, each way half a cosine."""

    start: float = Field(1.0, ge=0, le=1)
    """λ at the first step: 1 trains on scores only, 0 on game results only"""
    top: float = Field(ge=0, le=1)
    """λ between the two ways"""
    end: float = Field(1.0, ge=0, le=1)
    """λ at the last step of the cycle, after it, and in every validation"""
    rise: float = Field(0.3, gt=0, lt=1)
    """the part of the cycle in which λ goes from start to top"""
    steps: int | None = Field(None, gt=0)
    """length of the cycle; null: the whole run"""

    def at(self, now: RunStep) -> float:
        return one_cycle(now, self.start, self.top, self.end, self.rise, self.steps)

    def final(self, end: RunStep) -> float:
        return self.end
