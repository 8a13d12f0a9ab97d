"""The contract of λ schedules and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from nnue_trainer.registry import Registry
from nnue_trainer.schedules.base import RunStep
from nnue_trainer.schema import section

if TYPE_CHECKING:
    import torch

JITTER_STREAM = 0x4C414D424441  # "LAMBDA"; of the random numbers of a seed


@section
class LambdaSchedule(ABC):
    """λ of every step, as a function of nothing but the step: the share of the data's score in the target, from 0 to 1.
    The share of the game's result is 1 − λ. A subclass is a section (`schema.section`)."""

    kind: ClassVar[str]
    jitter: float = Field(0.0, ge=0, le=1)
    """in training, λ of each position is drawn uniformly within this distance of the step's λ, and clipped to 0 … 1"""

    @abstractmethod
    def at(self, now: RunStep) -> float:
        """λ of the step `now`. `lambda_at` clips it to 0 … 1."""

    def final(self, end: RunStep) -> float:
        """λ of every validation, the same in all epochs so that their losses can be compared. `end` comes after the
        last step of the run; by default this is the schedule's λ there. `final_lambda` clips it."""
        return self.at(end)

    def lambda_at(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """λ of `step`, counted from 0, in a run of `epochs`."""
        return _clip(self.at(RunStep(step, steps_per_epoch, epochs)))

    def of_positions(
        self, lam: float, seed: int, step: int, positions: int, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """λ of each position of a batch, float32 [positions], for the step's λ `lam`. It depends only on seed, step and
        place in the batch, so a resumed run needs no state for it, and it is the same on every device."""
        from nnue_trainer.random import Philox

        numbers = Philox(seed, JITTER_STREAM, step * positions)
        return numbers.uniform(positions, lam - self.jitter, lam + self.jitter, device=device).clamp_(0, 1)

    def final_lambda(self, steps_per_epoch: int, epochs: int) -> float:
        """λ of the validations of a run of `epochs`."""
        return _clip(self.final(RunStep(steps_per_epoch * epochs, steps_per_epoch, epochs)))


LAMBDAS: Registry[LambdaSchedule] = Registry("nnue_trainer.lambdas", lambda: LambdaSchedule, what="λ schedule")


def _clip(lam: float) -> float:
    return min(1.0, max(0.0, lam))
