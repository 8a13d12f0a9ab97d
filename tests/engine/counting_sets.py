"""Buckets of a set in Python by counts of pieces, for tests of engines."""

import numpy as np

from nnue_trainer.data.feature_sets import Features, View
from nnue_trainer.schema import section


@section
class ByRooks(Features):
    """Piece squares without kings, in buckets by own rooks (0, 1, more), by minor pieces (0 … 2) and by own king."""

    num_features = 2 * 9 * 640
    max_active = 30
    bucket_size = 640
    num_virtual = 640

    def indices(self, view: View) -> np.ndarray:
        piece = view.piece
        rooks = np.minimum((piece == 6).sum(axis=1), 2)
        minors = np.minimum(((piece >= 2) & (piece < 6)).sum(axis=1), 2)
        bucket = 9 * (view.king > 15) + 3 * rooks + minors
        rows = np.where(view.present & (piece < 10), 640 * bucket[:, None] + 64 * piece + view.square, -1)
        packed: np.ndarray = -np.sort(-rows, axis=1)[:, :30]
        return packed
