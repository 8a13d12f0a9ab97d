"""Where the chunks of data files are, kept between runs: docs/data.md, "The chunk index".

Opening a file without an index reads it at some twenty places and at the header of every chunk. An index entry holds
what that finds. An entry fits a file of the same size and modification time whose first and last 4 KiB are the same;
otherwise it is made again. Chunks are checked when they are decoded, so a wrong entry is an error and never other data.

The layout, little-endian: `NNUEIDX` and the version (8 bytes), BLAKE2b of the rest (16 bytes), then the entries,
sorted by name: u16 and the name of the file; u64 size, i64 modification time (ns since 1970), u64 digest of the first
and last 4 KiB (of the whole file, twice, if it is smaller), u64 digest of sixteen samples of 4 KiB at (size − 4096) ·
i / 15; u16 and the name of the format; u32 and the places of the chunks (binpack: the payload size of each, as
LEB128; others: nothing). The digests are those of chunks (data_loader/formats/chunk_digest.h). In the cache folder,
the name of an index is the BLAKE2b digest, 12 bytes in hex, of the data folder's real path.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from nnue_trainer import _data
from nnue_trainer.base import system
from nnue_trainer.data.compression import compression_of
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import replacing
from nnue_trainer.files.compile_once import cache_folder

BESIDE = ".nnue-index"
"""the name of an index in the folder of its data"""
_MAGIC = b"NNUEIDX\x01"
_DIGEST = 16  # bytes
_FIXED = struct.Struct("<QqQQ")
_THREADS = 64  # most of the time, each waits for a disk or a network
_SETTLED = 2.0  # seconds; a younger file may change without a new modification time
_HEAD = 4096
_CACHED = 1000  # indexes, one for each data folder

T = TypeVar("T")
S = TypeVar("S")
Poll = Callable[[], None] | None


class Entry(NamedTuple):
    """Knowledge about a file of `size` bytes, modified at `modified` (ns since 1970): digests of its first and
    last 4 KiB (`ends`) and of sixteen samples (`samples`), its format and the places of its chunks. The format is "" if
    its chunks cannot be listed; an index has no such entry."""

    size: int
    modified: int
    ends: int
    samples: int
    format: str
    layout: bytes


class Source(NamedTuple):
    """An open file, its status when it was opened (size, modification time in ns, device, number), and what is known
    about it; None: nothing yet."""

    file: _data.InputFile
    status: tuple[int, int, int, int]
    entry: Entry | None

    @property
    def layout(self) -> tuple[str, bytes] | None:
        """The format and the places of the chunks, for `_data.DataFile`; None: they are not known."""
        return (self.entry.format, self.entry.layout) if self.entry and self.entry.format else None


class Summary(NamedTuple):
    """The result of `write`: the files that have an entry now, their chunks and bytes, and how many of them were listed
    for it; the files without an entry, with the reason; the index files; and the folders for which none can be
    written."""

    files: int
    chunks: int
    bytes: int
    listed: int
    without: list[tuple[str, str]]
    written: list[Path]
    unwritten: list[str]


# ---- the file of a folder -------------------------------------------------------------------------------------------


def read_index(path: Path) -> dict[str, Entry]:
    """The entries of an index by the names of their files; nothing if it is missing or damaged."""
    try:
        content = memoryview(path.read_bytes())
    except OSError:
        return {}
    head = len(_MAGIC) + _DIGEST
    body = content[head:]
    if bytes(content[: len(_MAGIC)]) != _MAGIC or bytes(content[len(_MAGIC) : head]) != _digest(body):
        return {}
    entries, at = {}, 0

    def take(length: struct.Struct) -> bytes:
        nonlocal at
        (size,) = length.unpack_from(body, at)
        at += length.size + size
        return bytes(body[at - size : at])

    short, long = struct.Struct("<H"), struct.Struct("<I")
    try:
        while at < len(body):
            name = os.fsdecode(take(short))
            fixed = _FIXED.unpack_from(body, at)
            at += _FIXED.size
            size, modified, ends, samples = fixed
            entries[name] = Entry(size, modified, ends, samples, take(short).decode("ascii"), take(long))
    except (struct.error, UnicodeDecodeError):
        return {}
    return entries


def write_index(path: Path, entries: dict[str, Entry]) -> None:
    """Replaces an index, or makes it. OSError or UserError where that fails."""
    parts = []
    for name, entry in sorted(entries.items()):
        encoded, format = os.fsencode(name), entry.format.encode("ascii")
        parts += [struct.pack("<H", len(encoded)), encoded, _FIXED.pack(*entry[:4])]
        parts += [struct.pack("<H", len(format)), format, struct.pack("<I", len(entry.layout)), entry.layout]
    body = b"".join(parts)
    with replacing(path) as output:
        output.write_bytes(_MAGIC + _digest(memoryview(body)) + body)


def _digest(body: memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST).digest()


def cached_index(folder: str) -> Path | None:
    """The index of a data folder in the user's cache folder; None if the user has no home."""
    name = hashlib.blake2b(os.fsencode(os.path.realpath(folder)), digest_size=12).hexdigest()
    with contextlib.suppress(UserError):
        return cache_folder("chunk-index") / f"{name}.index"
    return None


def _load(folder: str) -> dict[str, Entry]:
    cached = cached_index(folder)
    return (read_index(cached) if cached else {}) | read_index(Path(folder, BESIDE))


def _save(folder: str, fresh: dict[str, Entry], beside: bool) -> Path | None:
    """Adds entries to the index of a folder: the one beside the data if there is one or it is to be made, and it can be
    written, or else the one in the cache folder. None: there is no place for it."""
    path = Path(folder, BESIDE)
    cached = cached_index(folder)
    for target in [path] * (beside or path.exists()) + ([cached] if cached else []):
        with contextlib.suppress(OSError, UserError):
            if target == cached and not target.exists():
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _remove_oldest(target.parent)
            # Another process may have added some meanwhile. What is lost if both write at once is found again.
            present = {path.name for path in Path(folder).iterdir()}
            before = read_index(target)
            entries = {name: entry for name, entry in (before | fresh).items() if name in present}
            if entries != before:
                write_index(target, entries)
            return target
    return None


def _remove_oldest(folder: Path) -> None:
    """Leaves the newest `_CACHED` indexes in the cache folder."""
    found = sorted(folder.glob("*.index"), key=lambda path: path.stat().st_mtime)
    for path in found[:-_CACHED]:
        path.unlink(missing_ok=True)


# ---- finding the chunks ---------------------------------------------------------------------------------------------


def open_source(path: str, poll: Poll = None) -> Source:
    """Opens one file and finds its chunks, without an index."""
    return _listed(_fitting(path, None), poll)


def open_sources(paths: Sequence[str], poll: Poll = None) -> Iterator[Source]:
    """Opens files, in several threads, and finds their chunks with the help of the index, to which it adds what is
    missing. One process of a machine lists the chunks, others wait for it. `poll` is called about every tenth of a
    second; what it raises ends this. UserError at the turn of a file that cannot be opened."""
    return _in_turn(_Opening(paths, poll).run())


def _in_turn(found: list[Source | UserError]) -> Iterator[Source]:
    found.reverse()
    while found:  # each goes when it is taken
        source = found.pop()
        if isinstance(source, UserError):
            raise source
        yield source


def write(
    paths: Sequence[str],
    *,
    beside: bool = True,
    again: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Makes the index of these files, in their folders if those can be written, or in the cache folder. `again`: also
    of files whose entry fits. `progress` gets the number of files listed so far and of all that are to be listed.
    UserError for a file that cannot be opened."""
    opening = _Opening(paths, None, beside=beside, again=again, progress=progress, settles=True)
    without, chunks, size = [], 0, 0
    for path, source in zip(paths, _in_turn(opening.run()), strict=True):
        if source.layout is None:
            without.append((path, _why_not(source)))
            continue
        chunks += _data.DataFile(source.file, False, layout=source.layout).num_chunks
        size += source.file.size
    return Summary(len(paths) - len(without), chunks, size, opening.listed, without, opening.written, opening.unwritten)


def _why_not(source: Source) -> str:
    kind = compression_of(source.file.read(0, _HEAD))
    if kind:
        return f"compressed with {kind}: it is unpacked whenever it is opened"
    try:
        return _data.DataFile(source.file, True).torn_end or "it changed while it was read"
    except UserError as error:
        return str(error)


class _Opening:
    """One call of `open_sources` or `write`. `settles`: waits until all files are old enough for an entry."""

    def __init__(
        self,
        paths: Sequence[str],
        poll: Poll,
        *,
        beside: bool = False,
        again: bool = False,
        progress: Callable[[int, int], None] | None = None,
        settles: bool = False,
    ) -> None:
        self._paths, self._poll, self._beside, self._settles = paths, poll, beside, settles
        self._progress = progress or (lambda done, of: None)
        self._folders = list(dict.fromkeys(map(os.path.dirname, paths)))
        self._known = {folder: {} if again else _load(folder) for folder in self._folders}
        self.listed = 0
        """files whose chunks were listed"""
        self.written: list[Path] = []
        """the index files"""
        self.unwritten: list[str] = []
        """the folders for which no index can be written"""

    def run(self) -> list[Source | UserError]:
        found = in_parallel(lambda path, _: self._look(path), self._paths, self._poll)
        missing = [i for i, source in enumerate(found) if _is_missing(source)]
        fresh: dict[str, dict[str, Entry]] = {folder: {} for folder in self._folders}
        if missing:
            if self._settles:
                self._settle([source for source in found if isinstance(source, Source)])
            with _turn(self._paths, self._poll) as waited:
                if waited:
                    self._known = {folder: _load(folder) for folder in self._folders}
                looks_again = waited or self._settles

                done = 0

                def find(i: int, poll: Poll) -> Source | UserError:
                    nonlocal done
                    source = self._look(self._paths[i]) if looks_again else found[i]
                    if isinstance(source, Source) and source.entry is None:
                        source = _listed(source, poll)
                        self.listed += source.layout is not None
                    done += 1
                    self._progress(done, len(missing))
                    return source

                for i, source in zip(missing, in_parallel(find, missing, self._poll), strict=True):
                    found[i] = source
                    if isinstance(source, Source) and source.entry and source.layout and _age(source) >= _SETTLED:
                        folder, name = os.path.split(self._paths[i])
                        fresh[folder][name] = source.entry
                self._save(fresh)
        elif self._beside:
            self._save(fresh)
        return found

    def _save(self, fresh: dict[str, dict[str, Entry]]) -> None:
        for folder, entries in fresh.items():
            known = self._known[folder] if self._beside else {}
            if known or entries:
                path = _save(folder, known | entries, self._beside)
                if path is None:
                    self.unwritten.append(folder)
                else:
                    self.written.append(path)

    def _look(self, path: str) -> Source | UserError:
        folder, name = os.path.split(path)
        try:
            return _fitting(path, self._known[folder].get(name))
        except UserError as error:
            return error

    def _settle(self, sources: Sequence[Source]) -> None:
        while any(0 <= _age(source) < _SETTLED for source in sources):
            time.sleep(0.1)
            if self._poll:
                self._poll()


def _is_missing(source: Source | UserError) -> bool:
    return isinstance(source, Source) and source.entry is None


def _age(source: Source) -> float:
    """Seconds since the file was modified; of a time in the future, the seconds until then."""
    return abs(time.time_ns() - source.status[1]) / 1e9


def _fitting(path: str, entry: Entry | None) -> Source:
    """The open file, with its entry if that fits. UserError if it cannot be opened."""
    file = _data.InputFile(os.fsencode(path))
    status = file.status()
    if entry is not None and (entry.size, entry.modified) == status[:2] and entry.ends == file.digest_ends():
        return Source(file, status, entry)
    return Source(file, status, None)


def _listed(source: Source, poll: Poll) -> Source:
    """The file with an entry of what it reads."""
    file, status, _ = source
    stopped = False

    def polled() -> None:
        nonlocal stopped
        if poll:
            stopped = True
            poll()
            stopped = False

    ends, samples = file.digest_samples()
    format, layout = "", b""
    if compression_of(file.read(0, _HEAD)) is None:
        try:
            format, layout = _data.DataFile(file, False, polled).layout
        except UserError:  # that of the one who opens it
            if stopped:
                raise
    if file.status() != status:
        format = ""
    return Source(file, status, Entry(*status[:2], ends, samples, format, layout))


def in_parallel(work: Callable[[S, Poll], T], items: Sequence[S], poll: Poll = None) -> list[T]:
    """The results of `work` for all items, in their order, from many threads that mostly wait. `work` also gets a
    function to call now and then: it raises where this call is to end, since `poll`, which is called about every tenth
    of a second, or `work` has raised."""
    if len(items) < 2:
        return [work(item, poll) for item in items]
    ending = threading.Event()

    def stop() -> None:
        if ending.is_set():
            raise UserError("stopped")

    numbers = itertools.count()
    results: list[T | None] = [None] * len(items)

    def work_on() -> None:
        # A future for each item would take 1.6 KB.
        while (number := next(numbers)) < len(items):
            results[number] = work(items[number], stop)

    pool = ThreadPoolExecutor(min(_THREADS, len(items)), "data-files")
    try:
        try:
            futures = [pool.submit(work_on) for _ in range(min(_THREADS, len(items)))]
        except RuntimeError:  # the system gives no more threads
            ending.set()
            pool.shutdown(cancel_futures=True)
            return [work(item, poll) for item in items]
        while wait(futures, 0.1, FIRST_EXCEPTION).not_done:
            failed = next((future for future in futures if future.done() and future.exception()), None)
            if failed:
                failed.result()
            if poll:
                poll()
        for future in futures:
            future.result()
        return cast(list[T], results)
    finally:
        ending.set()
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _turn(paths: Sequence[str], poll: Poll) -> Iterator[bool]:
    """One process of this user and machine lists the chunks of these files while others wait. Yields whether this one
    has waited: the index then has what the other found. Without locks, all list them, and get the same."""
    name = hashlib.blake2b("\0".join(map(os.path.abspath, paths)).encode("utf-8", "surrogateescape"), digest_size=12)
    path = Path(tempfile.gettempdir(), f"nnue-index-{os.geteuid()}-{name.hexdigest()}.lock")
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    with os.fdopen(lock, "rb"):
        waits = system.wait_for_lock(lock, poll or (lambda: None))
        if not waits:
            try:
                yield False
            finally:
                with contextlib.suppress(OSError):
                    path.unlink()
    if waits:
        yield True
