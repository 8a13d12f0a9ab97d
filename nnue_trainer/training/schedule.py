"""The learning rate of every step, as a function of the step alone, so that a resumed run needs no state for it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from nnue_trainer.losses import interpolate
from nnue_trainer.schema import section


@section
class _Schedule:
    warmup_steps: int = Field(0, ge=0)
    """steps in which the learning rate first grows linearly to the schedule's value"""

    def lr_at(self, step: int, steps_per_epoch: int, epochs: int, lr: float) -> float:
        """Learning rate of `step`, counted from 0, in a run of `epochs`; `lr` is that of the optimizer section."""
        warmup = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return warmup * self._value(step // steps_per_epoch, step / (steps_per_epoch * epochs), lr)

    def _value(self, epoch: int, share: float, lr: float) -> float:
        """`share` is the part of the run that is done."""
        raise NotImplementedError


@section
class Constant(_Schedule):
    """The same learning rate throughout."""

    kind: Literal["constant"] = "constant"

    def _value(self, epoch: int, share: float, lr: float) -> float:
        return lr


@section
class Exponential(_Schedule):
    """lr·gamma^epoch."""

    kind: Literal["exponential"] = "exponential"
    gamma: float = Field(0.992, gt=0, le=1)
    """factor after every epoch"""

    def _value(self, epoch: int, share: float, lr: float) -> float:
        return lr * self.gamma**epoch


@section
class Step(_Schedule):
    """lr·gamma after every few epochs."""

    kind: Literal["step"] = "step"
    epochs: int = Field(gt=0)
    """epochs between two drops"""
    gamma: float = Field(0.1, gt=0, le=1)
    """factor at a drop"""

    def _value(self, epoch: int, share: float, lr: float) -> float:
        return lr * self.gamma ** (epoch // self.epochs)


@section
class Linear(_Schedule):
    """A straight line from the optimizer's lr to final_lr over the run."""

    kind: Literal["linear"] = "linear"
    final_lr: float = Field(ge=0)
    """learning rate at the end of the run"""

    def _value(self, epoch: int, share: float, lr: float) -> float:
        return interpolate(lr, self.final_lr, share)


@section
class Cosine(_Schedule):
    """Half a cosine from the optimizer's lr to final_lr over the run."""

    kind: Literal["cosine"] = "cosine"
    final_lr: float = Field(ge=0)
    """learning rate at the end of the run"""

    def _value(self, epoch: int, share: float, lr: float) -> float:
        return interpolate(self.final_lr, lr, 0.5 * (1 + math.cos(math.pi * share)))


ScheduleConfig = Annotated[Constant | Exponential | Step | Linear | Cosine, Field(discriminator="kind")]
