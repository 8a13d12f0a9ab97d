"""Waiting for something that another process does."""

import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest


def wait_for(condition: Callable[[], object], process: "subprocess.Popen[Any] | None" = None) -> None:
    """Returns as soon as `condition()` holds. It fails if `process` ends before, and after ten minutes: that is a guard
    against hanging, no measurement."""
    give_up = time.monotonic() + 600
    while not condition():
        if process is not None and process.poll() is not None:
            pytest.fail(f"ended with {process.returncode}: {process.stderr.read()!r}" if process.stderr else "ended")
        if time.monotonic() > give_up:
            pytest.fail("waited for ten minutes")
        time.sleep(0.01)
