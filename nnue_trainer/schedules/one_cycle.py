"""One cycle of the learning rate: up, then down."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule, one_cycle
from nnue_trainer.schema import section


@SCHEDULES.register("one_cycle")
@section
class OneCycle(Schedule):
    """Half a cosine from start_lr up to the optimizer's lr, and another one down to final_lr."""

    start_lr: float = Field(ge=0)
    """learning rate at the first step"""
    final_lr: float = Field(ge=0)
    """learning rate at the last step of the cycle, and after it"""
    rise: float = Field(default=0.3, gt=0, lt=1)
    """the part of the cycle in which the learning rate grows"""
    steps: int | None = Field(default=None, gt=0)
    """length of the cycle, which may be shorter or longer than the run; null: the whole run"""

    def at(self, now: RunStep, lr: float) -> float:
        return one_cycle(now, self.start_lr, lr, self.final_lr, self.rise, self.steps)
