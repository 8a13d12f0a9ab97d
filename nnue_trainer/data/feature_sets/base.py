"""The contract of feature sets in Python, their registry, and how what they return becomes index rows."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.base.foreign import explaining, place, returned
from nnue_trainer.data.feature_sets.view import View, views
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.registry import Registry
from nnue_trainer.schema import to_data, validate


class Features(ABC):
    """A feature set: it maps positions to feature numbers. A subclass is a section (`schema.section`); its fields are
    parameters of the set, such as a number of king buckets.

    In a sum a row of this set is a part of the whole row. Here indices count from 0.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def num_features(self) -> int:
        """The number of features: indices are 0 … num_features − 1."""

    @property
    @abstractmethod
    def max_active(self) -> int:
        """The most features that one side sees in any position."""

    @property
    def bucket_size(self) -> int:
        """Features per king bucket, where all features of a row lie in one bucket; 0: there are no king buckets."""
        return 0

    @property
    def num_virtual(self) -> int:
        """Virtual rows of the factoriser: feature r shares virtual row r mod num_virtual; 0: there are none."""
        return 0

    @abstractmethod
    def indices(self, view: View) -> npt.NDArray[np.integer[Any]]:
        """Integers [B, K], K ≤ max_active: the features that each of B positions has for one perspective, then −1
        (`left_packed` moves −1 to the end). A feature that occurs twice counts twice.

        It is called for both perspectives of a number of positions, from several threads in turn. The answer must
        depend only on the position: otherwise the same recipe would not give the same training.
        """

    @property
    def name(self) -> str:
        """The name of the set with its parameters, as it appears in sums and in checkpoints."""
        path, colon, cls = self.kind.rpartition(":")
        kind = f"{Path(path).name}:{cls}" if colon else self.kind
        values = [f"{key}={_word(kind, key, value)}" for key, value in to_data(self).items()]
        return f"{kind}({','.join(values)})" if values else kind

    def register(self) -> None:
        """Makes the set known to the data library by its name."""
        with explaining(self):
            sizes = (self.num_features, self.max_active, self.bucket_size, self.num_virtual)
        for what, size in zip(("num_features", "max_active", "bucket_size", "num_virtual"), sizes, strict=True):
            fits = isinstance(size, int) and not isinstance(size, bool) and -(2**31) <= size < 2**31
            returned(self, what, size, fits, "a 32-bit number")
        _data.add_python_feature_set(self.name, sizes, self._append)

    def prepare_cuda(self) -> bool:
        """Whether operators on CUDA expand this set. They run no Python."""
        return False

    def _append(
        self,
        records: npt.NDArray[np.uint8],
        white: npt.NDArray[np.int32],
        black: npt.NDArray[np.int32],
        counts: npt.NDArray[np.int16],
        first_feature: int,
    ) -> None:
        """Writes the features after the last entry of each row."""
        for view, rows in zip(views(records), (white, black), strict=True):
            found = self._checked(view)
            active = found >= 0
            begin = (rows >= 0).sum(axis=1) if rows.shape[1] > self.max_active else np.zeros(len(rows), np.int64)
            if begin.any():
                row, column = np.nonzero(active)
                rows[row, begin[row] + column] = found[row, column] + first_feature
            else:
                rows[:, : found.shape[1]] = np.where(active, found + first_feature, -1)
            np.maximum(counts, begin + active.sum(axis=1), out=counts, casting="unsafe")

    def _checked(self, view: View) -> npt.NDArray[np.integer[Any]]:
        """`indices`, with a UserError that names a position for what does not fit the set."""
        with explaining(self):
            answer = self.indices(view)
            found = np.asarray(answer)
        fits = found.ndim == 2 and len(found) == len(view) and found.dtype.kind in "iu"
        returned(self, "indices", answer, fits, f"integers [{len(view)}, K]")
        active = found >= 0
        count = active.sum(axis=1)
        self._refuse(
            view, count > self.max_active, lambda i: f"{count[i]} features, expected at most {self.max_active}"
        )
        wrong = (found < -1) | (found >= self.num_features)
        self._refuse(
            view,
            wrong.any(axis=1),
            lambda i: f"feature {found[i][wrong[i]][0]}, expected 0 to {self.num_features - 1}, or -1 for none",
        )
        gaps = (active[:, 1:] > active[:, :-1]).any(axis=1)
        self._refuse(view, gaps, lambda _: "a feature after a -1, expected -1 at the end (left_packed does that)")
        if self.bucket_size:
            bucket = np.where(active, found // self.bucket_size, -1)
            strays = (active & (bucket != bucket[:, :1])).any(axis=1) if found.shape[1] else np.zeros(len(view), bool)
            self._refuse(
                view,
                strays,
                lambda i: f"features of king buckets {np.unique(bucket[i][active[i]]).tolist()}, expected one",
            )
        return found[:, : max(int(count.max(initial=0)), 0)]

    def _refuse(self, view: View, wrong: Any, what: Callable[[int], str]) -> None:
        if wrong.any():
            first = int(wrong.argmax())
            side = "black" if view.perspective else "white"
            (fen,) = _data.fens_from_records(view.records[first : first + 1])
            raise UserError(f"{place(self, 'indices')}: {side} has {what(first)} in {fen}")


FEATURE_SETS: Registry[Features] = Registry("nnue_trainer.data.feature_sets", lambda: Features, what="feature set")
"""Feature sets from outside: `kind` in a layered net's `inputs`, or a term of a sum."""


def left_packed(indices: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
    """Rows [B, K] with all −1 at their ends; the other entries keep their order."""
    active = indices >= 0
    packed = np.full_like(indices, -1)
    row, _ = np.nonzero(active)
    packed[row, (np.cumsum(active, axis=1) - 1)[active]] = indices[active]
    return packed


def terms(name: str) -> list[str]:
    """The parts of a sum "A + B + C"; a + inside parentheses does not separate parts."""
    found, depth = [""], 0
    for letter in name:
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and depth <= 0:
            found.append("")
        else:
            found[-1] += letter
    return [term.strip() for term in found]


def is_outside(term: str) -> bool:
    """Whether a part of a sum is a set from outside: of a file, or of an installed package."""
    kind = term.partition("(")[0]
    return ":" in kind or kind in FEATURE_SETS.names()


def parse(term: str, *, may_import: bool) -> Features:
    """The set that one part of a sum names, `kind` or `kind(field=value,…)`. UserError, one line."""
    kind, parenthesis, rest = term.partition("(")
    where = f"feature set {quoted(term)}"
    try:
        found = FEATURE_SETS.find(kind, may_import=may_import)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if parenthesis and not rest.endswith(")"):
        raise UserError(f"{where}: expected a ')' at its end")
    values: dict[str, Any] = {}
    for field in rest[:-1].split(",") if rest[:-1] else ():
        key, equals, value = field.partition("=")
        if not equals:
            raise UserError(f"{where}: found {quoted(field)}, expected field=value")
        values[key.strip()] = _value(value.strip())
    return validate(found, values, lambda _: where)


def _word(kind: str, key: str, value: Any) -> str:
    """A parameter as it appears in a name; `_value` reads it."""
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value).replace("e+", "e")
    if isinstance(value, str) and re.fullmatch(r"[\w.\-]+", value) and _value(value) == value:
        return value
    raise UserError(f"feature set {kind}: {key} is {value!r:.80}, expected a number, true, false or a word")


def _value(word: str) -> Any:
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if isinstance(value, bool | int | float) else word
