"""Positions from files to batches: the Python face of data_loader/.

Positions are 32-byte records, uint8 [n, 32], byte for byte the stem of a binpack chain (docs/data.md).
"""

from nnue_trainer._data import fens_from_records, records_from_fens
from nnue_trainer.data.batch import Batch
from nnue_trainer.data.features import FEATURE_SETS, FeatureSet, expand, feature_set
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.loader import Loader, RecordLoader

__all__ = [
    "FEATURE_SETS",
    "Batch",
    "FeatureSet",
    "Filters",
    "Loader",
    "RecordLoader",
    "expand",
    "feature_set",
    "fens_from_records",
    "records_from_fens",
]
