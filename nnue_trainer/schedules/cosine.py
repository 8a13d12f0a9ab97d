"""Half a cosine."""

from __future__ import annotations

import math

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule, interpolate
from nnue_trainer.schema import section


@SCHEDULES.register("cosine")
@section
class Cosine(Schedule):
    """Half a cosine from the optimizer's lr to final_lr over the run."""

    final_lr: float = Field(ge=0)
    """learning rate at the end of the run"""

    def at(self, now: RunStep, lr: float) -> float:
        return interpolate(self.final_lr, lr, 0.5 * (1 + math.cos(math.pi * now.share)))
