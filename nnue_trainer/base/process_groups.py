"""Programs that end with this process, however it ends.

A program runs in a process group, together with the processes that it starts. A process that was killed cannot end its
children, and a program that hangs does not notice that its standard input was closed. Therefore a watcher, a small
Python process, reads from a pipe whose other end only this process has: when the pipe ends, it kills the groups that
still run. The watcher runs only while there are any. Where the system cannot start one, programs end with this process
unless it is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

_WATCHER = """
import os, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, 9)
    except OSError:
        pass
"""


_SECONDS = 10.0  # for the watcher to end


class _Watcher:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        with self.lock:
            self._groups.add(group)
            self._send(f"+{group}\n")

    def discard(self, group: int) -> None:
        with self.lock:
            if group in self._groups:
                self._groups.discard(group)
                self._send(f"-{group}\n")
                if not self._groups:
                    self.close()

    def _send(self, line: str) -> None:
        with contextlib.suppress(OSError):
            if self._process is not None:
                with contextlib.suppress(BrokenPipeError):  # the watcher was killed: start another
                    self._write(line)
                    return
                self.close()
            if self._groups:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _WATCHER],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,  # signals of the terminal do not reach it
                )
                self._write("".join(f"+{group}\n" for group in self._groups))

    def _write(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())

    def close(self) -> None:
        """Closes the pipe: the watcher kills the groups that still run, and ends."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(timeout=_SECONDS)
            except subprocess.TimeoutExpired:  # it was stopped, or the pipe is open elsewhere: native code can fork too
                for group in self._groups:
                    with contextlib.suppress(OSError):
                        os.killpg(group, signal.SIGKILL)
                self._process.kill()
                self._process.wait()
            self._process = None

    def forget(self) -> None:
        """In a child that was forked: the watcher and its groups belong to the parent."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.returncode = 0
        self.__init__()  # type: ignore[misc]  # also the lock, which this thread took before the fork


_watcher = _Watcher()
atexit.register(_watcher.close)
# No fork while a watcher starts: the child would keep the pipe open, and the watcher would not see it end. Looked up at
# each fork, since `forget` replaces the lock.
os.register_at_fork(
    before=lambda: _watcher.lock.acquire(),
    after_in_parent=lambda: _watcher.lock.release(),
    after_in_child=_watcher.forget,
)


def start(
    command: Sequence[str],
    *,
    stdin: int | IO[bytes] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a program in a process group, with unbuffered pipes; end it with `end`. Ctrl-C in a terminal reaches only
    this process. OSError and ValueError as those of subprocess."""
    process = subprocess.Popen(command, bufsize=0, stdin=stdin, stdout=stdout, stderr=stderr, env=env, process_group=0)
    _watcher.add(process.pid)
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the group of a process that was not reaped yet; afterwards its number may be another process's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes], *, seconds: float = 10) -> None:
    """Kills the group of a process and reaps the process, unless that takes longer than `seconds`."""
    if process.returncode is None:
        kill(process)
    _watcher.discard(process.pid)
    if process.returncode is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)


def run(
    command: Sequence[str],
    *,
    input: bytes | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """subprocess.run, except that at an exception, a timeout included, all that the program has started is killed."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    process = start(command, stdin=stdin, stdout=stdout, stderr=stderr)
    try:
        printed, errors = process.communicate(input, timeout)
        return subprocess.CompletedProcess(command, process.returncode, printed, errors)
    finally:
        end(process)
