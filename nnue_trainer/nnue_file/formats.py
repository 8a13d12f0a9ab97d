"""The formats that nets are exported in: one mechanism, one class per format.

A format is a section, registered by name (`FORMATS`): its fields are what a recipe says under `export`, or what a file
says that `nnue export --format` names. It gets the tensors of a net as data and makes the bytes of a file of them; what
the net is it does not ask.
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
    """One tensor of a net: its integers, the steps in 1.0 that they count, and the floats of the same shape that they
    were rounded from (float32; made when asked for)."""

    name: str
    integers: np.ndarray
    scale: float
    values: Callable[[], np.ndarray]


@dataclass(frozen=True)
class TensorKind:
    """What a tensor of a net is, for a format that is to be read: its name, the dtype of its integers, its shape and
    the steps in 1.0 that they count."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float


@dataclass(frozen=True)
class ReadTensor:
    """One tensor as a file has it: `integers` of the net's own dtype and scale; `values` float32 instead where the file
    has it as floats or at another scale."""

    integers: np.ndarray | None
    values: np.ndarray | None = None


@dataclass(frozen=True)
class Exported:
    """A net as formats see it: its tensors in their order, what its own container holds, and its float model as an ONNX
    graph. `graph(rounded, where)` makes the bytes of that; `rounded`: with the weights of the integers."""

    tensors: Sequence[ExportedTensor]
    layout: FileLayout
    description: bytes
    graph: Callable[[bool, str], bytes]


class NetFormat(ABC):
    """How a net lies in a file. Subclasses are sections, registered in `FORMATS`."""

    kind: ClassVar[str]
    suffix: ClassVar[str] = ".bin"
    """of files that are named by their checksum"""

    @abstractmethod
    def to_bytes(self, net: Exported, where: str) -> bytes:
        """The file. `where` names the origin of the format in errors: a UserError says what does not fit."""

    def from_bytes(
        self, data: bytes, tensors: Sequence[TensorKind], where: str, note: Callable[[str], None]
    ) -> dict[str, ReadTensor]:
        """The tensors in a file of this format, whose net has `tensors`. `note` is told what is odd about it. UserError
        that begins with `where` for what is not such a file, and for a format that cannot be read back."""
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
    """The container that the net's own engines read, or else that of this project, which says what it holds."""

    suffix = ".nnue"

    def to_bytes(self, net: Exported, where: str) -> bytes:
        return writer.to_bytes(net.layout, net.description, {tensor.name: tensor.integers for tensor in net.tensors})
