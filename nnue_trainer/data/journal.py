"""The finished games of a self-play run that is not complete yet, in order, safe against crashes and power cuts.

A line of JSON states which run the journal belongs to. Then comes one entry per game: the mark `GAME`, the number of
the game, its number of positions, the number of games that were known to be on disk before it, a CRC-32 over the header
line, these numbers and the records, and the records, 32 bytes each. All numbers are u32 LE.

The file is synced when it is created, then about once per second, and when it is closed; beside the games if these must
not wait for the disk. A crash or a power cut can therefore damage only what was written after the last sync: such a
tail is cut off and its games are played again. An entry that is wrong although a later one states that it was on disk
has been changed by something else, and the journal is refused.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np

from nnue_trainer.base import system
from nnue_trainer.base.arrays import Records
from nnue_trainer.base.status import InUse
from nnue_trainer.errors import UserError, quoted, shown
from nnue_trainer.files import lease
from nnue_trainer.files.atomic import refused, refusing

VERSION = 2
_ENTRY = struct.Struct("<4sIIII")
_MARK = b"GAME"
_MAX_POSITIONS = 1 << 16  # of a game
_MAX_HEADER = 1 << 20  # bytes
_SYNC_SECONDS = 1.0


class Journal:
    """The journal of one run, locked as long as it is open, or with a lease where the file system has no locks. Use it
    as a context.

    `header` is JSON data that states which run it belongs to. `games` and `positions` count what it holds, `cut` is how
    many bytes of a damaged tail were removed. UserError if another process has it open, if it belongs to another run
    (unless `replace_other`, which begins anew then), if it was changed, or if it cannot be written. `waits`: whether
    `append` waits for the disk; otherwise an error of the disk is raised by a later call.
    """

    made_by = "nnue data generate"

    def __init__(
        self, path: Path, header: Mapping[str, Any], *, replace_other: bool = False, waits: bool = True
    ) -> None:
        self.path = path
        self.games = self.positions = self.cut = 0
        self._header = {"journal": VERSION} | dict(header)
        self._line = json.dumps(self._header, sort_keys=True).encode() + b"\n"
        self._seed = zlib.crc32(self._line)
        self._on_disk = 0  # games
        self._last_sync = time.monotonic()
        self._syncs = None if waits else ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._syncing: tuple[int, Future[None]] | None = None  # the games that will be on disk then
        self._lease: lease.Lease | None = None  # in place of the lock
        try:
            self._file = self._open()
            try:
                self._go_on(replace_other)
            except BaseException:
                os.close(self._file)
                raise
        except BaseException:
            self._release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            # A signal may have come between the first game and its count.
            if self.games == 0 and self._entry(len(self._line)) is None:
                self.remove()  # otherwise it would block the same command with other options
            elif self._on_disk < max(self.games, 1):
                self._sync()
        except UserError:
            if kind is None:
                raise
        finally:
            if self._syncs is not None:
                self._syncs.shutdown()
            os.close(self._file)
            self._release()

    def append(self, records: Records) -> None:
        """Adds the next game, uint8 [positions, 32]."""
        payload = records.tobytes()
        numbers = (self.games, len(records), self._on_disk)
        checksum = self._checksum(numbers, payload)
        self._write(_ENTRY.pack(_MARK, *numbers, checksum) + payload)
        self.games += 1
        self.positions += len(records)
        if time.monotonic() - self._last_sync >= _SYNC_SECONDS:
            if self._syncs is None:
                self._sync()
            elif self._syncing is None or self._syncing[1].done():
                self._end_sync()
                self._syncing = self.games, self._syncs.submit(os.fsync, self._file)
                self._last_sync = time.monotonic()

    def read(self) -> Iterator[Records]:
        """All games, in order."""
        offset = len(self._line)
        for game in range(self.games):
            entry = self._entry(offset)
            if entry is None:
                raise UserError(f"{self.path}: offset {offset}: game {game} was changed while the journal was open")
            offset += _ENTRY.size + len(entry[2])
            yield np.frombuffer(entry[2], np.uint8).reshape(-1, 32)

    def remove(self) -> None:
        """Deletes the file; its games are in the output now."""
        self.check_owned()
        self.path.unlink(missing_ok=True)
        self._on_disk = self.games

    @staticmethod
    def remove_finished(path: Path, header: Mapping[str, Any]) -> None:
        """Deletes the journal of a run that was killed right after it had written its output."""
        if path.exists():
            with contextlib.suppress(UserError), Journal(path, header) as journal:
                journal.remove()

    @staticmethod
    def remove_left(path: Path) -> None:
        """Deletes the journal of a run whose output is known to be complete, and the lease of its dead owner."""
        for each in (path, _owner(path)):
            each.unlink(missing_ok=True)

    def _open(self) -> int:
        """The descriptor of the locked file. The lock ends with the process, however that ends."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                file = os.open(self.path, flags, 0o666)
                try:
                    if not stat.S_ISREG(os.fstat(file).st_mode):
                        raise UserError(f"{self.path}: not a regular file, expected a journal of `{self.made_by}`")
                    self._lock(file)
                    # A run that has just ended may have deleted the file between opening and locking.
                    if system.is_named(file, self.path):
                        return file
                except BaseException:
                    os.close(file)
                    raise
                os.close(file)
        except BlockingIOError:
            raise InUse(f"{self.path}: another run is writing it; wait until it ends") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UserError(f"{self.path}: is a symbolic link, expected a journal or nothing") from None
            raise refused(self.path, error) from None

    def _lock(self, file: int) -> None:
        if self._lease is not None:  # it stays if `_open` has to create the file again
            return
        try:
            self._lease = lease.lock(file, _owner(self.path), self._say)
        except lease.Held as held:
            raise InUse(f"{self.path}: another run ({held.owner}) is writing it; wait until it ends") from None

    def _say(self, text: str) -> None:
        print(f"nnue: note: {shown(self.path)}: {shown(text)}", file=sys.stderr, flush=True)

    def check_owned(self) -> None:
        """UserError if another process has taken the journal over. Called last before a file is replaced or deleted."""
        if self._lease is not None and self._lease.lost():
            raise UserError(f"{self.path}: another process has taken it over, so this one ends and writes nothing more")

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _go_on(self, replace_other: bool) -> None:
        """Finds the last whole game, and cuts off what follows it."""
        size = os.fstat(self._file).st_size
        found = os.pread(self._file, max(len(self._line), min(size, _MAX_HEADER)), 0)
        line = found[: found.find(b"\n") + 1]
        if line != self._line:
            whole = size <= len(found)
            torn = whole and not line and (self._line.startswith(found) or not found.strip(b"\0"))
            other = _is_header(line) and (replace_other or (whole and line == found))
            if not (torn or other):
                raise self._other_run(line or found)
            # The file is new, was cut by a crash right at the beginning, or belongs to another run, which had not
            # finished a game or is to be replaced.
            self._truncate(0)
            self._write(self._line)
            self._sync()
            self._sync_folder()
            return
        offset = len(self._line)
        while (entry := self._entry(offset)) and entry[0] == self.games:
            self.games += 1
            self.positions += len(entry[2]) // 32
            offset += _ENTRY.size + len(entry[2])
        if offset < size:
            self._refuse_changes(offset, size)
            self.cut = size - offset
            self._truncate(offset)
        self._on_disk = self.games
        self._sync()

    def _entry(self, offset: int) -> tuple[int, int, bytes] | None:
        """(number of the game, games on disk before it, its records) if there is a sound entry at `offset`."""
        head = os.pread(self._file, _ENTRY.size, offset)
        if len(head) < _ENTRY.size:
            return None
        mark, game, count, on_disk, checksum = _ENTRY.unpack(head)
        if mark != _MARK or count > _MAX_POSITIONS:
            return None
        payload = os.pread(self._file, 32 * count, offset + _ENTRY.size)
        if len(payload) < 32 * count or checksum != self._checksum((game, count, on_disk), payload):
            return None
        return game, on_disk, payload

    def _refuse_changes(self, offset: int, size: int) -> None:
        """UserError if the damage at `offset` is in a part that was on disk when a later game was written."""
        block, step = b"", 1 << 20
        for start in range(offset, size, step):
            block = os.pread(self._file, step + len(_MARK) - 1, start)
            at = block.find(_MARK)
            while at >= 0:
                entry = self._entry(start + at)
                if entry and entry[1] > self.games:
                    raise UserError(
                        f"{self.path}: offset {offset}: expected game {self.games}, found something else, and game "
                        f"{entry[0]} at offset {start + at}: the journal was changed after it was written; delete it "
                        "to start over"
                    )
                at = block.find(_MARK, at + 1)

    def _checksum(self, numbers: tuple[int, int, int], payload: bytes) -> int:
        return zlib.crc32(payload, zlib.crc32(struct.pack("<III", *numbers), self._seed))

    def _other_run(self, line: bytes) -> UserError:
        """The differences from the options of this run, or a note that the file is not a journal."""
        message = f"{self.path}: belongs to a run with other options"
        try:
            found = json.loads(line)
            names = [name for name in {**found, **self._header} if found.get(name) != self._header.get(name)]
            message += f" ({names[0]} {quoted(found.get(names[0]))}, here {quoted(self._header.get(names[0]))})"
        except (ValueError, TypeError, AttributeError, IndexError, RecursionError):
            pass
        return UserError(f"{message}; finish that run or delete the file")

    def _write(self, data: bytes) -> None:
        self.check_owned()
        with refusing(self.path):
            while data:
                data = data[os.write(self._file, data) :]

    def _truncate(self, size: int) -> None:
        self.check_owned()
        with refusing(self.path):
            os.ftruncate(self._file, size)

    def _sync(self) -> None:
        self._end_sync()
        with refusing(self.path):
            os.fsync(self._file)
        self._on_disk = self.games
        self._last_sync = time.monotonic()

    def _end_sync(self) -> None:
        """Waits for the sync that goes on beside the games."""
        if self._syncing is None:
            return
        (games, syncing), self._syncing = self._syncing, None
        with refusing(self.path):
            syncing.result()
        self._on_disk = games

    def _sync_folder(self) -> None:
        """Makes the name of a new file survive a power cut."""
        with contextlib.suppress(OSError):  # file systems that cannot sync a folder
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _owner(path: Path) -> Path:
    return path.with_name(f"{path.name}.owner")


def _is_header(line: bytes) -> bool:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and "journal" in header
