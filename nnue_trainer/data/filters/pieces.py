"""Positions with few or many pieces."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nnue_trainer.base.arrays import Records
from nnue_trainer.data import fields
from nnue_trainer.data.filters.base import FILTERS, Filter
from nnue_trainer.schema import section


@FILTERS.register("pieces")
@section
class Pieces(Filter):
    """Keeps positions whose number of pieces, kings and pawns included, is within a range."""

    least: int = Field(default=2, ge=2, le=32)
    """fewest pieces"""
    most: int = Field(default=32, ge=2, le=32)
    """most pieces"""

    def keep(self, records: Records) -> npt.NDArray[np.bool_]:
        counts = fields.piece_counts(records)
        kept: npt.NDArray[np.bool_] = (counts >= self.least) & (counts <= self.most)
        return kept
