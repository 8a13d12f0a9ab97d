"""The contract of schedules of λ, the share of the data's score in the target, and their registry.

There is one sign: λ = 1 trains on scores only, λ = 0 on game results only. Trainers whose setting is called WDL, such
as bullet, set the share of the results, 1 − λ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from nnue_trainer.base.foreign import number
from nnue_trainer.registry import Registry
from nnue_trainer.schedules.base import RunStep, Timed
from nnue_trainer.schedules.jitter import BatchJitter, add_jitter
from nnue_trainer.schema import section

if TYPE_CHECKING:
    import torch

JITTER_STREAM = 0x4C414D424441  # "LAMBDA"; of the random numbers of a seed


@section
class LambdaSchedule(Timed, ABC):
    """λ of every step, as a function of the step only: the share of the data's score in the target, from 0 to 1.
    The share of the game's result is 1 − λ, which a warm-up increases from 0. A subclass is a section
    (`schema.section`)."""

    kind: ClassVar[str]
    jitter: float = Field(default=0.0, ge=0, le=1)
    """in training, λ of each position is drawn around the step's λ, and clipped to 0 … 1; 0: it is the step's"""
    jitter_law: Literal["uniform", "normal"] = "uniform"
    """uniform: jitter is the largest distance; normal: it is the standard deviation"""
    batch_jitter: float = Field(default=0.0, ge=0, le=1)
    """standard deviation of a term that is added to λ of all positions of a batch and changes slowly from batch to
    batch"""
    batch_jitter_decay: float = Field(default=0.999, ge=0, lt=1)
    """the share that remains from one batch to the next: b ← decay · b + batch_jitter · √(1 − decay²) · N(0, 1)"""
    scale_jitter: bool = False
    """multiply all jitter by the height of the schedule's cycle or bump, which is between 0 and 1"""

    @abstractmethod
    def at(self, now: RunStep) -> float:
        """λ of the step `now`, without the warm-up. `of` clips it to 0 … 1."""

    def final(self, end: RunStep) -> float:
        """λ of every validation, the same in all epochs so that their losses can be compared. `end` comes after the
        last step of the run; by default this is the schedule's λ there. `final_of` clips it."""
        return number(self, "at", self.at(end))

    def cycle(self, now: RunStep) -> float:
        """The height of the schedule's cycle at a step, 0 … 1; always 1 for a schedule without one."""
        return 1.0

    def of(self, now: RunStep) -> float:
        """λ of the step `now`, before its jitter."""
        lam, warm = number(self, "at", self.at(self._on_stairs(now))), self._warm(now.step)
        return _clip(lam if warm == 1 else 1 - warm * (1 - lam))

    def final_of(self, end: RunStep) -> float:
        """λ of the validations of a run that ends before the step `end`."""
        return _clip(number(self, "final", self.final(end)))

    def of_batch(
        self, now: RunStep, seed: int, positions: int, device: torch.device | str = "cpu"
    ) -> torch.Tensor | float:
        """λ with its jitter: a number for the whole batch of the step `now`, or where each position has its own, of
        type float32 [positions]. It depends only on seed, step and place in the batch, so a resumed run needs no state
        for it, and it is the same on every device (except for the last place of normal numbers)."""
        lam, scale = self.of(now), self.cycle(now) if self.scale_jitter else 1.0
        if self.batch_jitter > 0:
            lam += scale * BatchJitter.of(seed, self.batch_jitter, self.batch_jitter_decay).at(now.step)
        return self.of_positions(lam, seed, now.step, positions, device, scale=scale) if self.jitter > 0 else _clip(lam)

    def of_positions(
        self,
        lam: float,
        seed: int,
        step: int,
        positions: int,
        device: torch.device | str = "cpu",
        *,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """λ of each position of a batch, float32 [positions], around `lam`; `scale` multiplies the jitter."""
        from nnue_trainer.stats.random import Philox

        numbers, jitter = Philox(seed, JITTER_STREAM, step * positions), scale * self.jitter
        if self.jitter_law == "normal":
            return add_jitter(lam, jitter, numbers.normal(positions, device=device))
        return numbers.uniform(positions, lam - jitter, lam + jitter, device=device).clamp_(0, 1)


LAMBDAS: Registry[LambdaSchedule] = Registry(
    "nnue_trainer.schedules", lambda: LambdaSchedule, what="λ schedule", group="nnue_trainer.lambdas"
)


def _clip(lam: float) -> float:
    return min(1.0, max(0.0, lam))
