"""Which positions are trained on. The filters run in the order of the fields; docs/data.md has their exact rules.

The compiled ones are rows of the table in data_loader/filters, where names, types, defaults, limits and documentation
of their fields come from. Filters in Python, built-in or from outside, are in the list `extra`. `base` has their base
class and their registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nnue_trainer import _data
from nnue_trainer.data.filters.base import FILTERS, AllOf, Filter, UserFilter, identity
from nnue_trainer.schema import section, to_data

__all__ = ["COMPILED", "FILTERS", "CompiledFilter", "Filter", "Filters", "UserFilter", "identity"]


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

if TYPE_CHECKING:

    class _Compiled:
        def __init__(self, **values: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    _Compiled = section(
        type(
            "_Compiled",
            (),
            {
                "__module__": __name__,
                "__annotations__": {row.name: row.annotation() for row in COMPILED},
                **{row.name: row.default for row in COMPILED},
            },
        )
    )


@section
class Filters(_Compiled):
    """Which positions are left out. By default those without a score, and no others."""

    extra: list[Annotated[Filter, FILTERS]] = Field(default_factory=list)
    """filters in Python, which run after the others; a position stays if all of them keep it"""

    @classmethod
    def none(cls) -> Filters:
        """Filters that drop nothing, not even positions without a score."""
        return cls(**{row.name: row.off for row in COMPILED})

    def as_dict(self) -> dict[str, Any]:
        """The compiled filters, as the data library takes them."""
        values = to_data(self)
        return {row.name: values[row.name] for row in COMPILED}

    def with_extra(self, function: UserFilter | None = None) -> UserFilter | None:
        """The filters of `extra` and `function` as one function of records; None where there are none."""
        return AllOf(self.extra, function) if self.extra else function

    def apply(self, records: npt.NDArray[np.uint8], seed: int = 0) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """The records that pass of uint8 [n, 32], taken as one chunk, and {"read", "kept", "dropped": by filter}."""
        kept, counts = _data.filter_records(records, self.as_dict(), seed)
        extra = self.with_extra()
        if extra is not None:
            mask = extra(kept)
            if dropped := len(kept) - int(mask.sum()):
                counts["dropped"]["user_filter"] = dropped
                counts["kept"] -= dropped
            kept = kept[mask]
        return kept, counts
