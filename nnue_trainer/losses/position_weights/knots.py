"""A weight by straight lines over one quantity of the position."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from nnue_trainer.data.batch import Batch
from nnue_trainer.losses import NO_SCORE
from nnue_trainer.losses.position_weights.base import POSITION_WEIGHTS, PositionWeight
from nnue_trainer.schema import section

Knot = tuple[float, Annotated[float, Field(ge=0)]]


@POSITION_WEIGHTS.register("knots")
@section
class Knots(PositionWeight):
    """Straight lines through knots, level before the first and after the last."""

    by: Literal["pieces", "score", "result", "ply", "rule50"]
    """pieces: their number; score: its size in engine units (without a score the weight is 1); result: −1, 0 or 1 for
    the side to move; ply: half-moves played before the position; rule50: half-moves since the last capture or pawn
    move"""
    knots: list[Knot] = Field(min_length=1, max_length=64)
    """[quantity, weight] with rising quantities"""

    @model_validator(mode="after")
    def _rising(self) -> Knots:
        if any(x >= y for (x, _), (y, _) in pairwise(self.knots)):
            raise ValueError(f"found knots at {[x for x, _ in self.knots]}, expected ascending ones")
        if not any(weight for _, weight in self.knots):
            raise ValueError("found only weights of 0, expected a larger one for some positions")
        return self

    @property
    def reads_records(self) -> bool:
        return self.by in ("ply", "rule50")

    def of(self, batch: Batch) -> Tensor:
        known = {"pieces": batch.piece_count, "score": batch.score, "result": batch.result}
        given = (known[self.by] if self.by in known else batch.field(self.by)).float()
        quantity = given.abs() if self.by == "score" else given
        weight = torch.full_like(quantity, self.knots[0][1])
        for (x, low), (y, high) in pairwise(self.knots):
            weight += ((quantity - x) / (y - x)).clamp(0, 1) * (high - low)
        return torch.where(batch.score == NO_SCORE, 1, weight) if self.by == "score" else weight
