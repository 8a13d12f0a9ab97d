"""An exponential moving average of the weights."""

from __future__ import annotations

from pydantic import Field, model_validator

from nnue_trainer.optim.averages.base import AVERAGES, Average
from nnue_trainer.schedules import RunStep
from nnue_trainer.schema import section


@AVERAGES.register("ema")
@section
class Ema(Average):
    """Weights of older steps count less and less, beginning with the initial weights."""

    decay: float | None = Field(default=None, gt=0, lt=1)
    """share of the previous average that is kept in a step; null: by half_life"""
    half_life: float = Field(default=2000, gt=0)
    """steps after which a weight counts half as much; not used if decay is given"""
    every: int = Field(default=16, ge=1)
    """steps between two updates, each of which counts for all of them: one costs a pass over the weights"""
    warmup: bool = False
    """keep at most (1 + t)/(10 + t) in step t, so that the initial weights are soon forgotten"""

    @model_validator(mode="after")
    def _warmup_every_step(self) -> Ema:
        if self.warmup and self.every != 1:
            raise ValueError(f"found warmup with every {self.every}, expected every 1")
        return self

    def share(self, now: RunStep) -> float:
        if now.step % self.every:
            return 0.0
        keep = 0.5 ** (self.every / self.half_life) if self.decay is None else self.decay**self.every
        if self.warmup:
            keep = min(keep, (1 + now.step) / (10 + now.step))
        return 1 - keep
