"""The input feature sets by name, and the expansion of records into index rows on the CPU.

A name describes all of a set: it names a basic set ("HalfKAv2_hm"), describes a piece-square set
(`piece_square_set`), names a set from outside ("my_features.py:MySet", "my_features.h:MySet(…)": feature_sets/), or a
sum of such sets in any order, "A+B+C". Operators and exported graphs refer to a set by this name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer import _data
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.data.batch import Batch, memory_of
from nnue_trainer.data.feature_sets import base

PlaneOrder = Literal["grouped", "interleaved", "enemy-first", "interleaved-enemy-first"]


class FeaturePart(NamedTuple):
    """One part of a set: the features [first_feature, first_feature + num_features) of the whole set.

    A row has up to `max_active` of them. `bucket_size` is the number of features per bucket; the features of a row all
    lie in one bucket. It is 0 where the part is unbucketed. `num_virtual` is the number of virtual rows of the
    factoriser for each `virtual_span` features: feature r of these shares virtual row r mod num_virtual. It is 0 where
    the part has no factoriser.

    `states` is what a piece-square part counts on the board: (pieces, most) for each counter. Bit c of `pieces` is set
    where pieces c count, 2 · type + (0 own, 1 enemy). Counts are clipped at `most`, and the state of a row is the
    number of mixed radix that they form. Its bucket is num_states · king bucket + state. Of a set from outside nothing
    is known: its buckets may depend on anything.
    """

    name: str
    first_feature: int
    num_features: int
    max_active: int
    bucket_size: int
    num_virtual: int
    virtual_span: int
    states: tuple[tuple[int, int], ...] = ()

    @property
    def num_states(self) -> int:
        """The number of buckets for each king bucket."""
        return math.prod(most + 1 for _, most in self.states)

    @property
    def short_name(self) -> str:
        """The name without parameters and file: "MySet"."""
        return self.name.partition("(")[0].rpartition(":")[2]


class FeatureSet(NamedTuple):
    """A feature set: its parts, one after the other."""

    name: str
    parts: tuple[FeaturePart, ...]

    @property
    def num_features(self) -> int:
        """The number of features of all parts, F."""
        return sum(part.num_features for part in self.parts)

    @property
    def max_active(self) -> int:
        """The length of an index row: no legal position has more features."""
        return sum(part.max_active for part in self.parts)

    @property
    def is_from_outside(self) -> bool:
        """Whether a part of it comes from a file or an installed package."""
        return any(part.name in _outside for part in self.parts)

    @property
    def is_in_python(self) -> bool:
        """Whether a part of it is a class in Python, which operators on a GPU cannot expand."""
        found = (_outside[part.name] for part in self.parts if part.name in _outside)
        return any(type(part).prepare_cuda is base.Features.prepare_cuda for part in found)

    def prepare(self, device: torch.device | str) -> bool:
        """Makes the operators on a CUDA `device` ready to expand the set, which may compile a header with nvcc. False
        for sets in Python, which operators cannot expand: their index rows are made on the CPU (`expand`, `Loader`).
        """
        if torch.device(device).type != "cuda":
            return True
        return all(_ready_for_cuda(part.name) for part in self.parts if part.name in _outside)


BASIC_FEATURE_SETS: tuple[str, ...] = tuple(_data.basic_feature_sets())
"""The names of the sets that are built in."""


_outside: dict[str, base.Features] = {}  # sets from outside that are registered in the data library, by name


def feature_set(name: str | FeatureSet, *, may_import: bool = False) -> FeatureSet:
    """Finds a feature set by name. UserError for a wrong name, with the reason or the known names.

    With `may_import` a part "path/to/file.py:Class" or "path/to/file.h:Struct" imports or compiles that file; without
    it, the file must have been loaded before (`nnue_trainer.registry.load_plugin`)."""
    if isinstance(name, FeatureSet):
        return name
    return _described("+".join(_known(term, may_import) for term in base.terms(name)))


def outside_set(name: str) -> base.Features | None:
    """The object of a part from outside, by the part's name; None for a part that is built in or declared."""
    return _outside.get(name)


def _known(term: str, may_import: bool) -> str:
    """The name of a part; from now on the data library has it."""
    if not base.is_outside(term):
        return term
    features = base.parse(term, may_import=may_import)
    name = features.name
    known = _outside.get(name)
    if type(known) is not type(features):  # another set, or a file that was loaded again
        features.register()
        _outside[name] = features
        _ready_for_cuda.cache_clear()
        _described.cache_clear()
    return name


@cache
def _ready_for_cuda(name: str) -> bool:
    return _outside[name].prepare_cuda()


@cache
def _described(name: str) -> FeatureSet:
    parts = sorted((FeaturePart(*part) for part in _data.describe_feature_set(name)), key=lambda p: p.first_feature)
    return FeatureSet(name, tuple(parts))


def piece_square_set(
    kings: Sequence[int] = (),
    *,
    mirror: Literal["none", "a-d", "e-h"] = "none",
    planes: Literal[10, 11, 12] = 12,
    order: PlaneOrder = "grouped",
    states: Sequence[str] = (),
    virtual: Literal["both", "kings", "states"] = "both",
) -> str:
    """The name of a piece-square set with any buckets.

    index = 64 · (planes · bucket + plane) + square. Black sees the board upside down (square ^ 56). The bucket is that
    of the own king, or with states: number of states · king bucket + state.

    Args:
        kings: the bucket of the own king for each of 64 squares, a1 first. Where the board is mirrored, 32 numbers are
            enough: rank by rank, for the four files on which the king can stand. Empty: one bucket.
        mirror: "a-d" or "e-h": files are swapped where that brings the own king to these files.
        planes: 12; 11: both kings share the last plane; 10: kings are not features.
        order: "grouped": own pawn … own king, enemy pawn … enemy king (Chess768 and its kin); "interleaved": own pawn,
            enemy pawn, own knight, … (HalfKAv2_hm and its kin); "enemy-first" and "interleaved-enemy-first": the same
            with own and enemy exchanged.
        states: one or two counters of pieces on the board, such as "eQ:1" (whether the enemy has a queen) or "oReR:3"
            (rooks of both sides, 0 to 3): own or enemy pieces, and the most that is counted. Together they give at most
            4 states; the first counter is the higher digit of the state. Empty: one state.
        virtual: which rows share the virtual rows of the factoriser: those of all king buckets and states ("both"), of
            all king buckets in the same state ("kings"), or of all states of the same king bucket ("states").

    Raises:
        UserError: the numbers do not fit; the message is that for a name in a recipe.
    """
    fields = [f"planes={planes}", f"order={order}", f"mirror={mirror}"]
    if len(kings) > 0:
        fields.append("kings=" + ".".join(str(int(bucket)) for bucket in kings))
    if len(states) > 0:
        fields.append("states=" + ".".join(states))
    if virtual != "both":
        fields.append(f"virtual={virtual}")
    return feature_set(f"PieceSquare({','.join(fields)})").name


def expand(records: npt.NDArray[np.uint8], features: str | FeatureSet, threads: int = 0) -> Batch:
    """Expands records uint8 [B, 32] into a new Batch on the CPU. `threads` 0: one per CPU. UserError: a bad record."""
    chosen = feature_set(features)
    batch = Batch.allocate(records.shape[0] if records.ndim else 0, chosen.max_active)
    _data.expand_into(records, chosen.name, memory_of(batch), threads or usable_cpus())
    return batch
