"""Drops at regular intervals."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import RunStep
from nnue_trainer.schema import section
from nnue_trainer.wdl.base import LAMBDAS, FromStart


@LAMBDAS.register("step")
@section
class StepLambda(FromStart):
    """start·gamma after every few epochs."""

    epochs: int = Field(gt=0)
    """epochs between two drops"""
    gamma: float = Field(default=0.9, gt=0, le=1)
    """factor at a drop"""

    def at(self, now: RunStep) -> float:
        return self.start * self.gamma ** (now.epoch // self.epochs)
