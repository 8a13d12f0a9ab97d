"""What differs between operating systems and is not in Python's library; where a system lacks it, callers do without.

POSIX is taken for granted elsewhere: `fcntl`, `O_NOFOLLOW`, `dir_fd`, process groups; on Windows use WSL2 or
a container.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def seconds_since_boot() -> float:
    """A clock on which `process_start` is given; it need not begin at the boot where that is not known."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    else:  # noqa: RET505 - mypy looks at one of two branches
        return time.monotonic()


def process_start() -> float | None:
    """When this process began, on the clock of `seconds_since_boot`; None where the system does not show it."""
    try:
        # The command's name may contain spaces; the fields after it do not. Field 22 is the start, in clock ticks.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


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
    """The CPUs that the process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
