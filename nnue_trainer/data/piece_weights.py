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
    belongs to, then of the other side. Features that are no pieces have weight 0, and so do kings. In a sum of several
    piece-square sets, the first one counts. UserError for a set without planes for these ten pieces."""
    found = feature_set(features)
    part = next((part for part in found.parts if _has_planes(part)), None)
    if part is None:
        raise UserError(f"feature set {features}: has no planes of pieces, which weights of pieces need")
    result = np.zeros(found.num_features, np.int32)
    by_plane = np.zeros(part.bucket_size // 64, np.int32)
    for plane, weight in zip(_planes(found.name, part), weights, strict=True):
        by_plane[plane] = weight
    features_of_part = np.arange(part.num_features)
    result[part.first_feature : part.first_feature + part.num_features] = by_plane[
        features_of_part % part.bucket_size // 64
    ]
    return result


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
