"""Weights of pieces as weights of features: their sum over a row is the sum over the pieces on the board."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from nnue_trainer._data import records_from_fens
from nnue_trainer.data.features import FeaturePart, expand, feature_set
from nnue_trainer.errors import UserError

_LETTERS = "PNBRQpnbrq"
_KINGS = "4k3/8/8/{}7/8/8/8/4K3 w - - 0 1"


@cache
def weights_of_features(features: str, weights: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """int32 [num_features]: `weights` are 10 numbers, for a pawn, knight, bishop, rook and queen of the side that a row
    belongs to, then of the other side; or 12 · 64 numbers, one for each square from a1 of these pieces and the king, as
    the row sees the board, mirrored where the set mirrors it. Features that are not pieces have weight 0, and so do
    kings with 10 numbers. In a sum of several piece-square sets, the first one counts (`piece_part`). UserError for a
    set without planes for these pieces."""
    found = feature_set(features)
    part = piece_part(features)
    if part is None:
        raise UserError(f"feature set {features}: has no planes of pieces, which weights of pieces need")
    result = np.zeros(found.num_features, np.int32)
    by_square = np.zeros((part.bucket_size // 64, 64), np.int32)
    of_pieces = np.asarray(weights, np.int32).reshape(2, -1, 64 if len(weights) > 10 else 1)
    for plane, weight in zip(_planes(found.name, part), of_pieces[:, :5].reshape(10, -1), strict=True):
        by_square[plane] = weight
    if of_pieces.shape[1] == 6 and of_pieces[:, 5].any():
        kings = _king_planes(found.name, part)
        if kings is None:
            raise UserError(f"feature set {features}: has no plane for each king, which weights of kings need")
        by_square[list(kings)] = of_pieces[:, 5]  # own, enemy
    features_of_part = np.arange(part.num_features) % part.bucket_size
    result[part.first_feature : part.first_feature + part.num_features] = by_square.reshape(-1)[features_of_part]
    return result


def piece_part(features: str) -> FeaturePart | None:
    """The part of a feature set whose features are the pieces on their squares, for weights of pieces."""
    return next((part for part in feature_set(features).parts if _has_planes(part)), None)


def _king_planes(features: str, part: FeaturePart) -> tuple[int, int] | None:
    """The planes of the own king and of the enemy's; None if they have none, or share one."""
    if part.bucket_size != 64 * 12:
        return None
    row = expand(records_from_fens([_KINGS.format("1")]), features).white.numpy()[0]
    inside = row[(row >= part.first_feature) & (row < part.first_feature + part.num_features)]
    places = np.sort((inside - part.first_feature) % part.bucket_size)
    own, enemy = sorted(places, key=lambda place: place % 64)  # e1 is before e8, mirrored or not
    return int(own) // 64, int(enemy) // 64


def _has_planes(part: FeaturePart) -> bool:
    """Whether each feature of the part is a piece on a square, and the planes of pieces are the whole of a bucket."""
    return ":" not in part.name.partition("(")[0] and part.bucket_size in (64 * 10, 64 * 11, 64 * 12)


def _planes(features: str, part: FeaturePart) -> Sequence[int]:
    """The plane of each of the ten pieces, own ones first, as White sees them."""
    rows = expand(records_from_fens([_KINGS.format(letter) for letter in ("1", *_LETTERS)]), features).white.numpy()
    inside = (rows >= part.first_feature) & (rows < part.first_feature + part.num_features)
    planes = np.where(inside, (rows - part.first_feature) % part.bucket_size // 64, -1)
    kings = set(planes[0].tolist())
    return [next(plane for plane in row.tolist() if plane not in kings) for row in planes[1:]]
