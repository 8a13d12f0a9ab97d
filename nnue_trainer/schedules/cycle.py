"""A cycle on top of a straight line."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule, cycle_height, interpolate
from nnue_trainer.schema import section


@SCHEDULES.register("cycle")
@section
class Cycle(Schedule):
    """A straight line from the optimizer's lr to final_lr, and on top of it a cosine up to height and back."""

    final_lr: float = Field(ge=0)
    """learning rate at the end"""
    height: float = Field(ge=0)
    """added at the peak"""
    peak: float = Field(default=0.3, ge=0, le=1)
    """where the peak is, as a part of the cycle"""
    steps: int | None = Field(default=None, gt=0)
    """length of the cycle; null: the whole run"""

    def at(self, now: RunStep, lr: float) -> float:
        share = now.share_of(self.steps)
        return interpolate(lr, self.final_lr, share) + self.height * cycle_height(share, self.peak)
