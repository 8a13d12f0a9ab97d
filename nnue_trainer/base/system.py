"""The differences between operating systems: files, locks, limits, ends of processes, signals, waiting for events.

Linux is used and tested. Type checks for macOS and Windows pass, and tests run the code for Windows with fakes, but
nothing has run there yet. `atomic.py` needs names relative to an open folder, which Windows does not have.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from nnue_trainer.errors import UserError

if sys.platform == "win32":
    import msvcrt

    O_CLOEXEC = os.O_NOINHERIT | os.O_BINARY
    O_NOFOLLOW = O_NONBLOCK = O_DIRECTORY = 0
else:
    import fcntl
    import resource

    O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK, O_DIRECTORY = os.O_CLOEXEC, os.O_NOFOLLOW, os.O_NONBLOCK, os.O_DIRECTORY

# --- files ------------------------------------------------------------------------------------------------------------

# Windows has no positional reads: there the position of the file is moved and put back.
_moving = threading.Lock()
# Windows locks bytes, and other processes cannot read them: this one is behind what is ever written to a lock file.
_LOCKED_BYTE = 1 << 40


def pread(descriptor: int, size: int, offset: int) -> bytes:
    """At most `size` bytes from `offset` on; the position of the file stays."""
    if sys.platform == "win32":
        with _moving, _Moved(descriptor, offset):
            return os.read(descriptor, size)
    else:
        return os.pread(descriptor, size, offset)


def pread_into(descriptor: int, view: memoryview, offset: int) -> int:
    """Reads into `view`; the number of bytes read."""
    if sys.platform == "win32":
        data = pread(descriptor, len(view), offset)
        view[: len(data)] = data
        return len(data)
    else:  # noqa: RET505
        return os.preadv(descriptor, [view], offset)


def pwrite(descriptor: int, data: bytes, offset: int) -> int:
    """Writes at `offset`; the number of bytes written."""
    if sys.platform == "win32":
        with _moving, _Moved(descriptor, offset):
            return os.write(descriptor, data)
    else:
        return os.pwrite(descriptor, data, offset)


class _Moved:
    """The position of a file at `offset`, and then where it was."""

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor, self._offset = descriptor, offset

    def __enter__(self) -> None:
        self._before = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        os.lseek(self._descriptor, self._offset, os.SEEK_SET)

    def __exit__(self, *_: object) -> None:
        os.lseek(self._descriptor, self._before, os.SEEK_SET)


def lock(descriptor: int) -> None:
    """Locks an open file for this process until it is closed. BlockingIOError if another has locked it, OSError where
    the file system has no locks."""
    if sys.platform == "win32":
        try:
            with _moving, _Moved(descriptor, _LOCKED_BYTE):
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                raise BlockingIOError(error.errno, error.strerror) from None
            raise
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def make_private(descriptor: int, *, is_program: bool = False) -> None:
    """No other user may read or write the file; this one may also run a program. On Windows this follows from its
    folder."""
    if sys.platform != "win32":
        os.fchmod(descriptor, 0o700 if is_program else 0o600)


def do_not_block(descriptor: int) -> None:
    """Writes to a full pipe, and reads of an empty one, fail at once. On Windows they wait."""
    if sys.platform != "win32":
        os.set_blocking(descriptor, False)


def start_writing(descriptor: int) -> None:
    """Starts to put on disk what has been written to a file, so that a later sync has less to wait for; only on Linux.
    OSError for a descriptor without a file."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def user_id() -> int:
    """The owner of what this process creates, as in `os.stat_result.st_uid`, which is 0 on Windows."""
    if sys.platform == "win32":
        return 0
    else:  # noqa: RET505
        return os.geteuid()


def allow_open_files(needed: int) -> int | None:
    """Lets this process have this many files open, or as many as the system allows. Returns how many it may have open
    then; None: there is no limit."""
    if sys.platform == "win32":
        return None
    else:  # noqa: RET505
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return None
        if needed > soft:
            soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return soft


# --- memory -----------------------------------------------------------------------------------------------------------


def function_of_c_library(name: str) -> Any:
    """A function of the C library; None if the library has none of this name, or on a system other than Linux."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


# --- processes --------------------------------------------------------------------------------------------------------


def peak_resident_set() -> int:
    """The largest resident set of this process so far, in bytes; 0 where the system does not show it."""
    if sys.platform == "win32":
        return 0
    else:  # noqa: RET505
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def start_with(descriptor: int, command: list[str]) -> subprocess.Popen[bytes]:
    """Starts a program that inherits an open file, and that Ctrl-C ends even where it does not end this one. On Windows
    it inherits none, and Ctrl-C ends it in any case."""
    if sys.platform == "win32":
        return subprocess.Popen(command)
    else:  # noqa: RET505
        return subprocess.Popen(
            command, pass_fds=(descriptor,), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        )


def kill_group(pid: int) -> None:
    """Ends a process, which began its own group, and the processes that it started; on Windows only itself."""
    if sys.platform == "win32":
        os.kill(pid, signal.SIGTERM)  # is TerminateProcess there
    else:
        os.killpg(pid, signal.SIGKILL)


HAS_GROUPS = sys.platform != "win32"
"""Whether `kill_group` also ends the processes that a process has started."""


def around_fork(before: Callable[[], object], in_parent: Callable[[], object], in_child: Callable[[], object]) -> None:
    """Functions that run around each fork of this process; Windows has no fork."""
    if sys.platform != "win32":
        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def stop_signals() -> tuple[int, ...]:
    """The signals that end a program in an orderly way: Ctrl-C, SIGTERM, a closed terminal, and on POSIX systems those
    that schedulers of clusters send before the time or the CPU time is up. Without those that this process ignores
    because its starter did (`nohup`), except the first two."""
    if sys.platform == "win32":
        others = [signal.SIGBREAK]
    else:
        others = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU]
    handled = [number for number in others if signal.getsignal(number) != signal.SIG_IGN]
    return tuple(map(int, (signal.SIGINT, signal.SIGTERM, *handled)))


def is_schedulers(number: int) -> bool:
    """Whether a signal comes from a scheduler rather than a person. It may come several times and still mean the same:
    SIGXCPU comes each second, and SLURM sends SIGTERM to processes that torchrun sends it to as well."""
    if sys.platform == "win32":
        return number == signal.SIGTERM
    else:  # noqa: RET505 - mypy checks only one of the two branches
        return number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


def seconds_since_boot() -> float:
    """A clock on which `process_start` is given; it need not begin at the boot where that is not known."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    else:  # noqa: RET505 - mypy checks only one of the two branches
        return time.monotonic()


def process_start(pid: int | None = None) -> float | None:
    """When a process began, this one or another, on the clock of `seconds_since_boot`; None if there is no such process
    or the system does not show it."""
    if sys.platform == "linux":
        try:
            # The command's name may contain spaces; the fields after it do not. Field 22 is the start, in clock ticks.
            fields = Path(f"/proc/{pid or 'self'}/stat").read_text().rpartition(")")[2].split()
            return int(fields[19]) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None
    else:
        return None


def is_running(pid: int) -> bool:
    """Whether there is a process with this number, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def boot() -> str:
    """A name for the numbers of processes: two processes that get the same one see each other under the same numbers.
    It is new after each boot. On systems other than Linux it is the name of the host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def end_of_child(pid: int) -> tuple[int, bool] | None:
    """(exit status or number of the signal, whether it was a signal) of a child that has ended; None of one that runs,
    and where the system can only reap it.

    The child stays to be reaped: until then its number belongs to no other process."""
    if sys.platform == "linux":
        state = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return None if state is None else (state.si_status, state.si_code != os.CLD_EXITED)
    else:  # noqa: RET505
        return None


def usable_cpus() -> int:
    """The CPUs that the process may use: those that it may run on, and no more than the quota of its container."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cpus, *map(math.ceil, _cpu_quotas())]))


def _cpu_quotas(root: Path = Path("/")) -> list[float]:
    """The CPUs that each control group of this process may use at most, as version 2 (`cpu.max`) or 1 has it, from the
    innermost group outwards, without groups that have no quota. `root` is for tests."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        bases = (
            [root / "sys/fs/cgroup"] if not controllers else [root / "sys/fs/cgroup" / n for n in (controllers, "cpu")]
        )
        # In a container the path may be that of the host, and its own group is mounted as the root.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for base in bases:
            for depth in range(len(parts), -1, -1):
                quota = _quota_of(base.joinpath(*parts[:depth]), version_1=bool(controllers))
                if quota is not None:
                    found.append(quota)
    return found


def _quota_of(group: Path, *, version_1: bool) -> float | None:
    try:
        if version_1:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        else:
            quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 and int(period) > 0 else None
    except (OSError, ValueError):
        return None


# --- waiting for events -----------------------------------------------------------------------------------------------

# The events of a pipe; the numbers are those of poll and of epoll.
READABLE, WRITABLE, ENDED = 1, 4, 16


class Events(Protocol):
    """Waits for events of open pipes. `ENDED` is always among the events that are waited for."""

    def register(self, descriptor: int, events: int) -> None:
        """Waits for these events from now on."""

    def once(self, descriptor: int, events: int) -> None:
        """Waits for one of these events of a registered pipe, and then for none."""

    def unregister(self, descriptor: int) -> None:
        """Waits for this pipe no longer; OSError or KeyError if it is not registered."""

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """(descriptor, events) of the pipes with events, at most `seconds` later."""

    def close(self) -> None:
        """Ends the waiting."""


if sys.platform != "win32":

    class PolledEvents:
        """With poll, which every POSIX system has; it costs time in proportion to the number of pipes."""

        def __init__(self) -> None:
            self._poll = select.poll()
            self._once: set[int] = set()
            self.register = self._poll.register

        def once(self, descriptor: int, events: int) -> None:
            self._poll.modify(descriptor, events)
            self._once.add(descriptor)

        def unregister(self, descriptor: int) -> None:
            self._once.discard(descriptor)
            self._poll.unregister(descriptor)

        def wait(self, seconds: float) -> list[tuple[int, int]]:
            found = self._poll.poll(1000 * seconds)
            for descriptor in self._once.intersection(descriptor for descriptor, _ in found):
                self._once.remove(descriptor)
                self._poll.modify(descriptor, 0)
            return found

        def close(self) -> None:
            self._once.clear()


if sys.platform == "linux":

    class EpollEvents:
        """With epoll, whose cost does not depend on the number of pipes."""

        def __init__(self) -> None:
            self._epoll = select.epoll()
            self.register, self.unregister, self.close = self._epoll.register, self._epoll.unregister, self._epoll.close

        def once(self, descriptor: int, events: int) -> None:
            self._epoll.modify(descriptor, events | select.EPOLLONESHOT)

        def wait(self, seconds: float) -> list[tuple[int, int]]:
            if seconds > 0:  # epoll counts in milliseconds, select in microseconds
                select.select([self._epoll.fileno()], [], [], seconds)
            return self._epoll.poll(0)


def events() -> Events:
    """The best that the system has. UserError on Windows, where nothing waits for several pipes."""
    if sys.platform == "win32":
        raise UserError("games between engines need Linux or macOS; on Windows use WSL2")
    elif sys.platform == "linux":  # noqa: RET506
        return EpollEvents()
    else:
        return PolledEvents()
