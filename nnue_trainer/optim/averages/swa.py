"""The mean of the weights at the ends of epochs (stochastic weight averaging)."""

from __future__ import annotations

from pydantic import Field

from nnue_trainer.optim.averages.base import AVERAGES, Average
from nnue_trainer.schedules import RunStep
from nnue_trainer.schema import section


@AVERAGES.register("swa")
@section
class Swa(Average):
    """The mean, with equal shares, of the weights after each epoch from one on."""

    start_epoch: int = Field(ge=0)
    """number of epochs before the first one whose final weights are averaged"""

    def share(self, now: RunStep) -> float:
        ended = now.step > now.first_step and (now.step - now.first_step) % now.steps_per_epoch == 0
        return 1 / self._counted(now) if ended and self.begun(now) else 0.0

    def begun(self, now: RunStep) -> bool:
        return self._counted(now) > 0

    def _counted(self, now: RunStep) -> int:
        return now.epoch - max(self.start_epoch, now.first_epoch)
