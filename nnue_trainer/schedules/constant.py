"""A constant learning rate."""

from __future__ import annotations

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule
from nnue_trainer.schema import section


@SCHEDULES.register("constant")
@section
class Constant(Schedule):
    """A constant learning rate."""

    def at(self, now: RunStep, lr: float) -> float:
        return lr
