"""Ends a run whose validation loss no longer improves."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from nnue_trainer.callbacks.base import CALLBACKS, Callback, Run
from nnue_trainer.schema import section


@CALLBACKS.register("early_stop")
@section
class EarlyStop(Callback):
    """Ends the run after some validations without a better loss."""

    patience: int = Field(default=10, gt=0, le=2**20)
    """validations without a better loss after which the run ends"""
    min_delta: float = Field(default=0.0, ge=0, le=1)
    """a loss is better if it is lower than the best one by more than this"""

    def validation(self, run: Run, loss: float, figures: Mapping[str, float]) -> None:
        best = self.memory.get("best")
        # A resumed run may compute another loss, which cannot be compared with the old best one.
        if best is None or self.memory.get("figure") != run.figure or loss < best - self.min_delta:
            self.memory.update(best=loss, waited=0, figure=run.figure)
            return
        self.memory["waited"] += 1
        if self.memory["waited"] >= self.patience:
            run.stop(f"no validation loss below {best:.6f} in {self.memory['waited']} validations")
