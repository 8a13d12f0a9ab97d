"""Drops at the epochs of a list."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, DropEpochs, RunStep, Schedule
from nnue_trainer.schema import section


@SCHEDULES.register("drops")
@section
class Drops(Schedule):
    """lr·gamma at each epoch of a list."""

    epochs: DropEpochs
    """the number of completed epochs at each drop, such as [100, 200, 250]"""
    gamma: float = Field(default=0.1, gt=0, le=1)
    """factor at a drop"""

    def at(self, now: RunStep, lr: float) -> float:
        return lr * self.gamma ** sum(now.epoch >= epoch for epoch in self.epochs)
