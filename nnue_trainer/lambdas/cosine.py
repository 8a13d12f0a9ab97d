"""Half a cosine."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.lambdas.base import LAMBDAS, LambdaSchedule
from nnue_trainer.schedules.base import RunStep, half_cosine
from nnue_trainer.schema import section


@LAMBDAS.register("cosine")
@section
class CosineLambda(LambdaSchedule):
    """Half a cosine from start to end: slow, fast, slow."""

    start: float = Field(1.0, ge=0, le=1)
    """λ at the first step: 1 trains on scores only, 0 on game results only"""
    end: float = Field(1.0, ge=0, le=1)
    """λ at the end and in every validation"""
    steps: int | None = Field(None, gt=0)
    """steps in which λ goes from start to end; null: the whole run"""

    def at(self, now: RunStep) -> float:
        return half_cosine(self.start, self.end, now.share_of(self.steps))

    def final(self, end: RunStep) -> float:
        return self.end
