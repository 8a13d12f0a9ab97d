"""One schedule after another."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nnue_trainer.schedules.base import RunStep, part_of
from nnue_trainer.schema import section
from nnue_trainer.wdl.base import LAMBDAS, LambdaSchedule


@section
class LambdaPart:
    """A λ schedule and the number of epochs for which it is used. Its jitter does not count: that of the sequence
    does."""

    epochs: int = Field(gt=0)
    """epochs of this part"""
    lambda_: Annotated[LambdaSchedule, LAMBDAS] = Field(alias="lambda")
    """the schedule of this part"""


@LAMBDAS.register("sequence")
@section
class SequenceLambda(LambdaSchedule):
    """One schedule after another. Each treats its part as a whole run; after the last part λ stays as it is."""

    parts: list[LambdaPart] = Field(min_length=1)
    """the schedules in their order"""

    def at(self, now: RunStep) -> float:
        index, step = self._part(now)
        return self.parts[index].lambda_.of(step)

    def cycle(self, now: RunStep) -> float:
        index, step = self._part(now)
        return self.parts[index].lambda_.cycle(step)

    def _part(self, now: RunStep) -> tuple[int, RunStep]:
        return part_of(now, [part.epochs for part in self.parts])
