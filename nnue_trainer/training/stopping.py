"""Stopping a run after its current step: by a signal, or at the request of a callback."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from nnue_trainer.base import system

T = TypeVar("T")


class Stopped(BaseException):
    """Raised when a signal stops the run during a wait for data or a validation, which can take long."""


class Stopping:
    """Whether the run must end after its current step."""

    def __init__(self) -> None:
        self._signalled = False
        self.preempted = False  # by a signal that schedulers send
        self._event = threading.Event()
        self._waiting = False

    def set(self) -> None:
        self._event.set()

    def by_signal(self) -> bool:
        return self._signalled

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, work: Callable[[], T], several: bool) -> T:
        """Does work that waits for data: a signal stops the run at once, and not only when the data has arrived. With
        several processes it does not, because they must stop after the same step."""
        if several:
            return work()
        self._waiting = True
        try:
            if self._event.is_set():
                raise Stopped
            return work()
        finally:
            self._waiting = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Installs signal handlers: the first signal of `system.stop_signals` stops the run after the current step, and
        a second one has its usual effect, unless schedulers repeat it. Does nothing outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous: dict[int, Any] = {}

        def stop(number: int, _: object) -> None:
            self._signalled = True
            self.preempted = self.preempted or system.is_schedulers(number)
            self.set()
            signal.signal(number, signal.SIG_IGN if system.is_schedulers(number) else previous[number])
            if self._waiting:
                raise Stopped

        for number in system.stop_signals():
            previous[number] = signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
