"""Which validation is the best one: `training.best_by`, the loss or a figure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nnue_trainer.errors import UserError
from nnue_trainer.training.figures import FIGURES

LOSS = "loss"


@dataclass(frozen=True)
class BestBy:
    """The loss or a figure, of data.validation, or of a further set as SET/loss or SET/FIGURE. UserError if there is
    no such figure or set."""

    name: str
    sets: Collection[str]
    """names of the further sets"""

    def __post_init__(self) -> None:
        known = [LOSS, *FIGURES]
        known += [f"{name}/{each}" for name in self.sets for each in known]
        if self.name not in known:
            raise UserError(f"training.best_by: found {self.name!r}, expected one of {', '.join(known)}")

    def value(self, loss: float, figures: Mapping[str, float]) -> float | None:
        """The value in a validation; None if no position counts for the figure, or if it or the loss is not finite."""
        found = loss if self.name == LOSS else figures.get(self.name)
        return found if found is not None and math.isfinite(found) and math.isfinite(loss) else None

    def is_better(self, value: float | None, best: float | None) -> bool:
        """Whether `value` is better than the best one before; None: there is none."""
        if value is None or best is None:
            return value is not None
        return value > best if FIGURES.get(self.name.rpartition("/")[2]) == "highest" else value < best
