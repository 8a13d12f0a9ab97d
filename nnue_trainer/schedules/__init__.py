"""Schedules of the learning rate (`base`) and of λ (`lambdas`), and the curves that both may follow."""

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule
from nnue_trainer.schedules.curves import ConstantLambda, Exponential, interpolate
from nnue_trainer.schedules.lambdas import LAMBDAS, LambdaSchedule

__all__ = [
    "LAMBDAS",
    "SCHEDULES",
    "ConstantLambda",
    "Exponential",
    "LambdaSchedule",
    "RunStep",
    "Schedule",
    "interpolate",
]
