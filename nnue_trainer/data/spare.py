"""Spare bytes of data files in training: the bytes that a format leaves to the author of a file.

A record has no room for them. Where a filter, a weight of positions or a loss uses them, each file is read once, before
the first batch, into a file without a name, whose records hold them in fields that no training reads: in the high byte
of the rule-50 counter, which no format with a spare byte fills. bulletformat has three, and neither counter nor ply, so
they are in the counter and in the low byte of the ply.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data.fields import SPARE_PLACES
from nnue_trainer.data.files import BLOCK, Block
from nnue_trainer.data.reading import Reading
from nnue_trainer.errors import UserError


def embedded(reader: _data.PositionReader, path: Path, reading: Reading) -> Iterator[Records]:
    """The positions of a compiled reader, as `reading` reads them, as records uint8 [n, 32] that hold their spare
    bytes. UserError, naming `path`, for a format without spare bytes."""
    width = width_of(reader.format)
    while len((block := Block(*reader.read_originals(BLOCK), reader.format)).records):
        if not width:
            raise UserError(
                f"{path}: {block.format} has no spare bytes, which a filter, the loss or the weight of positions uses: "
                "give a file in a format that has them (docs/data-formats.md)"
            )
        if changes := reading.changes(path, block.format):
            changes.apply(block.records)
        records = block.records.copy()
        records[:, SPARE_PLACES[width]] = block.spare
        yield records


def width_of(format: str) -> int:
    """The number of spare bytes of a position in a format."""
    _, begin, end = _data.original_bytes().get(format, (0, 0, 0))
    return end - begin


def common_width(found: dict[Path, int]) -> int:
    """The number of spare bytes that all files have. UserError if they differ."""
    widths = sorted({width for width in found.values() if width})
    if len(widths) > 1:
        one, other = (next(path for path, width in found.items() if width == wanted) for wanted in widths)
        raise UserError(
            f"{other}: {widths[1]} spare bytes for each position, but {one} has {widths[0]}: use formats with "
            "the same number"
        )
    return widths[0] if widths else 1
