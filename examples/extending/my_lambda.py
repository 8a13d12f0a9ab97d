"""Your own λ schedule: scores only at first, then gradually game results."""

from pydantic import Field

from nnue_trainer.schedules import LambdaSchedule, RunStep, interpolate
from nnue_trainer.schema import section


@section
class HoldThenFall(LambdaSchedule):
    """λ stays at start, then goes linearly to end."""

    start: float = Field(default=1.0, ge=0, le=1)
    """λ while it is held"""
    end: float = Field(default=0.5, ge=0, le=1)
    """λ at the end of the run and in every validation"""
    hold: float = Field(default=0.5, ge=0, lt=1)
    """the part of the run in which λ is held"""

    def at(self, now: RunStep) -> float:
        return interpolate(self.start, self.end, max(0.0, now.share - self.hold) / (1 - self.hold))
