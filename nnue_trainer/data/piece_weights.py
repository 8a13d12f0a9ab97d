"""Weights of pieces as weights of features: their sum over a row is the sum over the pieces on the board."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.data.features import FeaturePart, feature_set
from nnue_trainer.errors import UserError


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
    tables = _data.piece_square_tables(part.name)
    assert tables is not None
    planes = tables[1][0] // 64  # by type, own and enemy
    by_square[planes[[*range(0, 10, 2), *range(1, 10, 2)]]] = of_pieces[:, :5].reshape(10, -1)
    if of_pieces.shape[1] == 6 and of_pieces[:, 5].any():
        if part.bucket_size != 64 * 12:
            raise UserError(f"feature set {features}: has no plane for each king, which weights of kings need")
        by_square[planes[10:]] = of_pieces[:, 5]
    features_of_part = np.arange(part.num_features) % part.bucket_size
    result[part.first_feature : part.first_feature + part.num_features] = by_square.reshape(-1)[features_of_part]
    return result


def piece_part(features: str) -> FeaturePart | None:
    """The part of a feature set whose features are the pieces on their squares, for weights of pieces."""
    return next((part for part in feature_set(features).parts if _has_planes(part)), None)


def _has_planes(part: FeaturePart) -> bool:
    """Whether each feature of the part is a piece on a square, and the planes of pieces are the whole of a bucket."""
    return ":" not in part.name.partition("(")[0] and part.bucket_size in (64 * 10, 64 * 11, 64 * 12)
