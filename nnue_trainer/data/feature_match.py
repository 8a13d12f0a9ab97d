"""Finds the features of one set in another set: where a row of weights that was trained for one set can be used in the
other.

Parts of the same name are the same. Piece-square parts, whatever their king buckets, planes, order and mirror, are
compared by the feature that they give every piece on every square, for every square of the own king. The compiled sets
expand small positions for this, so it works for any piece-square set. Versions of Full_Threats are compared by the
names of their features. Any other part is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from nnue_trainer._data import records_from_fens
from nnue_trainer.data.features import FeaturePart, expand, feature_set

SQUARES = 64
_PIECES = "PpNnBbRrQqKk"  # by code: 2 · type + (0 own, 1 enemy)
_OWN_KING, _ENEMY_KING = 10, 11
NONE = -1


@dataclass(frozen=True)
class FeatureMatch:
    """`source` int64 [F]: for each feature of a set the same feature of another set, −1 where that set has none.

    A feature that covers several of the other set's (one king bucket there may be several here) is their mean:
    `averaged` holds (feature, other set's feature, share) for these, in ascending order, and `source` holds one of
    them. `notes` has a sentence for each part."""

    source: np.ndarray
    averaged: tuple[np.ndarray, np.ndarray, np.ndarray]
    num_sources: int
    used: int
    """how many features of the other set are used"""
    notes: tuple[str, ...]


@cache
def match_features(name: str, other: str) -> FeatureMatch:
    """Finds the features of the set `name` in the set `other`."""
    target, source = feature_set(name), feature_set(other)
    left = list(source.parts)
    pairs: dict[FeaturePart, FeaturePart] = {}
    for is_like in (lambda part, other: part.name == other.name, _comparable):
        for part in target.parts:
            found = next((other for other in left if part not in pairs and is_like(part, other)), None)
            if found is not None:
                pairs[part] = found
                left.remove(found)
    rows = np.full(target.num_features, NONE, np.int64)
    averaged: list[np.ndarray] = []
    notes = []
    for part in target.parts:
        if part not in pairs:
            notes.append(f"{_short(part)}: new")
            continue
        other_part = pairs[part]
        found_rows, (mixed, sources, shares), what = _match_parts(part, other_part)
        rows[part.first_feature :][: part.num_features] = np.where(
            found_rows < 0, NONE, found_rows + other_part.first_feature
        )
        averaged.append(np.stack([mixed + part.first_feature, sources + other_part.first_feature, shares]))
        notes.append(f"{_short(part)}: {what}")
    notes += [f"{_short(part)}: left out" for part in left]
    mixed, sources, shares = np.concatenate(averaged, axis=1) if averaged else np.empty((3, 0))
    every = np.concatenate([rows[rows >= 0], sources.astype(np.int64)])
    return FeatureMatch(
        rows,
        (mixed.astype(np.int64), sources.astype(np.int64), shares.astype(np.float32)),
        source.num_features,
        len(np.unique(every)),
        tuple(notes),
    )


def _short(part: FeaturePart) -> str:
    return part.name if len(part.name) <= 60 else f"{part.name[:57]}…)"


def _comparable(part: FeaturePart, other: FeaturePart) -> bool:
    if part.bucket_size and other.bucket_size:
        return piece_square_table(part.name) is not None and piece_square_table(other.name) is not None
    return threat_names(part.name) is not None and threat_names(other.name) is not None


_Match = tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray], str]


def _match_parts(part: FeaturePart, other: FeaturePart) -> _Match:
    """The feature of `other` for each feature of `part`; (feature, feature of `other`, share) of its means; a
    sentence."""
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    if part.name == other.name:
        return np.arange(part.num_features), nothing, "the same"
    if part.bucket_size:
        table, others = piece_square_table(part.name), piece_square_table(other.name)
        assert table is not None
        assert others is not None
        return _match_tables(part, other, table.reshape(-1), others.reshape(-1))
    names, known = threat_names(part.name), threat_names(other.name)
    assert names is not None
    assert known is not None
    place = {name: feature for feature, name in enumerate(known)}
    rows = np.array([place.get(name, NONE) for name in names])
    found = int((rows >= 0).sum())
    return rows, nothing, f"{found:,} of {len(rows):,} features are in {other.name}"


def _match_tables(part: FeaturePart, other: FeaturePart, table: np.ndarray, others: np.ndarray) -> _Match:
    seen = table >= 0
    pairs, counts = np.unique(np.stack([table[seen], others[seen]]), axis=1, return_counts=True)
    features, sources = pairs
    total = np.bincount(features, weights=counts, minlength=part.num_features)
    # If a feature covers several, of which the other set lacks one, the missing one counts as 0 in the mean.
    several = np.bincount(features, minlength=part.num_features)[features] > 1
    rows = np.full(part.num_features, NONE, np.int64)
    known = sources >= 0
    rows[features[known][::-1]] = sources[known][::-1]
    mixed = several & known
    averaged = (features[mixed], sources[mixed], counts[mixed] / total[features[mixed]])
    words = [f"from {_short(other)}"]
    if mixed.any():
        words.append(f"{len(np.unique(features[mixed])):,} features are means of several")
    new = np.setdiff1d(features, features[known])
    if new.size:
        words.append(f"{new.size:,} features are new")
    lost = np.setdiff1d(others[(table < 0) & (others >= 0)], sources[known])
    if lost.size:
        words.append(f"{lost.size:,} features of it are left out")
    return rows, averaged, ", ".join(words)


# ---- piece-square parts ----------------------------------------------------------------------------------------------


@cache
def piece_square_table(name: str) -> np.ndarray | None:
    """The feature that a piece-square part of this name makes of a piece: int64 [2, 64, 12, 64], −1 for none and for
    what no position has. The dimensions are the perspective (0 white; 1 black, with the board turned upside down, so
    that both see their own pieces below), the square of its king, the piece (2 · type + (0 own, 1 enemy)) and its
    square. None where a piece makes more than one feature, so that the part is no piece-square set."""
    table = np.full((2, SQUARES, len(_PIECES), SQUARES), NONE, np.int64)
    others = [_far_kings(king) for king in range(SQUARES)]
    bare = [(king, enemy) for king in range(SQUARES) for enemy in others[king]]
    place = {pair: number for number, pair in enumerate(bare)}
    probes = [
        (king, others[king][0] if others[king][0] != square else others[king][1], code, square)
        for king, code, square in product(range(SQUARES), range(_OWN_KING), range(SQUARES))
        if king != square and not (code < 2 and square // 8 in (0, 7))
    ]
    kings, _, codes, squares = np.array(probes).T
    for perspective in range(2):
        fens = [_fen({king: _OWN_KING, enemy: _ENEMY_KING}, perspective) for king, enemy in bare]
        fens += [_fen({king: _OWN_KING, enemy: _ENEMY_KING, at: code}, perspective) for king, enemy, code, at in probes]
        batch = expand(records_from_fens(fens), name)
        rows = (batch.black if perspective else batch.white).numpy().astype(np.int64)
        counts, sums = (rows >= 0).sum(1), np.where(rows >= 0, rows, 0).sum(1)
        base = np.array([place[king, enemy] for king, enemy, _, _ in probes])
        more = counts[len(bare) :] - counts[base]
        if more.min() < 0 or more.max() > 1 or counts[: len(bare)].max() > 2:
            return None
        feature = sums[len(bare) :] - sums[base]
        table[perspective, kings, codes, squares] = np.where(more == 1, feature, NONE)
        for king in range(SQUARES):
            found = {enemy: set(rows[place[king, enemy]]) - {NONE} for enemy in others[king]}
            own = set.intersection(*found.values())
            if len(own) > 1:
                return None
            table[perspective, king, _OWN_KING, king] = next(iter(own), NONE)
            for enemy, features in found.items():
                table[perspective, king, _ENEMY_KING, enemy] = next(iter(features - own), NONE)
    return table


def _far_kings(king: int) -> list[int]:
    """Squares of an enemy king that is not next to this one, far ones first."""
    distance = [max(abs(king % 8 - at % 8), abs(king // 8 - at // 8)) for at in range(SQUARES)]
    return sorted((at for at in range(SQUARES) if distance[at] > 1), key=lambda at: -distance[at])


def _fen(pieces: dict[int, int], perspective: int) -> str:
    """Own pieces are white's, or, for perspective 1, black's on the board turned upside down. The enemy is to move,
    except where the piece is the enemy's: so the side that is not to move is never in check."""
    board = ["1"] * SQUARES
    for square, code in pieces.items():
        board[square ^ 56 if perspective else square] = _PIECES[code ^ perspective]
    ranks = ("".join(board[8 * rank : 8 * rank + 8]) for rank in range(7, -1, -1))
    last = list(pieces.values())[-1]
    return f"{'/'.join(ranks)} {'bw'[(last & 1) ^ perspective]} - - 0 1"


# ---- versions of Full_Threats ----------------------------------------------------------------------------------------

ThreatName = tuple[int, int, int, int, int, int]
# The victims P N B R Q K that count, by attacker P N B R Q K.
_VICTIMS = {
    "v10": ("PNR", "PNBRQK", "PNBRK", "PNBRK", "PNBRQK", "PNBR"),
    "v11": ("PNR", "PNBRQ", "PNBR", "PNBR", "PNBRQ", "PNBR"),
    "v12": ("PNR", "PNBRQ", "PNBR", "PNBR", "PNBRQ", ""),
    "v16": ("NR", "PNBRQ", "PNBR", "PNBR", "PNBRQ", ""),
}
_VICTIMS["v14"] = _VICTIMS["v12"]
_Steps = tuple[tuple[int, ...], ...]
_SLIDES: dict[int, _Steps] = {2: ((1, 1), (1, -1), (-1, 1), (-1, -1)), 3: ((1, 0), (-1, 0), (0, 1), (0, -1))}
_SLIDES[4] = _SLIDES[2] + _SLIDES[3]
_STEPS: dict[int, _Steps] = {
    1: tuple(step for step in product((-2, -1, 1, 2), repeat=2) if abs(step[0]) != abs(step[1])),
    5: _SLIDES[4],
}


@cache
def threat_names(name: str) -> list[ThreatName] | None:
    """What each feature of a version of Full_Threats is: (attacker's side, type, victim's side, type, from, to). Sides
    are 0 own and 1 enemy, types P N B R Q K = 0 … 5; the own king is on files a–d. None for other parts."""
    version = name.removeprefix("Full_Threats_")
    if version == name or version not in _VICTIMS:
        return None
    names = [
        (side, attacker, victim_side, "PNBRQK".index(victim), origin, to)
        for side, attacker in product(range(2), range(6))
        for victim_side, victim in product(range(2), _VICTIMS[version][attacker])
        for origin in range(SQUARES)
        for to in _attacks(attacker, side, origin, pushes=version == "v14")
    ]
    return names if len(names) == feature_set(name).num_features else None


@cache
def _attacks(kind: int, side: int, origin: int, *, pushes: bool) -> list[int]:
    """Squares that the piece attacks on an empty board, in ascending order; with `pushes` also the square ahead of a
    pawn."""
    rank, file = divmod(origin, 8)
    if kind == 0:
        steps: _Steps = (
            tuple((-1 if side else 1, step) for step in ((-1, 0, 1) if pushes else (-1, 1))) if 0 < rank < 7 else ()
        )
        reach = 1
    else:
        steps, reach = _STEPS.get(kind) or _SLIDES[kind], 1 if kind in _STEPS else 7
    found = {(rank + n * up, file + n * right) for up, right in steps for n in range(1, reach + 1)}
    return sorted(8 * up + right for up, right in found if 0 <= up < 8 and 0 <= right < 8)
