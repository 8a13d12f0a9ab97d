"""Data files as they were when they were opened: a run trains on these, even if the files change meanwhile."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from nnue_trainer import _data
from nnue_trainer.base import system
from nnue_trainer.base.arrays import Records
from nnue_trainer.data.chunk_index import Source, open_source, open_sources
from nnue_trainer.data.compression import ByteReader, compression_of, unnamed_file, unpack
from nnue_trainer.data.files import BLOCK, StrPath, compression_of_file
from nnue_trainer.data.formats.base import HEAD, DataFormat, claiming
from nnue_trainer.data.formats.built_in import BuiltIn, open_native
from nnue_trainer.data.reading import DEFAULT_PAWN, FORMATS_IN_PAWNS, Reading
from nnue_trainer.data.spare import embedded, width_of
from nnue_trainer.errors import UserError

_SAMPLE = 4096  # bytes that show how a file is compressed
_LARGE = 1 << 28  # bytes of a compressed file: unpacking a larger one takes so long that it is announced
_log = logging.getLogger(__name__)

Layout = tuple[str, bytes] | None
"""the format and the places of the chunks, where they are known"""


class Identity(NamedTuple):
    """Identifies a data file when it is opened: its size in bytes and a digest of sixteen samples of 4 KiB. The bytes
    between the samples are compared when they are read (`Loader.contents`). The name is only for messages: a file
    that was moved or renamed is the same file."""

    name: str
    size: int
    digest: str

    def matches(self, other: Identity) -> bool:
        """Whether size and digest are equal."""
        return (self.size, self.digest) == (other.size, other.digest)

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, digest {self.digest})"


def identity(path: StrPath) -> Identity:
    """The identity of a file as it is now. UserError if it cannot be read or is not a regular file."""
    file = _data.InputFile(os.fsencode(path))
    return _identity(path, file.size, file.digest_samples()[1])


def identities(paths: Iterable[StrPath]) -> list[Identity]:
    """The identities of several files. `Loader.identities` are those of its files at the time when it opened them."""
    return [identity(path) for path in paths]


def identities_from(data: Any, what: str) -> list[Identity]:
    """Identities that were saved as lists in JSON. UserError, beginning with `what`, for anything else."""
    if isinstance(data, list):
        found = []
        for item in data:
            match item:
                case [str(name), int(size), str(digest)]:
                    found.append(Identity(name, size, digest))
        if len(found) == len(data):
            return found
    raise UserError(f"{what}: damaged: found {str(data)[:80]!r}, expected a list of [name, bytes, digest]")


def described(files: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Identities, or lists like them, as JSON data with names for messages."""
    return [Identity(*file)._asdict() for file in files]


def require_same(saved: Sequence[Identity], now: Sequence[Identity], what: str) -> None:
    """UserError that begins with `what`, unless both lists are the same files in the same order; names may differ."""
    for before, after in zip(saved, now, strict=False):
        if not before.matches(after):
            raise UserError(f"{what} changed: there was {before}, now there is {after}")
    if len(saved) != len(now):
        lists = [f"{len(files)} ({', '.join(file.name for file in files)})" for files in (saved, now)]
        raise UserError(f"{what} changed: there were {lists[0]}, now there are {lists[1]}")


def _identity(path: StrPath, size: int, samples: int) -> Identity:
    return Identity(Path(path).name, size, f"{samples:016x}")


def make_room_for(files: int) -> None:
    """Lets this process have this many more files open, if the system allows it. If not, those that were read least
    recently are closed and opened again when they are read."""
    # A compressed file needs a second one while it is opened; the rest is for torch and the run's own files.
    others = _open_now() - _data.open_input_files() + 256
    limit = system.allow_open_files(others + _data.open_input_files() + files)
    if limit is not None:
        _data.set_most_open_files(max(limit - others, 16))


def _open_now() -> int:
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        return 64 + _data.open_input_files()


def open_files(
    paths: Sequence[StrPath],
    *,
    formats: Sequence[DataFormat] = (),
    skip_bad: bool = False,
    temporary: Path | None = None,
    poll: Callable[[], None] | None = None,
    spare: bool = False,
) -> list[OpenedFile]:
    """Opens files, with the help of the chunk index; the arguments are those of `OpenedFile`. UserError for the first
    one that is not a data file."""
    make_room_for(len(paths))
    names = [os.fspath(path) for path in paths]
    return [
        OpenedFile(
            name,
            formats=formats,
            skip_bad=skip_bad,
            temporary=temporary,
            poll=poll,
            spare=spare,
            source=source,
        )
        for name, source in zip(names, open_sources(names, poll), strict=True)
    ]


class OpenedFile:
    """A data file in any format, open from now on. It does not read what is appended to the file later, or a file that
    replaces it. Its format is the first of `formats` that claims it, or else a built-in one. A compressed file is
    unpacked once, here, into a file without a name in `temporary` (None: the system's folder), which disappears with
    this object. A file in one of `formats` is read into such a file as well.

    `skip_bad`: a record or chunk that is cut off by the end of the file is left out, and so is what comes after the
    place where a compressed file is corrupt or cut off. `poll` is called for each MiB that is unpacked and for every 16
    chunks that are listed; if it raises, opening ends. `spare`: records also hold the file's spare bytes
    (`nnue_trainer.data.spare`), so it is read into a file without a name too. `source`: the file, if it is
    open already. UserError, one line, if it is not a data file.
    """

    __slots__ = (
        "_copied",
        "_modified",
        "_name",
        "_told",
        "compression",
        "format_identity",
        "identity",
        "native",
        "reading",
        "spare",
    )

    def __init__(
        self,
        path: StrPath,
        *,
        formats: Sequence[DataFormat] = (),
        skip_bad: bool = False,
        temporary: Path | None = None,
        poll: Callable[[], None] | None = None,
        spare: bool = False,
        source: Source | None = None,
    ) -> None:
        self._name = os.fspath(path)
        self.spare = int(spare)
        """the number of spare bytes in each record"""
        self.format_identity: dict[str, Any] | None = None
        """identifies the format, if it is one of `formats` and reads other positions than a built-in one by default"""
        self.reading = Reading()
        """how scores and results of the file are read"""
        self._copied = self._told = False
        source = source or open_source(self._name, poll)
        self._modified = source.status[1]
        assert source.entry is not None
        self.identity = _identity(path, source.file.size, source.entry.samples)
        self.compression = None if source.layout else _compression(self.path, source.file)
        if self.compression is None:
            self.native = self._chunks(source.file, source.layout, skip_bad, formats, temporary, poll)
            return
        if source.file.size > _LARGE:
            _log.warning("%s: %s-compressed: unpacking it before the first batch", path, self.compression)
        with (
            _stream(source.file) as packed,
            unpack(self.path, self.compression, packed, temporary, poll, skip_bad=skip_bad) as unpacked,
        ):
            file = _data.InputFile(os.fsencode(self._name), unpacked.fileno())
            self.native = self._chunks(file, None, skip_bad, formats, temporary, poll)

    @property
    def path(self) -> Path:
        """The path that it was opened by."""
        return Path(self._name)

    def _chunks(
        self,
        file: _data.InputFile,
        layout: Layout,
        skip_bad: bool,
        formats: Sequence[DataFormat],
        temporary: Path | None,
        poll: Callable[[], None] | None,
    ) -> _data.DataFile:
        format = self._claiming(formats, file, layout)
        compiled = format is None or isinstance(format, BuiltIn)
        if self.spare and not compiled:
            raise UserError(
                f"{self.path}: a data format in Python has no spare bytes, which a filter, the loss or the weight "
                "of positions uses; convert the file (nnue data convert)"
            )
        reading = self.reading = format.reading if isinstance(format, BuiltIn) else Reading()
        self.format_identity = None if format is None else format.identity
        if self.spare or not compiled:
            self._copied = True
            with unnamed_file(
                self.path, temporary, lambda out: self._rewrite(file, format, skip_bad, out, poll)
            ) as out:
                chunks = _data.DataFile(_data.InputFile(os.fsencode(self._name), out.fileno()), False, poll)
        else:
            changes = (format and reading.changes(self.path, format.kind)) or _data.ScoreChanges()
            chunks = _data.DataFile(file, skip_bad, poll, reading.settings, changes, layout)
        if self.spare:
            self.format_identity = {"spare": self.spare} | (self.format_identity or {})
        elif chunks.format in FORMATS_IN_PAWNS and reading.pawn is None:
            _log.warning(
                "%s: evaluations are converted with %g internal units per pawn, the default; data.formats: [{kind: %s, "
                "pawn: N}] sets it",
                self.path,
                DEFAULT_PAWN,
                chunks.format,
            )
        return chunks

    def _rewrite(
        self,
        file: _data.InputFile,
        format: DataFormat | None,
        skip_bad: bool,
        out: BinaryIO,
        poll: Callable[[], None] | None,
    ) -> None:
        """Reads all positions and writes them to `out`, 34 bytes each, with their spare bytes if these are used."""
        with _stream(file) as stream:
            source = cast(ByteReader, stream)
            if self.spare:
                reader: Any = open_native(self.path, source, skip_bad, settings=self.reading.settings)
                blocks = embedded(reader, self.path, self.reading)
            else:
                assert format is not None
                reader = format.open_reader(self.path, source, skip_bad)
                blocks = _blocks(reader)
            writer = _data.PositionWriter(os.fsencode(self._name), out.fileno(), "binpack", False)
            for records in blocks:
                writer.write(records)
                if poll:
                    poll()
            writer.finish()
            if self.spare:
                self.spare = width_of(reader.format) if writer.positions else 0
            if reader.skipped:
                _log.warning("%s; left out, with %d more", reader.first_skipped, reader.skipped - 1)

    def _claiming(self, formats: Sequence[DataFormat], file: _data.InputFile, layout: Layout) -> DataFormat | None:
        if layout is not None and all(isinstance(format, BuiltIn) for format in formats):
            return next((format for format in formats if format.kind == layout[0]), None)
        return claiming(formats, self.path, file.read(0, HEAD)) if formats else None

    def require_unchanged(self) -> None:
        """UserError if the file was written to and samples of its bytes are not what they were; the rest is compared as
        it is read. Logs once that the file was written to or replaced. Other programs cannot change an unpacked
        copy."""
        if self.compression is not None or self._copied:
            return
        if self._is_as_it_was() or f"{self.native.file.digest_samples()[1]:016x}" == self.identity.digest:
            return
        raise UserError(
            f"{self.path}: changed since it was opened: continuing would train on different positions; restore the "
            "file, or start a new run"
        )

    def _is_as_it_was(self) -> bool:
        """Whether nothing was written to the file."""
        size, modified, *number = self.native.file.status()
        try:
            found = self.path.stat()
            is_same = [found.st_dev, found.st_ino] == number
        except OSError:
            is_same = False
        grown, written = size > self.identity.size, modified != self._modified
        if not is_same:
            told = "was replaced or deleted; training continues with the file that was opened"
        elif grown:
            told = "has grown since it was opened; the appended data is not read"
        elif written:
            told = (
                "was written to since it was opened; chunks that were read before are compared, and the others are "
                "read as they are now"
            )
        else:
            return True
        if not self._told:
            self._told = True
            _log.warning("%s: %s", self.path, told)
        return not (grown or written)


def _compression(path: Path, file: _data.InputFile) -> str | None:
    if compression_of(file.read(0, _SAMPLE)) is None:
        return None
    with _stream(file) as stream:
        return compression_of_file(path, stream)


def _blocks(reader: Any) -> Iterator[Records]:
    while len(records := reader.read(BLOCK)):
        yield records


def _stream(file: _data.InputFile) -> BinaryIO:
    """The file at its beginning."""
    stream = os.fdopen(file.duplicate(), "rb")
    stream.seek(0)
    return stream
