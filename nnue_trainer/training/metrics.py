"""What a run says: metrics.jsonl, TensorBoard events, and one line of progress on the terminal."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, TextColumn

from nnue_trainer.atomic import replacing
from nnue_trainer.errors import UserError

# Seconds between two updates, on a terminal and elsewhere.
MOVING_LINE_EVERY = 0.2
PLAIN_LINE_EVERY = 5.0


class MetricsWriter:
    """Appends records to `folder`/metrics.jsonl and, if asked, to TensorBoard events in `folder`/tensorboard.

    What an earlier run wrote for steps after `step` is dropped: the resumed run writes it again.
    """

    def __init__(self, folder: Path, step: int, tensorboard: bool):
        self.path = folder / "metrics.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        kept = [line for line, record in _records(self.path) if record["step"] <= step]
        with replacing(self.path) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")
        self._file = self.path.open("a", encoding="utf-8")
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, event: str, step: int, values: Mapping[str, float | int | None]) -> None:
        """One record; `event` is "train" or "validation"."""
        record = {"event": event, "step": step, "time": round(time.time(), 3), **values}
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from None
        if self._events is not None:
            for name, value in values.items():
                if value is not None:
                    self._events.add_scalar(f"{event}/{name}", value, step)

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Lines and what they say, of a file that may be absent or end in half a line. UserError names a line that is not a
    record."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            return
        try:
            record = json.loads(line)
            int(record["step"])
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{path}:{number}: found {line.strip()[:60]!r}, expected a record of this run") from None
        yield line, record


class ProgressLine:
    """Progress on standard error: one line that moves on a terminal, a plain line every few seconds elsewhere."""

    def __init__(self, steps: int, steps_per_epoch: int, batch_size: int, step: int):
        self.console = Console(stderr=True, highlight=False)
        self._steps, self._steps_per_epoch, self._batch_size = steps, steps_per_epoch, batch_size
        self._first_step: int | None = None
        self._started = self._last_shown = time.monotonic()
        self._paused = 0.0
        self._figures: dict[str, str] = {}
        self._bar: Progress | None = None
        if self.console.is_terminal:
            self._bar = Progress(TextColumn("{task.description}", markup=False), console=self.console)
            self._task = self._bar.add_task("", total=steps, completed=step)
            self._bar.start()

    def update(self, step: int, **figures: str) -> None:
        """Shows `step` done and figures such as loss="0.0123"; figures stay until they are replaced."""
        self._figures |= figures
        now = time.monotonic()
        if self._first_step is None:  # the first step warms up, and may compile; speed counts from its end
            self._first_step, self._started = step, now
        wait = MOVING_LINE_EVERY if self._bar else PLAIN_LINE_EVERY
        if now - self._last_shown < wait and not (figures and step == self._steps):
            return
        self._last_shown = now
        speed = (step - self._first_step) / max(now - self._started - self._paused, 1e-9)
        eta = timedelta(seconds=round((self._steps - step) / speed)) if speed > 0 else "?"
        epoch = max(step - 1, 0) // self._steps_per_epoch + 1
        parts = [f"epoch {epoch}/{self._steps // self._steps_per_epoch}", f"step {step:,}/{self._steps:,}"]
        parts += [f"{name} {text}" for name, text in self._figures.items()]
        parts += [f"{positions(speed * self._batch_size)} pos/s", f"ETA {eta}"]
        if self._bar:
            self._bar.update(self._task, completed=step, description="  ".join(parts))
        else:
            print("  ".join(parts), file=sys.stderr, flush=True)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time in here does not count as training."""
        started = time.monotonic()
        yield
        self._paused += time.monotonic() - started

    def say(self, text: str) -> None:
        """A line of its own, above the progress."""
        self.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()


def positions(number: float) -> str:
    """A number of positions for people: 950, 12.3 k, 4.5 M."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.0f}"


def peak_memory(device: torch.device) -> int:
    """Most bytes ever in use: of the device's memory for CUDA, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
