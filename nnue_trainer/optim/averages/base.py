"""The contract of an average of weights, and the registry.

Weights with virtual rows are stored as their sums. An average is linear, so the average of the sums is that of both
parts. It is within the limits of the weights, because it lies between weights that are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from nnue_trainer.base.foreign import number, returned
from nnue_trainer.registry import Registry
from nnue_trainer.schedules import RunStep
from nnue_trainer.schema import section


@section
class Average(ABC):
    """An average of the weights. Its movement depends on the step only, so a resumed run needs only the average."""

    kind: ClassVar[str]

    @abstractmethod
    def share(self, now: RunStep) -> float:
        """The share of the way that the average moves towards the weights after `now.step` steps: 0: not at all; 1: it
        becomes the weights. It starts as a copy of the weights of step 0."""

    def share_at(self, now: RunStep) -> float:
        """`share`, checked."""
        share = number(self, "share", self.share(now))
        returned(self, "share", share, 0 <= share <= 1, "0 to 1")
        return share

    def begun(self, now: RunStep) -> bool:
        """Whether the net is the average after `now.step` steps; before, it is the weights."""
        return True


AVERAGES: Registry[Average] = Registry("nnue_trainer.optim.averages", lambda: Average, what="average")
