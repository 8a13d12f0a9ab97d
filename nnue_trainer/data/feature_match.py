"""Finds the features of one set in another set, so that rows of weights trained for one set can be used in the other.

Parts of the same name are the same. Piece-square parts, whatever their buckets, planes, order and mirror, are compared
by the feature that they give every piece on every square, for every square of the own king and in every state of the
board that either of them distinguishes. The sets expand small positions for this, so it works for any piece-square set.
A set from outside may have buckets of any kind; only the features that occurred in these positions are used. Versions
of Full_Threats are compared by the names of their features. Any other part is new.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, product

import numpy as np

from nnue_trainer.data.features import FeaturePart, feature_set, outside_set
from nnue_trainer.data.probe import (
    ENEMY_KING,
    NONE,
    OWN_KING,
    PIECES,
    SQUARES,
    Counters,
    Setting,
    buckets_of_settings,
    counters_of,
    far_kings,
    random_boards,
    rows_of_boards,
    settings_of_states,
    state_of,
)

_PIECES = "PpNnBbRrQqKk"  # by code: 2 · type + (0 own, 1 enemy)
_QUEENS = (8, 9)
_MOST_SETTINGS = 300


@dataclass(frozen=True)
class FeatureMatch:
    """`source` int64 [F]: for each feature of a set the same feature of another set, −1 where that set has none.

    A feature that covers several features of the other set (of several king buckets, for example) is their mean:
    `averaged` holds (feature, other set's feature, share) for these, in ascending order, and `source` holds one of
    them. `notes` has a sentence for each part."""

    source: np.ndarray
    averaged: tuple[np.ndarray, np.ndarray, np.ndarray]
    num_sources: int
    used: int
    """the number of features of the other set that are used"""
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
        return _tables(part, other) is not None
    return threat_names(part.name) is not None and threat_names(other.name) is not None


def _tables(part: FeaturePart, other: FeaturePart) -> tuple[PieceSquareTable, PieceSquareTable] | None:
    """Both in the same settings; None if one of them is not a piece-square set."""
    settings = tuple(dict.fromkeys([*settings_of(part), *settings_of(other), *_settings_of_both(part, other)]))
    table, others = piece_square_table(part.name, settings), piece_square_table(other.name, settings)
    return None if table is None or others is None else (table, others)


_Match = tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray], str]


def _match_parts(part: FeaturePart, other: FeaturePart) -> _Match:
    """The feature of `other` for each feature of `part`; (feature, feature of `other`, share) of its means; a
    sentence."""
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    if part.name == other.name:
        return np.arange(part.num_features), nothing, "the same"
    if part.bucket_size:
        tables = _tables(part, other)
        assert tables is not None
        table, others = tables
        # A setting in which both parts have the same buckets as in another one is redundant.
        buckets = np.concatenate([table.buckets, others.buckets], axis=3).swapaxes(0, 2)
        _, kept = np.unique(buckets.reshape(len(buckets), -1), axis=0, return_index=True)
        return _match_tables(part, other, *(one.features(sorted(kept)).reshape(-1) for one in tables))
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
    # If a feature covers several and the other set lacks one of them, that one counts as 0 in the mean.
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


@dataclass(frozen=True)
class PieceSquareTable:
    """Where a piece-square part has its features, found by expanding positions. The dimensions are the perspective (0
    white; 1 black, with the board turned upside down, so that both see their own pieces below), the square of its king,
    the setting, the piece (2 · type + (0 own, 1 enemy)) and its square."""

    buckets: np.ndarray
    """int64 [2, 64, S, 12]: the bucket of a row where that piece is on the board too"""
    places: np.ndarray
    """int64 [2, 64, 12, 64]: the feature within its bucket, −1 for none and for what no position has"""
    bucket_size: int

    def features(self, settings: Sequence[int]) -> np.ndarray:
        """int64 [2, 64, settings, 12, 64]: the feature of the part; −1 for none."""
        places = self.places[:, :, np.newaxis]
        found = self.buckets[:, :, settings, :, np.newaxis] * self.bucket_size + places
        return np.where(places < 0, NONE, found)


def _counters(part: FeaturePart) -> Counters | None:
    """The pieces that its buckets count; None for a set from outside whose buckets depend on more than counts."""
    if outside_set(part.name) is None:
        return part.states
    return counters_of(part.name) if part.bucket_size else ()


def _settings_of_both(part: FeaturePart, other: FeaturePart) -> list[Setting]:
    """A setting for each pair of states that both parts can be in together, if there are not too many."""
    counters, others = _counters(part), _counters(other)
    if not counters or not others:
        return []
    # One piece more may change both states at once, and the new states depend only on the old ones and on the piece.
    settings: list[Setting] = [()]
    seen = {(0, 0)}
    for setting in settings:
        for code in PIECES:
            larger = (*setting, code)
            pair = (state_of(counters, larger), state_of(others, larger))
            if pair not in seen:
                seen.add(pair)
                settings.append(larger)
        if len(settings) > _MOST_SETTINGS:
            return []
    return settings


def settings_of(part: FeaturePart) -> list[Setting]:
    """Settings in which the part is in each of its states; of a set from outside whose buckets depend on more than
    counts of pieces, some in which it may be."""
    counters = _counters(part)
    if counters is None:
        return _settings(_QUEENS, 3) + [(code,) for code in PIECES if code not in _QUEENS]
    codes = [code for code in PIECES if any(pieces >> code & 1 for pieces, _ in counters)]
    most = sum(most for _, most in counters)
    few = math.comb(len(codes) + most, most) <= _MOST_SETTINGS
    return _settings(codes, most) if few else settings_of_states(counters)


def _settings(codes: Sequence[int], most: int) -> list[Setting]:
    """All numbers of these pieces, together at most `most`."""
    return [setting for size in range(most + 1) for setting in combinations_with_replacement(codes, size)]


@cache
def piece_square_table(name: str, settings: tuple[Setting, ...] = ((),)) -> PieceSquareTable | None:
    """The table of the part with this name. None if it is not a piece-square set: if a piece makes more than one
    feature, if features depend on anything but the own king, or buckets on anything but the own king and the pieces
    that there are."""
    (part,) = feature_set(name).parts
    others = [far_kings(king) for king in range(SQUARES)]
    bare = [(king, enemy) for king in range(SQUARES) for enemy in others[king]]
    place = {pair: number for number, pair in enumerate(bare)}
    probes = [
        (king, others[king][0] if others[king][0] != square else others[king][1], code, square)
        for king, code, square in product(range(SQUARES), PIECES, range(SQUARES))
        if king != square and not (code < 2 and square // 8 in (0, 7))
    ]
    kings, _, codes, squares = np.array(probes).T
    pieces = [[(king, OWN_KING), (enemy, ENEMY_KING)] for king, enemy in bare]
    pieces += [[(king, OWN_KING), (enemy, ENEMY_KING), (at, code)] for king, enemy, code, at in probes]
    base = np.array([place[king, enemy] for king, enemy, _, _ in probes])
    places = np.full((2, SQUARES, len(_PIECES), SQUARES), NONE, np.int64)
    buckets = np.zeros((2, SQUARES, len(settings), len(_PIECES)), np.int64)
    for perspective in range(2):
        rows = rows_of_boards(part, pieces, perspective)
        local = np.where(rows >= 0, rows % part.bucket_size, NONE)
        counts, sums = (rows >= 0).sum(1), np.where(rows >= 0, local, 0).sum(1)
        more = counts[len(bare) :] - counts[base]
        if more.min() < 0 or more.max() > 1 or counts[: len(bare)].max() > 2:
            return None
        found_places = sums[len(bare) :] - sums[base]
        places[perspective, kings, codes, squares] = np.where(more == 1, found_places, NONE)
        for king in range(SQUARES):
            found = {enemy: set(local[place[king, enemy]]) - {NONE} for enemy in others[king]}
            own = set.intersection(*found.values())
            if len(own) > 1:
                return None
            places[perspective, king, OWN_KING, king] = next(iter(own), NONE)
            for enemy, features in found.items():
                places[perspective, king, ENEMY_KING, enemy] = next(iter(features - own), NONE)
        each = [(*setting, *[code] * (code in PIECES)) for setting in settings for code in range(len(_PIECES))]
        found_buckets = buckets_of_settings(part, each, perspective).reshape(buckets.shape[1:])
        buckets[perspective] = np.maximum(found_buckets, 0)  # whatever the bucket of a row without features
    table = PieceSquareTable(buckets, places, part.bucket_size)
    return table if _holds(part, table) else None


def _holds(part: FeaturePart, table: PieceSquareTable, positions: int = 1000) -> bool:
    """Whether the table describes the rows of random positions."""
    pieces = random_boards(positions)
    for perspective in range(2):
        rows = rows_of_boards(part, pieces, perspective)
        for row, listed in zip(rows, pieces, strict=True):
            found, own = row[row >= 0], listed[0][0]
            expected = {int(table.places[perspective, own, code, square]): code for square, code in listed} | {NONE: 0}
            bucket_of = {feature % part.bucket_size: feature // part.bucket_size for feature in found.tolist()}
            if len(bucket_of) != len(found) or bucket_of.keys() | {NONE} != expected.keys():
                return False
            # A bucket that no setting has shown beside this piece depends on more than settings distinguish.
            if any(bucket not in table.buckets[perspective, own, :, expected[at]] for at, bucket in bucket_of.items()):
                return False
    return True


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
    """The meaning of each feature of a version of Full_Threats: (attacker's side, type, victim's side, type, from, to).
    Sides are 0 own and 1 enemy, types P N B R Q K = 0 … 5; the own king is on files a–d. None for other parts."""
    version = name.removeprefix("Full_Threats_")
    if name == "Full_Threats_v2":
        return _merged_threat_names()
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


# The victims of v2, by attacker, in the order of their slots: o own, e enemy. Of two pieces of one type and of
# different colours the attacker stands on the higher square; they take the cells of the slot of the own victim that are
# free.
_MERGED_VICTIMS = {"oP": "oP oN oR eN eR", "eP": "oP oN oR eP eN eR"}
_MERGED_VICTIMS |= dict.fromkeys(("oN", "eN"), "oP oN oB oR oQ eP eB eR eQ")
_MERGED_VICTIMS |= dict.fromkeys(("oB", "eB"), "oP oN oB oR eP eN eR")
_MERGED_VICTIMS |= dict.fromkeys(("oR", "eR"), "oP oN oB oR eP eN eB")
_MERGED_VICTIMS |= dict.fromkeys(("oQ", "eQ"), "oP oN oB oR oQ eP eN eB eR")


def _merged_threat_names() -> list[ThreatName]:
    """The names of the threats of v2."""
    names: list[ThreatName] = []
    for side, attacker in product(range(2), range(5)):
        for victim in _MERGED_VICTIMS["oe"[side] + "PNBRQ"[attacker]].split():
            victim_side, kind = "oe".index(victim[0]), "PNBRQ".index(victim[1])
            for origin in range(SQUARES):
                for to in _attacks(attacker, side, origin, pushes=False):
                    if kind == attacker > 0:
                        # From below to above: the pair of different colours, listed from above.
                        same = origin > to
                        seen = side if same else 1 - side
                        names.append((side, attacker, seen, kind, max(origin, to), min(origin, to)))
                    else:
                        names.append((side, attacker, victim_side, kind, origin, to))
    return names


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
