"""The contract of learning-rate schedules and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from pydantic import Field

from nnue_trainer.registry import Registry
from nnue_trainer.schema import section


class RunStep(NamedTuple):
    """One step of a run: all that a schedule may depend on, so that a resumed run needs no state for it."""

    step: int
    """counted from 0"""
    steps_per_epoch: int
    epochs: int
    """epochs of the whole run"""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.steps_per_epoch * self.epochs

    @property
    def epoch(self) -> int:
        """Whole epochs that are done."""
        return self.step // self.steps_per_epoch

    @property
    def share(self) -> float:
        """The part of the run that is done: 0 at the first step, 1 after the last one."""
        return self.step / self.steps


@section
class Schedule(ABC):
    """The learning rate of every step, as a function of nothing but the step."""

    kind: ClassVar[str]
    warmup_steps: int = Field(0, ge=0)
    """steps in which the learning rate first grows linearly to the schedule's value"""

    @abstractmethod
    def at(self, now: RunStep, lr: float) -> float:
        """The learning rate of the step `now`, without the warm-up; `lr` is that of the recipe's optimizer section."""

    def lr_at(self, step: int, steps_per_epoch: int, epochs: int, lr: float) -> float:
        """The learning rate of `step`, counted from 0, in a run of `epochs`, warm-up included."""
        warmup = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return warmup * self.at(RunStep(step, steps_per_epoch, epochs), lr)


SCHEDULES: Registry[Schedule] = Registry("nnue_trainer.schedules", lambda: Schedule, what="schedule")


def interpolate(start: float, end: float, share: float) -> float:
    """`start` at share 0, `end` at share 1, a straight line in between."""
    return start + (end - start) * share
