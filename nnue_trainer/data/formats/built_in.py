"""The formats of data_loader/, one class for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pydantic import Field

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data.formats.base import DATA_FORMATS, HEAD, DataFormat
from nnue_trainer.data.reading import (
    FORMATS_IN_PAWNS,
    LEAST_PAWN,
    LEAST_SCALE,
    MOST_PAWN,
    MOST_SCALE,
    Place,
    Reading,
    Unit,
    View,
)
from nnue_trainer.schema import section, to_data

if TYPE_CHECKING:
    from nnue_trainer.data.compression import ByteReader


class BuiltIn(DataFormat):
    """A compiled format. The data library recognises its files by their content. A recipe that lists it in
    `data.formats` sets how the scores of its files are read."""

    @property
    def reading(self) -> Reading:
        """How scores and results are read."""
        return Reading(**to_data(self))

    @property
    def identity(self) -> dict[str, Any] | None:
        """None with the defaults of all fields: the same positions as if the format were not listed."""
        return None if self.reading == Reading() else super().identity

    def claims(self, path: Path, head: bytes) -> bool:
        """Whether the content is in this format. The name of a file has no influence."""
        return bool(_data.format_of(head, len(head) < HEAD) == self.kind)

    def read(self, file: BinaryIO) -> Iterator[Records]:
        reader = self.open_reader(Path(str(getattr(file, "name", "file"))), file, False)  # type: ignore[arg-type]
        while len(records := reader.read(1 << 16)):
            yield records

    def open_reader(self, path: Path, source: ByteReader | None, skip_bad: bool) -> Any:
        return open_native(path, source, skip_bad, self.kind, settings=self.reading.settings)

    def open_writer(self, path: Path, fd: int, join_chains: bool = True) -> Any:
        return _data.PositionWriter(os.fsencode(path), fd, self.kind, join_chains)


@section
class _Stored(BuiltIn):
    """Scores are numbers without a stated unit."""

    score_scale: float = Field(default=1.0, ge=LEAST_SCALE, le=MOST_SCALE)
    """factor for scores, such as 2.08 for centipawns to internal units with a pawn of 208"""
    score_view: View = "auto"
    """true view of the scores; they are converted to the side to move's. auto: the format's view"""
    result_view: View = "auto"
    """true view of the results, likewise"""


@section
class _InPawns(_Stored):
    """Scores are evaluations in pawns or centipawns."""

    pawn: float | None = Field(default=None, ge=LEAST_PAWN, le=MOST_PAWN)
    """internal units per pawn; null: 208, with a note"""


@section
class _Pgn(_InPawns):
    """Evaluations are in comments."""

    score_place: Place = "auto"
    """whether an evaluation belongs to the position before or after its move; auto: by its notation"""
    score_unit: Unit = "auto"
    """unit of the evaluations; auto: by their notation"""


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
                (_Pgn if _name == "pgn" else _InPawns if _name in FORMATS_IN_PAWNS else _Stored,),
                {"__module__": __name__, "__doc__": f"{_about[0].upper()}{_about[1:]}.", "suffixes": (_suffix,)},
            )
        )
    )
