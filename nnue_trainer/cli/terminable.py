"""The end of long commands: SIGTERM cleans up as Ctrl-C does, and a second signal ends the program in any case."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator

from nnue_trainer.base import system

_PATIENCE = 5.0  # seconds


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it SIGTERM ends the program as Ctrl-C does: files that are being written go, nothing half-done stays."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ended_by_second_signal(status: int) -> Iterator[None]:
    """Within it the second SIGINT, SIGTERM or SIGHUP always ends the program: if it has not ended by itself after five
    seconds, it ends with `status`, whatever code of users or of libraries its threads are in."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    done = threading.Event()
    reading, writing = os.pipe()
    system.do_not_block(writing)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # written by Python's handler in C

    def watch() -> None:
        seen: Counter[int] = Counter()
        while numbers := os.read(reading, 64):
            seen.update(number for number in numbers if number in system.stop_signals())
            if max(seen.values(), default=0) >= 2 and not done.wait(_PATIENCE):
                print("nnue: error: interrupted", file=sys.stderr, flush=True)
                os._exit(status)
        os.close(reading)

    threading.Thread(target=watch, name="signals", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
