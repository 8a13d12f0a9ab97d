"""Data files in any format, plain or compressed: one way to read them, one way to write them.

Positions come and go as arrays of 32-byte records, uint8 [n, 32] (docs/data.md). A file's format is recognised by its
content, not by its name. What a format has no room for is counted while it is written (`PositionWriter.losses`;
docs/data-formats.md).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from nnue_trainer import _data
from nnue_trainer.atomic import replacing
from nnue_trainer.closing import Closing
from nnue_trainer.data.binpack import Records
from nnue_trainer.data.compression import ByteReader, compression_of, decompress, head_of, is_sound
from nnue_trainer.data.formats.base import DataFormat, claiming, format_named, outside_formats
from nnue_trainer.data.formats.built_in import open_native
from nnue_trainer.errors import UserError

FORMATS: tuple[str, ...] = tuple(name for name, _, _ in _data.formats())
"""The names of the built-in formats."""

_BLOCK = 1 << 16  # positions: 2 MiB

StrPath = str | os.PathLike[str]
Progress = Callable[[int, int], None]
"""A callback that takes the bytes done and the bytes in all of the files that are read."""


def format_for(path: StrPath, chosen: str | DataFormat | None = None) -> DataFormat:
    """The format to write `path` in: the chosen one, or the one of the name's suffix. UserError if there is neither."""
    if isinstance(chosen, DataFormat):
        return chosen
    if chosen is not None:
        return format_named(chosen)
    name = Path(path).name.lower()
    known = [format_named(name) for name in FORMATS] + outside_formats()
    for format in known:
        if name.endswith(format.suffixes):
            return format
    suffixes = " ".join(suffix for format in known for suffix in format.suffixes)
    raise UserError(
        f"{path}: the name says no format; name one of {', '.join(FORMATS)} (--to), or end in one of {suffixes}"
    )


class PositionReader(Closing):
    """The positions of one file, in order, as arrays of records; iterate once.

    `format`: None to find out; `formats` are asked before the built-in ones, None for all from outside that were loaded
    (`--plugin`). `skip_bad`: leave out and count what is wrong (a position; with binpack the rest of a
    chunk) instead of raising. UserError names file and offset (of the decompressed bytes) or line, what was found and
    what was expected. Memory: a few MiB, with binpack up to the 100 MiB of its largest legal chunk.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        format: str | DataFormat | None = None,
        formats: Sequence[DataFormat] | None = None,
        skip_bad: bool = False,
    ) -> None:
        self.path = Path(path)
        chosen = format_named(format) if isinstance(format, str) else format
        self._file = open_regular(path)
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.compression = compression_of_file(self.path, self._file, chosen)
            if chosen is None:
                asked = outside_formats() if formats is None else formats
                chosen = claiming(asked, self.path, content_head(self.path, self._file, self.compression))
            source = decompress(self.path, self.compression, self._file) if self.compression else None
            self._reader = (chosen.open_reader if chosen else open_native)(self.path, source, skip_bad)
        except BaseException:
            self._file.close()
            raise

    @property
    def format(self) -> str:
        name: str = self._reader.format
        return name

    @property
    def done(self) -> int:
        """Bytes of the file read so far."""
        if self.compression and not self._file.closed:
            return self._file.tell()
        return min(self._reader.offset, self.size)

    @property
    def chunks(self) -> int:
        """Chunks of a binpack read so far, like its `chains` and its `single_chains`, which hold one position."""
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
        """What was wrong with the first thing that was left out."""
        return self._reader.first_skipped

    def __iter__(self) -> Iterator[Records]:
        pool = ThreadPoolExecutor(1)
        try:
            # The next array is read while the caller works on this one.
            block = self._read_ahead(pool)
            while len(records := block()):
                block = self._read_ahead(pool)
                yield records
        finally:
            # Reading is abandoned, since a file may go on for hours without a position in it.
            self._reader.cancel()
            pool.shutdown()

    def _read_ahead(self, pool: ThreadPoolExecutor) -> Callable[[], Records]:
        try:
            return pool.submit(self._reader.read, _BLOCK).result
        except RuntimeError:  # the system gives no more threads
            records = self._reader.read(_BLOCK)
            return lambda: records

    def close(self) -> None:
        self._file.close()


def content_head(path: Path, file: BinaryIO, compression: str | None) -> bytes:
    """The first 64 KiB of a file's content, decompressed. Before and after, the file is at its beginning."""
    try:
        source = decompress(path, compression, file) if compression else cast(ByteReader, file)
        buffer = bytearray(1 << 16)
        filled = 0
        while filled < len(buffer) and (count := source.readinto(memoryview(buffer)[filled:])):
            filled += count
        return bytes(buffer[:filled])
    finally:
        file.seek(0)


def compression_of_file(path: Path, file: BinaryIO, format: DataFormat | None = None) -> str | None:
    """How a data file is compressed: "gzip", "zstd" or None. Before and after, the file is at its beginning; `path` is
    for messages."""
    kind = compression_of(head_of(file))
    if kind is None or is_sound(path, kind, file):
        return kind
    # Positions may start with the bytes of a compressed file by chance, so try to decompress.
    try:
        (format.open_reader if format else open_native)(path, cast(ByteReader, file), False)
        return None
    except UserError:
        return kind
    finally:
        file.seek(0)


def open_regular(path: StrPath) -> BinaryIO:
    """A regular file, open for reading. UserError for a device or a pipe, which could go on for ever."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise UserError(f"{path}: not a regular file")
        # O_NONBLOCK: it does not wait even if the file has just become a pipe.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UserError(f"{path}: not a regular file")
    return file


class PositionWriter:
    """Writes records to `path` in `format`; the file appears whole when the `with` block ends, or not at all.

    `join_chains`: if it is off, every position of a binpack is a separate chain, 34 bytes, as in shuffled files.
    UserError for a record that is not sound and for a full disk.
    """

    def __init__(self, path: StrPath, format: str | DataFormat | None = None, *, join_chains: bool = True) -> None:
        self.path = Path(path)
        chosen = format_for(path, format)
        self._output = replacing(path)
        self._status = os.fstat(self._output.fd)
        try:
            self._writer: Any = chosen.open_writer(self.path, self._output.fd, join_chains)
        except BaseException:
            self._output.discard()
            raise
        self._committed = False
        self.positions = 0
        self.losses: dict[str, int] = {}

    def write(self, records: Records) -> None:
        assert self._writer is not None
        self._writer.write(records)
        self.positions += len(records)

    def finish(self) -> None:
        """Puts the whole content on disk, still without a name. `commit` gives it its name, which needs no space."""
        if self._writer is not None:
            self._writer.finish()
            self._end()
            self._output.sync()

    def commit(self) -> None:
        """Finishes the file and gives it its name. The end of the `with` block does so too."""
        if not self._committed:
            self.finish()
            self._output.commit()
            self._committed = True

    def is_file_at(self, path: StrPath) -> bool:
        """Whether the file at `path` is the one that this writer writes."""
        try:
            return os.path.samestat(Path(path).lstat(), self._status)
        except OSError:
            return False

    def _end(self) -> None:
        if self._writer is not None:
            self.losses = self._writer.losses
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self._end()
            self._output.discard()


def read_files(
    paths: Sequence[StrPath],
    *,
    format: str | DataFormat | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Iterator[tuple[PositionReader, Iterable[Records]]]:
    """The reader of each file and its arrays of records, file after file. A missing file is an error before any is
    read."""
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
