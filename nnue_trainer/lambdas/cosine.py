"""Half a cosine."""

from __future__ import annotations

import math

from pydantic import Field

from nnue_trainer.lambdas.base import LAMBDAS, LambdaSchedule
from nnue_trainer.schedules.base import RunStep, interpolate
from nnue_trainer.schema import section


@LAMBDAS.register("cosine")
@section
class CosineLambda(LambdaSchedule):
    """Half a cosine from start to end: slow, fast, slow."""

    start: float = Field(1.0, ge=0, le=1)
    """λ at the first step: 1 trains on scores only, 0 on game results only"""
    end: float = Field(1.0, ge=0, le=1)
    """λ at the last step and in every validation"""

    def at(self, now: RunStep) -> float:
        return interpolate(self.end, self.start, 0.5 * (1 + math.cos(math.pi * min(1.0, now.share))))

    def final(self, end: RunStep) -> float:
        return self.end
