"""What every architecture offers to the trainer, the exporter and the evaluator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from nnue_trainer.data.batch import Batch


class WeightBound(NamedTuple):
    """The closed range `[low, high]` that a parameter must stay in to be exportable; the trainer clips to it."""

    name: str
    parameter: nn.Parameter
    low: float
    high: float


class NnueModel(nn.Module, ABC):
    """A net in floating point.

    `feature_set` is the name of the index rows it takes (`nnue_trainer.data`); `score_scale` the number of engine units
    in one unit of output (600 for Stockfish nets, 400 for simple ones).
    """

    feature_set: str
    score_scale: float

    @property
    @abstractmethod
    def architecture(self) -> dict[str, Any]:
        """The architecture as plain JSON data; `architectures.build` makes the same model from it."""

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """Output fp32 [B] for the side to move; `score_scale ·` output is the engine's score."""

    @abstractmethod
    def weight_bounds(self) -> Iterator[WeightBound]:
        """Parameters with a limited range."""

    def factorised(self) -> dict[str, int]:
        """Feature-transformer parameters whose rows share virtual rows: parameter name → number of virtual rows V.

        Row r of the parameter [F, N] belongs to virtual row r mod V. The virtual rows are never part of the forward
        pass: the optimiser carries them as extra moments and adds their update to every row that shares them, which is
        the same training (the gradient of a virtual row is the sum over its rows) at no cost in the forward.
        """
        return {}
