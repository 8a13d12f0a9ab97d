"""The kernels for each part of a training step: look-ups in the table of csrc/capabilities.h.

A machine is described by data, so look-ups also work for a GPU that is not installed. `nnue explain` prints the
kernels of a recipe.
"""

from __future__ import annotations

import functools
import os
import sys
from operator import index
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from nnue_trainer.base import _library, _registration
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.ops import _enumerations

_PORTABLE, _HOPPER, _LIBRARY = 1, 2, 4  # enum Code of csrc/capabilities.h

Kernels = Literal["cpu", "hopper", "portable"]
ON_GPU: tuple[Kernels, ...] = ("hopper", "portable")
CudaKernels = Literal["auto", "portable", "none"]
Mode = Literal["plain", "autocast", "compiled", "onnx", "transformed"]
_MODES: dict[str, int] = _enumerations.TABLE["kernels.mode"]
_ALLOWED: dict[CudaKernels, int] = {"auto": _PORTABLE | _HOPPER, "portable": _PORTABLE, "none": 0}
_cuda_kernels: CudaKernels = "auto"


class Machine(NamedTuple):
    """The CPU, or a GPU and what the operators have for it."""

    capability: int = 0
    """10 · major + minor; 0: the CPU"""
    multiprocessors: int = 0
    code: int = 0
    """bits: portable kernels, those of compute capability 9.0, the library itself"""

    def __str__(self) -> str:
        if self == CPU:
            return "the CPU"
        of = f"a GPU of compute capability {self.capability // 10}.{self.capability % 10}"
        return f"{of} with {self.multiprocessors} multiprocessors" if self.multiprocessors else of


CPU = Machine()
_MULTIPROCESSORS = {75: 72, 80: 108, 86: 84, 89: 128, 90: 132, 100: 148, 120: 170}  # of the largest GPU of a capability


class Choice(NamedTuple):
    """The kernels of a part of the step, and why faster ones are not taken; "" if there are none."""

    kernels: str
    reason: str


def gpu(capability: int, multiprocessors: int = 0) -> Machine:
    """A GPU that need not be here, with a library that has all kernels. multiprocessors: 0: as many as the largest of
    its compute capability."""
    multiprocessors = multiprocessors or _MULTIPROCESSORS.get(capability, 132)
    return Machine(capability, multiprocessors, _PORTABLE | _HOPPER | _LIBRARY)


class Layers(Protocol):
    """The layers after the transformer: `modules.LayerStacks`."""

    @property
    def numbers(self) -> tuple[int, int, tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
        """The arguments of `_layer_stacks_describe` (csrc/layer_stacks.h)."""


# A Machine without its class, whose methods torch.compile would trace.
Numbers = tuple[int, int, int]


def machine_of(device: torch.device) -> Numbers | None:
    """The properties of a device that the table takes, as in Machine; None for one that is neither CPU nor CUDA."""
    if device.type == "cpu":
        return 0, 0, 0
    return _gpu_of(device.index or 0) if device.type == "cuda" else None


def has_operators(device: torch.device) -> bool:
    """Whether operators of this project run on a device; on "meta" they infer shapes."""
    if device.type == "meta":
        return True
    machine = machine_of(device)
    return machine is not None and (machine[0] == CPU.capability or bool(machine[2] & _LIBRARY))


def _gpu_of(device: int) -> Numbers:
    capability, multiprocessors, code = _described(device)
    return capability, multiprocessors, code


_gpu_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache  # called at each step
def _described(device: int) -> Machine:
    if _library.load().cuda_error is not None:
        return Machine(1)
    with _disable_current_modes():
        capability, *rest = torch.ops.nnue._describe_gpu(device)
    return Machine(capability or 1, *rest)  # 0 would be the CPU


def mode_of(*tensors: Tensor | None) -> Mode:
    """How torch runs a call on these tensors, the first of which is one: enum Mode of the table."""
    if torch._C._are_functorch_transforms_active():
        return "transformed"
    onnx: Any = sys.modules.get("torch.onnx")  # an exporter has imported it; it takes a second
    if onnx is not None and onnx.is_in_onnx_export():
        return "onnx"
    if torch.compiler.is_compiling():  # the compiler cannot read tangents; the operators refuse them
        return "compiled"
    for each in tensors:
        if each is not None and _registration.unpack_dual(each, level=0)[1] is not None:
            return "transformed"
    first = tensors[0]
    assert first is not None
    return "autocast" if torch.is_autocast_enabled(first.device.type) else "plain"


def transformer(
    machine: Numbers | None,
    weight_dtype: torch.dtype,
    num_features: int,
    num_outputs: int,
    bucket_size: int | None = None,
    num_bucketed: int | None = None,
    mode: Mode = "plain",
    *,
    output_dtype: torch.dtype | None = None,
    has_values: bool = False,
) -> Choice:
    """The kernels of the feature transformer of both perspectives: cpu, portable, hopper, or torch's own operators.
    `num_outputs` −1: a plan, which serves any. `output_dtype`: None: the weight's. `has_values`: the entries have
    factors."""
    num_bucketed = num_features if num_bucketed is None else num_bucketed
    # index: a graph is compiled for these numbers.
    sizes = map(index, (num_features, num_outputs, bucket_size or 0, num_bucketed))
    shape = (weight_dtype, *sizes, output_dtype or weight_dtype, has_values, _MODES[mode])
    return _choice("transformer", "_transformer_kernels", machine, _cuda_kernels, shape)


def stacks(
    machine: Numbers | None,
    layers: Layers,
    x_dtype: torch.dtype = torch.float32,
    weight_dtype: torch.dtype = torch.float32,
    *,
    is_aligned: bool = True,
    wide_sums: bool = False,
    mode: Mode = "plain",
) -> Choice:
    """The kernels of the layers after it, whose inputs and weights have these dtypes: cpu, tiles, one_pass, or torch's
    own operators. `is_aligned`: inputs and first weight lie at a multiple of 16 bytes. `wide_sums`: some sums are
    computed in float64."""
    call = (x_dtype, weight_dtype, is_aligned, wide_sums, _MODES[mode])
    return _choice("stacks", "_stack_kernels", machine, "auto", (*layers.numbers, *call))


def layer(machine: Numbers | None, x_dtype: torch.dtype, weight_dtype: torch.dtype, mode: Mode = "plain") -> Choice:
    """The kernels of one of these layers, where they are not computed together: cpu, or torch's own operators."""
    return _choice("stacks", "_layer_kernels", machine, "auto", (x_dtype, weight_dtype, _MODES[mode]))


def between(
    transformer: str,
    stacks: str,
    trained_dtype: torch.dtype,
    output_dtype: torch.dtype,
    *,
    num_outputs: int,
    hidden: int,
    activation: int,
    bound: float,
    has_psqt: bool,
    divided: bool = False,
    is_needed: bool = True,
) -> Choice:
    """The form of the gradient between the two: rows, factors, or the whole gradient. `transformer`, `stacks`: their
    kernels; the dtypes are those of what takes the gradient of the weight, and of the transformer's output. `divided`:
    each of several processes has some columns of the transformer. `is_needed`: it is trained, and there are
    positions."""
    kernels = (_enumerations.TABLE["kernels.transformer"][transformer], _enumerations.TABLE["kernels.stacks"][stacks])
    sizes = (num_outputs, hidden, activation, bound, has_psqt, divided, is_needed)
    return _found("between", "_gradient_between", (*kernels, trained_dtype, output_dtype, *sizes))


def update(machine: Numbers | None, rows: int, tensors: int, positions: int = 0) -> Choice:
    """The update of rows of a feature transformer that are trained alike: late, or every_row in every step. `tensors`:
    how many have these rows, the weight and its moments. `positions`: of a batch, 0 if unknown. For benchmarks, the
    environment variable NNUE_LEAST_LATE_ROWS sets the least number of rows that a GPU updates late."""
    if machine is not None and machine[0] and (least := os.environ.get("NNUE_LEAST_LATE_ROWS")):
        if not least.isdecimal():
            raise UserError(f"NNUE_LEAST_LATE_ROWS: found {quoted(least)}, expected a whole number of rows")
        return Choice("every_row" if rows < int(least) else "late", "NNUE_LEAST_LATE_ROWS")
    return _choice("update", "_row_update", machine, "auto", (rows, tensors, positions))


def matrix_step(machine: Numbers | None, rows: int, columns: int) -> Choice:
    """The implementation of Muon's step of a matrix: operators, or torch."""
    return _choice("matrix_step", "_matrix_step", machine, "auto", (rows, columns))


def set_cuda_kernels(kernels: CudaKernels) -> CudaKernels:
    """Choose the kernels of `perspective_transformer` on CUDA, for tests and benchmarks; returns the previous choice.

    "auto": the fastest that the device has for the feature set. "portable": those that every GPU has. "none": nothing
    is fused. The environment variable NNUE_CUDA_KERNELS sets it at start. Plans that exist keep their kernels.
    ValueError for any other choice.
    """
    global _cuda_kernels
    if kernels not in _ALLOWED:
        raise ValueError(f"set_cuda_kernels: found {kernels!r}, expected one of {', '.join(get_args(CudaKernels))}")
    before, _cuda_kernels = _cuda_kernels, kernels
    return before


def _choice(
    of: str, operator: str, machine: Numbers | None, allowed: CudaKernels, arguments: tuple[Any, ...]
) -> Choice:
    if machine is None:
        return Choice("torch", "there are operators for CPUs and CUDA only")
    return _found(of, operator, ((*machine, _ALLOWED[allowed]), *arguments))


def _found(of: str, operator: str, arguments: tuple[Any, ...]) -> Choice:
    return _read(of, operator, arguments)


# This is what torch.compiler.assume_constant_result does. That function imports torch._dynamo, which takes two seconds,
# also in a command that compiles nothing.
_found._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)  # called at each step
def _read(of: str, operator: str, arguments: tuple[Any, ...]) -> Choice:
    with _disable_current_modes():
        kernels, reason = getattr(torch.ops.nnue, operator)(*arguments)
        words = list(_enumerations.TABLE[f"kernels.{of}"])
        return Choice(words[kernels], _reasons()[reason])


@functools.cache
def _reasons() -> list[str]:
    return _library.as_text(torch.ops.nnue._kernel_reasons()).split("\n")


if "NNUE_CUDA_KERNELS" in os.environ:
    set_cuda_kernels(cast(CudaKernels, os.environ["NNUE_CUDA_KERNELS"]))
