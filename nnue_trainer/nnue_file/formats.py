"""The formats that nets are exported in: one mechanism, one class per format.

A format is a section, registered by name (`FORMATS`): its fields are set under `export` in a recipe, or in a file that
`nnue export --format` names. It gets the tensors of a net as data and makes the bytes of a file from them; it does not
ask which net it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nnue_trainer.errors import UserError
from nnue_trainer.nnue_file import writer
from nnue_trainer.nnue_file.layout import FileLayout
from nnue_trainer.registry import Registry
from nnue_trainer.schema import section


@dataclass(frozen=True)
class ExportedTensor:
    """One tensor of a net: its integers, the number of steps in 1.0, and the floats of the same shape that were rounded
    to these integers (float32; made when asked for)."""

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
    description: bytes
    graph: Callable[[bool, str], bytes]


class NetFormat(ABC):
    """The layout of a net in a file. Subclasses are sections, registered in `FORMATS`."""

    kind: ClassVar[str]
    suffix: ClassVar[str] = ".bin"
    """the suffix of files that are named by their checksum"""

    @abstractmethod
    def to_bytes(self, net: Exported, where: str) -> bytes:
        """The file. `where` names the origin of the format in errors: a UserError says what does not fit."""

    def from_bytes(
        self, data: bytes, tensors: Sequence[TensorKind], where: str, note: Callable[[str], None]
    ) -> dict[str, ReadTensor]:
        """The tensors in a file of this format, whose net has `tensors`. `note` gets a line about anything unusual.
        UserError, beginning with `where`, for a file in another format, and for a format that cannot be read back."""
        raise UserError(f"{where}: files of format {self.kind} cannot be read back")

    def listing(self, net: Exported) -> Iterable[str]:
        """What lies where in the file, a line each: for formats whose files do not say so themselves."""
        return ()

    def header_wanted(self) -> bool:
        """Whether a C++ header with the net's sizes is to be written beside the file (docs/engine.md)."""
        return False


def _format() -> type[NetFormat]:
    return NetFormat


FORMATS: Registry[NetFormat] = Registry("nnue_trainer.nnue_file", _format, what="net format", default="nnue")
"""All formats: `kind` in a recipe's `export`."""


@FORMATS.register("nnue")
@section
class Nnue(NetFormat):
    """The container that engines for the net read, or else the container of this project, which describes its
    content."""

    suffix = ".nnue"

    def to_bytes(self, net: Exported, where: str) -> bytes:
        return writer.to_bytes(net.layout, net.description, {tensor.name: tensor.integers for tensor in net.tensors})
