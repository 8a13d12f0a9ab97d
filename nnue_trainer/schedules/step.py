"""Drops at regular intervals."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule
from nnue_trainer.schema import section


@SCHEDULES.register("step")
@section
class Step(Schedule):
    """lr·gamma after every few epochs."""

    epochs: int = Field(gt=0)
    """epochs between two drops"""
    gamma: float = Field(default=0.1, gt=0, le=1)
    """factor at a drop"""

    def at(self, now: RunStep, lr: float) -> float:
        return lr * self.gamma ** (now.epoch // self.epochs)
