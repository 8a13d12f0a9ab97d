"""A straight line with an optional bump."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import RunStep, cycle_height, interpolate
from nnue_trainer.schema import section
from nnue_trainer.wdl.base import LAMBDAS, Between


@LAMBDAS.register("linear")
@section
class LinearLambda(Between):
    """A straight line from start to end, and a cosine bump on top of it."""

    bump: float = Field(default=0.0, ge=-1, le=1)
    """height of a cosine bump that is added to λ, with its peak in the middle; λ stays within 0 and 1"""

    def at(self, now: RunStep) -> float:
        return interpolate(self.start, self.end, now.share_of(self.steps)) + self.bump * self.cycle(now)

    def cycle(self, now: RunStep) -> float:
        return cycle_height(now.share_of(self.steps), 0.5) if self.bump else 1.0
