"""Waiting for something that another process or thread does."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SECONDS = 600.0  # a guard against hanging, no measurement: longer than anything takes on a busy machine


def wait_for(condition: Callable[[], object], process: "subprocess.Popen[Any] | None" = None) -> None:
    """Returns as soon as `condition()` holds. It fails if `process` ends before, and after `SECONDS`."""
    give_up = time.monotonic() + SECONDS
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            pytest.fail(f"ended with {process.returncode}: {process.stderr.read()!r}" if process.stderr else "ended")
        if time.monotonic() > give_up:
            pytest.fail(f"waited for {SECONDS:g} s")
        time.sleep(0.01)


def threads_wait() -> bool:
    """Whether all other threads of this process wait, and none has run for a moment; not those with names of their own,
    as the ones of gloo have, which look for messages now and then. Needs Linux."""
    before = _threads()
    time.sleep(0.05)
    return before == _threads() and all("State:\tS" in status for status in before)


def _threads() -> list[str]:
    """The state of each, and how often it has begun to wait."""
    found, name = [], Path("/proc/self/comm").read_text()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            lines = (task / "status").read_text().splitlines()
            if (task / "comm").read_text() == name and int(task.name) != threading.get_native_id():
                found.append(
                    " ".join(line for line in lines if line.startswith(("State:", "voluntary_ctxt_switches:")))
                )
    return found
