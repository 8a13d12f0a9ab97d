"""Your own functions of rows, in C++, as NumPy's generalised ufuncs of signature (n)->() or (n),(m)->()."""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnue_trainer.base import _library
from nnue_trainer.files import compile_once
from nnue_trainer.stats import _plain, window_function
from nnue_trainer.stats._given import dense

_WHAT = "row functions"
_MOST = 8  # inputs
_DTYPES = (torch.float32, torch.float64)

_plain.register("nnue::_row_function")
_plain.register("nnue::_row_function_of")
_call, _call_of = torch.ops.nnue._row_function, torch.ops.nnue._row_function_of


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

    def __getstate__(self) -> dict[str, Any]:
        """Without the numbers of compiled functions, which belong to this process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __call__(self, *rows: Tensor, out: Tensor | None = None) -> Tensor:
        """The function of each row: rows [..., n] of float32 or float64, all of one dtype and device, whose leading
        dimensions broadcast; n may differ between inputs. Returns a tensor [...] of their dtype, `out` if given.

        ValueError if a tensor has another dtype, device or shape. There is no derivative: RuntimeError for inputs that
        require one.
        """
        first = rows[0] if rows else None
        if not (len(rows) == len(self.inputs) == 1 and isinstance(first, Tensor) and self._takes(first, out)):
            self._check(rows, out)
        assert first is not None
        made = first.new_empty(self._broadcast(rows)) if out is None else out
        functions = self._on_cuda if first.is_cuda else self._on_cpu
        try:
            if len(rows) == 1:
                _call(first, made, functions)
            else:
                given = [row if row.numel() == row.shape[-1] else row.expand(*made.shape, -1) for row in rows]
                _call_of(given, made, functions)
        except RuntimeError as error:
            self._check(rows, out)
            raise RuntimeError(f"row function: {self.name}: {error}") from None
        return made

    def _takes(self, row: Tensor, out: Tensor | None) -> bool:
        """Whether the operator itself refuses all else that is wrong with one input and `out`."""
        if row.requires_grad or row.is_nested:
            return False
        return out is None or (isinstance(out, Tensor) and out.shape == row.shape[:-1] and not out.is_neg())

    def _check(self, rows: tuple[Tensor, ...], out: Tensor | None) -> None:
        """ValueError or RuntimeError for what the operator would refuse, or not notice."""
        if len(rows) != len(self.inputs):
            raise ValueError(f"row function: found {len(rows)} inputs, expected {len(self.inputs)}: {self.inputs}")
        first = rows[0]
        for name, row in zip(self.inputs, rows, strict=True):
            good = isinstance(row, Tensor) and row.dtype in _DTYPES and row.dim() > 0
            if not good or row.dtype != first.dtype or row.device != first.device:
                wanted = "float32 or float64 [..., n], all of one dtype and device"
                raise ValueError(f"row function: {name}: found {_text(row)}, expected {wanted}")
            dense(f"row function: {name}", row)
            if row.requires_grad and torch.is_grad_enabled():
                raise RuntimeError(f"row function: {name}: found a tensor that requires grad; pass {name}.detach()")
        if not (first.is_cpu or first.is_cuda):
            raise ValueError(f"row function: found a tensor on {first.device}, expected one on cpu or cuda")
        shape = self._broadcast(rows)
        if out is None:
            return
        if not isinstance(out, Tensor):
            raise ValueError(f"row function: out: found {_text(out)}, expected a tensor")
        if (out.shape, out.dtype, out.device) != (shape, first.dtype, first.device):
            wanted = f"{first.dtype} of shape {list(shape)} on {first.device}"
            raise ValueError(f"row function: out: found {_text(out)}, expected {wanted}")
        if not out.is_contiguous():
            raise ValueError("row function: out: found a tensor that is not contiguous, expected a contiguous one")
        if out.is_neg():
            raise ValueError("row function: out: found a view with the signs changed, expected a plain tensor")
        begin, end = out.data_ptr(), out.data_ptr() + out.nbytes
        for name, row in zip(self.inputs, rows, strict=True):
            if row.is_contiguous() and row.data_ptr() < end and begin < row.data_ptr() + row.nbytes:
                found = f"a tensor that shares memory with {name}"
                raise ValueError(f"row function: out: found {found}, expected memory of its own")

    def _broadcast(self, rows: tuple[Tensor, ...]) -> torch.Size:
        """The common leading dimensions of the inputs."""
        if len(rows) == 1:
            return rows[0].shape[:-1]
        shape: list[int] = []
        for sizes in itertools.zip_longest(*(row.shape[-2::-1] for row in rows), fillvalue=1):
            wanted = set(sizes) - {1} or {1}
            if len(wanted) > 1:
                shapes = ", ".join(str(list(row.shape)) for row in rows)
                raise ValueError(f"row function: found shapes {shapes}, expected leading dimensions that broadcast")
            shape += wanted
        return torch.Size(reversed(shape))

    def _number(self, of_operators: Path, *functions: Any) -> int:
        """The number by which the operators of a library find these compiled functions, whose library stays loaded."""
        add = ctypes.CDLL(str(of_operators)).nnue_add_row_functions
        add.argtypes, add.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int64
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        return int(add((ctypes.c_void_p * len(addresses))(*addresses), len(self.inputs)))

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
    def _on_cpu(self) -> int:
        flags = [*window_function._CPU_FLAGS, "-fno-math-errno", "-fno-trapping-math", *_vector_flags()]
        compiler, source = compile_once.find_compiler(_WHAT), self._filled("row_function.h", "on_cpu.h")
        library = window_function._load(self.name, source, ".cpp", compiler, flags, "the CPU")
        return self._number(_library.STATS_CPU_LIBRARY, library.apply_float, library.apply_double)

    @property
    def _cuda_source(self) -> str:
        return self._filled("row_function.h", "row_function.cuh", "on_cuda.cuh")

    @functools.cached_property
    def _on_cuda(self) -> int:
        library = window_function._load_for_cuda(self.name, self._cuda_source, _WHAT)
        functions = library.apply_float, library.apply_double, library.bytes
        return self._number(_library.STATS_CUDA_LIBRARY, *functions)


def _vector_flags() -> list[str]:
    """Options for the vectors of this CPU. They change no result: no product is fused with a sum."""
    level = torch.backends.cpu.get_cpu_capability()
    if level == "AVX512":
        return ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
    return ["-mavx2"] if level == "AVX2" else []


def _text(found: object) -> str:
    if not isinstance(found, Tensor):
        return type(found).__name__
    return f"{found.dtype} of shape {list(found.shape)} on {found.device}"
