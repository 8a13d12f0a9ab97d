"""Transposition and norms of rows: `torch.ops.nnue.transpose` and `row_norms`. They have no derivative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nnue_trainer.stats import _plain
from nnue_trainer.stats._given import dense

__all__ = ["norm", "norms", "permuted", "transpose"]

TRANSPOSE = "nnue::transpose"
NORMS = "nnue::row_norms"


class Norms(NamedTuple):
    """Norms along the last dimension: Σ|x|, √Σx², max|x|. Each tensor has the shape of x without that dimension."""

    l1: Tensor
    l2: Tensor
    max: Tensor


def transpose(x: Tensor) -> Tensor:
    """A contiguous copy of x [..., R, C] as [..., C, R]; any dtype of 1, 2, 4 or 8 bytes, CPU or CUDA."""
    return cast(Tensor, torch.ops.nnue.transpose(dense("transpose: x", x)))


def permuted(values: npt.NDArray[Any], order: Sequence[int]) -> npt.NDArray[Any]:
    """A contiguous array with the dimensions in another order, as `np.ascontiguousarray(values.transpose(order))`.

    It uses `transpose` where the order only swaps two runs of neighbouring dimensions at the end, as it nearly always
    does. ValueError for a masked array, whose mask would be lost.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError("permuted: found a masked array, expected an array; fill it first: values.filled(…)")
    turned = values.transpose(order)
    runs: list[list[int]] = []
    for dimension in order:
        if runs and dimension == runs[-1][-1] + 1:
            runs[-1].append(dimension)
        else:
            runs.append([dimension])
    if runs and runs[0][0] == 0:
        runs = runs[1:]
    plain = values.dtype.kind in "biuf" and values.dtype.isnative and values.dtype.itemsize <= 8
    if len(runs) != 2 or values.size == 0 or not plain:
        return np.ascontiguousarray(turned).reshape(turned.shape)
    columns, rows = (math.prod(values.shape[d] for d in run) for run in runs)
    matrices = np.require(values, requirements=["C", "W"]).reshape(-1, rows, columns)
    found = transpose(torch.from_numpy(matrices)).numpy()
    return found.reshape(turned.shape)


def norms(x: Tensor, out: tuple[Tensor | None, Tensor | None, Tensor | None] | None = None) -> Norms:
    """All three norms along the last dimension in one pass, like a NumPy ufunc of signature (n)->(),(),().

    Args:
        x: [..., n], float32, float64, float16 or bfloat16. Sums run in float64. All norms of no elements are 0; a NaN
        in a row makes its norms NaN.
        out: tensors to write to, contiguous, of the shape [...] and the dtype and device of x; None: a new one.

    Raises:
        RuntimeError: a tensor has another shape, dtype or device.
        ValueError: something else is found than a tensor.
    """
    if out is not None and (not isinstance(out, tuple | list) or len(out) != 3):
        raise ValueError(f"norms: out: found {type(out).__name__}, expected a tuple of three tensors or None")
    given, x = (None, None, None) if out is None else out, dense("norms: x", x)
    made = Norms(*(x.new_empty(x.shape[:-1]) if t is None else t for t in given))
    _run("norms", x, *made)
    return made


def norm(x: Tensor, order: float = 2, out: Tensor | None = None) -> Tensor:
    """One of the norms of `norms`: order 1, 2 or infinity. `x` [..., n]; `out` and the result [...], in its dtype.

    Raises:
        ValueError: `order` is none of these, or as for `norms`; RuntimeError as there.
    """
    to = dense("norm: x", x).new_empty(x.shape[:-1]) if out is None else out
    if order == 2:
        _run("norm", x, None, to, None)
    elif order == 1:
        _run("norm", x, to, None, None)
    elif order == math.inf:
        _run("norm", x, None, None, to)
    else:
        raise ValueError(f"norm: order: found {order!r}, expected 1, 2 or inf")
    return to


def _run(where: str, x: Tensor, *out: Tensor | None) -> None:
    try:
        torch.ops.nnue.row_norms(x, *out)
    except RuntimeError:  # of torch, for another type than a tensor, with several lines
        dense(f"{where}: x", x)
        for to in out:
            if to is not None:
                dense(f"{where}: out", to)
        raise


def _transposed(x: Tensor) -> Tensor:
    if x.dim() < 2:
        raise RuntimeError(f"{TRANSPOSE}: x: found {x.dim()} dimensions, expected shape [..., R, C]")
    return torch.empty((*x.shape[:-2], x.shape[-1], x.shape[-2]), dtype=x.dtype, device=x.device)


_plain.register(TRANSPOSE, _transposed)
_plain.register(NORMS)
