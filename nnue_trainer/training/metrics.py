"""The records of a run: metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nnue_trainer.atomic import replacing
from nnue_trainer.errors import UserError
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.terminal import say


class MetricsWriter:
    """Appends records to metrics.jsonl of the run folder and, if asked, to a TensorBoard event file.

    Records of an earlier process for steps after `step` are dropped, since the resumed run writes them again. A broken
    end of the file, which a kill or a power cut can leave, is dropped too. A file that is damaged before its end is
    renamed and kept.

    Neither file ever ends a run: if one cannot be written (a full disk), one message says so, and the next record tries
    again.
    """

    def __init__(self, folder: RunFolder, step: int, tensorboard: bool):
        self._path = folder.metrics
        folder.will_write(self._path)
        kept, sound = _read(self._path)
        if not sound:
            aside = _unused(self._path)
            folder.link(self._path, aside)
            say(f"{self._path}: damaged, so it is kept as {aside.name}; the records that are sound stay")
        with replacing(self._path) as output:
            output.write_text("".join(line for line, at in kept if at <= step))
        self._file = _AppendedFile(self._path)
        self._events = _EventFile(folder, step) if tensorboard else None

    def write(self, event: str, step: int, values: Mapping[str, float | int | None]) -> None:
        """One record; `event` is "train" or "validation". A number that is not finite becomes null, as JSON has no
        NaN."""
        finite = {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}
        record = {"event": event, "step": step, "time": round(time.time(), 3), **finite}
        self._file.write((json.dumps(record, allow_nan=False) + "\n").encode())
        if self._events is not None:
            self._events.write({f"{event}/{name}": value for name, value in values.items() if value is not None}, step)

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


class _AppendedFile:
    """A growing file of records. A record that cannot be written as a whole is not written at all."""

    def __init__(self, path: Path):
        self._path = path
        self._said = False
        self._file: int | None = None
        self._size = 0
        with self._saying():
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self._size = os.fstat(self._file).st_size

    def write(self, record: bytes) -> None:
        with self._saying():
            if self._file is None:
                return
            if os.fstat(self._file).st_size != self._size:  # a record that was written in part
                os.ftruncate(self._file, self._size)
            written = os.write(self._file, record)
            if written < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += written

    def close(self) -> None:
        if self._file is not None:
            with self._saying():
                os.close(self._file)
            self._file = None

    @contextmanager
    def _saying(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._said:
                self._said = True
                say(f"{self._path}: cannot be written: {error.strerror or error}; training goes on without it")


class _EventFile:
    """A TensorBoard event file. It replaces torch's SummaryWriter, whose thread a full disk ends for good: the run then
    fails at a later record, or waits for ever when the writer is closed."""

    def __init__(self, folder: RunFolder, step: int):
        from tensorboard.compat.proto import event_pb2  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
        from torch.utils.tensorboard.summary import scalar

        self._event, self._writer = event_pb2, RecordWriter
        self._scalar: Callable[[str, float], Any] = scalar
        logs = folder.path / "tensorboard"
        path = logs / f"events.out.tfevents.{time.time_ns() // 1000:016d}.{socket.gethostname()}.{os.getpid()}"
        folder.will_write(path)
        with contextlib.suppress(OSError):
            logs.mkdir(exist_ok=True)
        self._file = _AppendedFile(path)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        # Later records in older files of the folder belong to steps that this run has dropped.
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

    def _append(self, *events: Any) -> None:
        buffer = io.BytesIO()
        writer = self._writer(buffer)
        for event in events:
            writer.write(event.SerializeToString())
        self._file.write(buffer.getvalue())


def _read(path: Path) -> tuple[list[tuple[str, int]], bool]:
    """The records of a file, which may be absent, as (line, step), and whether the file is sound up to its last
    record."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # after the last line end comes half a line or nothing
    except FileNotFoundError:
        return [], True
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    steps = [_step(line) for line in lines]
    while steps and steps[-1] is None:
        steps.pop()
    found = [(line.decode() + "\n", step) for line, step in zip(lines, steps, strict=False) if step is not None]
    return found, len(found) == len(steps)


def _step(line: bytes) -> int | None:
    """Of a record; None where the line is something else."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return step if isinstance(step, int) and step >= 0 else None


def _unused(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.stem}-damaged-{number}{path.suffix}")).exists():
        number += 1
    return aside


def environment(device: torch.device) -> dict[str, str]:
    """A description of the hardware and software that a run trains on, without the name of the machine."""
    from nnue_trainer import __version__

    on_cuda = device.type == "cuda"
    return {
        "nnue_trainer": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if on_cuda else f"CPU, {torch.get_num_threads()} threads",
        **({"cuda": str(torch.version.cuda)} if on_cuda else {}),
    }


def peak_memory(device: torch.device) -> int:
    """The largest number of bytes in use so far: of the device's memory for CUDA, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
