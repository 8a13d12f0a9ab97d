"""Which positions are trained on. The filters run in the order of the fields; docs/data.md has their exact rules.

The compiled ones are rows of the table in data_loader/filters, where names, types, defaults, limits and documentation
of their fields come from. Filters in Python, built-in or from outside, are in the list `extra`. `base` has their base
class and their registry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from nnue_trainer import _data
from nnue_trainer.data.filters.base import FILTERS, AllOf, Filter, UserFilter
from nnue_trainer.schema import section, to_data

__all__ = ["FILTERS", "Filter", "Filters"]


class CompiledFilter(NamedTuple):
    """A row of the table of compiled filters. With the value `off` the filter drops nothing; a recipe that does not
    name it gets `default`."""

    name: str
    type: type[bool] | type[int] | type[float]
    off: float
    default: float
    least: float
    most: float
    doc: str

    def annotation(self) -> Any:
        """The type of its field, with limits and documentation."""
        if self.type is bool:
            return Annotated[bool, Field(description=self.doc)]
        return Annotated[self.type, Field(description=self.doc, ge=self.least, le=self.most)]


COMPILED = tuple(CompiledFilter(*row) for row in _data.filters())
"""The compiled filters in the order in which they run."""


class FilterCurve(NamedTuple):
    """A list of numbers that a compiled filter takes beside its value. `group`: 1 for as many numbers as in `default`,
    2 for any number of pairs."""

    name: str
    group: int
    default: list[float]
    doc: str

    def annotation(self) -> Any:
        """The type of its field, with limits and documentation."""
        number = Annotated[float, Field(ge=-1e6, le=1e6)]
        if self.group == 2:
            return Annotated[list[tuple[number, number]], Field(description=self.doc, min_length=1, max_length=64)]
        n = len(self.default)
        return Annotated[list[number], Field(description=self.doc, min_length=n, max_length=n)]

    def value(self) -> Any:
        """Its default as a recipe has it."""
        if self.group == 1:
            return Field(default_factory=lambda: list(self.default))
        return Field(default_factory=lambda: list(zip(self.default[::2], self.default[1::2], strict=True)))


CURVES = tuple(FilterCurve(*row) for row in _data.filter_curves())
"""The lists of numbers that compiled filters take."""

if TYPE_CHECKING:

    class _Compiled:
        def __getattr__(self, name: str) -> Any: ...

else:
    _Compiled = section(
        type(
            "_Compiled",
            (),
            {
                "__module__": __name__,
                "__annotations__": {row.name: row.annotation() for row in (*COMPILED, *CURVES)},
                **{row.name: row.default for row in COMPILED},
                **{row.name: row.value() for row in CURVES},
            },
        )
    )


@section
class Filters(_Compiled):
    """The positions that are dropped: by default only those without a score."""

    extra: list[Annotated[Filter, FILTERS]] = Field(default_factory=list)
    """Python filters, which run after all others except piece_counts; a position stays if all of them keep it"""

    if TYPE_CHECKING:
        # The compiled filters are a table of the data library, which mypy cannot read.
        def __init__(self, *, extra: Sequence[Filter] = ..., **compiled: Any) -> None: ...

    @field_validator("soft_ply_knots", check_fields=False)
    @classmethod
    def _rising(cls, knots: list[tuple[float, float]]) -> list[tuple[float, float]]:
        plies = [ply for ply, _ in knots]
        if plies != sorted(plies):
            raise ValueError(f"found the plies {plies}, expected ascending ones")
        return knots

    @field_validator("piece_counts_curve", check_fields=False)
    @classmethod
    def _keeps_some(cls, weights: list[float]) -> list[float]:
        if all(weight <= 0 for weight in weights):
            raise ValueError(f"found {weights}, expected a number above 0 for some piece counts")
        return weights

    @classmethod
    def none(cls) -> Filters:
        """Filters that drop nothing, not even positions without a score."""
        off: dict[str, Any] = {row.name: row.off for row in COMPILED}
        return cls(**off)

    def as_dict(self) -> dict[str, Any]:
        """The compiled filters with their curves, as plain data."""
        values = to_data(self)
        names = [row.name for row in COMPILED] + [row.name for row in CURVES]
        return {name: values[name] for name in names}

    def compiled(self) -> _data.FilterOptions:
        """The compiled filters with their curves, as the data library takes them."""
        return _data.FilterOptions(**self.as_dict())

    def with_extra(
        self, function: UserFilter | None = None, spare: Callable[[], int] | None = None
    ) -> UserFilter | None:
        """The filters of `extra` and `function` as one function of records; None if there are none. `spare`: how
        many spare bytes the records hold (`nnue_trainer.data.spare`); None: they hold none."""
        return AllOf(self.extra, function, spare) if self.extra or function else None

    @property
    def uses_spare(self) -> bool:
        """Whether one of `extra` decides by spare bytes."""
        return any(own.uses_spare for own in self.extra)

    def mask(
        self,
        records: npt.NDArray[np.uint8],
        seed: int = 0,
        carried: list[float] | None = None,
        spare: npt.NDArray[np.uint8] | None = None,
    ) -> tuple[npt.NDArray[np.bool_], _data.FilterCounts]:
        """Which of uint8 [n, 32], taken as one chunk, pass: bool [n]; and how many were read, kept and dropped.
        `carried` is the state of `piece_counts` between chunks, changed in place; an empty list at the
        beginning. `spare`: the free bytes of their format, uint8 [n, bytes], for filters that use them."""
        options = self.compiled()
        kept, counts, mask = _data.filter_records(records, options, seed)
        if self.extra:
            passed = AllOf(self.extra)(kept, None if spare is None else spare[mask])
            counts.drop_by_user(len(kept) - int(passed.sum()))
            mask[mask] = passed
            kept = kept[passed]
        if options.piece_counts:
            _, after, passed = _data.filter_piece_counts(kept, options, seed, carried or [])
            counts.drop_by_piece_counts(len(kept) - int(passed.sum()))
            mask[mask] = passed
            if carried is not None:
                carried[:] = after
        return mask, counts

    def apply(
        self, records: npt.NDArray[np.uint8], seed: int = 0, carried: list[float] | None = None
    ) -> tuple[npt.NDArray[np.uint8], _data.FilterCounts]:
        """The records that pass, and the counts of `mask`."""
        mask, counts = self.mask(records, seed, carried)
        return records[mask], counts
