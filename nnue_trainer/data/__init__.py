"""Positions from files to batches: the Python interface of data_loader/.

Positions are 32-byte records, uint8 [n, 32], byte for byte the stem of a binpack chain (docs/binpack.md).
"""

from typing import TYPE_CHECKING

from nnue_trainer._data import Game, fens_from_records, records_from_fens
from nnue_trainer.base import lazy
from nnue_trainer.data import feature_sets, fields, filters, formats
from nnue_trainer.data.files import PositionReader, PositionWriter
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.opened import identities, identity, require_same

if TYPE_CHECKING:
    from nnue_trainer.data.batch import Batch
    from nnue_trainer.data.features import (
        FeaturePart,
        FeatureSet,
        expand,
        feature_set,
        piece_square_set,
    )
    from nnue_trainer.data.loader import Loader, LoaderOptions, RecordLoader, merge_states

__all__ = [
    "Batch",
    "FeaturePart",
    "FeatureSet",
    "Filters",
    "Game",
    "Loader",
    "LoaderOptions",
    "PositionReader",
    "PositionWriter",
    "RecordLoader",
    "expand",
    "feature_set",
    "feature_sets",
    "fens_from_records",
    "fields",
    "filters",
    "formats",
    "identities",
    "identity",
    "merge_states",
    "piece_square_set",
    "records_from_fens",
    "require_same",
]

# Loaded at first use, because they import torch, which the data tools do not need.
_LAZY = (
    {"Batch": "batch"}
    | dict.fromkeys(("Loader", "LoaderOptions", "RecordLoader", "merge_states"), "loader")
    | dict.fromkeys(("FeaturePart", "FeatureSet", "expand", "feature_set", "piece_square_set"), "features")
)
__getattr__ = lazy.attributes(__name__, _LAZY)
