"""A straight line."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule, interpolate
from nnue_trainer.schema import section


@SCHEDULES.register("linear")
@section
class Linear(Schedule):
    """A straight line from the optimizer's lr to final_lr."""

    final_lr: float = Field(ge=0)
    """learning rate at the end"""
    steps: int | None = Field(default=None, gt=0)
    """steps from the first one to the end; null: the whole run"""

    def at(self, now: RunStep, lr: float) -> float:
        return interpolate(lr, self.final_lr, now.share_of(self.steps))
