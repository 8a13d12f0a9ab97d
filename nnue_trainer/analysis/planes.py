"""The planes, king buckets and states of a piece-square part, found by expanding positions with one more piece.

This works for every feature set, including those from outside, since it needs no description of the set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer import data
from nnue_trainer.base.arrays import Floats
from nnue_trainer.data.features import FeaturePart, outside_set
from nnue_trainer.data.probe import Counters, buckets_of_states, counters_of
from nnue_trainer.errors import UserError

SQUARES = 64
_OWN = ("own pawn", "own knight", "own bishop", "own rook", "own queen", "own king")
PIECES = (*_OWN, *(name.replace("own", "enemy") for name in _OWN))
_LETTERS = "PNBRQKpnbrqk"
_BY_CODE = [name for pair in zip(PIECES[:6], PIECES[6:], strict=True) for name in pair]


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
    """`weight` [F, N] is that of the whole first layer."""
    buckets = part.num_features // part.bucket_size
    sizes = np.empty((buckets, part.bucket_size))
    for bucket in range(buckets):
        begin = part.first_feature + bucket * part.bucket_size
        sizes[bucket] = weight[begin : begin + part.bucket_size].abs().mean(1, dtype=torch.float64).numpy()
    # Bucket sizes that are not a multiple of 64 begin with an unused slot.
    boards = sizes[:, part.bucket_size % SQUARES :].reshape(buckets, -1, SQUARES)
    states = state_names(part)
    if states == [""] and outside_set(part.name) is not None and counters_of(part.name) != ():
        kings = np.full(SQUARES, -1, np.int64)
    else:
        kings = king_buckets(part, len(states))
    return WeightMap(part.name, boards, plane_names(part), kings, states)


def _indices(part: FeaturePart, fen_board: str) -> set[int]:
    """White's features of a board, white to move."""
    batch = data.expand(data.records_from_fens([f"{fen_board} w - - 0 1"]), part.name)
    row = batch.white[0].tolist()
    return {index for index in row if index >= 0}


def _board(pieces: dict[int, str]) -> str:
    ranks = []
    for rank in range(7, -1, -1):
        row = "".join(pieces.get(8 * rank + file, "1") for file in range(8))
        ranks.append(row)
    return "/".join(ranks)


_E1, _E8, _D4, _G8 = 4, 60, 27, 62


def plane_names(part: FeaturePart) -> list[str]:
    """The meaning of each plane of 64 squares, found by expanding positions with one piece more."""
    planes = part.bucket_size // SQUARES
    meanings: list[list[str]] = [[] for _ in range(planes)]

    def plane_of(place: int) -> int:
        return (place - part.bucket_size % SQUARES) // SQUARES

    def places(pieces: dict[int, str]) -> set[int]:
        """Places in any bucket: a piece may move the position to another one."""
        return {index % part.bucket_size for index in _indices(part, _board(pieces))}

    kings = {_E1: "K", _E8: "k"}
    try:
        base = places(kings)
        for letter, name in zip(_LETTERS, PIECES, strict=True):
            if letter in "Kk":
                continue
            for place in places(kings | {_D4: letter}) - base:
                meanings[plane_of(place)].append(name)
        moved = places({_E1: "K", _G8: "k"})
        for place in moved - base:
            meanings[plane_of(place)].append("enemy king")
        for place in moved & base:
            meanings[plane_of(place)].append("own king")
    except (UserError, IndexError):
        pass
    return [" and ".join(sorted(set(names), key=names.index)) or f"plane {i}" for i, names in enumerate(meanings)]


def king_buckets(part: FeaturePart, num_states: int) -> npt.NDArray[np.int64]:
    """The king bucket for an own king on each square, int64 [64], of which each has `num_states` buckets; −1 where no
    position has features that show it."""
    found = np.full(SQUARES, -1, np.int64)
    for square in range(SQUARES):
        far = 63 if square % 8 < 4 else 56
        far = far if square < 32 else far - 56
        pawn = 27 if square != 27 else 28
        try:
            indices = _indices(part, _board({square: "K", far: "k", pawn: "P"}))
        except UserError:
            continue
        if indices:
            found[square] = min(indices) // part.bucket_size // num_states
    return found


def state_names(part: FeaturePart) -> list[str]:
    """The meaning of each state of a king bucket, such as "enemy queens 0" and "enemy queens 1+"; [""] if there is
    only one. The states of a set from outside are found by expanding positions."""
    return _names(part.states) if outside_set(part.name) is None else _states_seen(part)


def _names(counters: Counters) -> list[str]:
    """The meaning of each state of the counters."""
    names = [""]
    for pieces, most in counters:
        counted = " and ".join(f"{name}s" for code, name in enumerate(_BY_CODE) if pieces >> code & 1)
        digits = [f"{counted} {count}{'+' * (count == most)}" for count in range(most + 1)]
        names = [", ".join(filter(None, (name, digit))) for name in names for digit in digits]
    return names


def _states_seen(part: FeaturePart) -> list[str]:
    """A name for each bucket of a king bucket, if the buckets of a king follow one another: the counts of pieces that
    lead to it. [""] if buckets depend on the king only, or in another way."""
    counters = counters_of(part.name)
    if not counters:
        return [""]
    seen, total = buckets_of_states(part, counters, 0), part.num_features // part.bucket_size
    for count in (count for count in range(2, total + 1) if total % count == 0):
        kings, states = seen // count, seen % count
        if (kings == kings[:, :1]).all() and (states == states[:1]).all() and states.any():
            named = list(zip(states[0].tolist(), _names(counters), strict=True))
            meanings = (" or ".join(name for state, name in named if state == number) for number in range(count))
            return [meaning or "no position found" for meaning in meanings]
    return [""]
