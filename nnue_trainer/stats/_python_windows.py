"""Python functions of windows: called for each window on the CPU, or compiled by Numba, for the CPU and for CUDA."""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnue_trainer.errors import UserError

_WHAT = "rolling: apply"
_INSTEAD = "pass a WindowFunction, or x.cpu()"
_THREADS = 128
_LEAST_BLOCKS, _MOST_BLOCKS = 128, 1 << 22  # Numba warns of fewer


def apply(function: Callable[..., float], x: Tensor, out: Tensor, first: int, length: int, least: int) -> None:
    """Fills `out`, like x, with the function of each window that has `least` observations, and with NaN.

    x: contiguous float32 or float64 [..., n], n > 0, on CPU or CUDA. Output i of a row has the window of what
    [i + first, i + first + length) has in common with [0, n), in float64 and read-only.
    """
    n = x.shape[-1]
    # In Python's integers, since a window may reach further than int64 does.
    low, high = max(min(first, n), -n), max(min(first + length, n), -n)
    if x.is_cuda:
        _on_cuda(function, x, out, low, high, least)
    else:
        _on_cpu(function, x, out, low, high, least)


def _on_cpu(function: Callable[..., float], x: Tensor, out: Tensor, low: int, high: int, least: int) -> None:
    n = x.shape[-1]
    given = x.detach().view(-1, n).double().numpy()
    given.flags.writeable = False  # windows overlap, and this may be the caller's memory
    found = np.full_like(given, np.nan)
    compiled = _compiled(function)
    begins = np.clip(np.arange(n) + low, 0, n)
    ends = np.maximum(np.clip(np.arange(n) + high, 0, n), begins)
    for row, to in zip(given, found, strict=True):
        seen = np.concatenate([[0], np.isfinite(row).cumsum()])
        places = np.flatnonzero(seen[ends] - seen[begins] >= least)
        if compiled is not None:
            loop, inner = compiled
            loop(inner, row, to, places, begins, ends)
            continue
        # A loop in Python is faster over lists.
        for place, begin, end in zip(places.tolist(), begins[places].tolist(), ends[places].tolist(), strict=True):
            value = function(row[begin:end])
            try:
                to[place] = value
            except (TypeError, ValueError):
                kind = type(value).__name__
                raise ValueError(f"{_WHAT}: {_name(function)}: found {kind} returned, expected a number") from None
    out.copy_(torch.from_numpy(found).view(x.shape))


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _over_windows(function: Any, x: Any, out: Any, places: Any, begins: Any, ends: Any) -> None:
    """The loop over windows of a row, for Numba."""
    for place in places:
        out[place] = function(x[begins[place] : ends[place]])


def _cached(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`make`, of whose results the last ones are kept. A function may be an object without a hash."""
    keep = functools.lru_cache(maxsize=64)(make)

    @functools.wraps(make)
    def found(function: Any) -> Any:
        try:
            hash(function)
        except TypeError:
            return make(function)
        return keep(function)

    found.cache_clear = keep.cache_clear  # type: ignore[attr-defined]
    return found


@_cached
def _compiled(function: Callable[..., float]) -> Any:
    """(the loop, the function), compiled by Numba; None without it, or where it cannot compile the function."""
    try:
        import numba  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    window, places = numba.types.Array(numba.float64, 1, "C", readonly=True), numba.int64[::1]
    # Compiles again a function that the caller compiled for other arrays.
    for inner in [*([function] if hasattr(function, "py_func") else []), numba.njit(_plain(function))]:
        try:
            inner.compile((window,))
            loop = numba.njit(_over_windows)
            loop.compile((numba.typeof(inner), window, numba.float64[::1], places, places, places))
            return loop, inner
        except Exception:  # of many classes, such as ImportError for SciPy; Python can run any function
            continue
    return None


def _plain(function: Any) -> Any:
    """A function that Numba accepts: that of one which it has compiled, or one around a built-in function."""
    if hasattr(function, "py_func"):
        return function.py_func
    return function if isinstance(function, FunctionType) else lambda w: function(w)


# ---- CUDA ------------------------------------------------------------------------------------------------------------


def _on_cuda(function: Callable[..., float], x: Tensor, out: Tensor, low: int, high: int, least: int) -> None:
    n = x.shape[-1]
    with torch.cuda.device(x.device):
        rows = x.detach().view(-1, n)
        seen = torch.zeros(len(rows), n + 1, dtype=torch.int64, device=x.device)  # observations before each place
        torch.cumsum(rows.isfinite(), 1, out=seen[:, 1:])
        made = out if out.dtype == torch.float64 else torch.empty_like(x, dtype=torch.float64)
        blocks = min(max(-(-x.numel() // _THREADS), _LEAST_BLOCKS), _MOST_BLOCKS)
        stream = torch.cuda.current_stream().cuda_stream
        launch(function, rows.double(), seen, made, (n, low, high, least), (blocks, _THREADS, stream))
        if made is not out:
            out.copy_(made)


def launch(
    function: Callable[..., float],
    x: Tensor,
    seen: Tensor,
    out: Tensor,
    rule: tuple[int, ...],
    grid: tuple[int, int, int],
) -> None:
    """Runs the function of each window on the current device, whose stream is the last number of `grid`. UserError, one
    line, if Numba cannot."""
    try:
        cuda = importlib.import_module("numba.cuda")
        # Without a driver or a toolkit it is there, but does not work.
        missing = None if cuda.is_available() else _line(cuda.cuda_error() or "no CUDA toolkit")
    except ImportError as error:
        missing = _line(error)
    if missing is not None:
        raise UserError(
            f"{_WHAT}: a Python function of a tensor on CUDA needs Numba for CUDA ({missing}): "
            f"pip install 'numba-cuda[cu{_toolkit()}]'; or {_INSTEAD}"
        )
    blocks, threads, stream = grid
    try:
        with cuda.gpus[x.device.index or 0]:
            kernel = _kernel(function)
            arrays = (cuda.as_cuda_array(each.flatten()) for each in (x, seen, out))
            kernel[blocks, threads, cuda.external_stream(stream)](*arrays, *rule)
    except Exception as error:  # Numba, NVVM, the linker and the driver have classes of their own
        of_function = "Failed in " in str(error) or any(base.__name__ == "NumbaError" for base in type(error).__mro__)
        advice = "write loops over w with the functions of math" if of_function else "check Numba's CUDA"
        raise UserError(
            f"{_WHAT}: {_name(function)}: Numba cannot run it on CUDA: {_line(error)}; {advice}, or {_INSTEAD}"
        ) from error


def _toolkit() -> str:
    return (torch.version.cuda or "13").split(".")[0]


def _line(error: object) -> str:
    """The line of Numba's text that has the reason."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[\d;]*m", "", str(error)).splitlines()]  # without colours
    telling = [line for line in lines if line and not line.startswith(("Failed in ", "Error at driver init", "- "))]
    last = next((i for i, line in enumerate(telling) if not line.endswith(":")), 0)
    return " ".join(telling[: last + 1]).rstrip(".")[:300] or type(error).__name__


@_cached
def _kernel(function: Callable[..., float]) -> Any:
    """A thread for each output. Neighbouring threads read neighbouring elements, so most reads are from the cache."""
    from numba import cuda, float64, int64, types, void  # type: ignore[import-not-found, unused-ignore]

    inner = cuda.jit(device=True)(_plain(function))

    def windows(x: Any, seen: Any, out: Any, n: Any, low: Any, high: Any, least: Any) -> None:
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            row, place = i // n, i % n
            begin = min(max(place + low, 0), n)
            end = max(min(max(place + high, 0), n), begin)
            before = row * (n + 1)
            if seen[before + end] - seen[before + begin] >= least:
                out[i] = inner(x[row * n + begin : row * n + end])
            else:
                out[i] = math.nan

    numbers, counts = (types.Array(each, 1, "C", readonly=True) for each in (float64, int64))
    return cuda.jit(void(numbers, counts, float64[::1], int64, int64, int64, int64))(windows)
