"""Finds the features of one set in another set, so that rows of weights trained for one set can be used in the other.

Parts of the same name are the same. Piece-square parts, whatever their buckets, planes, order and mirror, are compared
by the feature that they give every piece on every square, for every square of the own king and in every state of the
board that either of them distinguishes (`piece_squares`). Versions of Full_Threats are compared by the names of their
features. Any other part is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from nnue_trainer.data.features import FeaturePart, feature_set
from nnue_trainer.data.piece_squares import NUM_PIECES, PieceSquareTable, piece_square_table
from nnue_trainer.data.probe import NONE, PIECES, SQUARES, Counters, Setting, settings_of_states, state_of

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
    """None if one of them is not a piece-square set whose buckets are known."""
    table, others = piece_square_table(part.name), piece_square_table(other.name)
    if table is None or others is None or table.counters is None or others.counters is None:
        return None
    return table, others


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
        settings = _settings(*(one.counters or () for one in tables))
        states = [_states(one.counters or (), settings) for one in tables]
        # A setting in which both parts have the same buckets as in another one is redundant.
        each = [one.buckets[:, :, of] for one, of in zip(tables, states, strict=True)]
        buckets = np.concatenate(each, axis=3).swapaxes(0, 2)
        _, kept = np.unique(buckets.reshape(len(buckets), -1), axis=0, return_index=True)
        kept.sort()
        features = [one.features(of[kept]).reshape(-1) for one, of in zip(tables, states, strict=True)]
        return _match_tables(part, other, *features)
    names, known = threat_names(part.name), threat_names(other.name)
    assert names is not None
    assert known is not None
    place = {name: feature for feature, name in enumerate(known)}
    rows = np.array([place.get(name, NONE) for name in names])
    found = int((rows >= 0).sum())
    return rows, nothing, f"{found:,} of {len(rows):,} features are in {other.name}"


def _match_tables(part: FeaturePart, other: FeaturePart, table: np.ndarray, others: np.ndarray) -> _Match:
    seen = table >= 0
    pairs, counts = np.unique(table[seen] * (other.num_features + 1) + (others[seen] - NONE), return_counts=True)
    features, sources = pairs // (other.num_features + 1), pairs % (other.num_features + 1) + NONE
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


def _settings(counters: Counters, others: Counters) -> list[Setting]:
    """A setting for each pair of states that two parts can be in together; if there are too many pairs, one for each
    state of each part."""
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
            return list(dict.fromkeys([*settings_of_states(counters), *settings_of_states(others)]))
    return settings


def _states(counters: Counters, settings: Sequence[Setting]) -> np.ndarray:
    """The state of a board with these pieces and one more, except kings: int64 [settings, 12]."""
    boards = [[(*setting, *[code] * (code in PIECES)) for code in range(NUM_PIECES)] for setting in settings]
    return np.array([[state_of(counters, board) for board in row] for row in boards])


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
