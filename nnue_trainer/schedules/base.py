"""Steps of a run, what schedules of the learning rate and of λ have in common, and the contract of the former."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from nnue_trainer.base.foreign import number
from nnue_trainer.registry import Registry
from nnue_trainer.schema import section


class RunStep(NamedTuple):
    """One step of a run: all that a schedule may depend on, so that a resumed run needs no state for it."""

    step: int
    """counted from 0"""
    steps_per_epoch: int
    epochs: int
    """epochs of the whole run"""
    first_step: int = 0
    """where a stage begins that continues the schedules of the stages before, which may have had other epochs"""
    first_epoch: int = 0
    """the epochs of those stages"""
    total: int | None = None
    """steps of the whole run, where its stages have different epochs"""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        if self.total is not None:
            return self.total
        return self.first_step + self.steps_per_epoch * (self.epochs - self.first_epoch)

    @property
    def epoch(self) -> int:
        """The number of complete epochs."""
        return self.first_epoch + (self.step - self.first_step) // self.steps_per_epoch

    @property
    def share(self) -> float:
        """The fraction of the run that is complete: 0 at the first step, 1 after the last one."""
        return self.step / self.steps

    def share_of(self, steps: int | None) -> float:
        """The fraction of the first `steps` steps that is complete, at most 1; None: of the run."""
        return min(1.0, self.step / (steps or self.steps))

    def at_epoch(self, epoch: int) -> RunStep:
        """The first step of an epoch, counted from 0."""
        return self._replace(step=self.first_step + (epoch - self.first_epoch) * self.steps_per_epoch)


@section
class Timed:
    """The fields of every schedule: a warm-up, and values that change only between epochs."""

    warmup_steps: int = Field(default=0, ge=0)
    """steps of the warm-up, in which the value first grows to the schedule's"""
    warmup: Literal["linear", "hyperbola"] = "linear"
    """how it grows: linear, or as 1/(steps left), as in bullet"""
    stairs: Literal["begin", "end"] | None = None
    """keep one value for each epoch, from its beginning or from its end; null: a new value at each step"""

    def _on_stairs(self, now: RunStep) -> RunStep:
        return now if self.stairs is None else now.at_epoch(now.epoch + (self.stairs == "end"))

    def _warm(self, step: int) -> float:
        """The factor of the warm-up, from 0 to 1."""
        if step >= self.warmup_steps:
            return 1.0
        return (step + 1) / self.warmup_steps if self.warmup == "linear" else 1 / (self.warmup_steps - step)


@section
class Schedule(Timed, ABC):
    """The learning rate of every step, as a function of the step only."""

    kind: ClassVar[str]

    @abstractmethod
    def at(self, now: RunStep, lr: float) -> float:
        """The learning rate of the step `now`, without the warm-up; `lr` is the recipe's `optimizer.lr`."""

    def of(self, now: RunStep, lr: float) -> float:
        """The learning rate of the step `now`, warm-up and stairs included."""
        return self._warm(now.step) * number(self, "at", self.at(self._on_stairs(now), lr))


SCHEDULES: Registry[Schedule] = Registry("nnue_trainer.schedules", lambda: Schedule, what="schedule")
