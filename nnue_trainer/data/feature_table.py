"""Users' feature sets as tables, for programs that cannot run them: engines in C++ and Rust."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product

import numpy as np
import numpy.typing as npt

from nnue_trainer.data.feature_match import piece_square_table, settings_of
from nnue_trainer.data.features import FeaturePart, feature_set
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

_PIECES = 12


@dataclass(frozen=True)
class FeatureTable:
    """A set in which each piece makes at most one feature: index[own king, piece, square] + offsets[own king, state].
    Squares are those that the perspective sees: black's board is upside down."""

    index: npt.NDArray[np.int64]
    """[64, 12, 64]: pieces are 2 · type + (0 own, 1 enemy); -1 for no feature"""
    counters: Counters
    """what the state counts on the board, as in `FeaturePart.states`"""
    offsets: npt.NDArray[np.int64]
    """[64, states]"""


@cache
def feature_table(name: str) -> FeatureTable | None:
    """The table of the set `name`, which is one part.

    None if no such table describes the set: if a piece makes several features, or if features depend on anything but
    the piece, the own king and counts of pieces, or if the two perspectives differ. The table is made from small
    positions, and compared with 2,000 random ones.
    """
    (part,) = feature_set(name).parts
    counters = counters_of(name) if part.bucket_size else ()
    table = _with_states(part, counters) if counters else _of_one_state(part)
    return table if table is not None and _holds(name, table) else None


def _with_states(part: FeaturePart, counters: Counters) -> FeatureTable | None:
    found = piece_square_table(part.name, tuple(settings_of(part)))
    if found is None:
        return None
    offsets = buckets_of_states(part, counters, 0) * part.bucket_size
    return FeatureTable(found.places[0], counters, np.maximum(offsets, 0))


def _of_one_state(part: FeaturePart) -> FeatureTable | None:
    table = np.full((SQUARES, _PIECES, SQUARES), NONE, np.int64)
    bare = [(king, enemy) for king in range(SQUARES) for enemy in far_kings(king)]
    place = {pair: number for number, pair in enumerate(bare)}
    probes = [
        (king, far_kings(king)[far_kings(king)[0] == square], code, square)
        for king, code, square in product(range(SQUARES), PIECES, range(SQUARES))
        if king != square and not (code < 2 and square // 8 in (0, 7))
    ]
    pieces = [[(king, OWN_KING), (enemy, ENEMY_KING)] for king, enemy in bare]
    pieces += [[(king, OWN_KING), (enemy, ENEMY_KING), (at, code)] for king, enemy, code, at in probes]
    rows = rows_of_boards(part, pieces, 0)
    counts, sums = (rows >= 0).sum(1), np.where(rows >= 0, rows, 0).sum(1)
    base = np.array([place[king, enemy] for king, enemy, _, _ in probes])
    more = counts[len(bare) :] - counts[base]
    if more.min() < 0 or more.max() > 1 or counts[: len(bare)].max() > 2:
        return None
    kings, _, codes, squares = np.array(probes).T
    table[kings, codes, squares] = np.where(more == 1, sums[len(bare) :] - sums[base], NONE)
    for king in range(SQUARES):
        found = {enemy: Counter(rows[place[king, enemy]].tolist()) for enemy in far_kings(king)}
        for features in found.values():
            del features[NONE]
        always = reduce(lambda one, other: one & other, found.values())
        own = min(always, default=NONE)
        table[king, OWN_KING, king] = own
        for enemy, features in found.items():
            table[king, ENEMY_KING, enemy] = next((features - Counter([own])).elements(), NONE)
    return FeatureTable(table, (), np.zeros((SQUARES, 1), np.int64))


def _holds(name: str, table: FeatureTable, positions: int = 2000) -> bool:
    """Whether the table gives the rows of random positions with random scores, results and counters."""
    (part,) = feature_set(name).parts
    boards = random_boards(positions)
    expected = np.full((positions, 32), NONE)
    for row, listed in zip(expected, boards, strict=True):
        squares, codes = np.array(listed).T
        king = listed[0][0]
        features = table.index[king, codes, squares]
        offset = table.offsets[king, state_of(table.counters, codes.tolist())]
        row[: len(listed)] = np.where(features >= 0, features + offset, NONE)
    random = np.random.default_rng(8)
    black = random.integers(2, size=positions).astype(bool)
    limits = {"scores": (-1000, 1000), "results": (-1, 2), "plies": (0, 200), "rule50s": (0, 100)}
    numbers = {key: random.integers(*limit, size=positions) for key, limit in limits.items()}
    for perspective in range(2):
        rows = rows_of_boards(part, boards, perspective, black, **numbers)
        width = max(expected.shape[1], rows.shape[1])
        found, wanted = (
            np.sort(np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=NONE), axis=1)
            for one in (rows, expected)
        )
        if not np.array_equal(found, wanted):
            return False
    return True
