"""One schedule after another."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule, part_of
from nnue_trainer.schema import section


@section
class Part:
    """A schedule and the number of epochs for which it is used."""

    epochs: int = Field(gt=0)
    """epochs of this part"""
    schedule: Annotated[Schedule, SCHEDULES]
    """the schedule of this part"""
    lr: float | None = Field(default=None, gt=0)
    """learning rate that this part starts from; null: that of the optimizer section"""


@SCHEDULES.register("sequence")
@section
class Sequence(Schedule):
    """One schedule after another. Each treats its part as a whole run; after the last part the learning rate stays as
    it is."""

    parts: list[Part] = Field(min_length=1)
    """the schedules in their order"""

    def at(self, now: RunStep, lr: float) -> float:
        index, step = part_of(now, [part.epochs for part in self.parts])
        part = self.parts[index]
        return part.schedule.of(step, lr if part.lr is None else part.lr)
