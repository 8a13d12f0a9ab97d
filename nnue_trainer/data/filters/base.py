"""The contract of filters from outside, their registry, and how several of them are one function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from nnue_trainer.errors import UserError
from nnue_trainer.registry import Registry
from nnue_trainer.schema import to_data

Records = npt.NDArray[np.uint8]
UserFilter = Callable[[Records], npt.NDArray[np.bool_]]


class Filter(ABC):
    """Decides which positions are trained on. A subclass is a section (`schema.section`)."""

    kind: ClassVar[str]

    @abstractmethod
    def keep(self, records: Records) -> npt.NDArray[np.bool_]:
        """bool [n], true where a position is kept, for `records` uint8 [n, 32], read-only. `nnue_trainer.data.fields`
        has what stands in records as arrays.

        It is called for one chunk of a file at a time, from several threads in turn and in any order. The answer must
        depend on nothing but the record: otherwise the same recipe would not give the same positions.
        """

    def keep_spare(self, records: Records, spare: Records) -> npt.NDArray[np.bool_]:
        """The same with the bytes that are free in the format of the file, uint8 [n, bytes], none in most formats
        (docs/data-formats.md). A filter that defines it works in `nnue data filter`; training does not read these
        bytes, and refuses it."""
        return self.keep(records)

    @property
    def uses_spare(self) -> bool:
        return type(self).keep_spare is not Filter.keep_spare


FILTERS: Registry[Filter] = Registry("nnue_trainer.data.filters", lambda: Filter, what="filter")


class AllOf:
    """Several filters and a plain function as one function, which keeps what all of them keep."""

    def __init__(self, filters: Sequence[Filter], function: UserFilter | None = None) -> None:
        self._filters = list(filters)
        self._function = function

    def __call__(self, records: Records, spare: Records | None = None) -> npt.NDArray[np.bool_]:
        kept = np.ones(len(records), bool)
        for own in self._filters:
            kept &= _answer(own, records, spare)
        return kept if self._function is None else kept & np.asarray(self._function(records))

    @property
    def identity(self) -> list[Any]:
        """What the order of positions depends on: the filters with their values. Files appear by name only."""
        own = [{"kind": portable_name(filter.kind), **to_data(filter)} for filter in self._filters]
        return own if self._function is None else [*own, identity(self._function)]


def identity(function: UserFilter | None) -> Any:
    """A filter as plain JSON data; two filters with different data do not give the same positions."""
    if function is None or isinstance(function, AllOf):
        return function and function.identity
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _answer(own: Filter, records: Records, spare: Records | None) -> npt.NDArray[np.bool_]:
    if own.uses_spare and spare is None:
        raise UserError(f"filter {own.kind}: decides by spare bytes, which only `nnue data filter` reads")
    try:
        kept = np.asarray(own.keep(records) if spare is None else own.keep_spare(records, spare))
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise UserError(f"filter {own.kind}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    if kept.dtype != bool or kept.shape != (len(records),):
        raise UserError(f"filter {own.kind}: gave {kept.dtype} {list(kept.shape)}, expected bool [{len(records)}]")
    return kept


def portable_name(kind: str) -> str:
    """A kind that is the same on every machine: a file without its folder."""
    file, colon, name = kind.rpartition(":")
    return f"{Path(file).name}:{name}" if colon else kind
