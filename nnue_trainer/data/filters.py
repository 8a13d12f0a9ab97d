"""Which positions are trained on. The filters run in the order of the fields; docs/data.md has their exact rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.errors import UserError

UserFilter = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class Filters:
    """All off by default.

    no_score: drop score 32002. max_score: drop |score| beyond it (0: off). placeholder_zero: drop a zero score in a
    decided game right after a large one. min_ply: drop plies up to it (−1: off). random_skip: keep one position of
    random_skip + 1. quiet: drop positions in check and moves that capture. wdl: keep with the probability that a model
    gives to the result, from score and ply. min_material: drop |material balance| below it (0: off; a pawn is 208).
    soft_ply: keep early plies with a probability that grows to 1 at this ply (0: off; usual: 20). piece_counts: even
    out the histogram of piece counts.
    """

    no_score: bool = False
    max_score: int = 0
    placeholder_zero: bool = False
    min_ply: int = -1
    random_skip: float = 0.0
    quiet: bool = False
    wdl: bool = False
    min_material: int = 0
    soft_ply: int = 0
    piece_counts: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("max_score", 0),
            ("min_ply", -1),
            ("random_skip", 0),
            ("min_material", 0),
            ("soft_ply", 0),
        ):
            if getattr(self, name) < least:
                raise UserError(f"filters: {name} is {getattr(self, name)}, expected at least {least}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def apply(self, records: npt.NDArray[np.uint8], seed: int = 0) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """What passes of records uint8 [n, 32], taken as one chunk, and {"read", "kept", "dropped": by filter}."""
        return _data.filter_records(records, self.as_dict(), seed)
