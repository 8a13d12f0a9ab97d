"""Data files in any format, plain or compressed: one way to read them, one way to write them.

Positions come and go as arrays of 32-byte records, uint8 [n, 32] (docs/binpack.md). The format of a file is recognised
by its content, not by its name. What a format has no room for is counted while it is written (`PositionWriter.losses`;
docs/data-formats.md).
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Self, Unpack, cast

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.base.closing import Closing
from nnue_trainer.data.compression import ByteReader, UntilBroken, compression_of, decompress, head_of, is_sound
from nnue_trainer.data.formats.base import HEAD, DataFormat, claiming, format_named, outside_formats
from nnue_trainer.data.formats.built_in import BuiltIn, open_native
from nnue_trainer.data.reading import FORMATS_IN_PAWNS, Reading, ReadingOptions, any_scored
from nnue_trainer.data.score_units import RUNS_FOR_UNITS, Sample
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import check_name, replacing

FORMATS: tuple[str, ...] = tuple(name for name, _, _ in _data.formats())
"""The names of the built-in formats."""

BLOCK = 1 << 16
"""The positions that are read at a time: 2 MiB."""

_WITH_FENS = ("plain", "text")
_SPARE_IS_NOISE = {"bin"}  # old writers leave its padding uninitialised
_ORIGINALS: dict[str, tuple[int, int, int]] = _data.original_bytes()


class Block(NamedTuple):
    """Positions in the order of a file: records uint8 [n, 32], and the bytes that they have in the file, uint8 [n,
    bytes of a position]; None in formats of which a record holds everything."""

    records: Records
    originals: npt.NDArray[np.uint8] | None
    format: str

    def where(self, kept: npt.NDArray[np.bool_]) -> Block:
        """The positions that `kept`, bool [n], names."""
        originals = None if self.originals is None else self.originals[kept]
        return Block(self.records[kept], originals, self.format)

    @property
    def spare(self) -> npt.NDArray[np.uint8]:
        """The bytes that are free in the format, uint8 [n, bytes]."""
        if self.originals is None:
            return np.empty((len(self.records), 0), np.uint8)
        _, begin, end = _ORIGINALS[self.format]
        return self.originals[:, begin:end]


def original_size(format: str) -> int:
    """The bytes of a position in `format`; 0 where its record holds everything."""
    return _ORIGINALS.get(format, (0, 0, 0))[0]


StrPath = str | os.PathLike[str]
Chess960 = Literal["refuse", "drop-rights", "skip"]
FenStyle = Literal["x-fen", "shredder"]
Progress = Callable[[int, int], None]
"""A callback that takes the bytes done and the bytes in all of the files that are read."""


def format_for(path: StrPath, chosen: str | DataFormat | None = None) -> DataFormat:
    """The format to write `path` in: the chosen one, or the one of the name's suffix. UserError if there is neither."""
    check_name(path)
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
        f"{path}: no format has this suffix; name one of {', '.join(FORMATS)} (--to), or end in one of {suffixes}"
    )


class ChunkRange(NamedTuple):
    """Chunks `begin` to `end` of a file in a built-in format, which is not compressed."""

    file: _data.DataFile
    begin: int
    end: int

    @property
    def size(self) -> int:
        """About how many bytes they are."""
        return self.file.size * (self.end - self.begin) // max(self.file.num_chunks, 1)

    def __str__(self) -> str:
        return f"{self.begin:,} to {self.end - 1:,}"


class _ChunkBytes:
    """The bytes of chunks, one after the other: a file of their format."""

    def __init__(self, chunks: ChunkRange) -> None:
        self._chunks, self._next = chunks, chunks.begin
        header = chunks.file.header if chunks.begin else b""
        self._left = memoryview(header + b"\n" if header else b"")

    def readinto(self, buffer: memoryview, /) -> int:
        while not self._left and self._next < self._chunks.end:
            self._left = memoryview(self._chunks.file.read_chunk(self._next))
            self._next += 1
        count = min(len(self._left), len(buffer))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


class Part(NamedTuple):
    """Part `number` of `of` equal parts, from 1."""

    number: int = 1
    of: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether it is everything."""
        return self.of == 1

    def range(self, count: int) -> tuple[int, int]:
        """The numbers of the part, from and to, of things that are counted from 0. UserError if there is no such
        part."""
        if not 1 <= self.number <= self.of:
            raise UserError(f"part {self.number}/{self.of}: expected I/N with I from 1 to N")
        return count * (self.number - 1) // self.of, count * self.number // self.of


WHOLE = Part()


class PositionReader(Closing):
    """The positions of one file, in order, as arrays of records; iterate once.

    `format`: None to find out; those from outside that were loaded (`--plugin`) are tried before the built-in ones.
    `skip_bad`: leave out and count what is wrong (a position; with binpack the rest of a
    chunk) instead of raising. UserError names file and offset (of the decompressed bytes) or line, what was found and
    what was expected. Memory: a few MiB, with binpack up to the 100 MiB of its largest legal chunk.

    `copy_to`: an open file that gets the (decompressed) bytes of a file in a built-in format as they are read.
    `scores`: the unit and view of scores and results in the file (`data.reading`); a built-in `format` with fields that
    are set has them too. `settings`: the same for compiled readers, by name. `chunks`: reads only these; errors then
    count offsets and lines from the first one on.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        format: str | DataFormat | None = None,
        skip_bad: bool = False,
        copy_to: int = -1,
        settings: dict[str, str] | None = None,
        chunks: ChunkRange | None = None,
        **scores: Unpack[ReadingOptions],
    ) -> None:
        self.path = Path(path)
        self.reading = Reading(**scores)
        self.sample: Sample | None = None
        """collects a sample of what `read_files` reads, if several files are read"""
        chosen = format_named(format) if isinstance(format, str) else format
        self._file = cast(BinaryIO, Pipe()) if is_pipe(path) else open_regular(path)
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.compression = None if chunks else compression_of_file(self.path, self._file, chosen)
            if chunks is not None:
                self.size = chunks.size
                chosen = chosen or format_named(chunks.file.format)
            if chosen is None:
                head = content_head(self.path, self._file, self.compression)
                chosen = claiming(outside_formats(), self.path, head)
            source: ByteReader | None = None
            self._cut: UntilBroken | None = None
            if self.compression:
                source = decompress(self.path, self.compression, self._file)
                if skip_bad:
                    source = self._cut = UntilBroken(source)
            if source is None and is_pipe(path):
                source = cast(ByteReader, self._file)
            name_in_errors = self.path
            if chunks is not None:
                source, name_in_errors = _ChunkBytes(chunks), Path(f"{self.path}, chunks {chunks}")
            if chosen is None or isinstance(chosen, BuiltIn):
                if chosen and self.reading == Reading():
                    self.reading = chosen.reading
                name, settings = chosen.kind if chosen else "", {**self.reading.settings, **(settings or {})}
                self._reader: _data.PositionReader = open_native(
                    name_in_errors, source, skip_bad, name, copy_to, settings
                )
            else:
                self._reader = chosen.open_reader(self.path, source, skip_bad)
            self._changes = self.reading.changes(self.path, self.format)
            self.cut_scores = 0
            """scores that `score_scale` brought beyond ±32767 so far"""
            self._scored = False
        except BaseException:
            self._file.close()
            raise

    @property
    def format(self) -> str:
        """The name of the file's format, given or detected."""
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
        """The number of chains read so far, in formats that have them."""
        return self._reader.chains

    @property
    def single_chains(self) -> int:
        """The number of chains read so far that have one position only."""
        return self._reader.single_chains

    @property
    def skipped(self) -> int:
        """The number of chunks that `skip_bad` has skipped so far, including a truncated end."""
        return self._reader.skipped + bool(self._cut and self._cut.error)

    @property
    def first_skipped(self) -> str:
        """The error of the first position or chunk that was skipped."""
        return (self._cut.error if self._cut else "") or self._reader.first_skipped

    @property
    def notes(self) -> list[str]:
        """Notes on the reader's decisions and omissions so far that are not errors."""
        return list(getattr(self._reader, "notes", []))

    @property
    def unit_notes(self) -> list[str]:
        """Notes on the unit of the scores that were read so far."""
        return self.reading.notes(self.format) if self._scored or self.format not in FORMATS_IN_PAWNS else []

    def __iter__(self) -> Iterator[Records]:
        for block in self._blocks(lambda: Block(self._reader.read(BLOCK), None, self.format)):
            yield block.records

    def blocks(self) -> Iterator[Block]:
        """The positions with their bytes in the file, in place of the records of an iteration."""
        if not original_size(self.format):
            yield from (Block(records, None, self.format) for records in self)
            return
        yield from self._blocks(lambda: Block(*self._reader.read_originals(BLOCK), self.format))

    def _blocks(self, read: Callable[[], Block]) -> Iterator[Block]:
        pool = ThreadPoolExecutor(1)
        try:
            # The next array is read while the caller works on this one.
            next_block = self._read_ahead(pool, read)
            while len((block := next_block()).records):
                next_block = self._read_ahead(pool, read)
                self._scored = self._scored or any_scored(block.records)
                if self._changes:
                    self.cut_scores += self._changes.apply(block.records)
                yield block
        finally:
            # Reading is abandoned, since a file may go on for hours without a position in it.
            self._reader.cancel()
            pool.shutdown()

    def _read_ahead(self, pool: ThreadPoolExecutor, read: Callable[[], Block]) -> Callable[[], Block]:
        try:
            return pool.submit(read).result
        except RuntimeError:  # the system gives no more threads
            block = read()
            return lambda: block

    def close(self) -> None:
        self._file.close()


class Game(NamedTuple):
    """A game of a PGN file: tags with names in lower case, the position that it starts from, and the moves of the main
    line in UCI notation with the comments after them. `problem`: why the game could not be read any further, "" for
    nothing. `where` names the game in messages."""

    where: str
    tags: dict[str, str]
    fen: str
    moves: list[str]
    comments: list[str]
    problem: str


def read_games(path: StrPath, *, chess960: bool = False) -> Iterator[Game]:
    """The games of a PGN file, plain or compressed. `chess960`: the notation of castling rights and castling moves.
    UserError for a file that cannot be read."""
    with open_regular(path) as file:
        reader = _data.GameReader(os.fsencode(path), content_of(Path(path), file).readinto)
        while (found := reader.next(chess960)) is not None:
            yield Game(*found)


def content_of(path: Path, file: BinaryIO) -> ByteReader:
    """The content of a file, decompressed. It is at its beginning; `path` is for messages."""
    kind = compression_of_file(path, file)
    return decompress(path, kind, file) if kind else cast(ByteReader, file)


def content_head(path: Path, file: BinaryIO, compression: str | None) -> bytes:
    """The first `HEAD` bytes of a file's content, decompressed. Before and after, the file is at its beginning."""
    try:
        source = decompress(path, compression, file) if compression else cast(ByteReader, file)
        buffer = bytearray(HEAD)
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


def is_pipe(path: StrPath) -> bool:
    """Whether a command line means standard input by this name."""
    return str(path) == "-"


def check_no_pipe(paths: Iterable[StrPath], what: str) -> None:
    """UserError if standard input is among files that are read more than once."""
    if any(map(is_pipe, paths)):
        raise UserError(f"-: {what} reads its input more than once, expected the name of a file")


class Pipe(io.RawIOBase):
    """Standard input, which can go back to its beginning as long as no more than 4 MiB were read: formats and
    compression are recognised by a file's beginning. UserError if another reader has used it."""

    _KEPT = 1 << 22
    _used = False

    def __init__(self) -> None:
        if sys.stdin is None:  # closed: descriptor 0 may be another file by now
            raise UserError("-: standard input is closed")
        if Pipe._used:
            raise UserError("-: standard input is given twice, but can be read only once")
        Pipe._used = True
        self._kept, self._at, self._read = bytearray(), 0, 0

    def fileno(self) -> int:
        return 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        if self._at < self._read:  # after a return to the beginning
            data = self._kept[self._at : self._at + len(view)]
        else:
            try:
                data = bytearray(os.read(0, len(view)))
            except OSError as error:
                raise UserError(f"-: {error.strerror}") from None
            self._read += len(data)
            self._kept = self._kept + data if self._read <= self._KEPT else bytearray()
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        """Reads this many bytes, fewer only where the input ends."""
        parts, left = [], size if size >= 0 else 1 << 62
        while left and (part := super().read(min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if offset or whence or self._read > self._KEPT:
            raise io.UnsupportedOperation("standard input cannot go back")
        self._at = 0
        return 0

    def tell(self) -> int:
        return self._at


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
    """Writes records to `path` in `format`; the file appears when the `with` block ends without an error.

    `join_chains`: if it is off, every position of a binpack is a separate chain, 34 bytes, as in shuffled files.
    `fen`: how text and plain give castling rights: as X-FEN, or as Shredder-FEN (`HAha`).
    `chess960`: what happens to castling rights of Chess960 in a format without room for them: an error, or the rights
    are dropped, or the position is left out; both are counted.
    UserError for a record that is not sound and for a full disk.
    """

    def __init__(
        self,
        path: StrPath,
        format: str | DataFormat | None = None,
        *,
        join_chains: bool = True,
        chess960: Chess960 = "refuse",
        fen: FenStyle = "x-fen",
    ) -> None:
        self.path = Path(path)
        chosen = format_for(path, format)
        if fen == "shredder" and chosen.kind not in _WITH_FENS:
            raise UserError(f"{path}: {chosen.kind} has no FENs, expected one of {', '.join(_WITH_FENS)} with --fen")
        self._chess960 = chess960 if chosen.kind in _data.only_standard_castling() else "keep"
        self.format = chosen.kind
        self._output = replacing(path)
        self._status = os.fstat(self._output.fd)
        try:
            self._writer: Any = (
                _data.PositionWriter(os.fsencode(path), self._output.fd, chosen.kind, join_chains, True)
                if fen == "shredder"
                else chosen.open_writer(self.path, self._output.fd, join_chains)
            )
        except BaseException:
            self._output.discard()
            raise
        self._dropped = Counter[str]()
        self.positions = 0
        self.losses: dict[str, int] = {}

    def write(self, records: Records) -> None:
        """Writes records uint8 [n, 32]. UserError for a record that the format cannot hold."""
        self.write_block(Block(records, None, self.format))

    def write_block(self, block: Block) -> None:
        """Writes a block. Positions from a file of the same format keep all of their bytes; for another format,
        positions whose spare bytes are not 0 are counted."""
        assert self._writer is not None
        if self._chess960 in ("drop-rights", "skip"):
            block = self._without_chess960(block)
        if block.originals is None:
            self._writer.write(block.records)
        elif block.format == self.format:
            self._writer.write(block.records, block.originals)
        else:
            self._writer.write(block.records)
            self.count_spare(block)
        self.positions += len(block.records)

    def _without_chess960(self, block: Block) -> Block:
        records = block.records.copy()
        found, moves = _data.drop_chess960(records)
        if self._chess960 == "skip":
            self._dropped["chess960"] += int(found.sum())
            return block.where(~found)
        self._dropped.update({"castling": int(found.sum()), "moves": moves})
        return block._replace(records=records)

    def count_spare(self, block: Block) -> None:
        """Counts the positions of another format whose spare bytes are dropped."""
        if block.originals is not None and block.format not in _SPARE_IS_NOISE:
            self._dropped["spare"] += int(block.spare.any(1).sum())

    def finish(self) -> None:
        """Writes the whole content to disk, still without a name. `commit` renames it, which needs no space."""
        if self._writer is not None:
            self._writer.finish()
            self._end()
            self._output.sync()

    def commit(self) -> None:
        """Finishes the file and gives it its name, as the end of the `with` block does."""
        self.finish()
        self._output.commit()

    def is_file_at(self, path: StrPath) -> bool:
        """Whether the file at `path` is the one that this writer writes."""
        try:
            return os.path.samestat(Path(path).lstat(), self._status)
        except OSError:
            return False

    def _end(self) -> None:
        if self._writer is not None:
            self.positions = self._writer.positions
            self.losses = dict(self._dropped + Counter(self._writer.losses))
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
    part: Part = WHOLE,
    **scores: Unpack[ReadingOptions],
) -> Iterator[tuple[PositionReader, Iterable[Block]]]:
    """The reader of each file and its positions, file after file. A missing file is an error before any is
    read. `part`: only the files and chunks of this part. `scores`: as in `PositionReader`."""
    ranges = files_of_part(paths, part, skip_bad)
    sizes = []
    for path, chunks in ranges:
        try:
            sizes.append(0 if is_pipe(path) else Path(path).stat().st_size if chunks is None else chunks.size)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None

    def blocks(reader: PositionReader, before: int) -> Iterator[Block]:
        for block in reader.blocks():
            if reader.sample:
                reader.sample.add_runs(block.records)
            yield block
            if progress:
                progress(before + reader.done, sum(sizes))

    for i, (path, chunks) in enumerate(ranges):
        with PositionReader(path, format=format, skip_bad=skip_bad, chunks=chunks, **scores) as reader:
            reader.sample = Sample(RUNS_FOR_UNITS) if len(paths) > 1 else None
            yield reader, blocks(reader, sum(sizes[:i]))


def files_of_part(
    paths: Sequence[StrPath], part: Part = WHOLE, skip_bad: bool = False
) -> list[tuple[StrPath, ChunkRange | None]]:
    """The files of a part, and their chunks; None: the whole file, as one that is compressed, or not in a built-in
    format, is not divided."""
    if part.is_whole:
        return [(path, None) for path in paths]
    check_no_pipe(paths, "--part")
    files = _divided(paths, skip_bad)
    counts = [1 if file is None else file.num_chunks for file in files]
    begin, end = part.range(sum(counts))
    found: list[tuple[StrPath, ChunkRange | None]] = []
    first = 0
    for path, file, count in zip(paths, files, counts, strict=True):
        own_begin, own_end = max(begin - first, 0), min(end - first, count)
        first += count
        if own_begin < own_end:
            whole = file is None or own_end - own_begin == count
            found.append((path, None if whole or file is None else ChunkRange(file, own_begin, own_end)))
    return found


def chunks_of(path: StrPath) -> ChunkRange | None:
    """The chunks of a file; None if it is compressed, or not in a built-in format."""
    (file,) = _divided([path])
    return None if file is None else ChunkRange(file, 0, file.num_chunks)


def _divided(paths: Sequence[StrPath], skip_bad: bool = False) -> list[_data.DataFile | None]:
    """The files with their chunks; None for one that has none."""
    from nnue_trainer.data.chunk_index import open_sources

    files: list[_data.DataFile | None] = []
    for path, source in zip(paths, open_sources([os.fspath(path) for path in paths]), strict=True):
        head = source.file.read(0, HEAD)
        divided = compression_of(head) is None and claiming(outside_formats(), Path(path), head) is None
        files.append(_data.DataFile(source.file, skip_bad, layout=source.layout) if divided else None)
    return files
