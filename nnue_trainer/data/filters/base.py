"""The contract of filters in Python, their registry, and several filters as one function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from nnue_trainer.base.arrays import Records
from nnue_trainer.base.foreign import explaining, returned
from nnue_trainer.data.fields import separate_spare
from nnue_trainer.errors import UserError
from nnue_trainer.registry import Registry
from nnue_trainer.schema import to_data

UserFilter = Callable[[Records], npt.NDArray[np.bool_]]


class Filter(ABC):
    """Decides which positions are trained on. A subclass is a section (`schema.section`)."""

    kind: ClassVar[str]

    @abstractmethod
    def keep(self, records: Records) -> npt.NDArray[np.bool_]:
        """bool [n], true to keep a position, for `records` uint8 [n, 32], read-only. `nnue_trainer.data.fields` returns
        the contents of records as arrays.

        It is called for one chunk of a file at a time, from several threads in turn and in any order. The answer must
        depend only on the record: otherwise the same recipe would not give the same positions.
        """

    def keep_spare(self, records: Records, spare: Records) -> npt.NDArray[np.bool_]:
        """`keep` with the bytes that are free in the format of the file, uint8 [n, bytes], none in most formats
        (docs/data-formats.md), in `nnue data filter` and in training."""
        return self.keep(records)

    @property
    def uses_spare(self) -> bool:
        """Whether the filter reads spare bytes of data files, that is, whether it defines `keep_spare`."""
        return type(self).keep_spare is not Filter.keep_spare


FILTERS: Registry[Filter] = Registry("nnue_trainer.data.filters", lambda: Filter, what="filter")


class AllOf:
    """Several filters and a plain function as one function, which keeps what all of them keep."""

    def __init__(
        self,
        filters: Sequence[Filter],
        function: UserFilter | None = None,
        held: Callable[[], int] | None = None,
    ) -> None:
        self._filters = list(filters)
        self._function = function
        self._held = held  # how many spare bytes records hold

    def __call__(self, records: Records, spare: Records | None = None) -> npt.NDArray[np.bool_]:
        if self._held is not None:
            records, spare = separate_spare(records, self._held())
        kept = np.ones(len(records), bool)
        for own in self._filters:
            kept &= _answer(own, records, spare)
        if self._function is not None:
            with explaining(self._function):
                answer = self._function(records)
            kept &= _checked(self._function, "__call__", answer, len(records))
        return kept

    @property
    def identity(self) -> Any:
        """The filters with their values, on which the order of positions depends. Files appear by name only."""
        own = [{"kind": portable_name(filter.kind), **to_data(filter)} for filter in self._filters]
        if self._function is None:
            return own
        return [*own, identity(self._function)] if own else identity(self._function)


def identity(function: UserFilter | None) -> Any:
    """A filter as plain JSON data; two filters with different data do not give the same positions."""
    if function is None or isinstance(function, AllOf):
        return function and function.identity
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _answer(own: Filter, records: Records, spare: Records | None) -> npt.NDArray[np.bool_]:
    if own.uses_spare and spare is None:
        raise UserError(f"filter {own.kind}: decides by spare bytes: use it in training or with `nnue data filter`")
    with explaining(own):
        answer = own.keep(records) if spare is None else own.keep_spare(records, spare)
    return _checked(own, "keep" if spare is None else "keep_spare", answer, len(records))


def _checked(owner: object, method: str, answer: Any, n: int) -> npt.NDArray[np.bool_]:
    kept = np.asarray(answer)
    returned(owner, method, answer, kept.dtype == bool and kept.shape == (n,), f"bool [{n}]")
    return kept


def portable_name(kind: str) -> str:
    """A kind that is the same on every machine: a file without its folder."""
    file, colon, name = kind.rpartition(":")
    return f"{Path(file).name}:{name}" if colon else kind
