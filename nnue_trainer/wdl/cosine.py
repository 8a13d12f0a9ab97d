"""Half a cosine."""

from __future__ import annotations

from nnue_trainer.schedules.base import RunStep, half_cosine
from nnue_trainer.schema import section
from nnue_trainer.wdl.base import LAMBDAS, Between


@LAMBDAS.register("cosine")
@section
class CosineLambda(Between):
    """Half a cosine from start to end: slow, fast, slow."""

    def at(self, now: RunStep) -> float:
        return half_cosine(self.start, self.end, now.share_of(self.steps))
