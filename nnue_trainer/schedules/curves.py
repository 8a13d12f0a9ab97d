"""The curves that the learning rate and λ may follow: each is written once, with a section for either.

The learning rate starts at the `lr` of the optimizer section; λ starts at `start`.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator, Field

from nnue_trainer.schedules.base import SCHEDULES, RunStep, Schedule, Timed
from nnue_trainer.schedules.lambdas import LAMBDAS, LambdaSchedule
from nnue_trainer.schema import section


def interpolate(start: float, end: float, share: float) -> float:
    """Linear interpolation: `start` at share 0, `end` at share 1."""
    return start + (end - start) * share


def half_cosine(start: float, end: float, share: float) -> float:
    """`start` at share 0, `end` at share 1, slow, fast, slow in between."""
    return interpolate(end, start, 0.5 * (1 + math.cos(math.pi * share)))


def cycle_height(share: float, peak: float) -> float:
    """From 0 at share 0 up to 1 at share `peak` and down to 0 at share 1, each way half a cosine."""
    if share < peak:
        return 0.5 * (1 - math.cos(math.pi * share / peak))
    return 0.5 * (1 + math.cos(math.pi * (share - peak) / (1 - peak))) if peak < 1 else 1.0


@section
class FromStart(LambdaSchedule):
    """The base of schedules of λ that fall from a start."""

    start: float = Field(default=1.0, ge=0, le=1)
    """λ at the first step: 1 trains on scores only, 0 on game results only"""


@section
class Between(FromStart):
    """The base of schedules of λ from a start to an end."""

    end: float = Field(default=1.0, ge=0, le=1)
    """λ at the end, and in every validation"""

    def final(self, end: RunStep) -> float:
        return self.end


@section
class ToFinal(Schedule):
    """The base of schedules from the optimizer's lr to another learning rate."""

    final_lr: float = Field(ge=0)
    """learning rate at the end"""


@section
class InSteps(Timed):
    """The base of curves that end after a number of steps."""

    steps: int | None = Field(default=None, gt=0)
    """steps from the first one to the end of the curve, which may be before or after the run's; null: the whole
    run"""


# ---- constant ----


@SCHEDULES.register("constant")
@section
class Constant(Schedule):
    """A constant learning rate."""

    def at(self, now: RunStep, lr: float) -> float:
        return lr


@LAMBDAS.register("constant")
@section
class ConstantLambda(LambdaSchedule):
    """A constant λ."""

    value: float = Field(default=1.0, ge=0, le=1)
    """λ: 1 trains on scores only, 0 on game results only"""

    def at(self, now: RunStep) -> float:
        return self.value


# ---- from one value to another ----


@SCHEDULES.register("linear")
@section
class Linear(ToFinal, InSteps):
    """A straight line from the optimizer's lr to final_lr."""

    def at(self, now: RunStep, lr: float) -> float:
        return interpolate(lr, self.final_lr, now.share_of(self.steps))


@LAMBDAS.register("linear")
@section
class LinearLambda(Between, InSteps):
    """A straight line from start to end, and a cosine bump on top of it."""

    bump: float = Field(default=0.0, ge=-1, le=1)
    """height of a cosine bump that is added to λ, with its peak in the middle; λ stays within 0 and 1"""

    def at(self, now: RunStep) -> float:
        return interpolate(self.start, self.end, now.share_of(self.steps)) + self.bump * self.cycle(now)

    def cycle(self, now: RunStep) -> float:
        return cycle_height(now.share_of(self.steps), 0.5) if self.bump else 1.0


@SCHEDULES.register("cosine")
@section
class Cosine(ToFinal, InSteps):
    """Half a cosine from the optimizer's lr to final_lr."""

    def at(self, now: RunStep, lr: float) -> float:
        return half_cosine(lr, self.final_lr, now.share_of(self.steps))


@LAMBDAS.register("cosine")
@section
class CosineLambda(Between, InSteps):
    """Half a cosine from start to end: slow, fast, slow."""

    def at(self, now: RunStep) -> float:
        return half_cosine(self.start, self.end, now.share_of(self.steps))


# ---- cycles ----


@section
class _Peak(InSteps):
    peak: float = Field(default=0.3, ge=0, le=1)
    """where the peak is, as a part of the cycle"""

    def height_at(self, now: RunStep) -> float:
        return cycle_height(now.share_of(self.steps), self.peak)


@SCHEDULES.register("cycle")
@section
class Cycle(ToFinal, _Peak):
    """A straight line from the optimizer's lr to final_lr, and on top of it a cosine up to height and back."""

    height: float = Field(ge=0)
    """added at the peak"""

    def at(self, now: RunStep, lr: float) -> float:
        return interpolate(lr, self.final_lr, now.share_of(self.steps)) + self.height * self.height_at(now)


@LAMBDAS.register("cycle")
@section
class CycleLambda(Between, _Peak):
    """A straight line from start to end, and on top of it a cosine up (or down) to height and back."""

    height: float = Field(ge=-1, le=1)
    """added to λ at the peak; λ stays within 0 and 1"""

    def at(self, now: RunStep) -> float:
        return interpolate(self.start, self.end, now.share_of(self.steps)) + self.height * self.cycle(now)

    def cycle(self, now: RunStep) -> float:
        return self.height_at(now)


@section
class _OneCycle(InSteps):
    rise: float = Field(default=0.3, gt=0, lt=1)
    """the part of the cycle in which the value goes from its start to its top"""

    def between(self, now: RunStep, start: float, top: float, end: float) -> float:
        """The first step has `start`, step rise · steps − 1 has `top`, and the last one has `end`, as in torch."""
        last = (self.steps or now.steps) - 1
        up = self.rise * (last + 1) - 1
        if now.step <= up:
            return half_cosine(start, top, now.step / up if up > 0 else 1.0)
        return half_cosine(top, end, min(1.0, (now.step - up) / (last - up))) if last > up else end


@SCHEDULES.register("one_cycle")
@section
class OneCycle(ToFinal, _OneCycle):
    """Half a cosine from start_lr up to the optimizer's lr, and another one down to final_lr."""

    start_lr: float = Field(ge=0)
    """learning rate at the first step"""

    def at(self, now: RunStep, lr: float) -> float:
        return self.between(now, self.start_lr, lr, self.final_lr)


@LAMBDAS.register("one_cycle")
@section
class OneCycleLambda(Between, _OneCycle):
    """Half a cosine from start to top, and another one from top to end."""

    top: float = Field(ge=0, le=1)
    """λ at the top of the cycle"""

    def at(self, now: RunStep) -> float:
        return self.between(now, self.start, self.top, self.end)


# ---- factors ----


@section
class _Exponential(Timed):
    gamma: float = Field(default=0.992, gt=0, le=1)
    """factor after every epoch"""
    epochs: int | None = Field(default=None, gt=0)
    """epochs after which the value stays constant; null: never"""

    def factor(self, now: RunStep) -> float:
        return self.gamma ** min(now.epoch, self.epochs or now.epoch)


@SCHEDULES.register("exponential")
@section
class Exponential(Schedule, _Exponential):
    """lr·gamma^epoch."""

    def at(self, now: RunStep, lr: float) -> float:
        return lr * self.factor(now)


@LAMBDAS.register("exponential")
@section
class ExponentialLambda(FromStart, _Exponential):
    """start·gamma^epoch."""

    def at(self, now: RunStep) -> float:
        return self.start * self.factor(now)


@section
class _Dropping(Timed):
    gamma: float = Field(default=0.1, gt=0, le=1)
    """factor at a drop"""

    def drops(self, now: RunStep) -> int:
        raise NotImplementedError

    def factor(self, now: RunStep) -> float:
        return self.gamma ** self.drops(now)


@section
class _Steps(_Dropping):
    epochs: int = Field(gt=0)
    """epochs between two drops"""

    def drops(self, now: RunStep) -> int:
        return now.epoch // self.epochs


@SCHEDULES.register("step")
@section
class Step(Schedule, _Steps):
    """lr·gamma after every few epochs."""

    def at(self, now: RunStep, lr: float) -> float:
        return lr * self.factor(now)


@LAMBDAS.register("step")
@section
class StepLambda(FromStart, _Steps):
    """start·gamma after every few epochs."""

    gamma: float = Field(default=0.9, gt=0, le=1)
    """factor at a drop"""

    def at(self, now: RunStep) -> float:
        return self.start * self.factor(now)


def _in_order(epochs: list[int]) -> list[int]:
    if epochs != sorted(epochs):
        raise ValueError(f"found {epochs}, expected ascending epochs, counted from the beginning of the run")
    return epochs


_DropEpochs = Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1), AfterValidator(_in_order)]


@section
class _Drops(_Dropping):
    epochs: _DropEpochs
    """the number of completed epochs at each drop, such as [100, 200, 250]"""

    def drops(self, now: RunStep) -> int:
        return sum(now.epoch >= epoch for epoch in self.epochs)


@SCHEDULES.register("drops")
@section
class Drops(Schedule, _Drops):
    """lr·gamma at each epoch of a list."""

    def at(self, now: RunStep, lr: float) -> float:
        return lr * self.factor(now)


@LAMBDAS.register("drops")
@section
class DropsLambda(FromStart, _Drops):
    """start·gamma at each epoch of a list."""

    gamma: float = Field(default=0.9, gt=0, le=1)
    """factor at a drop"""

    def at(self, now: RunStep) -> float:
        return self.start * self.factor(now)
