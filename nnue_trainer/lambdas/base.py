"""The contract of λ schedules and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from nnue_trainer.registry import Registry
from nnue_trainer.schedules.base import RunStep


class LambdaSchedule(ABC):
    """λ of every step, as a function of the step alone: the share of the data's score in the target, from 0 to 1. The
    share of the game's result is 1 − λ. A subclass is a section (`schema.section`)."""

    kind: ClassVar[str]

    @abstractmethod
    def at(self, now: RunStep) -> float:
        """λ of the step `now`. `lambda_at` clips it to 0 … 1."""

    def final(self, end: RunStep) -> float:
        """λ of every validation, so that its losses compare from the first epoch to the last. `end` is behind the last
        step of the run; by default the schedule's λ there. `final_lambda` clips it."""
        return self.at(end)

    def lambda_at(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """λ of `step`, counted from 0, in a run of `epochs`."""
        return _clip(self.at(RunStep(step, steps_per_epoch, epochs)))

    def final_lambda(self, steps_per_epoch: int, epochs: int) -> float:
        """λ of the validations of a run of `epochs`."""
        return _clip(self.final(RunStep(steps_per_epoch * epochs, steps_per_epoch, epochs)))


LAMBDAS: Registry[LambdaSchedule] = Registry("nnue_trainer.lambdas", lambda: LambdaSchedule, what="λ schedule")


def _clip(lam: float) -> float:
    return min(1.0, max(0.0, lam))
