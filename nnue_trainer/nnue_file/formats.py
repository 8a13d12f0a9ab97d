"""The formats of exported nets, one class each.

A format is a section, registered by name (`FORMATS`): its fields are set under `export` in a recipe, or in a file that
`nnue export --format` names. It gets the tensors of a net as data and makes the bytes of a file from them; it does not
depend on which net it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from nnue_trainer.base.foreign import explaining, returned
from nnue_trainer.errors import UserError
from nnue_trainer.nnue_file import writer
from nnue_trainer.nnue_file.description import RECORD_BEGINS, record_in
from nnue_trainer.nnue_file.layout import FileLayout
from nnue_trainer.nnue_file.reader import MAX_DESCRIPTION_BYTES
from nnue_trainer.registry import Registry
from nnue_trainer.schema import section

__all__ = ["FORMATS", "Exported", "ExportedTensor", "NetFormat", "ReadTensor", "TensorKind"]


@dataclass(frozen=True)
class ExportedTensor:
    """One tensor of a net: its integers, the number of steps in 1.0, and the floats of the same shape that were rounded
    to these integers (float32; made when requested)."""

    name: str
    integers: np.ndarray
    scale: float
    values: Callable[[], np.ndarray]


@dataclass(frozen=True)
class TensorKind:
    """The description of a net's tensor, for reading a format: its name, the dtype of its integers, its shape and the
    number of steps in 1.0."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float


@dataclass(frozen=True)
class ReadTensor:
    """One tensor of a file: `integers` in the net's own dtype and scale, or else `values` in float32 where the file has
    floats or another scale."""

    integers: np.ndarray | None
    values: np.ndarray | None = None


@dataclass(frozen=True)
class Exported:
    """A net as formats see it: its tensors in their order, what its own container holds, and its float model as an ONNX
    graph. `graph(rounded, where)` makes the bytes of the graph; with `rounded` it has the weights of the integers."""

    tensors: Sequence[ExportedTensor]
    layout: FileLayout
    layouts: Sequence[FileLayout]
    """all that the net may have"""
    description: bytes
    graph: Callable[[bool, str], bytes]
    record: bytes = b""
    """what the description ends with where a file in the container is read by it"""
    head: bytes = b""
    tail: bytes = b""
    """what stood before and after the tensors of the file that the net was imported from (`NetFormat.around`)"""


class NetFormat(ABC):
    """The layout of a net in a file. Subclasses are sections, registered in `FORMATS`."""

    kind: ClassVar[str]
    suffix: ClassVar[str] = ".bin"
    """the suffix of files that are named by their checksum"""

    @abstractmethod
    def to_bytes(self, net: Exported, where: str) -> bytes:
        """The file. `where` names the origin of the format in errors: a UserError names what does not fit."""

    def from_bytes(
        self, data: bytes, tensors: Sequence[TensorKind], where: str, note: Callable[[str], None]
    ) -> dict[str, ReadTensor]:
        """The tensors in a file of this format, whose net has `tensors`. `note` gets a line about anything unusual.
        UserError, beginning with `where`, for a file in another format, and for a format that cannot be read back."""
        raise UserError(f"{where}: files of format {self.kind} cannot be read back")

    def around(self, data: bytes, tensors: Sequence[TensorKind]) -> tuple[bytes, bytes]:
        """The bytes before and after the tensors of a file that `from_bytes` has read. It is kept at import, and is
        `head` and `tail` of the net that is exported again."""
        return b"", b""

    def listing(self, net: Exported) -> Iterable[str]:
        """The place of each tensor in the file, one line each: for formats whose files do not record it."""
        return ()

    def beside(self) -> dict[str, dict[str, Any]]:
        """The files with the net's sizes to be written beside the file (docs/engine.md), by suffix, and the arguments
        for each: ".h" for `Net.header`, ".rs" for `Net.rust`; `skip` and `align` only where they are not the
        defaults."""
        return {}


def file_bytes(format: NetFormat, net: Exported, where: str) -> bytes:
    """`to_bytes` of a format, checked."""
    with explaining(format):
        data = format.to_bytes(net, where)
    returned(format, "to_bytes", data, isinstance(data, bytes), "bytes")
    return data


def _format() -> type[NetFormat]:
    return NetFormat


FORMATS: Registry[NetFormat] = Registry("nnue_trainer.nnue_file", _format, what="net format", default="nnue")
"""All formats: `kind` in a recipe's `export`."""


@FORMATS.register("nnue")
@section
class Nnue(NetFormat):
    """The container that the net's engines read, or else the container of this project, which describes its content."""

    suffix = ".nnue"
    compression: Literal["default", "raw", "leb128", "huffman", "zlib"] = "default"
    """default: as in the imported file, or as in the engine's published nets. raw: none; leb128: the transformer's 16-
    and 32-bit integers take as few bytes as they need; huffman: its arrays are Huffman-coded, as in a proposal for
    Stockfish; zlib: everything after the description is one stream"""
    description: str | None = None
    """text of the description in the file, up to 16 MiB. The record of the architecture follows it where only that
    identifies the net: in the container of this project, and with sizes of layers that no engine reads. null: as the
    net was imported, or a sentence and the record"""

    def to_bytes(self, net: Exported, where: str) -> bytes:
        layout, description = net.layout, net.description
        if self.compression != "default" and layout.compression != self.compression:
            fitting = [layout for layout in net.layouts if layout.compression == self.compression]
            if not fitting:
                known = ", ".join(dict.fromkeys(layout.compression for layout in net.layouts))
                raise UserError(
                    f"{where}: compression is {self.compression}, expected one that the net supports: {known}"
                )
            layout = fitting[0]
        if self.description is not None:
            description = self._described(net, where)
        return writer.to_bytes(layout, description, {tensor.name: tensor.integers for tensor in net.tensors})

    def _described(self, net: Exported, where: str) -> bytes:
        assert self.description is not None
        text = self.description.encode()
        if len(text) > MAX_DESCRIPTION_BYTES:
            raise UserError(
                f"{where}: a description of {len(text):,} bytes, expected at most {MAX_DESCRIPTION_BYTES:,}"
            )
        if record_in(text) not in (b"", net.record):
            raise UserError(
                f"{where}: a description with {RECORD_BEGINS.decode()}, expected other text: the record of an "
                "architecture begins like this"
            )
        return text if record_in(text) or not net.record else text + b" " + net.record
