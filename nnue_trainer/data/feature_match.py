"""Finds the features of one set in another set, so that rows of weights trained for one set can be used in the other.

Parts of the same name are the same. Piece-square parts, whatever their buckets, planes, order and mirror, are compared
by the feature that they give every piece on every square, for every square of the own king and in every state of the
board that either of them distinguishes (`piece_squares`). Versions of Full_Threats are compared by what attacks what.
Any other part is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from nnue_trainer import _data
from nnue_trainer.data.features import FeaturePart, feature_set
from nnue_trainer.data.piece_squares import NUM_PIECES, PieceSquareTable, piece_square_table
from nnue_trainer.data.probe import NONE, PIECES, Counters, Setting, settings_of_states, state_of

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
    return _threats(part.name) is not None and _threats(other.name) is not None


@cache
def _threats(name: str) -> np.ndarray | None:
    return _data.threat_features(name)


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
    threats, others = _threats(part.name), _threats(other.name)
    assert threats is not None
    assert others is not None
    both = (threats >= 0) & (others >= 0)
    rows = np.full(part.num_features, NONE)
    rows[threats[both]] = others[both]
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
