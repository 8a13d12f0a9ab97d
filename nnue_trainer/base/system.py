"""The differences between Linux and macOS: locks, limits, ends of processes, signals, waiting for events.

Linux is used and tested. Type checks for macOS pass, but nothing has run there yet. Windows is refused when the package
is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import math
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

# --- files ------------------------------------------------------------------------------------------------------------


def lock(descriptor: int) -> None:
    """Locks an open file for this process until it is closed. BlockingIOError if another has locked it, OSError where
    the file system has no locks."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def wait_for_lock(descriptor: int, wait: Callable[[], object]) -> bool:
    """`lock` as soon as no other process has it; until then `wait` is called every 50 ms. Returns whether another
    one had it. Where the file system has no locks, returns at once."""
    waited = False
    while True:
        try:
            lock(descriptor)
            return waited
        except BlockingIOError:
            waited = True
            time.sleep(0.05)
            wait()
        except OSError:
            return waited


def is_named(descriptor: int, path: str | Path, *, dir_fd: int | None = None, follow_symlinks: bool = False) -> bool:
    """Whether the open file is still the one that `path` names; False if nothing has this name."""
    try:
        found = os.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), found)


def start_writing(descriptor: int) -> None:
    """Starts to put on disk what has been written to a file, so that a later sync has less to wait for; only on Linux.
    OSError for a descriptor without a file."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def allow_open_files(needed: int) -> int | None:
    """Lets this process have this many files open, or as many as the system allows. Returns how many it may have open
    then; None: there is no limit."""
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
    """The largest resident set of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def start_with(descriptor: int, command: list[str]) -> subprocess.Popen[bytes]:
    """Starts a program that inherits an open file, and that Ctrl-C ends even where it does not end this one."""
    return subprocess.Popen(
        command, pass_fds=(descriptor,), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )


def stop_signals() -> tuple[int, ...]:
    """The signals that end a program in an orderly way: Ctrl-C, SIGTERM, a closed terminal, and those that schedulers
    of clusters send before the time or the CPU time is up. Without those that this process ignores because its starter
    did (`nohup`), except the first two."""
    others = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU]
    handled = [number for number in others if signal.getsignal(number) != signal.SIG_IGN]
    return tuple(map(int, (signal.SIGINT, signal.SIGTERM, *handled)))


def is_schedulers(number: int) -> bool:
    """Whether a signal comes from a scheduler rather than a person. It may come several times and still mean the same:
    SIGXCPU comes each second, and SLURM sends SIGTERM to processes that torchrun sends it to as well."""
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
    """Whether there is a process with this number, of any user, that has not ended. One that has ended and waits for
    its parent, as in containers without an init process, does not run."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1]
        return state not in ([b"Z"], [b"X"])
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
    return max(1, min([_own_cpus(), *map(math.ceil, _cpu_quotas())]))


def limit_threads() -> None:
    """Makes torch, which is not loaded yet, and the programs that this process starts use `usable_cpus()` threads where
    a quota allows fewer CPUs than the process may run on, since OpenMP does not see a quota. The user's OMP_NUM_THREADS
    comes first."""
    if (cpus := usable_cpus()) < _own_cpus():
        os.environ.setdefault("OMP_NUM_THREADS", str(cpus))


def _own_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache  # it is read for each small batch
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
        # In a container the path may be the host's, and its own group is mounted as the root.
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

# The events of a pipe; poll and epoll use these numbers.
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
            # epoll counts in milliseconds, and select in microseconds, but it takes no descriptor from 1024 on.
            if seconds > 0 and self._epoll.fileno() < 1024:
                select.select([self._epoll.fileno()], [], [], seconds)
                seconds = 0
            return self._epoll.poll(max(seconds, 0))


def events() -> Events:
    """The best that the system has."""
    if sys.platform == "linux":
        return EpollEvents()
    else:  # noqa: RET505 - mypy checks only one of the two branches
        return PolledEvents()
