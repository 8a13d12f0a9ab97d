"""A factor after every epoch."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import RunStep
from nnue_trainer.schema import section
from nnue_trainer.wdl.base import LAMBDAS, FromStart


@LAMBDAS.register("exponential")
@section
class ExponentialLambda(FromStart):
    """start·gamma^epoch."""

    gamma: float = Field(default=0.992, gt=0, le=1)
    """factor after every epoch"""
    epochs: int | None = Field(default=None, gt=0)
    """epochs after which the value stays constant; null: never"""

    def at(self, now: RunStep) -> float:
        return self.start * self.gamma ** min(now.epoch, self.epochs or now.epoch)
