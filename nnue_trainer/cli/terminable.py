"""The end of commands: all signals clean up as Ctrl-C does, and a second one ends a training in any case."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator

from nnue_trainer.base import system
from nnue_trainer.base.status import INTERRUPTED, Preempted

_PATIENCE = 5.0  # seconds


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it each signal of `system.stop_signals` ends the program as Ctrl-C does: files that are being written go,
    nothing half-done stays. Afterwards these signals, without Ctrl-C, are ignored: the program ends with the status
    that it has. Does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _: object) -> None:
        if system.is_schedulers(number):
            signal.signal(number, signal.SIG_IGN)
            raise Preempted
        raise KeyboardInterrupt

    others = [number for number in system.stop_signals() if number != signal.SIGINT]  # Python's own handler is enough
    for number in others:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in others:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def ended_by_second_signal() -> Iterator[None]:
    """Within it the second signal of a kind in `system.stop_signals` always ends the program, unless schedulers repeat
    it: if the program has not ended by itself after five seconds, it ends as interrupted, whatever code of users or of
    libraries its threads are in."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    done, ours = threading.Event(), system.stop_signals()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # written by Python's handler in C

    def watch() -> None:
        seen: Counter[int] = Counter()
        while numbers := os.read(reading, 64):
            seen.update(number for number in numbers if number in ours and not system.is_schedulers(number))
            if max(seen.values(), default=0) >= 2 and not done.wait(_PATIENCE):
                print("nnue: error: interrupted", file=sys.stderr, flush=True)
                os._exit(INTERRUPTED)
        os.close(reading)

    threading.Thread(target=watch, name="signals", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
