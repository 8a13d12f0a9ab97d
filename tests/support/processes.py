"""How the tests start and end, started by a shell, a program, `nohup`, `setsid`, cron.

Children inherit what the starter ignored: under `nohup` or behind `&` in a script that is SIGHUP and SIGINT, and a
child that is to be interrupted would run for ever. A signal that is *handled* here is at its default in children, so
each gets a handler. At the end of the session nothing that the tests started is left: orphans become children of this
process, which ends all it has.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from nnue_trainer.base import system

_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def restored_signals() -> Iterator[None]:
    """For a command in this process: at its end it ignores signals, as the process would end."""
    handlers = {number: signal.getsignal(number) for number in system.stop_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def set_signals() -> None:
    """Children start with default signals, none of them blocked; SIGTERM ends the session as Ctrl-C does."""

    def ignore(number: int, frame: FrameType | None) -> None:
        pass

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # of nohup: the tests go on, their children do not inherit it
        signal.signal(signal.SIGHUP, ignore)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def adopt_orphans() -> None:
    """Makes this process the parent of processes whose parent, a child of this one, has ended."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> dict[int, str]:
    """The processes that this one has, with their command lines; not those that have ended."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            for pid in map(int, (task / "children").read_text().split()):
                with contextlib.suppress(OSError):
                    if line := Path(f"/proc/{pid}/cmdline").read_bytes():
                        found[pid] = line.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def end_children() -> dict[int, str]:
    """Kills all processes that this one has, and theirs; returns what they were."""
    ended: dict[int, str] = {}
    for _ in range(100):  # killing one makes its children ours
        left = children()
        if not left:
            break
        ended |= left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return ended


def run_on_a_full_disk(command: list[str], size: int) -> subprocess.CompletedProcess[str]:
    """Runs a command none of whose files can exceed `size` bytes.

    It writes no bytecode either. Python does not check how much of it was written: a limit would leave modules in the
    environment that no later process can import.
    """

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=limit)
