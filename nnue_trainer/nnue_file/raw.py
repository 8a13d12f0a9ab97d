"""Raw nets: tensors from byte 0, without a header, in the order and types that an engine's code expects.

Without a list of tensors the file has all of them in the net's order, as they are quantised: for nets without hidden
layers that is the order of bullet's simple nets. With a list, one line per tensor says how it lies there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from nnue_trainer.errors import UserError
from nnue_trainer.nnue_file.formats import FORMATS, Exported, ExportedTensor, NetFormat
from nnue_trainer.schema import section

DTYPES = {"i8": "<i1", "i16": "<i2", "i32": "<i4", "f32": "<f4"}
MAX_PADDING = 4096


@section
class RawTensor:
    """A tensor, or a part of it, in the file."""

    tensor: str
    """its name, as `nnue export --format raw` prints them"""
    part: int | None = Field(None, ge=0)
    """this index of the first dimension alone: one output bucket of a layer; null: all of it"""
    type: Literal["i8", "i16", "i32", "f32"] | None = None
    """null: as the net quantises it; f32: the float that was trained, times scale if there is one"""
    scale: float | None = Field(None, gt=0)
    """steps in 1.0; null: as the net quantises it. With another scale the engine computes otherwise than `nnue eval`"""
    rounding: Literal["nearest", "truncate"] = "nearest"
    """truncate: toward zero"""
    transpose: list[int] = Field(default_factory=list, max_length=8)
    """the dimensions, counted from 0, in the order of the file, the last one running fastest; none: as they are"""
    pad_columns: int = Field(1, ge=1, le=MAX_PADDING)
    """zeros behind the last dimension, up to a multiple of so many elements"""
    align: int = Field(1, ge=1, le=MAX_PADDING)
    """zeros behind the tensor, up to a multiple of so many bytes from the start of the file"""


@FORMATS.register("raw")
@section
class Raw(NetFormat):
    """No header, tensors from byte 0, as existing inference code reads them."""

    tensors: list[RawTensor] = Field(default_factory=list, max_length=10_000)
    """what lies in the file, in that order; none: every tensor of the net, as bullet's nets have them"""
    align: int = Field(64, ge=1, le=MAX_PADDING)
    """zeros at the end of the file, up to a multiple of so many bytes"""
    header: bool = False
    """write a C++ header with the net's sizes beside it, for examples/engine"""

    def header_wanted(self) -> bool:
        return self.header

    def to_bytes(self, net: Exported, where: str) -> bytes:
        known = {tensor.name: tensor for tensor in net.tensors}
        make: Any = RawTensor  # mypy does not know what a section takes
        lines: list[RawTensor] = self.tensors or [make(tensor=name) for name in known]
        _check_complete(lines, known, where)
        if self.header and self.tensors:
            raise UserError(f"{where}: header: expected no list of tensors with it: it is for the order of the net")
        data = bytearray()
        for number, line in enumerate(lines):
            data += _encoded(line, known[line.tensor], f"{where}: tensors.{number}")
            data += bytes(-len(data) % line.align)
        return bytes(data + bytes(-len(data) % self.align))


def _check_complete(lines: Sequence[RawTensor], known: dict[str, ExportedTensor], where: str) -> None:
    """UserError unless every tensor is there, once."""
    given: dict[str, set[int]] = {name: set() for name in known}
    for number, line in enumerate(lines):
        key = f"{where}: tensors.{number}"
        if line.tensor not in known:
            raise UserError(f"{key}.tensor: found {line.tensor!r:.80}, expected one of {', '.join(known)}")
        parts = len(known[line.tensor].integers)
        if line.part is not None and line.part >= parts:
            raise UserError(f"{key}.part: found {line.part}, expected 0 … {parts - 1} of {line.tensor}")
        these = set(range(parts)) if line.part is None else {line.part}
        if these & given[line.tensor]:
            raise UserError(f"{key}: {_named(line)} is given twice")
        given[line.tensor] |= these
    for name, found in given.items():
        missing = set(range(len(known[name].integers))) - found
        if missing:
            which = name if not found else f"part {min(missing)} of {name}"
            raise UserError(f"{where}: tensors: no line for {which}")


def _named(line: RawTensor) -> str:
    return line.tensor if line.part is None else f"part {line.part} of {line.tensor}"


def _encoded(line: RawTensor, tensor: ExportedTensor, where: str) -> bytes:
    as_quantised = line.scale is None and line.rounding == "nearest" and line.type != "f32"
    found = tensor.integers if as_quantised else tensor.values()
    values = found if line.part is None else found[line.part]
    if line.transpose and sorted(line.transpose) != list(range(values.ndim)):
        expected = f"each of 0 … {values.ndim - 1} once, as {_named(line)} is {list(values.shape)}"
        raise UserError(f"{where}.transpose: found {line.transpose}, expected {expected}")
    if values.ndim == 0:
        values = values.reshape(1)
    dtype = np.dtype(DTYPES[line.type] if line.type else tensor.integers.dtype.str)
    out = np.empty(values.shape, dtype)
    for rows in _chunks(values):  # in pieces: the scratch arrays are of float64
        out[rows] = _converted(values[rows], line, tensor, dtype, as_quantised, rows.start, where)
    if line.transpose:
        out = out.transpose(line.transpose)
    if missing := -out.shape[-1] % line.pad_columns:
        out = np.concatenate([out, np.zeros((*out.shape[:-1], missing), dtype)], axis=-1)
    return np.ascontiguousarray(out).tobytes()


def _chunks(values: np.ndarray) -> Iterator[slice]:
    step = max(1, 2**20 * len(values) // max(values.size, 1))
    return (slice(begin, begin + step) for begin in range(0, len(values), step))


def _converted(
    values: np.ndarray,
    line: RawTensor,
    tensor: ExportedTensor,
    dtype: np.dtype[np.generic],
    as_quantised: bool,
    first_row: int,
    where: str,
) -> np.ndarray:
    if dtype.kind == "f":
        return values * np.float64(line.scale or 1.0)
    steps = values
    if not as_quantised:
        scaled = values.astype(np.float64) * (line.scale or tensor.scale)
        steps = np.rint(scaled) if line.rounding == "nearest" else np.trunc(scaled)
    limits = np.iinfo(dtype.str)
    wrong = ~((steps >= limits.min) & (steps <= limits.max))
    if wrong.any():
        at = int(wrong.argmax())
        index = [int(i) for i in np.unravel_index(at, values.shape)]
        index[0] += first_row
        found = float(steps.reshape(-1)[at])
        steps_found = f"{found:.0f}" if math.isfinite(found) else str(found)
        raise UserError(
            f"{where}: {_named(line)}{index} is {steps_found} steps, expected {limits.min} … {limits.max} of "
            f"{line.type or dtype.name}; lower its scale or take a larger type"
        )
    return steps
