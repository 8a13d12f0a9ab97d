"""Raw nets: tensors one after another, without a header, in the order and types that an engine's code expects.

Without a list of tensors the file has all of them in the net's order, as the net quantises them. For nets without
hidden layers that is the order of bullet's simple nets. With a list, one entry per tensor describes its place and
layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nnue_trainer.errors import UserError
from nnue_trainer.nnue_file.formats import FORMATS, Exported, ExportedTensor, NetFormat, ReadTensor, TensorKind
from nnue_trainer.schema import section

DTYPES = {"i8": "<i1", "i16": "<i2", "i32": "<i4", "f32": "<f4"}
MAX_PADDING = 4096
_BULLET = b"bullet" * MAX_PADDING


@section
class RawTensor:
    """A tensor, or a part of it, in the file."""

    tensor: str
    """its name, as `nnue export --format raw` prints them"""
    part: int | None = Field(default=None, ge=0)
    """only this index of the first dimension, such as one output bucket of a layer; null: the whole tensor"""
    type: Literal["i8", "i16", "i32", "f32"] | None = None
    """null: as the net quantises it; f32: the trained float, multiplied by scale if that is given"""
    scale: float | None = Field(default=None, gt=0)
    """steps in 1.0; null: as the net quantises it. With another scale the engine's evaluations differ from
    `nnue eval`"""
    rounding: Literal["nearest", "away", "truncate"] = "nearest"
    """nearest: halves to even numbers; away: halves away from zero, as bullet's round(); truncate: toward zero"""
    transpose: list[int] = Field(default_factory=list, max_length=8)
    """the dimensions, counted from 0, in the order of the file, where the last one varies fastest; none: as they are"""
    pad_columns: int = Field(default=1, ge=1, le=MAX_PADDING)
    """zeros after the last dimension, up to a multiple of this number of elements"""
    align: int = Field(default=1, ge=1, le=MAX_PADDING)
    """zeros after the tensor, up to a multiple of this number of bytes from the start of the file"""


@FORMATS.register("raw")
@section
class Raw(NetFormat):
    """No header, tensors from byte 0, as existing inference code reads them."""

    tensors: list[RawTensor] = Field(default_factory=list, max_length=10_000)
    """the tensors in the file, in this order; none: every tensor of the net, as in bullet's nets"""
    align: int = Field(default=64, ge=1, le=MAX_PADDING)
    """padding at the end of the file, up to a multiple of this number of bytes"""
    padding: Literal["zeros", "bullet"] = "zeros"
    """padding at the end; bullet: the letters of that word, repeated. The padding of an imported file is kept"""
    skip: int = Field(default=0, ge=0, le=2**20)
    """number of bytes before the first tensor; zeros, or the bytes of an imported file"""
    header: bool = False
    """write a C++ header with the net's sizes beside it, for examples/engine"""
    header_namespace: str = Field(default="", pattern=r"^([A-Za-z_]\w*(::[A-Za-z_]\w*)*)?$", max_length=200)
    """C++ namespace of what the header declares, so that one program can have several nets; empty: none"""
    header_include: str = Field(default="nnue.h", pattern=r'^[^"\n\\]+$', max_length=200)
    """path of examples/engine/nnue.h in the header's #include"""
    rust: bool = False
    """write a Rust file with the net's sizes beside it, for examples/engine/nnue.rs"""

    def beside(self) -> dict[str, dict[str, Any]]:
        usual = {"skip": 0, "align": 64}
        places: dict[str, Any] = {key: getattr(self, key) for key in usual if getattr(self, key) != usual[key]}
        header = {".h": places | {"include": self.header_include, "namespace": self.header_namespace}}
        return (header if self.header else {}) | ({".rs": places} if self.rust else {})

    def to_bytes(self, net: Exported, where: str) -> bytes:
        known = {tensor.name: tensor for tensor in net.tensors}
        lines = self._lines({name: tensor.integers.shape for name, tensor in known.items()}, where)
        if (self.header or self.rust) and self.tensors:
            key = "header" if self.header else "rust"
            raise UserError(
                f"{where}: {key}: found true with a list of tensors, expected only one of the two: that file is only "
                "for the net's own order"
            )
        data = bytearray(net.head if len(net.head) == self.skip else bytes(self.skip))
        for number, line in enumerate(lines):
            data += _encoded(line, known[line.tensor], f"{where}: tensors.{number}")
            data += bytes(-len(data) % line.align)
        missing = -len(data) % self.align
        if len(net.tail) == missing:
            return bytes(data) + net.tail
        return bytes(data) + (_BULLET[:missing] if self.padding == "bullet" else bytes(missing))

    def from_bytes(
        self, data: bytes, tensors: Sequence[TensorKind], where: str, note: Callable[[str], None]
    ) -> dict[str, ReadTensor]:
        known = {tensor.name: tensor for tensor in tensors}
        found: dict[str, list[tuple[RawTensor, np.ndarray]]] = {}
        offset = self.skip
        for number, line in enumerate(self._lines({tensor.name: tensor.shape for tensor in tensors}, where)):
            values, offset = _decoded(line, known[line.tensor], data, offset, f"{where}: tensors.{number}")
            offset = _skip_zeros(data, offset, -offset % line.align, f"{where}: after {_named(line)}")
            found.setdefault(line.tensor, []).append((line, values))
        end = offset + -offset % self.align
        if len(data) != end:
            raise UserError(f"{where}: {len(data):,} bytes, expected {end:,} for this net")
        return {tensor.name: _joined(tensor, found[tensor.name], where) for tensor in tensors}

    def around(self, data: bytes, tensors: Sequence[TensorKind]) -> tuple[bytes, bytes]:
        return data[: self.skip], data[self._end(tensors) :]

    def _end(self, tensors: Sequence[TensorKind]) -> int:
        """Where the last tensor ends, with its alignment."""
        known = {tensor.name: tensor for tensor in tensors}
        offset = self.skip
        for line in self._lines({tensor.name: tensor.shape for tensor in tensors}, self.kind):
            shape = known[line.tensor].shape if line.part is None else known[line.tensor].shape[1:]
            lying = _padded(line, [shape[dimension] for dimension in line.transpose or range(len(shape))] or [1])
            offset += math.prod(lying) * _dtype(line, known[line.tensor].dtype).itemsize
            offset += -offset % line.align
        return offset

    def listing(self, net: Exported) -> Iterator[str]:
        known = {tensor.name: tensor for tensor in net.tensors}
        offset = self.skip
        for line in self._lines({name: tensor.integers.shape for name, tensor in known.items()}, self.kind):
            tensor = known[line.tensor]
            dtype = _dtype(line, tensor.integers.dtype.str)
            shape = tensor.integers.shape if line.part is None else tensor.integers.shape[1:]
            lying = _padded(line, [shape[dimension] for dimension in line.transpose or range(len(shape))] or [1])
            name = next(name for name, known_dtype in DTYPES.items() if known_dtype == dtype.str.replace("|", "<"))
            scale = line.scale or (1.0 if dtype.kind == "f" else tensor.scale)
            yield f"byte {offset:,}: {_named(line)}: {name} {lying}, {scale:.6g} steps in 1.0"
            offset += math.prod(lying) * dtype.itemsize
            offset += -offset % line.align

    def _lines(self, shapes: Mapping[str, tuple[int, ...]], where: str) -> list[RawTensor]:
        """The tensors in the file. UserError unless every tensor occurs exactly once."""
        make: Any = RawTensor  # mypy cannot see what a section takes
        lines: list[RawTensor] = self.tensors or [make(tensor=name) for name in shapes]
        _check_complete(lines, shapes, where)
        return lines


def _check_complete(lines: Sequence[RawTensor], known: Mapping[str, tuple[int, ...]], where: str) -> None:
    given: dict[str, set[int]] = {name: set() for name in known}
    for number, line in enumerate(lines):
        key = f"{where}: tensors.{number}"
        if line.tensor not in known:
            raise UserError(f"{key}.tensor: found {line.tensor!r:.80}, expected one of {', '.join(known)}")
        parts = known[line.tensor][0]
        if line.part is not None and line.part >= parts:
            raise UserError(f"{key}.part: found {line.part}, expected 0 … {parts - 1} of {line.tensor}")
        these = set(range(parts)) if line.part is None else {line.part}
        if these & given[line.tensor]:
            raise UserError(f"{key}: {_named(line)} is given twice")
        given[line.tensor] |= these
    for name, found in given.items():
        missing = set(range(known[name][0])) - found
        if missing:
            which = name if not found else f"part {min(missing)} of {name}"
            raise UserError(f"{where}: tensors: no entry for {which}")


def _named(line: RawTensor) -> str:
    return line.tensor if line.part is None else f"part {line.part} of {line.tensor}"


def _dtype(line: RawTensor, quantised: str) -> np.dtype[Any]:
    return np.dtype(DTYPES[line.type] if line.type else quantised)


def _padded(line: RawTensor, shape: Sequence[int]) -> list[int]:
    """A shape, its dimensions in the order of the file, with the columns that pad it."""
    *rest, last = shape
    return [*rest, last + -last % line.pad_columns]


def _encoded(line: RawTensor, tensor: ExportedTensor, where: str) -> bytes:
    as_quantised = _is_as_quantised(line)
    found = tensor.integers if as_quantised else tensor.values()
    values = found if line.part is None else found[line.part]
    _check_transpose(line, values.shape, where)
    if values.ndim == 0:
        values = values.reshape(1)
    dtype = _dtype(line, tensor.integers.dtype.str)
    out = np.empty(values.shape, dtype)
    for rows in _chunks(values):  # in pieces: the scratch arrays are of float64
        out[rows] = _converted(values[rows], line, tensor, dtype, as_quantised, rows.start, where)
    if line.transpose:
        out = _permuted(out, line.transpose)
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
        if line.rounding == "away":
            steps += np.copysign(np.abs(scaled - steps) >= 0.5, scaled)
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
            f"{line.type or dtype.name}; lower its scale or use a larger type"
        )
    return steps


def _is_as_quantised(line: RawTensor) -> bool:
    return line.scale is None and line.rounding == "nearest" and line.type != "f32"


def _permuted(values: npt.NDArray[Any], order: Sequence[int]) -> npt.NDArray[Any]:
    from nnue_trainer.stats.matrix import permuted  # only here: it loads the library of statistics

    return permuted(values, order)


def _check_transpose(line: RawTensor, shape: tuple[int, ...], where: str) -> None:
    if line.transpose and sorted(line.transpose) != list(range(len(shape))):
        expected = f"each of 0 … {len(shape) - 1} once, as {_named(line)} is {list(shape)}"
        raise UserError(f"{where}.transpose: found {line.transpose}, expected {expected}")


# ---- reading ---------------------------------------------------------------------------------------------------------


def _decoded(line: RawTensor, tensor: TensorKind, data: bytes, offset: int, where: str) -> tuple[np.ndarray, int]:
    """The values of an entry, in the shape of the tensor or of its part and as the file has them, and where it ends."""
    shape = tensor.shape if line.part is None else tensor.shape[1:]
    _check_transpose(line, shape, where)
    order = line.transpose or list(range(len(shape)))
    lying = [shape[dimension] for dimension in order] or [1]
    padded = _padded(line, lying)
    dtype = _dtype(line, tensor.dtype)
    end = offset + math.prod(padded) * dtype.itemsize
    if end > len(data):
        raise UserError(f"{where}: {_named(line)} ends at byte {end:,}, but the file has {len(data):,}")
    values = np.frombuffer(data, dtype, math.prod(padded), offset).reshape(padded)
    if values[..., lying[-1] :].any():
        raise UserError(f"{where}: {_named(line)}: the padding of its columns is not all zeros")
    values = values[..., : lying[-1]]
    return (_permuted(values, np.argsort(order).tolist()) if shape else values.reshape(())), end


def _skip_zeros(data: bytes, offset: int, count: int, where: str) -> int:
    if any(data[offset : offset + count]):
        raise UserError(f"{where}: {count} bytes of padding at {offset:,} are not zeros")
    return offset + count


def _joined(tensor: TensorKind, found: Sequence[tuple[RawTensor, np.ndarray]], where: str) -> ReadTensor:
    """A tensor made from the entries that hold its parts."""
    exact = all(_is_as_quantised(line) for line, _ in found)
    out = np.empty(tensor.shape, tensor.dtype if exact else np.float32)
    for line, values in found:
        into: Any = ... if line.part is None else line.part
        if exact and np.dtype(tensor.dtype).kind == "f":
            if not np.isfinite(values).all():
                raise UserError(
                    f"{where}: {_named(line)} has {values[~np.isfinite(values)][0]}, expected finite numbers"
                )
            out[into] = values
        elif exact:
            limits = np.iinfo(tensor.dtype)
            if values.size and not limits.min <= values.min() <= values.max() <= limits.max:
                beyond = values.max() if values.max() > limits.max else values.min()
                raise UserError(
                    f"{where}: {_named(line)} has {beyond}, expected {limits.min} … {limits.max} of the net"
                )
            out[into] = values
        else:
            scale = line.scale or (1.0 if line.type == "f32" else tensor.scale)
            # A truncated number may come from a whole interval. The middle of that is the best guess, and is truncated
            # to the same number again.
            cut = line.rounding == "truncate" and values.dtype.kind == "i"
            out[into] = (values + 0.5 * np.sign(values) if cut else values) / np.float64(scale)
    return ReadTensor(out) if exact else ReadTensor(None, out)
