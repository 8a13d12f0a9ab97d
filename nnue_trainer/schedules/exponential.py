"""A factor after every epoch."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule
from nnue_trainer.schema import section


@SCHEDULES.register("exponential")
@section
class Exponential(Schedule):
    """lr·gamma^epoch."""

    gamma: float = Field(default=0.992, gt=0, le=1)
    """factor after every epoch"""
    epochs: int | None = Field(default=None, gt=0)
    """epochs after which the value stays constant; null: never"""

    def at(self, now: RunStep, lr: float) -> float:
        return lr * self.gamma ** min(now.epoch, self.epochs or now.epoch)
