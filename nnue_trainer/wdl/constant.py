"""A constant λ."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import RunStep
from nnue_trainer.schema import section
from nnue_trainer.wdl.base import LAMBDAS, LambdaSchedule


@LAMBDAS.register("constant")
@section
class ConstantLambda(LambdaSchedule):
    """A constant λ."""

    value: float = Field(default=1.0, ge=0, le=1)
    """λ: 1 trains on scores only, 0 on game results only"""

    def at(self, now: RunStep) -> float:
        return self.value
