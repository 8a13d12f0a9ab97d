"""Waiting for something that another process does."""

import subprocess
import time
from collections.abc import Callable
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
