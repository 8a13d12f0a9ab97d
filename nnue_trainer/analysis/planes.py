"""Weights of a piece-square part by piece and square, with the names of its planes, king buckets and states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer.base.arrays import Floats
from nnue_trainer.data.features import FeaturePart
from nnue_trainer.data.piece_squares import PieceSquareTable, piece_square_table
from nnue_trainer.data.probe import SQUARES, Counters

_OWN = ("own pawn", "own knight", "own bishop", "own rook", "own queen", "own king")
PIECES = (*_OWN, *(name.replace("own", "enemy") for name in _OWN))
_BY_CODE = [*range(0, 12, 2), *range(1, 12, 2)]
"""the code of each of `PIECES`, 2 · type + (0 own, 1 enemy)"""


@dataclass(frozen=True)
class WeightMap:
    """Mean magnitude of a piece-square part's weights over all neurons, fp64 [buckets, planes, 64], in units of the
    float model; `planes` gives the piece of each plane, `king_buckets` [64] the bucket of an own king on each
    square, −1 where none was found; `states` names the states of a king bucket, whose buckets follow one another. If
    buckets depend on anything else, there are no king buckets, and one state without a name."""

    part: str
    sizes: Floats
    planes: list[str]
    king_buckets: npt.NDArray[np.int64]
    states: list[str]


def is_piece_square(part: FeaturePart) -> bool:
    planes = part.bucket_size // SQUARES
    return part.bucket_size > 0 and planes in range(6, 14) and part.bucket_size % SQUARES in (0, 1)


def weight_map(part: FeaturePart, weight: torch.Tensor) -> WeightMap:
    """`weight` [F, N] belongs to the whole first layer."""
    buckets = part.num_features // part.bucket_size
    sizes = np.empty((buckets, part.bucket_size))
    for bucket in range(buckets):
        begin = part.first_feature + bucket * part.bucket_size
        sizes[bucket] = weight[begin : begin + part.bucket_size].abs().mean(1, dtype=torch.float64).numpy()
    # Bucket sizes that are not a multiple of 64 begin with an unused slot.
    boards = sizes[:, part.bucket_size % SQUARES :].reshape(buckets, -1, SQUARES)
    table = piece_square_table(part.name)
    return WeightMap(part.name, boards, plane_names(part, table), *_kings_and_states(part, table))


def plane_names(part: FeaturePart, table: PieceSquareTable | None) -> list[str]:
    """The pieces of each plane of 64 squares."""
    meanings: list[list[str]] = [[] for _ in range(part.bucket_size // SQUARES)]
    for piece, places in zip(
        PIECES, table.places[0].swapaxes(0, 1)[_BY_CODE] if table is not None else (), strict=False
    ):
        for plane in np.unique((places[places >= 0] - part.bucket_size % SQUARES) // SQUARES).tolist():
            meanings[plane].append(piece)
    return [" and ".join(names) or f"plane {i}" for i, names in enumerate(meanings)]


def _names(counters: Counters) -> list[str]:
    """The meaning of each state of the counters."""
    names = [""]
    for pieces, most in counters:
        counted = " and ".join(f"{name}s" for name, code in zip(PIECES, _BY_CODE, strict=True) if pieces >> code & 1)
        digits = [f"{counted} {count}{'+' * (count == most)}" for count in range(most + 1)]
        names = [", ".join(filter(None, (name, digit))) for name in names for digit in digits]
    return names


def _kings_and_states(part: FeaturePart, table: PieceSquareTable | None) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The bucket of each king square among the king buckets, and a name for each bucket of a king bucket: the counts of
    pieces that lead to it. −1 and [""] if buckets depend on anything else, or do not follow one another."""
    unknown = np.full(SQUARES, -1, np.int64), [""]
    if table is None or table.counters is None:
        return unknown
    seen, total = table.buckets[0], part.num_features // part.bucket_size
    if not table.counters:
        return seen[:, 0], [""]
    for count in (count for count in range(2, total + 1) if total % count == 0):
        kings, states = seen // count, seen % count
        if (kings == kings[:, :1]).all() and (states == states[:1]).all() and states.any():
            named = list(zip(states[0].tolist(), _names(table.counters), strict=True))
            meanings = (" or ".join(name for state, name in named if state == number) for number in range(count))
            return kings[:, 0], [meaning or "no position found" for meaning in meanings]
    return unknown
