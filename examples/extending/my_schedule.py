"""Your own learning-rate schedule: it falls with the square root of the steps."""

import math

from pydantic import Field

from nnue_trainer.schedules import RunStep, Schedule
from nnue_trainer.schema import section


@section
class InverseSquareRoot(Schedule):
    """lr / √(1 + step / half_life). The trainer also applies the warm-up."""

    half_life: float = Field(default=1000.0, gt=0)
    """steps after which the learning rate is lr / √2"""

    def at(self, now: RunStep, lr: float) -> float:
        return lr / math.sqrt(1 + now.step / self.half_life)
