"""What long commands share: a progress bar, and an end by SIGTERM that cleans up as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Protocol


class ShowProgress(Protocol):
    """Shows what is done and what there is in all; `what`, if given, is the new name of what is going on."""

    def __call__(self, done: int, total: int, what: str | None = None) -> None: ...


@contextlib.contextmanager
def progress_bar(what: str, unit: str = "bytes") -> Iterator[ShowProgress]:
    """A progress bar on stderr, where that is a terminal; the callback takes done and total."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    counter = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        counter,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int, what: str | None = None) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield show


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
