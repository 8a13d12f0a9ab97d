"""The contract of data formats, their registry, and how a format in Python reads, writes and is trained on."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

import numpy as np

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.base.foreign import explaining, returned
from nnue_trainer.data.filters.base import portable_name
from nnue_trainer.errors import UserError
from nnue_trainer.files.inputs import PACKED_SUFFIXES
from nnue_trainer.registry import Registry
from nnue_trainer.schema import to_data

if TYPE_CHECKING:
    from nnue_trainer.data.compression import ByteReader

HEAD = 1 << 16
"""bytes from the beginning of a file that a format is recognised by"""


class DataFormat(ABC):
    """The layout of positions in a file. A subclass is a section (`schema.section`).

    The records that `read` gives are checked like those of built-in formats: a record that is not sound, or whose move
    its piece cannot make, is an error that names file and position; with `skip_bad` it is left out and counted.
    """

    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    """the suffix of files in the format; a file to read may have .gz, .zst, .bz2 or .xz after it"""

    def recognises(self, head: bytes) -> bool:
        """Whether a file has this format, by `head`, at most its first 64 KiB, decompressed. By default, only the
        file's name decides."""
        return False

    @abstractmethod
    def read(self, file: BinaryIO) -> Iterator[Records]:
        """The positions of a file in order, as arrays of records uint8 [n, 32] of any length. `file` is open at its
        beginning and decompressed; read it forwards. `nnue_trainer.data.fields.pack` makes records from arrays. Raise a
        UserError for an error in the data; the caller adds the name of the file."""

    def header(self) -> bytes:
        """The beginning of a file to write."""
        return b""

    def encode(self, records: Records) -> bytes:
        """Records uint8 [n, 32], all of them sound, as the bytes of a file. A format that does not define it can be
        read, but not written."""
        raise NotImplementedError

    def losses(self, records: Records) -> dict[str, int]:
        """The number of `records` that lose or change something that the format cannot store, by kind: "moves",
        "castling", "en_passant", "rule50", "ply", "black_to_move" or "scores"."""
        return {}

    # ---- for the package --------------------------------------------------------------------------------------------

    @property
    def identity(self) -> dict[str, Any] | None:
        """The settings as plain JSON data: two formats that differ in it may read different positions from one file.
        None: the positions are those of a built-in format with its defaults."""
        return {"kind": portable_name(self.kind), **to_data(self)}

    def claims(self, path: Path, head: bytes) -> bool:
        """Whether the file at `path`, whose content begins with `head`, is in this format."""
        name = path.name.lower()
        for suffix in PACKED_SUFFIXES:
            name = name.removesuffix(suffix)
        with self._at(path):
            return name.endswith(self.suffixes) or bool(self.recognises(head))

    def open_reader(self, path: Path, source: ByteReader | None, skip_bad: bool) -> Any:
        """A reader with the methods of `_data.PositionReader`, of a file or of the bytes of `source`."""
        return _Reader(self, path, source, skip_bad)

    def open_writer(self, path: Path, fd: int, join_chains: bool = True) -> Any:
        """A writer with the methods of `_data.PositionWriter`, to the open file `fd`. UserError for a format that
        only reads."""
        if type(self).encode is DataFormat.encode:
            raise UserError(f"{path}: data format {portable_name(self.kind)} can be read, but not written")
        return _Writer(self, path, fd)

    @contextmanager
    def _at(self, path: Path) -> Iterator[None]:
        """Errors in the block name the file at `path`, and the method that they come from."""
        try:
            with explaining(self):
                yield
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        except Exception as error:
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"{path}: data format {portable_name(self.kind)}: {what}") from error


DATA_FORMATS: Registry[DataFormat] = Registry("nnue_trainer.data.formats", lambda: DataFormat, what="data format")


def format_named(kind: str) -> DataFormat:
    """The format that a user names on the command line: built in, `path/to/file.py:Class`, or of an installed package,
    with the defaults of its fields. UserError if there is none."""
    if ":" not in kind and kind not in DATA_FORMATS.names():
        names = [name for name, _, _ in _data.formats()]
        names += [name for name in DATA_FORMATS.names() if name not in names]
        raise UserError(f"unknown format {kind!r}, expected one of {', '.join(names)}, or path/to/file.py:Class")
    try:
        return DATA_FORMATS.find(kind)()
    except ValueError as error:  # pydantic's, for a field without a default
        raise UserError(f"data format {kind!r}: a field of it has no default: {error}".splitlines()[0]) from None


def outside_formats() -> list[DataFormat]:
    """Every format in Python, from outside the data library, that is known and whose fields all have defaults."""
    compiled = {name for name, _, _ in [*_data.formats(), *_data.read_only_formats()]}
    known = []
    for kind, _ in DATA_FORMATS:
        if kind not in compiled:
            try:
                known.append(DATA_FORMATS.find(kind)())
            except ValueError:
                continue
    return known


def claiming(formats: Sequence[DataFormat], path: Path, head: bytes) -> DataFormat | None:
    """The first of `formats` that the file is in; None: it is in a built-in one, or in none."""
    return next((format for format in formats if format.claims(path, head)), None)


class _Bytes(io.RawIOBase):
    """The file that a format reads; `cancelled` ends the reading."""

    def __init__(self, source: ByteReader) -> None:
        self._source = source
        self.cancelled = False
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.cancelled:
            raise UserError("reading was cancelled")
        count = self._source.readinto(memoryview(buffer).cast("B"))
        self.count += count
        return count


class _Reader:
    """Reads a format in Python, with the methods of `_data.PositionReader`."""

    chunks = chains = single_chains = 0

    def __init__(self, format: DataFormat, path: Path, source: ByteReader | None, skip_bad: bool) -> None:
        self._format, self._path, self._skip_bad = format, path, skip_bad
        self._own = None if source is not None else path.open("rb", buffering=0)
        self._bytes = _Bytes(source if source is not None else cast("ByteReader", self._own))
        self._blocks: Iterator[Records] | None = None
        self._ready = np.empty((0, 32), np.uint8)
        self._positions = 0  # read so far, including those that were left out
        self.format = portable_name(format.kind)
        self.skipped = 0
        self.first_skipped = ""

    @property
    def offset(self) -> int:
        return self._bytes.count

    def cancel(self) -> None:
        self._bytes.cancelled = True

    def read(self, capacity: int) -> Records:
        """Up to `capacity` next positions; none only at the end."""
        while not len(self._ready):
            block = self._next()
            if block is None:
                if self._own is not None:
                    self._own.close()
                return self._ready
            self._ready = self._checked(block)
        records, self._ready = self._ready[:capacity], self._ready[capacity:]
        return records

    def _next(self) -> Records | None:
        with self._format._at(self._path):
            if self._blocks is None:
                blocks = self._format.read(io.BufferedReader(self._bytes, 1 << 20))
                returned(self._format, "read", blocks, isinstance(blocks, Iterable), "an iterator of uint8 [n, 32]")
                self._blocks = iter(blocks)
            return next(self._blocks, None)

    def _checked(self, block: Records) -> Records:
        with self._format._at(self._path):
            records = np.array(block, order="C")
            fits = records.dtype == np.uint8 and records.ndim == 2 and records.shape[1] == 32
            returned(self._format, "read", block, fits, "blocks of uint8 [n, 32]")
        kept, first, why = _data.import_records(records)
        if why:
            message = f"{self._path}: position {self._positions + first}: {why}"
            if not self._skip_bad:
                raise UserError(message)
            self.first_skipped = self.first_skipped or message
            self.skipped += len(records) - kept
        self._positions += len(records)
        return records[:kept]


class _Writer:
    """Writes a format in Python, with the methods of `_data.PositionWriter`."""

    def __init__(self, format: DataFormat, path: Path, fd: int) -> None:
        self._format, self._path, self._fd = format, path, fd
        self.positions = 0
        self.losses: dict[str, int] = {}
        self._put("header", format.header)

    def write(self, records: Records) -> None:
        sound = np.array(records, order="C")
        _, first, why = _data.import_records(sound)
        if why:
            raise UserError(f"{self._path}: position {self.positions + first}: {why}")
        self._put("encode", lambda: self._format.encode(records))
        with self._format._at(self._path):
            losses = self._format.losses(records)
            fits = isinstance(losses, dict) and all(isinstance(count, Integral) for count in losses.values())
            returned(self._format, "losses", losses, fits, "a dict of numbers")
        for what, count in losses.items():
            self.losses[what] = self.losses.get(what, 0) + int(count)
        self.positions += len(records)

    def finish(self) -> None:
        """All is written already."""

    def _put(self, method: str, make: Callable[[], bytes]) -> None:
        with self._format._at(self._path):
            made = make()
            returned(self._format, method, made, isinstance(made, bytes | bytearray | memoryview), "bytes")
        data = memoryview(made).cast("B")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise UserError(f"{self._path}: cannot write: {error.strerror}") from None
