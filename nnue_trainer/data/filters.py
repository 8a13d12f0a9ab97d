"""Which positions are trained on. The filters run in the order of the fields; docs/data.md has their exact rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nnue_trainer import _data
from nnue_trainer.schema import section, to_data

UserFilter = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.bool_]]


@section
class Filters:
    """Which positions are left out; all off by default."""

    no_score: bool = False
    """drop score 32002"""
    max_score: int = Field(0, ge=0)
    """drop |score| beyond it; 0: off"""
    placeholder_zero: bool = False
    """drop a zero score in a decided game right after a large one"""
    min_ply: int = Field(-1, ge=-1)
    """drop plies up to it; -1: off"""
    random_skip: float = Field(0.0, ge=0)
    """keep one position of random_skip + 1"""
    quiet: bool = False
    """drop positions in check and moves that capture"""
    wdl: bool = False
    """keep with the probability that a model gives to the result, from score and ply"""
    min_material: int = Field(0, ge=0)
    """drop |material balance| below it, a pawn is 208; 0: off"""
    soft_ply: int = Field(0, ge=0)
    """keep early plies with a probability that grows to 1 at this ply, usually 20; 0: off"""
    piece_counts: bool = False
    """even out the histogram of piece counts"""

    def as_dict(self) -> dict[str, Any]:
        return to_data(self)

    def apply(self, records: npt.NDArray[np.uint8], seed: int = 0) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """What passes of records uint8 [n, 32], taken as one chunk, and {"read", "kept", "dropped": by filter}."""
        return _data.filter_records(records, self.as_dict(), seed)
