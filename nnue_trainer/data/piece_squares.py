"""Tables of piece-square parts: stated by built-in and declared sets, and found for sets from outside by expanding
small positions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.data.features import FeaturePart, feature_set, outside_set
from nnue_trainer.data.probe import (
    ENEMY_KING,
    NONE,
    OWN_KING,
    PIECES,
    SQUARES,
    Counters,
    buckets_of_states,
    counters_of,
    far_kings,
    random_boards,
    rows_of_boards,
    state_of,
)
from nnue_trainer.errors import UserError

NUM_PIECES = 12


@dataclass(frozen=True)
class PieceSquareTable:
    """A part in which each piece makes at most one feature: bucket · bucket_size + place.

    The perspective is 0 for white, and 1 for black with the board turned upside down, so that both see their own pieces
    below. Pieces are 2 · type + (0 own, 1 enemy).
    """

    places: npt.NDArray[np.int64]
    """[2, 64, 12, 64] by perspective, square of the own king, piece and its square; −1 for no feature, and for what no
    position has"""
    bucket_size: int
    counters: Counters | None
    """what the state counts, as in `FeaturePart.states`; None if buckets depend on more than the own king and counts"""
    buckets: npt.NDArray[np.int64]
    """[2, 64, states] by perspective, square of the own king and state; no states without counters"""

    def features(self, states: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """int64 [2, 64, S, 12, 64]: the features with `states` int64 [S, 12], for each piece the state of a board with
        it; −1 for none."""
        buckets, places = self.buckets[:, :, states, np.newaxis], self.places[:, :, np.newaxis]
        return np.where(places < 0, NONE, buckets * self.bucket_size + places)


@cache
def piece_square_table(name: str) -> PieceSquareTable | None:
    """The table of the set `name`, which is one part; None if no table describes it. That of a set from outside is
    compared with random positions."""
    (part,) = feature_set(name).parts
    if outside_set(part.name) is None:
        return _stated(part)
    try:
        table = _probed(part)
        return table if table is not None and _holds(part, table) else None
    except UserError:  # the set refuses positions, which may be no legal ones
        return None


def _possible() -> npt.NDArray[np.bool_]:
    """[64, 12, 64]: whether a piece can stand on a square beside the own king."""
    king, piece, square = np.ogrid[:SQUARES, :NUM_PIECES, :SQUARES]
    rank = square // 8
    near = np.maximum(abs(king % 8 - square % 8), abs(king // 8 - rank)) <= 1
    pieces = (king != square) & ~((piece < 2) & ((rank == 0) | (rank == 7)))
    found = np.where(piece == OWN_KING, king == square, np.where(piece == ENEMY_KING, ~near, pieces))
    return np.asarray(found, np.bool_)


def _stated(part: FeaturePart) -> PieceSquareTable | None:
    tables = _data.piece_square_tables(part.name)
    if tables is None:
        return None
    offset, plane, orientation = tables
    side = np.arange(2)[:, np.newaxis]
    king = square = np.arange(SQUARES) ^ 56 * side
    offsets = offset[side, king].astype(np.int64)
    planes = plane[side, np.arange(NUM_PIECES) ^ side][:, np.newaxis, :, np.newaxis]
    turned = (square[:, np.newaxis] ^ orientation[side, king][:, :, np.newaxis])[:, :, np.newaxis]
    places = (offsets % part.bucket_size)[:, :, np.newaxis, np.newaxis] + planes + turned
    places = np.where(_possible() & (planes >= 0), places, NONE)
    buckets = offsets[:, :, np.newaxis] // part.bucket_size + np.arange(part.num_states)
    return PieceSquareTable(places, part.bucket_size, part.states, buckets)


# ---- sets from outside -----------------------------------------------------------------------------------------------


def _probed(part: FeaturePart) -> PieceSquareTable | None:
    """The table by small positions; None if a piece makes several features."""
    size = part.bucket_size or part.num_features
    bare = [(king, enemy) for king in range(SQUARES) for enemy in far_kings(king)]
    place = {pair: number for number, pair in enumerate(bare)}
    possible = _possible()
    probes = [
        (king, far_kings(king)[far_kings(king)[0] == square], code, square)
        for king, code, square in product(range(SQUARES), PIECES, range(SQUARES))
        if possible[king, code, square]
    ]
    boards = [[(king, OWN_KING), (enemy, ENEMY_KING)] for king, enemy in bare]
    boards += [[(king, OWN_KING), (enemy, ENEMY_KING), (at, code)] for king, enemy, code, at in probes]
    base = np.array([place[king, enemy] for king, enemy, _, _ in probes])
    kings, _, codes, squares = np.array(probes).T
    places = np.full((2, SQUARES, NUM_PIECES, SQUARES), NONE, np.int64)
    for perspective in range(2):
        rows = rows_of_boards(part, boards, perspective)
        local = np.where(rows >= 0, rows % size, NONE)
        counts, sums = (rows >= 0).sum(1), np.where(rows >= 0, local, 0).sum(1)
        more = counts[len(bare) :] - counts[base]
        if more.min() < 0 or more.max() > 1 or counts[: len(bare)].max() > 2:
            return None
        places[perspective, kings, codes, squares] = np.where(more == 1, sums[len(bare) :] - sums[base], NONE)
        for king in range(SQUARES):
            found = {enemy: Counter(local[place[king, enemy]].tolist()) for enemy in far_kings(king)}
            for features in found.values():
                del features[NONE]
            always = found[far_kings(king)[0]].copy()
            for features in found.values():
                always &= features
            own = min(always, default=NONE)
            places[perspective, king, OWN_KING, king] = own
            for enemy, features in found.items():
                places[perspective, king, ENEMY_KING, enemy] = next((features - Counter([own])).elements(), NONE)
    counters = counters_of(part.name) if part.bucket_size else ()
    buckets = np.zeros((2, SQUARES, int(counters is not None)), np.int64)
    if part.bucket_size and counters is not None:
        found_buckets = np.stack([buckets_of_states(part, counters, perspective) for perspective in range(2)])
        buckets = np.maximum(found_buckets, 0)  # whatever the bucket of a row without features
    return PieceSquareTable(places, size, counters, buckets)


def _holds(part: FeaturePart, table: PieceSquareTable, positions: int = 2000) -> bool:
    """Whether the table gives the rows of random positions with random scores, results and counters; without counters
    the places in them."""
    boards = random_boards(positions)
    random = np.random.default_rng(8)
    black = random.integers(2, size=positions).astype(bool)
    limits = {"scores": (-1000, 1000), "results": (-1, 2), "plies": (0, 200), "rule50s": (0, 100)}
    numbers = {key: random.integers(*limit, size=positions) for key, limit in limits.items()}
    for perspective in range(2):
        rows = rows_of_boards(part, boards, perspective, black, **numbers)
        if table.counters is None:
            rows = np.where(rows >= 0, rows % table.bucket_size, NONE)
        expected = np.full((positions, 32), NONE)
        for row, listed in zip(expected, boards, strict=True):
            squares, codes = np.array(listed).T
            king = listed[0][0]
            places = table.places[perspective, king, codes, squares]
            offset = 0
            if table.counters is not None:
                bucket = table.buckets[perspective, king, state_of(table.counters, codes.tolist())]
                offset = int(bucket) * table.bucket_size
            row[: len(listed)] = np.where(places >= 0, places + offset, NONE)
        width = max(expected.shape[1], rows.shape[1])
        found, wanted = (
            np.sort(np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=NONE), axis=1)
            for one in (rows, expected)
        )
        if not np.array_equal(found, wanted):
            return False
    return True
