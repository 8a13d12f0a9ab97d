"""A lease takes the place of a lock on file systems that have none, such as some network file systems.

The owner creates a file with its host, boot, process, a random token and a count, and a thread raises the count six
times during a lease (`NNUE_LEASE_SECONDS`). A process that finds the file takes it over if the owner is dead:

- its process has ended, or its number belongs to another process by now (if it ran since the same boot);
- the file cannot be read, as after a crash between creating and writing it;
- the count stays the same for a whole lease, by the clock of the process that waits. So clocks need not agree.

Two processes that take over at once write one after the other, and the last one wins: each reads the file again after a
moment. An owner that was suspended for longer than a lease finds another token in the file (`Lease.lost`). If it finds
its own, another process may be about to write: so it gives a sign of life, waits for that moment, and reads again.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nnue_trainer.base import limits, system
from nnue_trainer.errors import UserError

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # of `system.lock`
_BEATS = 6  # heartbeats per lease
_LATE = 0.75  # of a lease: after so long without a sign of life another process may be about to take over
_SETTLE = 2.0  # seconds: longer than a process takes from reading a dead claim to replacing it
_UNREADABLE = 2.0  # seconds during which a claim may be incomplete, because it is being written
_LONGEST = 86400.0  # seconds of a lease that another process has written
_SIZE = 512  # bytes of a claim, so that a new count never changes its size

_held: set[str] = set()  # tokens of this process


@dataclass(frozen=True)
class _Claim:
    """The content of the file. Claims of early versions have only process and host."""

    pid: int
    host: str
    boot: str = ""
    start: float | None = None
    """when the process began, in seconds since the boot"""
    token: str = ""
    lease: float | None = None
    """seconds"""
    count: int = 0

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode().ljust(_SIZE - 1) + b"\n"

    def __str__(self) -> str:
        return f"pid {self.pid} on host {self.host!r:.80}"


class Held(UserError):
    """The owner of a lease lives. `owner` describes it."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"held by {owner}")
        self.owner = owner


class Lease:
    """The lease that the file `path` stands for. Creating it takes the lease, and waits up to `NNUE_LEASE_SECONDS` for
    a heartbeat of an owner on another host; `say` prints a line before that. `Held` if the owner lives, OSError if the
    file cannot be written."""

    def __init__(self, path: Path, say: Callable[[str], None]):
        self.path = path
        self._seconds = limits.seconds("NNUE_LEASE_SECONDS")
        self._claim = _Claim(
            os.getpid(),
            socket.gethostname(),
            system.boot(),
            system.process_start(),
            secrets.token_hex(8),
            self._seconds,
        )
        self._ended = threading.Event()
        self._signing = threading.Lock()
        self._count = 0
        self._sign = self._sure_from = system.seconds_since_boot()
        _held.add(self._claim.token)
        try:
            self._take(say)
        except BaseException:
            _held.discard(self._claim.token)
            raise
        threading.Thread(target=self._beat, name="lease", daemon=True).start()

    def lost(self, *, without_file: bool = True) -> bool:
        """Whether another process has taken the lease over. May wait for a moment if this process was suspended.
        `without_file`: what to return if the file is gone."""
        with contextlib.suppress(OSError):
            self._give_sign(since=_LATE * self._seconds)
        while (seconds := self._sure_from - system.seconds_since_boot()) > 0:
            time.sleep(seconds)
        try:
            found = _read(self.path)
        except FileNotFoundError:
            return without_file
        except OSError:  # the server does not answer: after a whole lease another process may have taken over
            return system.seconds_since_boot() - self._sign >= self._seconds
        return found is None or found.token != self._claim.token

    def release(self) -> None:
        self._ended.set()
        if not self.lost():
            self.path.unlink(missing_ok=True)
        _held.discard(self._claim.token)

    def _take(self, say: Callable[[str], None]) -> None:
        while not self._create():
            try:
                found = _readable(self.path)
                if found is not None and not _is_dead(found):
                    self._wait_for_heartbeat(found, say)
                self._sign = system.seconds_since_boot()
                with self._written() as temporary:
                    # On a slow disk the write may take longer than `_SETTLE`, so this look comes after it.
                    if _token(_read(self.path)) != _token(found):
                        continue  # meanwhile another process has taken it
                    temporary.replace(self.path)
            except FileNotFoundError:
                continue
            time.sleep(_SETTLE)
            if not self.lost():
                break
        tokens = f"{glob.escape(self.path.name)}.{'[0-9a-f]' * 16}"
        for left in self.path.parent.glob(tokens):  # of processes that were killed in `_written`
            left.unlink(missing_ok=True)

    def _create(self) -> bool:
        """Creates the file, and returns False if there is one. It is complete as soon as it exists, except where the
        file system has no hard links."""
        self._sign = system.seconds_since_boot()
        try:
            with self._written() as temporary:
                os.link(temporary, self.path)
        except FileExistsError:
            return False
        except OSError:
            try:
                file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                return False
            os.write(file, self._claim.encoded())
            os.close(file)
        return True

    @contextlib.contextmanager
    def _written(self) -> Iterator[Path]:
        """A temporary file with the claim, on disk."""
        temporary = self.path.with_name(f"{self.path.name}.{self._claim.token}")
        try:
            with temporary.open("xb") as file:
                file.write(self._claim.encoded())
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _wait_for_heartbeat(self, found: _Claim, say: Callable[[str], None]) -> None:
        """`Held` when its owner gives a sign of life."""
        lease = self._seconds if found.lease is None else found.lease
        if found.token in _held or _is_alive(found):
            raise Held(str(found))
        say(f"waits up to {lease:g} s for a sign of life of {found}, which was at work here")
        until = time.monotonic() + lease
        while time.monotonic() < until:
            time.sleep(min(lease / (2 * _BEATS), 1.0))
            try:
                now = _read(self.path)
            except FileNotFoundError:
                raise
            except OSError:  # the server does not answer now
                continue
            if now is not None and now != found:
                raise Held(str(now))
        say(f"{found} has given no sign of life: this process takes over")

    def _beat(self) -> None:
        while not self._ended.wait(max(self._seconds / _BEATS, 0.01)):
            with contextlib.suppress(OSError):
                if not self._give_sign():
                    return

    def _give_sign(self, since: float = 0.0) -> bool:
        """Raises the count, unless that was done less than `since` seconds ago. False if the lease is lost. OSError if
        the file cannot be written."""
        with self._signing:
            began = system.seconds_since_boot()
            if began - self._sign < since:
                return True
            # It is not created here. If it is replaced after it was opened, only the old file is written.
            file = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                found = _parsed(os.pread(file, 2 * _SIZE, 0))
                if found is None:
                    raise OSError(errno.EIO, "no claim can be read")
                if found.token != self._claim.token:
                    return False
                self._count += 1
                os.pwrite(file, _Claim(**asdict(self._claim) | {"count": self._count}).encoded(), 0)
                os.fsync(file)
            finally:
                os.close(file)
            now = system.seconds_since_boot()
            if now - self._sign >= _LATE * self._seconds:
                self._sure_from = now + _SETTLE
            self._sign = began
            return True


def lock(descriptor: int, owner: Path, say: Callable[[str], None]) -> Lease | None:
    """Locks an open file (`system.lock`). Where the file system has no locks, takes the lease of the file `owner`
    instead and returns it. BlockingIOError or `Held` if another process has the lock or the lease."""
    try:
        system.lock(descriptor)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return Lease(owner, say)
    return None


def _parsed(data: bytes) -> _Claim | None:
    """The claim in a file; None if there is none."""
    try:
        values = json.loads(data)
        known = {name: values[name] for name in _Claim.__dataclass_fields__ if name in values}
        claim = _Claim(**known)
        lease = None if claim.lease is None else min(max(float(claim.lease), 0.0), _LONGEST)
        start = None if claim.start is None else float(claim.start)
        pid, count = int(claim.pid), int(claim.count)
        return _Claim(pid, str(claim.host), str(claim.boot), start, str(claim.token), lease, count)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _read(path: Path) -> _Claim | None:
    """FileNotFoundError if there is no file."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # opened anew: network file systems cache
    try:
        return _parsed(os.pread(file, 2 * _SIZE, 0))
    finally:
        os.close(file)


def _readable(path: Path) -> _Claim | None:
    """The claim; None if it stays unreadable."""
    until = time.monotonic() + _UNREADABLE
    while (found := _read(path)) is None and time.monotonic() < until:
        time.sleep(0.02)
    return found


def _token(claim: _Claim | None) -> str | None:
    return None if claim is None else claim.token


def _is_here(claim: _Claim) -> bool:
    """Whether numbers of processes in the claim mean the same here."""
    return claim.boot == system.boot() if claim.boot else claim.host == socket.gethostname()


def _is_dead(claim: _Claim) -> bool:
    """Whether the process of a claim has surely ended."""
    if not _is_here(claim) or claim.token in _held:
        return False
    if claim.pid == os.getpid():
        return True  # of an earlier process with the same number, as in containers
    if not system.is_running(claim.pid):
        return True
    start = system.process_start(claim.pid)
    return None not in (claim.start, start) and claim.start != start


def _is_alive(claim: _Claim) -> bool:
    """Whether the process of a claim surely runs."""
    if not _is_here(claim) or claim.start is None:
        return False
    return system.is_running(claim.pid) and system.process_start(claim.pid) == claim.start
