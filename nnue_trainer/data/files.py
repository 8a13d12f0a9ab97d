"""Data files in any format, plain or compressed: one way to read them, one way to write them.

Positions are blocks of 32-byte records, uint8 [n, 32] (docs/data.md). The format is told by content, not by name. What
a format has no room for is counted while it is written (`PositionWriter.losses`; docs/data-formats.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from nnue_trainer import _data
from nnue_trainer.data.binpack import Records
from nnue_trainer.data.compression import compression_of, decompress, head_of, is_sound
from nnue_trainer.errors import UserError

FORMATS: tuple[str, ...] = tuple(_data.formats())

# Names that say a format, for files to be written.
_SUFFIXES = {".binpack": "binpack", ".bin": "bin", ".bullet": "bulletformat", ".marlin": "marlinformat"} | {
    ".txt": "text",
    ".plain": "plain",
}

_BLOCK = 1 << 16  # positions: 2 MiB

StrPath = str | os.PathLike[str]
Progress = Callable[[int, int], None]
"""Takes what is done and what there is in all, in bytes of the files that are read."""


def format_for(path: StrPath, chosen: str | None = None) -> str:
    """The format to write `path` in: the one chosen, or what the name ends in. UserError if neither says."""
    if chosen is not None:
        if chosen not in FORMATS:
            raise UserError(f"unknown format {chosen!r}, expected one of {', '.join(FORMATS)}")
        return chosen
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UserError(
            f"{path}: the name says no format; name one of {', '.join(FORMATS)} (--to), or end in one of "
            f"{' '.join(_SUFFIXES)}"
        )
    return _SUFFIXES[suffix]


class PositionReader:
    """The positions of one file, in order, as blocks of records; iterate once.

    `format`: None to find out. `skip_bad`: leave out and count what is wrong (a position; with binpack the rest of a
    chunk) instead of raising. UserError names file and offset (of the decompressed bytes) or line, what was found and
    what was expected. Memory: a few MiB, with binpack up to the 100 MiB of its largest legal chunk.
    """

    def __init__(self, path: StrPath, *, format: str | None = None, skip_bad: bool = False) -> None:
        self.path = Path(path)
        self.compression: str | None = None
        self._file: BinaryIO | None = None
        try:
            self.size = self.path.stat().st_size
            if self.path.is_file():
                with self.path.open("rb") as file:
                    head = head_of(file)
                self.compression = compression_of(head)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
        if self.compression and not is_sound(self.path, self.compression):
            # Positions may start with the same bytes as a compressed file: see whether it is those.
            try:
                self._open(format, skip_bad, None)
            except UserError:
                self._open(format, skip_bad, self.compression)
            else:
                self.compression = None
        else:
            self._open(format, skip_bad, self.compression)

    def _open(self, format: str | None, skip_bad: bool, compression: str | None) -> None:
        readinto = None
        if compression:
            self._file = self.path.open("rb")
            readinto = decompress(self.path, compression, self._file).readinto
        try:
            self._reader = _data.PositionReader(str(self.path), readinto, format or "", skip_bad)
        except BaseException:
            self.close()
            raise

    @property
    def format(self) -> str:
        return self._reader.format

    @property
    def done(self) -> int:
        """Bytes of the file read so far."""
        return self._file.tell() if self._file and not self._file.closed else min(self._reader.offset, self.size)

    @property
    def chunks(self) -> int:
        """Of a binpack, so far; so are `chains` and `single_chains`, those of one position."""
        return self._reader.chunks

    @property
    def chains(self) -> int:
        return self._reader.chains

    @property
    def single_chains(self) -> int:
        return self._reader.single_chains

    @property
    def skipped(self) -> int:
        """What `skip_bad` left out so far."""
        return self._reader.skipped

    @property
    def first_skipped(self) -> str:
        """What was wrong with the first of it."""
        return self._reader.first_skipped

    def __iter__(self) -> Iterator[Records]:
        # The next block is read while the caller works on this one.
        with ThreadPoolExecutor(1) as pool:
            block = pool.submit(self._reader.read, _BLOCK)
            while len(records := block.result()):
                block = pool.submit(self._reader.read, _BLOCK)
                yield records

    def close(self) -> None:
        if self._file:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def compression(path: StrPath) -> str | None:
    """How a data file is compressed, "gzip", "zstd" or not at all. UserError for what is no data file."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            return None  # what opens it says so; opening a pipe here would wait for its other end
        with Path(path).open("rb") as file:
            if compression_of(head_of(file)) is None:
                return None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    with PositionReader(path) as reader:
        return reader.compression


class PositionWriter:
    """Writes records to `path` in `format`; the file appears whole when the `with` block ends, or not at all.

    `join_chains`: off, every position of a binpack is a chain of its own, 34 bytes, as in shuffled files. UserError for
    a record that is not sound, a disk that is full.
    """

    def __init__(self, path: StrPath, format: str | None = None, *, join_chains: bool = True) -> None:
        self.path = Path(path)
        self._writer: _data.PositionWriter | None = _data.PositionWriter(
            str(path), format_for(path, format), join_chains
        )
        self.positions = 0
        self.losses: dict[str, int] = {}

    def write(self, records: Records) -> None:
        assert self._writer is not None
        self._writer.write(records)
        self.positions += len(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            if kind is None:
                writer.finish()
            self.losses = writer.losses  # without finish() the file goes with the writer


def read_files(
    paths: Sequence[StrPath], *, format: str | None = None, skip_bad: bool = False, progress: Progress | None = None
) -> Iterator[tuple[PositionReader, Iterable[Records]]]:
    """Each file's reader with its blocks, one file after the other. Missing files are an error before any is read."""
    sizes = []
    for path in paths:
        try:
            sizes.append(Path(path).stat().st_size)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None

    def blocks(reader: PositionReader, before: int) -> Iterator[Records]:
        for records in reader:
            yield records
            if progress:
                progress(before + reader.done, sum(sizes))

    for i, path in enumerate(paths):
        with PositionReader(path, format=format, skip_bad=skip_bad) as reader:
            yield reader, blocks(reader, sum(sizes[:i]))
