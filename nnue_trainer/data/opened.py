"""Data files as they were when they were opened: a run trains on these, even if the files change meanwhile."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from nnue_trainer import _data
from nnue_trainer.base import system
from nnue_trainer.data.compression import unnamed_file, unpack
from nnue_trainer.data.files import StrPath, compression_of_file, open_regular
from nnue_trainer.data.formats.base import HEAD, DataFormat, claiming
from nnue_trainer.data.formats.built_in import BuiltIn
from nnue_trainer.data.reading import DEFAULT_PAWN, FORMATS_IN_PAWNS, Reading
from nnue_trainer.data.spare import open_chunks as with_spare
from nnue_trainer.errors import UserError

_SAMPLES, _SAMPLE = 16, 4096  # the number of samples of a file, and the bytes in each
_LARGE = 1 << 28  # bytes of a compressed file: unpacking a larger one takes so long that it is announced
_log = logging.getLogger(__name__)


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
    with open_regular(path) as file:
        return _identity_of(path, file.fileno(), os.fstat(file.fileno()).st_size)


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


def require_same(saved: Sequence[Identity], now: Sequence[Identity], what: str) -> None:
    """UserError that begins with `what`, unless both lists are the same files in the same order; names may differ."""
    for before, after in zip(saved, now, strict=False):
        if not before.matches(after):
            raise UserError(f"{what} changed: there was {before}, now there is {after}")
    if len(saved) != len(now):
        lists = [f"{len(files)} ({', '.join(file.name for file in files)})" for files in (saved, now)]
        raise UserError(f"{what} changed: there were {lists[0]}, now there are {lists[1]}")


def _identity_of(path: StrPath, fd: int, size: int) -> Identity:
    """The digest of the first `size` bytes."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        for i in range(_SAMPLES):
            offset = max(size - _SAMPLE, 0) * i // (_SAMPLES - 1)
            digest.update(system.pread(fd, min(_SAMPLE, size - offset), offset))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    return Identity(Path(path).name, size, digest.hexdigest())


def make_room_for(files: int) -> None:
    """Lets this process open this many more files, because a loader keeps all of its files open.
    UserError if the system's limit is lower."""
    # A compressed file needs a second one while it is opened; the rest is for torch and the run's own files.
    needed = _open_now() + files + 256
    limit = system.allow_open_files(needed)
    if limit is not None:
        raise UserError(
            f"loader: {files:,} data files, but the system allows {limit:,} open files (ulimit -Hn), expected "
            f"{needed:,}: join files with `nnue data interleave`, or raise the limit"
        )


def _open_now() -> int:
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        return 64


class OpenedFile:
    """A data file in any format, open from now on. It does not read what is appended to the file later, or a file that
    replaces it. Its format is the first of `formats` that claims it, or else a built-in one. A compressed file is
    unpacked once, here, into a file without a name in `temporary` (None: the system's folder), which disappears with
    this object. A file in one of `formats` is read into such a file as well.

    `skip_bad`: a record or chunk that is cut off by the end of the file is left out, and so is what comes after the
    place where a compressed file is corrupt or cut off. `poll` is called for each MiB that is unpacked and for every 16
    chunks that are listed; if it raises, opening ends. `spare`: records also hold the file's spare bytes
    (`nnue_trainer.data.spare`), so it is read into a file without a name too. UserError, one line, if it is not a data
    file.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        formats: Sequence[DataFormat] = (),
        skip_bad: bool = False,
        temporary: Path | None = None,
        poll: Callable[[], None] | None = None,
        spare: bool = False,
    ) -> None:
        self.path = Path(path)
        self.spare = int(spare)
        """the number of spare bytes in each record"""
        self.format_identity: dict[str, Any] | None = None
        """identifies the format, if it is one of `formats` and reads other positions than a built-in one by default"""
        self._copied = False
        with open_regular(path) as file:
            self._status = os.fstat(file.fileno())
            self._told = False
            size = self._status.st_size
            self.identity = _identity_of(path, file.fileno(), size)
            self.compression = compression_of_file(self.path, file)
            if self.compression is None:
                self.native = self._chunks(file, size, skip_bad, formats, temporary, poll)
                return
            if size > _LARGE:
                _log.warning("%s: %s-compressed: unpacking it before the first batch", path, self.compression)
            with unpack(self.path, self.compression, file, temporary, poll, skip_bad=skip_bad) as unpacked:
                unpacked_size = os.fstat(unpacked.fileno()).st_size
                self.native = self._chunks(unpacked, unpacked_size, skip_bad, formats, temporary, poll)

    def _chunks(
        self,
        file: BinaryIO,
        size: int,
        skip_bad: bool,
        formats: Sequence[DataFormat],
        temporary: Path | None,
        poll: Callable[[], None] | None,
    ) -> _data.DataFile:
        format = claiming(formats, self.path, system.pread(file.fileno(), HEAD, 0)) if formats else None
        reading = format.reading if isinstance(format, BuiltIn) else Reading()

        def into(fill: Callable[[BinaryIO], None]) -> BinaryIO:
            return unnamed_file(self.path, temporary, fill)

        if self.spare:
            if format is not None and not isinstance(format, BuiltIn):
                raise UserError(
                    f"{self.path}: a data format in Python has no spare bytes, which a filter, the loss or the weight "
                    "of positions uses; convert the file (nnue data convert)"
                )
            chunks, self.spare = with_spare(self.path, file.fileno(), skip_bad, into, poll, reading)
            self._copied = True
            self.format_identity = {"spare": self.spare} | ((format and format.identity) or {})
            return chunks
        if format is None:
            chunks = _data.DataFile(str(self.path), file.fileno(), size, skip_bad, poll)
        else:
            self._copied = not isinstance(format, BuiltIn)
            self.format_identity = format.identity
            chunks = format.open_chunks(self.path, file.fileno(), size, skip_bad, into, poll)
        if chunks.format in FORMATS_IN_PAWNS and reading.pawn is None:
            _log.warning(
                "%s: evaluations are converted with %g internal units per pawn, the default; data.formats: [{kind: %s, "
                "pawn: N}] sets it",
                self.path,
                DEFAULT_PAWN,
                chunks.format,
            )
        return chunks

    def require_unchanged(self) -> None:
        """UserError if samples of the file's bytes are not what they were; the rest is compared as it is read. Logs
        once that the file was written to or replaced. Other programs cannot change an unpacked copy."""
        if self.compression is not None or self._copied:
            return
        self._check_status()
        now = _identity_of(self.path, self.native.fileno(), self.identity.size)
        if not now.matches(self.identity):
            raise UserError(
                f"{self.path}: changed since it was opened: continuing would train on different positions; restore the "
                "file, or start a new run"
            )

    def _check_status(self) -> None:
        now = os.fstat(self.native.fileno())
        try:
            is_same = os.path.samestat(self.path.stat(), now)
        except OSError:
            is_same = False
        grown = now.st_size > self._status.st_size
        if not is_same:
            told = "was replaced or deleted; training continues with the file that was opened"
        elif now.st_mtime_ns == self._status.st_mtime_ns and not grown:
            return
        elif grown:
            told = "has grown since it was opened; the appended data is not read"
        else:
            told = (
                "was written to since it was opened; chunks that were read before are compared, and the others are "
                "read as they are now"
            )
        if not self._told:
            self._told = True
            _log.warning("%s: %s", self.path, told)
