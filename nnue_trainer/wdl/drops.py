"""Drops at the epochs of a list."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.schedules.base import DropEpochs, RunStep
from nnue_trainer.schema import section
from nnue_trainer.wdl.base import LAMBDAS, FromStart


@LAMBDAS.register("drops")
@section
class DropsLambda(FromStart):
    """start·gamma at each epoch of a list."""

    epochs: DropEpochs
    """the number of completed epochs at each drop, such as [100, 200, 250]"""
    gamma: float = Field(default=0.9, gt=0, le=1)
    """factor at a drop"""

    def at(self, now: RunStep) -> float:
        return self.start * self.gamma ** sum(now.epoch >= epoch for epoch in self.epochs)
