"""The formats of data_loader/, one class for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data.formats.base import DATA_FORMATS, DataFormat, Poll, Unpack
from nnue_trainer.schema import section

if TYPE_CHECKING:
    from nnue_trainer.data.compression import ByteReader


class BuiltIn(DataFormat):
    """A compiled format. The data library itself recognises its files by their content."""

    def read(self, file: BinaryIO) -> Iterator[Records]:
        reader = self.open_reader(Path(str(getattr(file, "name", "file"))), file, False)  # type: ignore[arg-type]
        while len(records := reader.read(1 << 16)):
            yield records

    def open_reader(self, path: Path, source: ByteReader | None, skip_bad: bool) -> Any:
        return open_native(path, source, skip_bad, self.kind)

    def open_writer(self, path: Path, fd: int, join_chains: bool = True) -> Any:
        return _data.PositionWriter(os.fsencode(path), fd, self.kind, join_chains)

    def open_chunks(
        self, path: Path, fd: int, size: int, skip_bad: bool, unpack: Unpack, poll: Poll = None
    ) -> _data.DataFile:
        return _data.DataFile(str(path), fd, size, skip_bad, poll)


def open_native(
    path: Path,
    source: ByteReader | None,
    skip_bad: bool,
    name: str = "",
    copy_to: int = -1,
    settings: dict[str, str] | None = None,
) -> _data.PositionReader:
    """A compiled reader of a file, or of the decompressed bytes of one; "": it finds the format out."""
    readinto = source.readinto if source else None
    return _data.PositionReader(os.fsencode(path), readinto, name, skip_bad, copy_to, settings or {})


for _name, _suffix, _about in [*_data.formats(), *_data.read_only_formats()]:
    DATA_FORMATS.register(_name)(
        section(
            type(
                f"{_name.capitalize()}Format",
                (BuiltIn,),
                {"__module__": __name__, "__doc__": f"{_about[0].upper()}{_about[1:]}.", "suffixes": (_suffix,)},
            )
        )
    )
