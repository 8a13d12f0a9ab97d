"""Writes the checkpoints of one run in the background, and deletes old ones. A checkpoint is never written in part.

`last` is always written first, by one rename. `epoch-0012.safetensors` (after an epoch) is a hard link to it that is
made afterwards, and `best` (the lowest validation loss) is the part of it that exports and compares. If the process is
killed in between, one of them is missing or stale; `continue_from` repairs it from what `last` holds. A checkpoint in
the middle of an epoch has no link.

A save copies tensors and state, and returns; it does not wait for the disk. While one checkpoint is written, one more
can wait. If a third comes, one of the two that are not being written is left out, where the folder will be the same
without it: the older one if the newer one would replace all its files, or the newer one if the older one is the best.
Otherwise the save waits. So the disk does not slow down a run of short epochs, and a kill costs at most two writes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import filecmp
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from nnue_trainer.base import limits
from nnue_trainer.base.progress import duration, size
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.files.atomic import DiskFull, free_space
from nnue_trainer.files.checkpoint import Checkpoint, TrainerState
from nnue_trainer.training.memory import PageLocked
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.terminal import say

_SECONDS_BETWEEN_TRIES = 10.0  # of a write to a full disk
_ALIGNMENT = 64  # bytes, of tensors in host memory


class _Until(enum.Enum):
    """The first later checkpoint that deletes the one in hand: the next, the next of an epoch, or one after these."""

    NEXT = enum.auto()
    NEXT_EPOCH = enum.auto()
    LATER = enum.auto()


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A checkpoint to be written."""

    content: Checkpoint
    memory: _HostMemory
    copied: torch.cuda.Event | None
    epoch: int | None
    is_best: bool
    until: _Until


@dataclasses.dataclass(eq=False)
class CheckpointStore:
    """The checkpoints in a run folder, whose lock the caller holds. A context manager: its exit waits until everything
    is on disk and raises the error of a write that failed."""

    folder: RunFolder
    keep_last: int
    """how many checkpoints of epochs are kept, the newest ones"""
    every: int = 1
    """checkpoints of epochs that are a multiple of it are always written; others only where there is time"""
    keep_every: int = 0
    """checkpoints of epochs that are a multiple of it are never deleted; 0: none"""
    in_a_hurry: Callable[[], bool] = lambda: False
    """returns whether a write must not wait for room on a full disk"""
    whole_best: bool = False
    """whether `best` is a complete checkpoint, as a later stage that takes it with the optimiser's state needs"""

    def __post_init__(self) -> None:
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writes: list[Future[None]] = []
        self._lock = threading.Lock()
        self._queue: deque[_Entry] = deque()
        self._failed = False  # a write failed, and its error was not raised yet: nothing more is written
        self._patience = limits.seconds("NNUE_FULL_DISK_SECONDS")
        self._write_began: float | None = None
        self._write_seconds = 0.0
        self.written_step: int | None = None
        """the step of the newest checkpoint that this object has put on disk"""
        self._free = [_HostMemory(), _HostMemory()]  # for the checkpoint that is being written and the one that waits

    def continue_from(self, path: Path, state: TrainerState) -> Path | None:
        """Restores the state that the folder had when `path`, a checkpoint in it, was saved. `state` is the state in
        `path`.

        If there are checkpoints of later steps, they are moved to a folder `superseded-N`, which also gets recipe and
        metrics, and which is returned. `last` becomes a link to `path`; missing or stale links are repaired, and
        old checkpoints go that the save of `path` would have deleted.
        """
        folder = self.folder
        later = [file for file in self._files() if _step_of(file) > state.step]
        kept = None
        if later:
            kept = folder.supersede([*later, folder.recipe, folder.metrics])
        if not (folder.last.exists() and folder.last.samefile(path)) and path != folder.last:
            folder.link(path, folder.last)
        for file in later:
            if file != folder.last:
                folder.remove(file)
        if state.epoch is not None and not folder.epoch(state.epoch).exists():
            folder.link(folder.last, folder.epoch(state.epoch))
        self._mend_best(state)
        if not later:
            self._thin_out()
        return kept

    def best_of_folder(self) -> Checkpoint | None:
        """The checkpoint `best` without tensors; None if the run has no such checkpoint or it is damaged."""
        return _read(self.folder.best) if self.folder.owns(self.folder.best) else None

    def retire_best(self) -> Path:
        """Renames `best`, whose loss no longer compares with those to come. Returns its new path."""
        folder = self.folder
        kept = next((path for path in folder.earlier_bests() if filecmp.cmp(path, folder.best, shallow=False)), None)
        if kept is None:
            kept = folder.next_earlier_best()
            folder.link(folder.best, kept)
        folder.remove(folder.best)
        return kept

    def warn_of_little_room(self, tensors: Mapping[str, Mapping[str, Tensor]], epochs: int) -> None:
        """Prints a line if the disk lacks the room for the checkpoints that a run of this many epochs keeps, with one
        that is being written. `tensors` of a checkpoint, by group."""
        of_one = sum(tensor.nbytes for of in tensors.values() for tensor in of.values())
        of_net = sum(tensor.nbytes for tensor in tensors["model"].values())
        older = max(epochs - self.keep_last * self.every, 0)
        kept = min(self.keep_last, -(-epochs // self.every)) + (older // self.keep_every if self.keep_every else 0)
        there = {path.stat().st_ino for path in self._files() if path != self.folder.best}
        need = of_one * max(kept + 2 - len(there), 1)  # beside them `last` and the temporary file
        need += of_one if self.whole_best else of_net  # for `best`
        if need > (free := free_space(self.folder.path)):
            say(
                f"{self.folder.path}: its checkpoints may need another {size(need)} ({size(of_one)} each), but the "
                f"disk has {size(free)} free; free some space, or lower training.keep_last"
            )

    def reserve(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Allocates, in the background, the host memory for checkpoints of such tensors by group. Without it the first
        saves allocate it."""
        for memory in self._free:
            self._writes.append(self._writer.submit(memory.reserve, _bytes_on_gpu(tensors)))

    def save(self, content: Checkpoint, *, epoch: int | None, is_best: bool = False, final: bool = False) -> bool:
        """Copies `content`, which is then written in the background, and returns True; False if it is left out. Raises
        the error of an earlier write.

        `epoch`: the epoch that has ended, from 1; None in the middle of an epoch. `final`: no later checkpoint follows,
        so this one is not left out.
        """
        until = self._until(epoch)
        while True:
            self.check()
            with self._lock:
                if self._free:
                    memory = self._free.pop()
                    break
                old = self._queue[-1] if self._queue else None
                # One that waits, and all of whose files this one would replace, need not be written.
                if (
                    old is not None
                    and (is_best or not old.is_best)
                    and (old.until is _Until.NEXT or (old.until is _Until.NEXT_EPOCH and epoch is not None))
                ):
                    memory = self._queue.pop().memory
                    break
            if old is not None and old.is_best and not is_best and not final and until is not _Until.LATER:
                return False
            self._finish(self._writes[0])
        try:
            tensors, copied = memory.copy(content.tensors)
            state = copy.deepcopy(content.state)  # callbacks change their memory while this waits for the disk
        except BaseException:
            with self._lock:
                self._free.append(memory)
            raise
        with self._lock:
            snapshot = dataclasses.replace(content, tensors=tensors, state=state)
            self._queue.append(_Entry(snapshot, memory, copied, epoch, is_best, until))
        self._writes.append(self._writer.submit(self._write_next))
        return True

    def write_seconds(self) -> float:
        """How long the last write took, or how long the current one has taken, whichever is longer."""
        began = self._write_began
        return max(self._write_seconds, 0.0 if began is None else time.monotonic() - began)

    def check(self) -> None:
        """Raises the error of a write that has failed. Does not wait."""
        while self._writes and self._writes[0].done():
            self._finish(self._writes[0])

    def wait(self) -> None:
        """Waits until everything that was saved is on disk; raises the error of a write that failed."""
        while self._writes:
            self._finish(self._writes[0])

    def _finish(self, write: Future[None]) -> None:
        try:
            write.result()
        except BaseException:
            self._failed = False  # the caller decides whether more is saved
            raise
        finally:
            # It leaves the list only when it is done: another thread may wait for it, too (`Trainer._last_good`).
            with contextlib.suppress(ValueError):
                self._writes.remove(write)

    def _until(self, epoch: int | None) -> _Until:
        if self._is_kept(epoch):
            return _Until.LATER
        if epoch is None or epoch % self.every:
            return _Until.NEXT
        return _Until.LATER if self.keep_last > 1 else _Until.NEXT_EPOCH

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._writer.shutdown()
            for memory in self._free:
                memory.free()

    def _write_next(self) -> None:
        with self._lock:
            if not self._queue:
                return  # it took the place of one that waited
            entry = self._queue.popleft()
        try:
            if entry.copied is not None:
                entry.copied.synchronize()
            if not self._failed:
                self._write_began = began = time.monotonic()
                self._write_patiently(entry)
                self._write_seconds = time.monotonic() - began
                self.written_step = int(entry.content.state["step"])
        except BaseException:
            self._failed = True
            raise
        finally:
            self._write_began = None
            with self._lock:
                self._free.append(entry.memory)

    def _write_patiently(self, entry: _Entry) -> None:
        """Writes. While the disk is full, tries again for `NNUE_FULL_DISK_SECONDS`, or until a signal ends the run."""
        until: float | None = None
        while True:
            try:
                self._write(entry.content, entry.epoch, entry.is_best)
                if until is not None:
                    say(f"{self.folder.last}: there is room again, and the checkpoint is written")
                return
            except DiskFull as error:
                now = time.monotonic()
                if until is None:
                    until = now + self._patience
                    say(f"{error}; the checkpoint is tried again for {duration(self._patience)}")
                if now >= until or self.in_a_hurry():
                    raise
                again = now + min(_SECONDS_BETWEEN_TRIES, until - now)
                while time.monotonic() < again and not self.in_a_hurry():
                    time.sleep(0.02)

    def _write(self, content: Checkpoint, epoch: int | None, is_best: bool) -> None:
        folder = self.folder
        names = [folder.last] if epoch is None else [folder.last, folder.epoch(epoch)]
        folder.will_write(*names, *([folder.best] if is_best else []))
        checkpoint.save(folder.last, content, folder.check_owned)
        if epoch is not None:
            folder.link(folder.last, folder.epoch(epoch))
        if is_best and self.whole_best:
            folder.link(folder.last, folder.best)
        elif is_best:
            checkpoint.save(folder.best, content.of_net(), folder.check_owned)
        self._thin_out()

    def _thin_out(self) -> None:
        """Deletes old checkpoints of epochs."""
        epochs = self.folder.epochs()
        for number in sorted(epochs)[: -self.keep_last]:
            if not self._is_kept(number):
                self.folder.remove(epochs[number])

    def _is_kept(self, epoch: int | None) -> bool:
        return bool(epoch and self.keep_every and epoch % self.keep_every == 0)

    def _files(self) -> list[Path]:
        """The existing checkpoints that the run wrote."""
        names = [self.folder.last, self.folder.best]
        return [path for path in names if self.folder.owns(path) and path.is_file()] + [
            *self.folder.epochs().values(),
            *self.folder.stages(),
        ]

    def _mend_best(self, state: TrainerState) -> None:
        """Makes `best` the checkpoint that had the lowest validation loss at the time of `state`, if that checkpoint
        still exists as `epoch-N`. `best` is wrong if the process was killed before it was linked, if a later checkpoint
        was the best one, or if a stage that needs it complete was added since."""
        best = self.folder.best
        copies = [path for path in _copies_of_best(self.folder, state) if path != best or self.folder.owns(best)]
        if self.whole_best:
            copies.sort(key=_is_complete, reverse=True)
        if not copies or copies[0] == best:
            return
        if self.whole_best or copies[0] in self.folder.earlier_bests():
            self.folder.link(copies[0], best)
        else:
            self.folder.will_write(best)
            checkpoint.save(best, checkpoint.load(copies[0]).of_net(), self.folder.check_owned)


class _HostMemory:
    """Copies tensors to the host. Those on a GPU are copied to page-locked memory, which is allocated once, by the
    device and without waiting for it: work queued later on the same stream may change them."""

    def __init__(self) -> None:
        self._locked: PageLocked | None = None
        self._lock = threading.RLock()  # an early save and the background may both reserve

    def reserve(self, size: int) -> None:
        with self._lock:
            if size and (self._locked is None or len(self._locked.bytes) < size):
                self.free()
                self._locked = PageLocked(size)

    def free(self) -> None:
        with self._lock:
            if self._locked is not None:
                self._locked.free()
            self._locked = None

    def copy(
        self, tensors: Mapping[str, Mapping[str, Tensor]]
    ) -> tuple[dict[str, dict[str, Tensor]], torch.cuda.Event | None]:
        """Copies of all tensors, by group and name, and the event after which they are complete; None: they are."""
        place, device = 0, None

        def copied(tensor: Tensor) -> Tensor:
            nonlocal place, device
            if not tensor.is_cuda:
                return tensor.detach().clone()
            begin, place, device = place, place + _aligned(tensor), tensor.device
            assert self._locked is not None
            target = self._locked.bytes[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            return target.copy_(tensor.detach(), non_blocking=True)

        with self._lock:
            self.reserve(_bytes_on_gpu(tensors))
            copies = {group: {name: copied(tensor) for name, tensor in of.items()} for group, of in tensors.items()}
        return copies, None if device is None else torch.cuda.current_stream(device).record_event()


def _aligned(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def _bytes_on_gpu(tensors: Mapping[str, Mapping[str, Tensor]]) -> int:
    return sum(_aligned(tensor) for of in tensors.values() for tensor in of.values() if tensor.is_cuda)


def best_can_resume(folder: RunFolder, state: TrainerState) -> bool:
    """Whether a stage can begin from the best checkpoint at the time of `state` with its optimizer: the checkpoint is
    complete, or there is none yet."""
    copies = _copies_of_best(folder, state)
    return not copies or any(map(_is_complete, copies))


def _copies_of_best(folder: RunFolder, state: TrainerState) -> list[Path]:
    """The checkpoints of the step that was the best one at the time of `state`; `best` is the first if it is one."""
    if state.best_step is None:
        return []
    paths = [folder.best, folder.last, *folder.epochs().values(), *folder.earlier_bests()]
    return [path for path in paths if (other := _state_of(path)) is not None and other.step == state.best_step]


def _is_complete(path: Path) -> bool:
    return bool(checkpoint.load(path, groups=("rng",)).tensors)


def _state_of(path: Path) -> TrainerState | None:
    """The state in a checkpoint; None if the file is missing, damaged or not the checkpoint of a run."""
    found = _read(path)
    return None if found is None else found.trainer_state(path)


def _read(path: Path) -> Checkpoint | None:
    """The checkpoint of a run without tensors; None if the file is missing, damaged or something else."""
    with contextlib.suppress(UserError):
        found = checkpoint.load(path, groups=())
        found.trainer_state(path)
        return found
    return None


def _step_of(path: Path) -> float:
    """The step of a checkpoint. A damaged one counts as later than all others, so `continue_from` sets it aside."""
    state = _state_of(path)
    return float("inf") if state is None else state.step
