"""One schedule after another."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule
from nnue_trainer.schedules.lambdas import LAMBDAS, LambdaSchedule
from nnue_trainer.schema import section


def part_of(now: RunStep, lengths: list[int]) -> tuple[int, RunStep]:
    """Which of several parts of `lengths` epochs a step is in, and the step as one of that part's own run. After the
    last part it is that part's end."""
    begin = 0
    for index, epochs in enumerate(lengths):  # noqa: B007
        if now.epoch < begin + epochs:
            break
        begin += epochs
    else:
        return index, RunStep(epochs * now.steps_per_epoch, now.steps_per_epoch, epochs)
    step = (now.epoch - begin) * now.steps_per_epoch + (now.step - now.first_step) % now.steps_per_epoch
    return index, RunStep(step, now.steps_per_epoch, epochs)


@section
class Part:
    """A schedule and the number of epochs for which it is used."""

    epochs: int = Field(gt=0)
    """epochs of this part"""
    schedule: Annotated[Schedule, SCHEDULES]
    """the schedule of this part"""
    lr: float | None = Field(default=None, gt=0)
    """learning rate that this part starts from; null: the optimizer section's"""


@SCHEDULES.register("sequence")
@section
class Sequence(Schedule):
    """One schedule after another. Each treats its part as a whole run; after the last part the learning rate stays as
    it is."""

    parts: list[Part] = Field(min_length=1)
    """the schedules in their order"""

    def at(self, now: RunStep, lr: float) -> float:
        index, step = part_of(now, [part.epochs for part in self.parts])
        part = self.parts[index]
        return part.schedule.of(step, lr if part.lr is None else part.lr)


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
