"""Your own functions of sliding windows: C++ for CPU and CUDA, also with a state, or Python."""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nnue_trainer.files import compile_once
from nnue_trainer.stats import _python_windows

_WHAT = "window functions"

# A body that can end without `return` would give any number, so it is an error; nvcc's own number of it is 940.
_CPU_FLAGS = [
    "-std=c++20",
    "-O3",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-Werror=return-type",
]
# As on the CPU, no product is fused with a sum: both give the same bits.
_CUDA_FLAGS = ["-std=c++20", "-O3", "-shared", "--expt-relaxed-constexpr", "-cudart=static", "--diag-error=940"]
_CUDA_FLAGS += ["-fmad=false"]
_CUDA_FLAGS += ["-Xcompiler=-fPIC,-fvisibility=hidden,-Werror=return-type"]

_SEGMENTS_ON_CUDA = 15  # log2 of the segments of a long row

# Functions that a GPU may call. Others of a struct have to be constexpr.
_MEMBER = re.compile(r"\b(?!(?:return|else|case|throw|and|or|not)\b)([\w:]+[\s&*]+)(?=(?:add|remove|merge|value)\s*\()")


def sources(*names: str) -> str:
    """The text of these files in `sources/`, one after the other."""
    folder = Path(__file__).with_name("sources")
    return "".join((folder / name).read_text(encoding="utf-8") for name in names)


class _Job(NamedTuple):
    """`Job` of window_job.h without `space`."""

    x: int
    out: int
    rows: int
    n: int
    first: int
    length: int
    min_periods: int
    segment: int

    def packed(self) -> bytes:
        return struct.pack("3Q6q", 0, *self)


@dataclass(frozen=True)
class WindowFunction:
    """The body of a C++ function of a window `w` with `w.size()` elements `w[i]` in float64; it returns a number.

        spread = WindowFunction('''
            double low = w[0], high = w[0];
            for (int64_t i = 1; i < w.size(); ++i) low = fmin(low, w[i]), high = fmax(high, w[i]);
            return high - low;
        ''')
        stats.rolling(x, 100).apply(spread)

    It is compiled at its first use, with g++ for the CPU and with nvcc for CUDA, and kept in the user's cache folder. A
    window may be empty if min_periods is 0. The time is that of your loop for each window.
    """

    body: str
    name: str = "window function"

    @functools.cached_property
    def _on_cpu(self) -> Any:
        source = sources("window_job.h", "window_function.h", "on_cpu.h")
        return _load_for_cpu(self.name, source.replace("BODY", self.body))

    @property
    def _cuda_source(self) -> str:
        source = sources("window_job.h", "window_function.h", "window_function.cuh", "on_cuda.cuh")
        return source.replace("BODY", self.body)

    @functools.cached_property
    def _on_cuda(self) -> Any:
        return _load_for_cuda(self.name, self._cuda_source, _WHAT)

    def _segment(self, length: int, _: int | None) -> int:
        return 1


@dataclass(frozen=True)
class WindowState:
    """The members of a C++ struct that follows a window: `add(x)` and `remove(x)`, or `add(x)` and `merge(b)`; and
    `value()`.

        mean = WindowState('''
            double sum = 0, count = 0;
            void add(double x) { sum += x, count += 1; }
            void remove(double x) { sum -= x, count -= 1; }
            double value() const { return sum / count; }
        ''')
        stats.rolling(x, 3000).apply(mean)

    The time per element does not depend on the window (on a GPU with `remove`, up to some thousand elements). `add`
    gets each observation of a window in order, and `remove` the oldest one; NaN and infinity are left out. Sums that
    subtract lose digits: the state is made anew after at least 16,384 outputs. With `merge(const Window& b)`, which
    appends the state b of the elements that follow, nothing is removed. It is compiled at its first use, with g++ for
    the CPU and with nvcc for CUDA; there, further functions of the struct have to be constexpr, and a state with
    `merge` has at most 4096 bytes.
    """

    members: str
    name: str = "window function"

    @functools.cached_property
    def _on_cpu(self) -> Any:
        source = sources("window_job.h", "window_state.h", "window_state_on_cpu.h", "on_cpu.h")
        return _load_for_cpu(self.name, source.replace("BODY", self.members))

    @property
    def _cuda_source(self) -> str:
        source = sources("window_job.h", "window_state.h", "window_state.cuh", "on_cuda.cuh")
        return source.replace("BODY", _MEMBER.sub(r"NNUE_HERE \1", self.members))

    @functools.cached_property
    def _on_cuda(self) -> Any:
        return _load_for_cuda(self.name, self._cuda_source, _WHAT)

    def _segment(self, length: int, on_cuda: int | None) -> int:
        """The outputs that follow one state. `on_cuda`: all outputs, shared by many threads; None for the CPU."""
        merges = re.search(r"\bmerge\b", self.members) is not None
        most = max(length, 1) if merges else max(4 * length, 1 << 14)
        return most if on_cuda is None else min(most, max(on_cuda >> _SEGMENTS_ON_CUDA, 64)) + 31 & -32


def _load_for_cpu(name: str, source: str) -> Any:
    return _load(name, source, ".cpp", compile_once.find_compiler(_WHAT), _CPU_FLAGS, "the CPU")


def _load_for_cuda(name: str, source: str, what: str) -> Any:
    """For all GPUs of this machine."""
    devices = range(torch.cuda.device_count())
    found = sorted({"{}{}".format(*torch.cuda.get_device_capability(device)) for device in devices})
    flags = [*_CUDA_FLAGS, *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in found)]
    return _load(name, source, ".cu", compile_once.find_nvcc(what), flags, "CUDA")


def _load(name: str, source: str, suffix: str, compiler: list[str], flags: list[str], target: str) -> Any:
    """The library. Its functions return an error or None; they take the bytes of the job, which begin with the address
    of `space`, and a range of its parts, or a stream."""
    path = compile_once.library_of(name, "window-functions", source, suffix, compiler, flags, target=target)
    return _with_types(ctypes.CDLL(str(path)), suffix == ".cu")


def _with_types(library: ctypes.CDLL, on_cuda: bool) -> ctypes.CDLL:
    rest = (ctypes.c_void_p,) if on_cuda else (ctypes.c_int64, ctypes.c_int64)
    for call in (library.apply_float, library.apply_double):
        call.argtypes, call.restype = [ctypes.c_void_p, *rest], ctypes.c_char_p
    if on_cuda:
        library.bytes.argtypes, library.bytes.restype = [ctypes.c_void_p], ctypes.c_int64
    return library


def apply(
    function: WindowFunction | WindowState | Callable[..., float], x: Tensor, first: int, length: int, min_periods: int
) -> Tensor:
    """`Rolling.apply`: see there."""
    if x.dtype not in (torch.float32, torch.float64) or x.dim() == 0:
        raise ValueError(
            f"rolling: apply: found {x.dtype} of shape {list(x.shape)}, expected float32 or float64 [..., n]"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "rolling: apply: found a tensor that requires grad, but there is no derivative; pass x.detach()"
        )
    x = x.contiguous().resolve_neg()  # a view with the signs changed is contiguous, but its memory has the old ones
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    if not isinstance(function, WindowFunction | WindowState) and not callable(function):
        raise ValueError(
            f"rolling: apply: found {type(function).__name__}, expected a function, a WindowFunction or a WindowState"
        )
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"rolling: apply: found a tensor on {x.device}, expected one on cpu or cuda")
    if not isinstance(function, WindowFunction | WindowState):
        _python_windows.apply(function, x, out, first, length, min_periods)
        return out
    job = _job_of(function, x, out, first, length, min_periods, x.is_cuda)
    entry = "apply_float" if x.dtype == torch.float32 else "apply_double"
    if x.device.type == "cpu":
        items = job.rows * -(-job.n // job.segment)
        cost = max(job.length, 1) if isinstance(function, WindowFunction) else job.segment + job.length
        _run("rolling: apply", function.name, getattr(function._on_cpu, entry), job.packed(), items, cost)
    else:
        _launch("rolling: apply", function.name, function._on_cuda, job.packed(), x)
    return out


def _job_of(
    function: WindowFunction | WindowState, x: Tensor, out: Tensor, first: int, length: int, least: int, on_cuda: bool
) -> _Job:
    n = x.shape[-1]
    low, high = max(first, -n), min(first + length, n)
    span = max(high - low, 0)
    segment = min(function._segment(span, x.numel() if on_cuda else None), n)
    return _Job(x.data_ptr(), out.data_ptr(), x.numel() // n, n, low, span, least, segment)


def _launch(where: str, name: str, library: Any, job: bytes, x: Tensor) -> None:
    """Calls a library for CUDA on the device of x. `space` gets as many zeros as the library needs."""
    stream = None
    if x.is_cuda:  # else the library is the emulator's
        if x.device.index != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                return _launch(where, name, library, job, x)
        stream = torch.cuda.current_stream().cuda_stream
    size = library.bytes(job)
    if size:
        space = torch.zeros(size, dtype=torch.uint8, device=x.device)
        job = struct.pack("P", space.data_ptr()) + job[8:]
    error = (library.apply_float if x.dtype == torch.float32 else library.apply_double)(job, stream)
    if error is not None:
        raise RuntimeError(f"{where}: {name}: CUDA: {error.decode()}")
    return None


def _run(where: str, name: str, call: Any, job: bytes, count: int, cost: int) -> None:
    """Calls call(job, begin, end) for parts of 0 … count, in as many threads as torch has: ctypes lets others run."""
    parts = count * cost >> 16
    threads = 1 if parts <= 1 else min(torch.get_num_threads(), parts)
    if threads == 1:
        errors = [call(job, 0, count)]
    else:
        from concurrent.futures import ThreadPoolExecutor

        step = -(-count // (4 * threads))
        with ThreadPoolExecutor(threads) as pool:
            errors = list(pool.map(lambda begin: call(job, begin, min(begin + step, count)), range(0, count, step)))
    for error in errors:
        if error is not None:
            raise RuntimeError(f"{where}: {name}: {error.decode(errors='replace')}")
