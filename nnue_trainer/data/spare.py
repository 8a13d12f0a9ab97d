"""Spare bytes of data files in training: the bytes that a format leaves to the author of a file.

A record has no room for them. Where a filter, a weight of positions or a loss uses them, each file is read once, before
the first batch, into a file without a name, whose records hold them in fields that no training reads: in the high byte
of the rule-50 counter, which no format with a spare byte fills. bulletformat has three, and neither counter nor ply, so
they are in the counter and in the low byte of the ply.
"""

from __future__ import annotations

from pathlib import Path

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data.compression import ByteReader
from nnue_trainer.data.fields import SPARE_PLACES
from nnue_trainer.data.files import Block
from nnue_trainer.data.formats.base import BLOCK, Poll, Unpack, rewritten
from nnue_trainer.data.formats.built_in import open_native
from nnue_trainer.data.reading import Reading
from nnue_trainer.errors import UserError


def embed(block: Block, path: Path) -> Records:
    """Records uint8 [n, 32] that hold the spare bytes of the block. UserError, naming `path`, for a format without."""
    width = block.spare.shape[1]
    if width not in SPARE_PLACES:
        raise UserError(
            f"{path}: {block.format} has no spare bytes, which a filter, the loss or the weight of positions uses: "
            "give a file in a format that has them (docs/data-formats.md)"
        )
    records = block.records.copy()
    records[:, SPARE_PLACES[width]] = block.spare
    return records


def open_chunks(
    path: Path,
    file: _data.InputFile,
    skip_bad: bool,
    unpack: Unpack,
    poll: Poll,
    reading: Reading,
) -> tuple[_data.DataFile, int]:
    """The file, in a built-in format, as chunks for the pipeline, 34 bytes per position; and how many spare bytes
    a position has."""
    width = 0

    def read(reader: _data.PositionReader) -> Records:
        nonlocal width
        block = Block(*reader.read_originals(BLOCK), reader.format)
        if not len(block.records):
            return block.records
        width = block.spare.shape[1]
        changes = reading.changes(path, block.format)
        if changes:
            changes.apply(block.records)
        return embed(block, path)

    def open_reader(source: ByteReader) -> _data.PositionReader:
        return open_native(path, source, skip_bad, settings=reading.settings)

    chunks = rewritten(path, file, unpack, poll, open_reader, read)
    return chunks, width


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
