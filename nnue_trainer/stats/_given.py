"""Numbers as callers have them, tensors, NumPy arrays or pandas objects, as tensors; and results as the same kind."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_MOST = 1 << 60
KINDS = "a tensor, a NumPy array, or a pandas Series or DataFrame"


class Given(NamedTuple):
    """Numbers as a tensor whose last dimension is the one that windows move along."""

    tensor: Tensor
    back: Callable[[Tensor], Any]
    """turns a result of the tensor's shape into the kind of object that was given"""
    labels: tuple[Any, ...] = ()
    """index and columns of a pandas object"""


def _unchanged(result: Tensor) -> Tensor:
    return result


def given(where: str, x: Any, step: int = 1) -> Given:
    """`x` as a tensor, and the way back. With `step`, a result has only every step-th element of the last dimension.

    A tensor stays as it is. An array of float32 or float64 shares memory with its tensor; integers, booleans and
    float16 become float64, as in pandas. What a masked array masks becomes NaN. Series and DataFrames become float64;
    windows move along the index.

    where: the beginning of errors, such as "rolling: x". ValueError for anything else than numbers.
    """
    if isinstance(x, Tensor):
        return Given(dense(where, x), _unchanged)
    if isinstance(x, np.ma.MaskedArray):
        _check_numbers(where, x)
        x = np.ma.filled(x if x.dtype.kind == "f" else x.astype(np.float64), np.nan)
    if isinstance(x, np.ndarray):
        return Given(_tensor(where, x), Tensor.numpy)
    pandas: Any = sys.modules.get("pandas")  # an object of pandas only exists where it is imported
    if pandas is not None and isinstance(x, pandas.Series):
        made = _tensor(where, _numbers(where, x, x.dtype)).double()
        return Given(made, lambda result: pandas.Series(result.numpy(), x.index[::step], name=x.name), (x.index,))
    if pandas is not None and isinstance(x, pandas.DataFrame):
        columns = [_numbers(f"{where}[{name!r}]", x.iloc[:, i], x.dtypes.iloc[i]) for i, name in enumerate(x.columns)]
        values = np.stack(columns) if columns else np.empty((0, len(x)))
        made = _tensor(where, values).double()
        labels = x.index, x.columns
        return Given(made, lambda result: pandas.DataFrame(result.numpy().T, x.index[::step], x.columns), labels)
    module = type(x).__module__.partition(".")[0]  # such as polars, which has a Series too
    found = type(x).__name__ if module == "builtins" else f"{module}.{type(x).__name__}"
    raise ValueError(f"{where}: found {found}, expected {KINDS}")


def dense(where: str, x: Any) -> Tensor:
    """`x` itself. ValueError for anything else than a dense tensor, such as an array or a sparse tensor."""
    if not isinstance(x, Tensor):
        advice = "; make one with torch.from_numpy" * isinstance(x, np.ndarray)
        raise ValueError(f"{where}: found {type(x).__name__}, expected a tensor{advice}")
    if x.layout != torch.strided or x.is_nested:
        found = "a nested tensor" if x.is_nested else str(x.layout)
        raise ValueError(f"{where}: found {found}, expected a dense tensor")
    return x


def _numbers(where: str, series: Any, dtype: Any) -> np.ndarray[Any, Any]:
    if getattr(dtype, "kind", "O") not in "biuf":
        raise ValueError(f"{where}: found {dtype}, expected numbers")
    return np.asarray(series.to_numpy(dtype="float64", na_value=np.nan))


def whole(name: str, value: Any) -> int:
    """A count, such as "rolling: window". What is far beyond any tensor's size is 2^60, which 64 bits can add to.
    ValueError for anything else than a whole number, at least 0."""
    try:
        found = -1 if getattr(value, "dtype", None) == torch.bool else operator.index(value)
    except TypeError:
        found = -1
    if isinstance(value, bool) or found < 0:
        raise ValueError(f"{name}: found {value!r}, expected a whole number, at least 0")
    return min(found, _MOST)


def flag(name: str, value: Any) -> bool:
    """A truth value, such as "rolling: center". ValueError for anything else, such as the word "false"."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name}: found {value!r}, expected True or False")
    return bool(value)


def number(name: str, value: Any, *, nan: bool = False) -> float:
    """A number, such as "ewm: com". ValueError for anything else, also for text and truth values, and for NaN unless
    `nan` is set, as it is where a range is checked next, whose error names the range."""
    try:
        if not isinstance(value, (bool, np.bool_, str, bytes)) and (nan or not math.isnan(float(value))):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise ValueError(f"{name}: found {value!r}, expected a number")


def _check_numbers(where: str, values: np.ndarray[Any, Any]) -> None:
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise ValueError(f"{where}: found {values.dtype}, expected integers or floats of up to 64 bits")


def _tensor(where: str, values: np.ndarray[Any, Any]) -> Tensor:
    _check_numbers(where, values)
    keeps = values.dtype.kind == "f" and values.dtype.itemsize > 2
    native = values.dtype.newbyteorder("=") if keeps else np.dtype(np.float64)
    return torch.from_numpy(np.require(values, dtype=native, requirements=["C", "W"]))
