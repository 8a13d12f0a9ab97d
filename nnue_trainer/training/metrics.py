"""Writes the metrics of a run: metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import math
import os
import platform
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from nnue_trainer.base import distribution, extras, system
from nnue_trainer.errors import UserError
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.terminal import say

_SHOWN = 1000  # records, from which on TensorBoard gets fewer


class MetricsWriter:
    """Appends records to metrics.jsonl of the run folder and, with `tensorboard`, to a new TensorBoard event file,
    which gets fewer of them the more there are (`_is_shown`).

    Existing records for steps after `step` are dropped, since the resumed run writes them again. Broken lines at the
    end of the file, which a kill or a power cut can leave, are dropped too. If there are broken lines before its last
    record, the old file is kept as metrics-damaged-N.jsonl. UserError if metrics.jsonl exists but cannot be read.

    A failed write, for example on a full disk, does not end the run: one message reports it, and the next record is
    tried again.
    """

    def __init__(self, folder: RunFolder, step: int, tensorboard: bool):
        self._path = folder.metrics
        folder.will_write(self._path)
        with folder.replacing(self._path) as output:
            found = _copy(self._path, step, output.file)
            if found.damaged:
                aside = _unused(self._path)
                folder.link(self._path, aside)
                say(f"{self._path}: damaged, so it is kept as {aside.name}; its valid records are copied")
        self._last = (step, found.events_of_last)
        self._counts = found.counts
        self._file = _AppendedFile(self._path, folder.check_owned)
        problem = extras.missing("tensorboard") if tensorboard else None
        if problem is not None:
            say(f"logging.tensorboard: {problem}; the run writes metrics.jsonl only")
        self._events = _EventFile(folder, step) if tensorboard and problem is None else None

    def write(self, event: str, step: int, values: Mapping[str, float | int | None]) -> None:
        """Writes one record; `event` is "train" or "validation". A number that is not finite becomes null, because JSON
        has no NaN."""
        finite = {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}
        record = {"event": event, "step": step, "time": round(time.time(), 3), **finite}
        self._file.write((json.dumps(record, allow_nan=False) + "\n").encode())
        number = self._counts[event]
        self._counts[event] += 1
        if self._events is not None and _is_shown(number):
            self._events.write({f"{event}/{name}": value for name, value in values.items() if value is not None}, step)

    def has(self, event: str, step: int) -> bool:
        """Whether there was such a record of the step after which the run was resumed."""
        return step == self._last[0] and event in self._last[1]

    def make_again(self) -> None:
        """Writes all records of this process anew, for a run folder that was moved or deleted."""
        self._file.make_again()
        if self._events is not None:
            self._events.make_again()

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


class _AppendedFile:
    """A file to which records are appended. A record that was written only in part is cut off before the next one. If
    another program truncates, renames or deletes the file, a line reports it and the records continue from there.
    `check` is called before each record; if it raises, nothing is written."""

    def __init__(self, path: Path, check: Callable[[], None]):
        self._path = path
        self._check = check
        self._said = False
        self._file: int | None = None
        self._size = 0
        with self._saying():
            self._go_on_in(*self._opened())

    def write(self, record: bytes) -> None:
        self._check()
        with self._saying():
            if self._file is None:
                return
            self._check_truncation(self._file)
            written = os.write(self._file, record)  # perhaps another file than before
            if written < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += written

    def make_again(self) -> bool:
        """Puts a copy of the file at its path, where it is not any more. Returns whether it is there now; otherwise
        records continue in the file as it was, and the next call tries again."""
        before = self._file
        if before is None:
            return False
        with self._saying():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh, size = self._opened()
            try:
                if size == 0:
                    for offset in range(0, self._size, 1 << 20):
                        size += os.write(fresh, os.pread(before, min(1 << 20, self._size - offset), offset))
                    if size < self._size:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except BaseException:
                os.ftruncate(fresh, 0)
                os.close(fresh)
                raise
            self._go_on_in(fresh, size)
        return self._file != before

    def _opened(self) -> tuple[int, int]:
        """A descriptor of the file at the path, made if there is none, and its size in bytes."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        return file, os.fstat(file).st_size

    def _go_on_in(self, file: int, size: int) -> None:
        """Only after the new file is open: the number of a closed descriptor may be that of a checkpoint next."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._size = file, size

    def _check_truncation(self, file: int) -> None:
        found = os.fstat(file)
        if found.st_size < self._size:
            say(
                f"{self._path}: another program truncated it from {self._size:,} bytes to {found.st_size:,}; records "
                "continue from there"
            )
            self._size = found.st_size
        elif found.st_size > self._size:  # the last record was written only in part
            os.ftruncate(file, self._size)
        try:
            there = os.path.samestat(found, self._path.lstat())
        except FileNotFoundError:
            there = False
        if there or not self._path.parent.is_dir():
            return  # a run folder that is gone is the trainer's to make again
        if found.st_nlink == 0:
            if self.make_again():
                say(f"{self._path}: another program deleted it; it is written again with all its records")
            return
        with self._saying():
            self._go_on_in(*self._opened())
            say(f"{self._path}: another program renamed it; records continue in a new file")

    def close(self) -> None:
        if self._file is not None:
            with self._saying():
                os.close(self._file)
            self._file = None

    @contextmanager
    def _saying(self) -> Iterator[None]:
        """Catches OSError, and prints the first one."""
        try:
            yield
        except OSError as error:
            if not self._said:
                self._said = True
                say(f"{self._path}: cannot be written: {error.strerror or error}; training continues without it")


def start_imports() -> None:
    """Imports TensorBoard's modules in a thread, which takes a quarter of a second. An error appears where they are
    used."""

    def imports() -> None:
        with contextlib.suppress(Exception):
            _tensorboard()

    threading.Thread(target=imports, name="import-tensorboard").start()


def _tensorboard() -> tuple[Any, Any, Any]:
    from tensorboard.compat.proto import event_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard.summary import scalar

    return event_pb2, RecordWriter, scalar


class _EventFile:
    """A TensorBoard event file. torch's SummaryWriter is not used, because its thread ends when the disk is full: the
    run would then fail at a later record, or wait for ever when it closes the writer."""

    def __init__(self, folder: RunFolder, step: int):
        event_pb2, self._writer, self._scalar = _tensorboard()
        self._event = event_pb2
        logs = folder.path / "tensorboard"
        path = logs / f"events.out.tfevents.{time.time_ns() // 1000:016d}.{socket.gethostname()}.{os.getpid()}"
        folder.will_write(path)
        with contextlib.suppress(OSError):
            logs.mkdir(exist_ok=True)
        self._file = _AppendedFile(path, folder.check_owned)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        # After a START event, TensorBoard ignores records of later steps in older event files of the folder.
        self._append(
            event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"),
            event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=start),
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        now = time.time()
        self._append(
            *(
                self._event.Event(wall_time=now, step=step, summary=self._scalar(name, value))
                for name, value in values.items()
            )
        )

    def close(self) -> None:
        self._file.close()

    def make_again(self) -> None:
        self._file.make_again()

    def _append(self, *events: Any) -> None:
        buffer = io.BytesIO()
        writer = self._writer(buffer)
        for event in events:
            writer.write(event.SerializeToString())
        self._file.write(buffer.getvalue())


class _Found(NamedTuple):
    """The records of metrics.jsonl up to a step."""

    counts: Counter[str]
    """their number by event"""
    events_of_last: set[str]
    """those of that step"""
    damaged: bool
    """whether a line before the last record of the file is none"""


def _copy(path: Path, step: int, output: BinaryIO) -> _Found:
    """Copies the records up to a step. A missing file has none; UserError if the file cannot be read."""
    counts, last, broken, damaged = Counter[str](), set[str](), False, False
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return _Found(counts, last, damaged)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    with file:
        for line in file:
            record = _event_and_step(line)
            if record is None:
                broken = True
                continue
            damaged = broken
            event, at = record
            if at <= step:
                output.write(line)
                counts[event] += 1
            if at == step:
                last.add(event)
    return _Found(counts, last, damaged)


def _is_shown(number: int) -> bool:
    """Whether TensorBoard gets record `number`, counted from 0 by event: the first thousand, each 2nd of the next
    thousand, each 4th of the next two thousand, and so on, so that 10 million records become 15 thousand."""
    return number % (1 << (number // _SHOWN).bit_length()) == 0


def _event_and_step(line: bytes) -> tuple[str, int] | None:
    """Those of the record in `line`; None if it is not a record, or was not written to its end."""
    try:
        record: Any = json.loads(line.decode()) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return (str(record.get("event")), step) if isinstance(step, int) and step >= 0 else None


def _unused(path: Path) -> Path:
    """The first name STEM-damaged-N.SUFFIX that no file has, N = 1, 2, …"""
    names = (path.with_name(f"{path.stem}-damaged-{number}{path.suffix}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def environment(device: torch.device) -> dict[str, str]:
    """The versions and the device that a run trains with, in words; without the name of the machine."""
    on_cuda = device.type == "cuda"
    return {
        "nnue_trainer": distribution.version,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if on_cuda else f"CPU, {torch.get_num_threads()} threads",
        **({"cuda": str(torch.version.cuda)} if on_cuda else {}),
    }


def peak_memory(device: torch.device) -> int:
    """The peak memory of this process so far, in bytes: what torch has allocated on a CUDA device, or the resident set
    size for the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return system.peak_resident_set()
