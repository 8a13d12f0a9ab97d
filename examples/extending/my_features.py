"""Your own feature set in Python: the distance of each piece from the kings."""

import numpy as np
import numpy.typing as npt

from nnue_trainer.data.feature_sets import Features, View
from nnue_trainer.schema import section


@section
class KingDistance(Features):
    """Each piece with its distance (1 to 7 king's moves) from the own king, and if requested from the enemy's."""

    both_kings: bool = False
    """the distance from the enemy king as well"""

    @property
    def num_features(self) -> int:
        return 12 * 8 * (2 if self.both_kings else 1)

    @property
    def max_active(self) -> int:
        return 64 if self.both_kings else 32

    def indices(self, view: View) -> npt.NDArray[np.int32]:
        rows = [self._row(view, view.king)]
        if self.both_kings:
            rows.append(np.where(view.present, 12 * 8 + self._row(view, view.enemy_king), -1))
            # The two halves of a row one after the other, piece by piece, so that there is no -1 between them.
            rows = [np.stack(rows, axis=2).reshape(len(view), 64)]
        return rows[0]

    def _row(self, view: View, king: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        files = abs((view.square & 7) - (king & 7)[:, None])
        ranks = abs((view.square >> 3) - (king >> 3)[:, None])
        return np.where(view.present, 8 * view.piece + np.maximum(files, ranks), -1)
