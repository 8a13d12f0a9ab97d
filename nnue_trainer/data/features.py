"""The input feature sets by name, and the expansion of records into index rows on the CPU.

A name says everything about a set: a basic one ("HalfKAv2_hm"), a piece-square set in its own words
(`piece_square_set`), or a sum of such sets in any order, "A+B+C". Operators and exported graphs know a set by this
name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.data.batch import Batch


class FeaturePart(NamedTuple):
    """One part of a set: the features [first_feature, first_feature + num_features) of the whole set.

    A row has up to `max_active` of them. `bucket_size` is the number of features per king bucket; the features of a row
    all lie in one bucket. It is 0 where the part is unbucketed. `num_virtual` is the number of virtual rows of the
    factoriser: feature r of the part shares virtual row r mod num_virtual. It is 0 where the part has no factoriser.
    """

    name: str
    first_feature: int
    num_features: int
    max_active: int
    bucket_size: int
    num_virtual: int


class FeatureSet(NamedTuple):
    """A set is its parts, one after the other."""

    name: str
    parts: tuple[FeaturePart, ...]

    @property
    def num_features(self) -> int:
        return sum(part.num_features for part in self.parts)

    @property
    def max_active(self) -> int:
        """The length of an index row: no legal position has more features."""
        return sum(part.max_active for part in self.parts)


BASIC_FEATURE_SETS: tuple[str, ...] = tuple(_data.basic_feature_sets())
"""The names of the sets that are built in."""


def feature_set(name: str | FeatureSet) -> FeatureSet:
    """The set of that name; UserError says what is wrong with the name, or which names there are."""
    return name if isinstance(name, FeatureSet) else _described(name)


@cache
def _described(name: str) -> FeatureSet:
    return FeatureSet(name, tuple(FeaturePart(*part) for part in _data.describe_feature_set(name)))


def piece_square_set(
    kings: Sequence[int] = (),
    *,
    mirror: Literal["none", "a-d", "e-h"] = "none",
    planes: Literal[10, 11, 12] = 12,
    order: Literal["grouped", "interleaved"] = "grouped",
) -> str:
    """The name of a piece-square set with king buckets of one's own.

    index = 64 · (planes · bucket + plane) + square. Black sees the board upside down (square ^ 56).

    Args:
        kings: the bucket of the own king for each of 64 squares, a1 first. Where the board is mirrored, 32 numbers are
            enough: rank by rank, for the four files on which the king can stand. Empty: one bucket.
        mirror: "a-d" or "e-h": files are swapped where that brings the own king to these files.
        planes: 12; 11: both kings share the last plane; 10: kings are no features.
        order: "grouped": own pawn … own king, enemy pawn … enemy king (Chess768 and its kin); "interleaved": own pawn,
            enemy pawn, own knight, … (HalfKAv2_hm and its kin).

    Raises:
        UserError: the numbers do not fit; the same words as for a name that a recipe gives.
    """
    fields = [f"planes={planes}", f"order={order}", f"mirror={mirror}"]
    if len(kings) > 0:
        fields.append("kings=" + ".".join(str(int(bucket)) for bucket in kings))
    return feature_set(f"PieceSquare({','.join(fields)})").name


def expand(records: npt.NDArray[np.uint8], features: str | FeatureSet, threads: int = 0) -> Batch:
    """Expands records uint8 [B, 32] into a new Batch on the CPU. `threads` 0: one a CPU. UserError for a bad record."""
    chosen = feature_set(features)
    batch = Batch.allocate(records.shape[0] if records.ndim else 0, chosen.max_active)
    _data.expand_into(records, chosen.name, batch.arrays(), threads)
    return batch
