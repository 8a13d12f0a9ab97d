"""A cycle on top of a straight line, with a peak anywhere."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import RunStep, cycle_height, interpolate
from nnue_trainer.schema import section
from nnue_trainer.wdl.base import LAMBDAS, Between


@LAMBDAS.register("cycle")
@section
class CycleLambda(Between):
    """A straight line from start to end, and on top of it a cosine up (or down) to height and back."""

    height: float = Field(ge=-1, le=1)
    """added to λ at the peak; λ stays within 0 and 1"""
    peak: float = Field(default=0.3, ge=0, le=1)
    """where the peak is, as a part of the cycle"""

    def at(self, now: RunStep) -> float:
        return interpolate(self.start, self.end, now.share_of(self.steps)) + self.height * self.cycle(now)

    def cycle(self, now: RunStep) -> float:
        return cycle_height(now.share_of(self.steps), self.peak)
