"""Small positions, expanded to find out what a feature set from outside does: which feature a piece gives, and in which
bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from nnue_trainer.data.features import FeaturePart, expand, feature_set
from nnue_trainer.data.fields import pack
from nnue_trainer.errors import UserError

SQUARES = 64
NONE = -1
OWN_KING, ENEMY_KING = 10, 11
PIECES = range(OWN_KING)
"""2 · type + (0 own, 1 enemy), without kings"""

Setting = tuple[int, ...]
"""Pieces on the board besides the kings."""
Counters = tuple[tuple[int, int], ...]
"""The form of `FeaturePart.states`: the pieces that count, as bits, and the most that is counted."""

_MOST_OF_A_KIND, _MOST_PIECES = 8, 28
_MOST_STATES = 256


def rows_of_boards(
    part: FeaturePart,
    pieces: Sequence[Sequence[tuple[int, int]]],
    perspective: int,
    black_to_move: npt.NDArray[np.bool_] | None = None,
    **numbers: npt.ArrayLike,
) -> np.ndarray:
    """Index rows int64 [B, K] of a perspective, for boards of (square, piece) as it sees them. White is to move unless
    `black_to_move` bool [B] is given; `numbers` are those of `fields.pack` besides scores and results."""
    boards = np.zeros((len(pieces), SQUARES), np.uint8)
    for board, listed in zip(boards, pieces, strict=True):
        for square, code in listed:
            board[square ^ 56 if perspective else square] = 1 + (code ^ perspective)
    black = np.zeros(len(boards), bool) if black_to_move is None else black_to_move
    batch = expand(pack(boards, black, **{"scores": 0, "results": 0} | numbers), part.name)
    rows: np.ndarray = (batch.black if perspective else batch.white).numpy().astype(np.int64)
    return rows


def buckets_of_settings(
    part: FeaturePart, settings: Sequence[Setting], perspective: int, squares: Sequence[int] = range(8, 56)
) -> np.ndarray:
    """The bucket of a row by the square of the own king and the other pieces, which stand on the first free of
    `squares`: int64 [64, settings]; −1 where the row has no features."""
    pieces = []
    for king, setting in product(range(SQUARES), settings):
        enemy = far_kings(king)[0]
        free = (square for square in squares if square not in (king, enemy))
        pieces.append([(king, OWN_KING), (enemy, ENEMY_KING), *zip(free, setting, strict=False)])
    rows = rows_of_boards(part, pieces, perspective)
    return np.where(rows[:, 0] >= 0, rows[:, 0] // part.bucket_size, NONE).reshape(SQUARES, len(settings))


def random_boards(positions: int) -> list[list[tuple[int, int]]]:
    """Boards of (square, piece) with 2 to 32 pieces; the own king comes first, then the enemy's."""
    random = np.random.default_rng(7)
    pieces = []
    for number in range(positions):
        count = 2 + number % 29
        king, enemy = int(random.integers(SQUARES)), int(random.integers(32))
        kings = [king, far_kings(king)[enemy]]
        squares = (
            kings + [square for square in random.permutation(SQUARES).tolist() if square not in kings][: count - 2]
        )
        codes = [OWN_KING, ENEMY_KING, *random.integers(2, OWN_KING, count - 2).tolist()]
        free = [square for square in random.permutation(np.arange(8, 56)).tolist() if square not in squares]
        pawns = [(square, int(random.integers(2))) for square in free[: min(6, 32 - count)]]
        pieces.append([*zip(squares, codes, strict=True), *pawns])
    return pieces


@cache
def far_kings(king: int) -> list[int]:
    """Squares of an enemy king that is not next to this one, far ones first."""
    distance = [max(abs(king % 8 - at % 8), abs(king // 8 - at // 8)) for at in range(SQUARES)]
    return sorted((at for at in range(SQUARES) if distance[at] > 1), key=lambda at: -distance[at])


# ---- what buckets depend on besides the own king ---------------------------------------------------------------------


def state_of(counters: Counters, setting: Sequence[int]) -> int:
    """The number of mixed radix that the counts of the pieces form."""
    state = 0
    for pieces, most in counters:
        state = state * (most + 1) + min(sum(pieces >> code & 1 for code in setting), most)
    return state


def settings_of_states(counters: Counters) -> list[Setting]:
    """For each state of the counters, pieces with which the board is in it."""
    counts = product(*(range(most + 1) for _, most in counters))
    codes = [(pieces & -pieces).bit_length() - 1 for pieces, _ in counters]
    return [tuple(code for code, count in zip(codes, each, strict=True) for _ in range(count)) for each in counts]


@cache
def counters_of(name: str) -> Counters | None:
    """The pieces that a set from outside with king buckets counts, found by expanding positions: () if buckets depend
    on the own king only, None if they depend on anything but the own king and counts of pieces, or if the set refuses
    the positions, which may be no legal ones. `name` is one part."""
    (part,) = feature_set(name).parts
    try:
        return _counters(part)
    except UserError:
        return None


def _counters(part: FeaturePart) -> Counters | None:
    lengths = [(code,) * count for code in PIECES for count in range(_MOST_OF_A_KIND + 1)]
    seen = np.stack([buckets_of_settings(part, lengths, side) for side in (0, 1)])
    series = seen.reshape(2, SQUARES, len(PIECES), _MOST_OF_A_KIND + 1)
    if (series[..., 0] == NONE).any():
        series[..., 0] = _without_king_features(part, series[..., 1])
    differs = (series[..., 1:] != series[..., :-1]).any((0, 1))
    most = [int(np.flatnonzero(each).max(initial=-1)) + 1 for each in differs]
    groups: dict[bytes, int] = {}
    for code in filter(most.__getitem__, PIECES):
        alike = series[:, :, code].tobytes()
        groups[alike] = groups.get(alike, 0) | 1 << code
    # Pieces with the same effect may be counted together or separately.
    for one_by_one in (False, True):
        counters = tuple(
            (pieces, most[(pieces & -pieces).bit_length() - 1])
            for group in groups.values()
            for pieces in ([1 << code for code in PIECES if group >> code & 1] if one_by_one else [group])
        )
        if _buckets_depend_on(part, counters):
            return counters
    return None


def _without_king_features(part: FeaturePart, of_one: np.ndarray) -> np.ndarray:
    """The buckets of boards with kings only, where these have no features: those of one piece more, `of_one` [2, 64,
    pieces], if it changes the bucket of no other piece, and otherwise others."""
    alone, pairs = [(code,) for code in PIECES], [(code, other) for code in PIECES for other in PIECES]
    with_it, without = (
        np.stack([buckets_of_settings(part, settings, side) for side in (0, 1)]) for settings in (pairs, alone)
    )
    changes = (with_it.reshape(2, SQUARES, len(PIECES), -1) != without[:, :, np.newaxis]).any((0, 1))
    np.fill_diagonal(changes, val=False)
    return np.where(changes.any(1), NONE - 1, of_one)


def _buckets_depend_on(part: FeaturePart, counters: Counters, boards: int = 60) -> bool:
    """Whether the own king and the counters give the bucket of boards with random pieces on random squares."""
    if math.prod(most + 1 for _, most in counters) > _MOST_STATES or sum(most for _, most in counters) > _MOST_PIECES:
        return False
    random = np.random.default_rng(9)
    settings = []
    for board in range(boards):
        counts = [*random.integers(9, size=2), *random.integers(4, size=len(PIECES) - 2)]
        pieces = random.permutation(np.repeat(np.array(PIECES), counts))
        settings.append(tuple(pieces[: board % (_MOST_PIECES + 1)].tolist()))
    squares = random.permutation(np.arange(8, 56)).tolist()
    states = [state_of(counters, setting) for setting in settings]
    for perspective in (0, 1):
        expected = buckets_of_states(part, counters, perspective)[:, states]
        seen = buckets_of_settings(part, settings, perspective, squares)
        if ((seen != expected) & (seen != NONE) & (expected != NONE)).any():
            return False
    return True


def buckets_of_states(part: FeaturePart, counters: Counters, perspective: int) -> np.ndarray:
    """The bucket of a row by the square of the own king and the state of the counters: int64 [64, states]; −1 where all
    rows are empty."""
    # A piece that does not count, so that rows without features of kings are not empty.
    uncounted = [(code,) for code in PIECES if not any(pieces >> code & 1 for pieces, _ in counters)][:1]
    settings = [setting + (*uncounted, ())[0] for setting in settings_of_states(counters)]
    return buckets_of_settings(part, settings, perspective)
