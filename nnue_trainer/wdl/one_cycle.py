"""One cycle of λ: up, then down."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import RunStep, one_cycle
from nnue_trainer.schema import section
from nnue_trainer.wdl.base import LAMBDAS, Between


@LAMBDAS.register("one_cycle")
@section
class OneCycleLambda(Between):
    """Half a cosine from start to top, and another one from top to end."""

    top: float = Field(ge=0, le=1)
    """λ at the top of the cycle"""
    rise: float = Field(default=0.3, gt=0, lt=1)
    """the part of the cycle in which λ goes from start to top"""

    def at(self, now: RunStep) -> float:
        return one_cycle(now, self.start, self.top, self.end, self.rise, self.steps)
