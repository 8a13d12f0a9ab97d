"""Learning-rate schedules. `base` has the class that all of them derive from and the registry."""

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule, interpolate
from nnue_trainer.schedules.exponential import Exponential

__all__ = ["SCHEDULES", "Exponential", "RunStep", "Schedule", "interpolate"]
