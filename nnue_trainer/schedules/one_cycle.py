"""Up and down once."""

from __future__ import annotations

import math

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule, interpolate
from nnue_trainer.schema import section


@SCHEDULES.register("one_cycle")
@section
class OneCycle(Schedule):
    """From start_lr up to the optimizer's lr and down to final_lr, each way half a cosine."""

    start_lr: float = Field(ge=0)
    """learning rate at the first step"""
    final_lr: float = Field(ge=0)
    """learning rate at the end of the run"""
    rise: float = Field(0.3, gt=0, lt=1)
    """the part of the run in which the learning rate grows"""

    def at(self, now: RunStep, lr: float) -> float:
        if now.share < self.rise:
            return interpolate(lr, self.start_lr, 0.5 * (1 + math.cos(math.pi * now.share / self.rise)))
        falling = (now.share - self.rise) / (1 - self.rise)
        return interpolate(self.final_lr, lr, 0.5 * (1 + math.cos(math.pi * falling)))
