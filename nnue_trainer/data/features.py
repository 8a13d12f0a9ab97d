"""The input feature sets by name, and the expansion of records into index rows on the CPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError


class FeatureSet(NamedTuple):
    """`max_active` is the length of an index row, `num_virtual` the number V of virtual rows of the set's factoriser:
    row r shares virtual row r mod V; 0 where the set has none."""

    name: str
    num_features: int
    max_active: int
    num_virtual: int


FEATURE_SETS: dict[str, FeatureSet] = {name: FeatureSet(name, *sizes) for name, *sizes in _data.feature_sets()}


def feature_set(name: str | FeatureSet) -> FeatureSet:
    """The set of that name; UserError, with the names there are, for an unknown one."""
    if isinstance(name, FeatureSet):
        return name
    if name not in FEATURE_SETS:
        raise UserError(f"unknown feature set {name!r}, expected one of {', '.join(FEATURE_SETS)}")
    return FEATURE_SETS[name]


def expand(records: npt.NDArray[np.uint8], features: str | FeatureSet, threads: int = 0) -> Batch:
    """Expands records uint8 [B, 32] into a new Batch on the CPU. `threads` 0: one a CPU. UserError for a bad record."""
    chosen = feature_set(features)
    batch = Batch.allocate(records.shape[0] if records.ndim else 0, chosen.max_active)
    _data.expand_into(records, chosen.name, batch.arrays(), threads)
    return batch
