"""Your own functions of rows, in C++, as NumPy's generalised ufuncs of signature (n)->() or (n),(m)->()."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from nnue_trainer.files import compile_once
from nnue_trainer.stats import window_function
from nnue_trainer.stats._given import dense

_WHAT = "row functions"
_MOST = 8  # inputs
_DTYPES = (torch.float32, torch.float64)
_HEAD = struct.Struct("3q")  # of a job, and of each of its inputs


@dataclass(frozen=True)
class RowFunction:
    """The body of a C++ function of rows with `size()` elements `x[i]` in float64; it returns a number.

        length = RowFunction("return sqrt(x.sum([](double v) { return v * v; }));")
        length(torch.randn(1000, 3))  # [1000]
        dot = RowFunction('''
            double sum = 0;
            for (int64_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
            return sum;
        ''', inputs=("x", "y"))
        dot(torch.randn(1000, 1, 3), torch.randn(20, 3), out=torch.empty(1000, 20))

    inputs: the names of the rows in the body, at most 8. `x.sum(f)` adds f of all elements, fast: on a GPU, several
    threads share long rows, where each runs the whole body and adds some elements of its sums. It is compiled at its
    first use, with g++ for the CPU and with nvcc for CUDA, and kept in the user's cache folder.
    """

    body: str
    inputs: Sequence[str] = ("x",)
    name: str = "row function"

    def __post_init__(self) -> None:
        names = list(self.inputs)
        wrong = [name for name in names if not re.fullmatch(r"[A-Za-z]\w*", name)]
        if isinstance(self.inputs, str) or wrong or len(set(names)) < len(names) or not 1 <= len(names) <= _MOST:
            raise ValueError(f"row function: inputs: found {self.inputs!r}, expected 1 to {_MOST} different C++ names")

    def __call__(self, *rows: Tensor, out: Tensor | None = None) -> Tensor:
        """The function of each row: rows [..., n] of float32 or float64, all of one dtype and device, whose leading
        dimensions broadcast; n may differ between inputs. Returns a tensor [...] of their dtype, `out` if given.

        ValueError if a tensor has another dtype, device or shape. There is no derivative: RuntimeError for inputs that
        require one.
        """
        shape = self._check(rows)
        first = rows[0]
        given = [_rows_of(row, shape if len(rows) > 1 else None) for row in rows]
        if out is None:
            made = first.new_empty(shape)
        else:
            made = out
            self._check_out(out, first, shape, given)
        count = made.numel()
        if count and first.is_cpu:
            cost = 1 + given[0][1] if len(given) == 1 else 1 + sum(size for _, size, _ in given)
            call = self._on_cpu.apply_float if first.dtype == torch.float32 else self._on_cpu.apply_double
            window_function._run("row function", self.name, call, _job_of(given, made, count), count, cost)
        elif count:
            self._launch(self._on_cuda, _job_of(given, made, count), first)
        return made

    def _check_out(self, out: Tensor, like: Tensor, shape: torch.Size, given: Sequence[_Rows]) -> None:
        if not isinstance(out, Tensor):
            raise ValueError(f"row function: out: found {_text(out)}, expected a tensor")
        same_device = (out.is_cpu and like.is_cpu) or out.device == like.device
        if out.shape != shape or out.dtype != like.dtype or not same_device:
            wanted = f"{like.dtype} of shape {list(shape)} on {like.device}"
            raise ValueError(f"row function: out: found {_text(out)}, expected {wanted}")
        if not out.is_contiguous():
            raise ValueError("row function: out: found a tensor that is not contiguous, expected a contiguous one")
        if out.is_neg():
            raise ValueError("row function: out: found a view with the signs changed, expected a plain tensor")
        begin = out.data_ptr()
        end = begin + out.nbytes
        for i, (row, _, _) in enumerate(given):
            if row.data_ptr() < end and begin < row.data_ptr() + row.nbytes:
                found = f"a tensor that shares memory with {self.inputs[i]}"
                raise ValueError(f"row function: out: found {found}, expected memory of its own")

    def _check(self, rows: tuple[Tensor, ...]) -> torch.Size:
        """The common leading dimensions of the inputs."""
        if len(rows) != len(self.inputs):
            raise ValueError(f"row function: found {len(rows)} inputs, expected {len(self.inputs)}: {self.inputs}")
        first = rows[0]
        for i, row in enumerate(rows):
            good = isinstance(row, Tensor) and row.dtype in _DTYPES and row.dim() > 0
            if not good or (row is not first and (row.dtype != first.dtype or row.device != first.device)):
                wanted = "float32 or float64 [..., n], all of one dtype and device"
                raise ValueError(f"row function: {self.inputs[i]}: found {_text(row)}, expected {wanted}")
            if row.layout is not torch.strided or row.is_nested:
                dense(f"row function: {self.inputs[i]}", row)
            if row.requires_grad and torch.is_grad_enabled():
                name = self.inputs[i]
                raise RuntimeError(f"row function: {name}: found a tensor that requires grad; pass {name}.detach()")
        if not (first.is_cpu or first.is_cuda):
            raise ValueError(f"row function: found a tensor on {first.device}, expected one on cpu or cuda")
        if len(rows) == 1:
            return first.shape[:-1]
        leading = {row.shape[:-1] for row in rows}
        if len(leading) == 1:
            return leading.pop()
        try:
            return cast(torch.Size, torch.broadcast_shapes(*leading))  # type: ignore[no-untyped-call]
        except RuntimeError:
            shapes = ", ".join(str(list(row.shape)) for row in rows)
            raise ValueError(
                f"row function: found shapes {shapes}, expected leading dimensions that broadcast"
            ) from None

    def _launch(self, library: Any, job: bytes, like: Tensor) -> None:
        window_function._launch("row function", self.name, library, job, like)

    def _filled(self, *names: str) -> str:
        """Files of `sources/` with this function in them."""
        has_sums = re.search(r"\bsum\b", self.body) is not None
        texts = {
            "PARAMETERS": ", ".join(f"const R {name}" for name in self.inputs),
            "ARGUMENTS": ", ".join(f"row({i})" for i in range(len(self.inputs))),
            "INPUTS": str(len(self.inputs)),
            "SUMS": "true" if has_sums else "false",
            "BODY": self.body,
        }
        source = window_function.sources(*names)
        return re.sub(r"\b(PARAMETERS|ARGUMENTS|INPUTS|SUMS|BODY)\b", lambda found: texts[found[0]], source)

    @functools.cached_property
    def _on_cpu(self) -> Any:
        flags = [*window_function._CPU_FLAGS, "-fno-math-errno", "-fno-trapping-math", *_vector_flags()]
        compiler, source = compile_once.find_compiler(_WHAT), self._filled("row_function.h", "on_cpu.h")
        return window_function._load(self.name, source, ".cpp", compiler, flags, "the CPU")

    @property
    def _cuda_source(self) -> str:
        return self._filled("row_function.h", "row_function.cuh", "on_cuda.cuh")

    @functools.cached_property
    def _on_cuda(self) -> Any:
        return window_function._load_for_cuda(self.name, self._cuda_source, _WHAT)


def _vector_flags() -> list[str]:
    """Options for the vectors of this CPU. They change no result: no product is fused with a sum."""
    level = torch.backends.cpu.get_cpu_capability()
    if level == "AVX512":
        return ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
    return ["-mavx2"] if level == "AVX2" else []


_Rows = tuple[Tensor, int, int]
"""a tensor whose rows lie at equal distances, the size of a row, and the distance: 0 for one row that all share"""


def _rows_of(row: Tensor, shape: torch.Size | None) -> _Rows:
    """The rows, expanded to these leading dimensions; None: their own."""
    size = row.shape[-1]
    shared = shape is not None and row.numel() == size
    if shape is not None and not shared and row.shape[:-1] != shape:
        row = row.expand(*shape, size)
    if row.is_neg() or not row.is_contiguous():
        row = row.contiguous().resolve_neg()
    return row, size, 0 if shared else size


def _job_of(given: Sequence[_Rows], out: Tensor, count: int) -> bytes:
    """`Job` of row_function.h without `space`."""
    job = _HEAD.pack(0, out.data_ptr(), count)
    for row, size, distance in given:
        job += _HEAD.pack(row.data_ptr(), size, distance)
    return job


def _text(found: object) -> str:
    if not isinstance(found, Tensor):
        return type(found).__name__
    return f"{found.dtype} of shape {list(found.shape)} on {found.device}"
