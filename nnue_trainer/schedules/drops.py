"""Drops at the epochs of a list."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule
from nnue_trainer.schema import section


@SCHEDULES.register("drops")
@section
class Drops(Schedule):
    """lr·gamma at each epoch of a list."""

    epochs: list[Annotated[int, Field(gt=0)]] = Field(min_length=1)
    """the number of completed epochs at each drop, such as [100, 200, 250]"""
    gamma: float = Field(0.1, gt=0, le=1)
    """factor at a drop"""

    def at(self, now: RunStep, lr: float) -> float:
        return lr * self.gamma ** sum(now.epoch >= epoch for epoch in self.epochs)
