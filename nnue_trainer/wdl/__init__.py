"""λ, the share of the data's score in the target, over the run. `base` has the class of all schedules and the registry.

There is one sign: λ = 1 trains on scores only, λ = 0 on game results only. Trainers whose setting is
called WDL, such as bullet, set the share of the results, 1 − λ.
"""

from nnue_trainer.wdl.base import LAMBDAS, LambdaSchedule
from nnue_trainer.wdl.constant import ConstantLambda

__all__ = ["LAMBDAS", "ConstantLambda", "LambdaSchedule"]
