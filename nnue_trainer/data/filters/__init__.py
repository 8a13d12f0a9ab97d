"""Which positions are trained on. The filters run in the order of the fields; docs/data.md has their exact rules.

Those of `Filters` are compiled. Filters in Python, built-in or from outside, stand in its list `extra`: `base` has the
class that they derive from and the registry.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nnue_trainer import _data
from nnue_trainer.data.filters.base import FILTERS, AllOf, Filter, UserFilter, identity
from nnue_trainer.schema import section, to_data

__all__ = ["FILTERS", "Filter", "Filters", "UserFilter", "identity"]


@section
class Filters:
    """Which positions are left out. By default those without a score, and no others."""

    no_score: bool = True
    """drop positions without a score (32002), which say nothing of how good they are"""
    max_score: int = Field(0, ge=0, le=32767)
    """drop |score| beyond it; 0: off"""
    placeholder_zero: bool = False
    """drop a zero score in a decided game right after a large one"""
    min_ply: int = Field(-1, ge=-1, le=16383)
    """drop plies up to it; -1: off"""
    random_skip: float = Field(0.0, ge=0, le=1e9)
    """keep one position of random_skip + 1"""
    quiet: bool = False
    """drop positions in check and moves that capture"""
    wdl: bool = False
    """keep with the probability that a model gives to the result, from score and ply"""
    min_material: int = Field(0, ge=0, le=2**31 - 1)
    """drop |material balance| below it, a pawn is 208; 0: off"""
    soft_ply: int = Field(0, ge=0, le=16383)
    """keep early plies with a probability that grows to 1 at this ply, usually 20; 0: off"""
    piece_counts: bool = False
    """even out the histogram of piece counts"""
    extra: list[Annotated[Filter, FILTERS]] = Field(default_factory=list)
    """filters in Python, after the others: the positions that all of them keep"""

    @classmethod
    def none(cls) -> Filters:
        """Nothing is left out, positions without a score neither."""
        return cls(no_score=False)  # type: ignore[call-arg]

    def as_dict(self) -> dict[str, Any]:
        """The compiled filters, as the data library takes them."""
        return {key: value for key, value in to_data(self).items() if key != "extra"}

    def with_extra(self, function: UserFilter | None = None) -> UserFilter | None:
        """The filters of `extra` and `function` as one function of records; None where there are none."""
        return AllOf(self.extra, function) if self.extra else function

    def apply(self, records: npt.NDArray[np.uint8], seed: int = 0) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """What passes of records uint8 [n, 32], taken as one chunk, and {"read", "kept", "dropped": by filter}."""
        kept, counts = _data.filter_records(records, self.as_dict(), seed)
        extra = self.with_extra()
        if extra is not None:
            mask = extra(kept)
            if dropped := len(kept) - int(mask.sum()):
                counts["dropped"]["user_filter"] = dropped
                counts["kept"] -= dropped
            kept = kept[mask]
        return kept, counts
