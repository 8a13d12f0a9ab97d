"""Feature sets from outside as a table, for programs that cannot run them: engines in C++ and Rust."""

from __future__ import annotations

from collections import Counter
from functools import cache, reduce
from itertools import product

import numpy as np

from nnue_trainer.data.feature_match import NONE, SQUARES, far_kings, random_boards, rows_of_boards
from nnue_trainer.data.features import feature_set

_PIECES, _OWN_KING, _ENEMY_KING = 12, 10, 11


@cache
def feature_table(name: str) -> np.ndarray | None:
    """The feature of each piece of the set `name`, which is one part: int64 [64, 12, 64], by the square of the own
    king, the piece (2 · type + (0 own, 1 enemy)) and its square, -1 for none. Squares are those that the perspective
    sees: black's board is upside down.

    None if no such table describes the set: if a piece makes several features, or if features depend on anything but
    the piece and the own king, or if the two perspectives differ. The table is made from positions with one piece
    besides the kings, and compared with 2,000 random ones.
    """
    (part,) = feature_set(name).parts
    table = np.full((SQUARES, _PIECES, SQUARES), NONE, np.int64)
    bare = [(king, enemy) for king in range(SQUARES) for enemy in far_kings(king)]
    place = {pair: number for number, pair in enumerate(bare)}
    probes = [
        (king, far_kings(king)[far_kings(king)[0] == square], code, square)
        for king, code, square in product(range(SQUARES), range(_OWN_KING), range(SQUARES))
        if king != square and not (code < 2 and square // 8 in (0, 7))
    ]
    pieces = [[(king, _OWN_KING), (enemy, _ENEMY_KING)] for king, enemy in bare]
    pieces += [[(king, _OWN_KING), (enemy, _ENEMY_KING), (at, code)] for king, enemy, code, at in probes]
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
        table[king, _OWN_KING, king] = own
        for enemy, features in found.items():
            table[king, _ENEMY_KING, enemy] = next((features - Counter([own])).elements(), NONE)
    return table if _holds(name, table) else None


def _holds(name: str, table: np.ndarray, positions: int = 2000) -> bool:
    """Whether the table gives the rows of random positions with random scores, results and counters."""
    (part,) = feature_set(name).parts
    boards = random_boards(positions)
    expected = np.full((positions, 32), NONE)
    for row, listed in zip(expected, boards, strict=True):
        squares, codes = np.array(listed).T
        row[: len(listed)] = table[listed[0][0], codes, squares]
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
