"""Writes the checkpoints of one run in the background, and deletes old ones. A checkpoint is never written in part.

`last` is always written first, by one rename. `epoch-0012.safetensors` (after an epoch) and `best` (the lowest
validation loss) are hard links to it that are made afterwards. If the process is killed in between, a link is missing
or stale; `continue_from` repairs it from what `last` holds. A checkpoint in the middle of an epoch has no link.
"""

from __future__ import annotations

import contextlib
import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from nnue_trainer import checkpoint
from nnue_trainer.checkpoint import Checkpoint, TrainerState
from nnue_trainer.errors import UserError
from nnue_trainer.training.run_folder import RunFolder


class CheckpointStore:
    """The checkpoints in `folder`, whose lock the caller holds. A context manager: its exit waits for the write in
    progress and raises that write's error. `keep_last`: how many checkpoints of epochs are kept, the newest ones."""

    def __init__(self, folder: RunFolder, keep_last: int):
        self.folder = folder
        self.keep_last = keep_last
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def continue_from(self, path: Path, state: TrainerState) -> Path | None:
        """Restores the state that the folder had when `path`, a checkpoint in it, was saved. `state` is the state in
        `path`.

        If there are checkpoints of later steps, they are moved to a folder `superseded-N`, which also gets recipe and
        metrics, and which is returned. `last` becomes a link to `path`; missing or stale links are repaired.
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
        return kept

    def best_of_folder(self) -> Checkpoint | None:
        """The checkpoint `best` without tensors; None if the run has no such checkpoint or it is damaged."""
        return _read(self.folder.best) if self.folder.owns(self.folder.best) else None

    def retire_best(self) -> Path:
        """Renames `best`, whose loss no longer compares with those to come. Returns its new path."""
        folder = self.folder
        kept = next((path for path in folder.earlier_bests() if path.samefile(folder.best)), None)
        if kept is None:
            kept = folder.next_earlier_best()
            folder.link(folder.best, kept)
        folder.remove(folder.best)
        return kept

    def save(self, content: Checkpoint, *, epoch: int | None, is_best: bool = False) -> None:
        """Copies `content` and writes it in the background. Waits for the previous write first, and raises its error.
        `epoch`: the epoch that has ended, from 1; None in the middle of an epoch."""
        self.wait()
        snapshot = dataclasses.replace(
            content,
            tensors={
                group: {
                    name: tensor.detach().cpu() if tensor.is_cuda else tensor.detach().clone()
                    for name, tensor in tensors.items()
                }
                for group, tensors in content.tensors.items()
            },
        )
        self._pending = self._writer.submit(self._write, snapshot, epoch, is_best)

    def wait(self) -> None:
        """Waits until the last `save` is on disk; raises the error of that write."""
        pending = self._pending
        if pending is None:
            return
        try:
            pending.result()
        finally:
            # Clear this only now, because another thread may also wait for this write (`Trainer._last_good`).
            if self._pending is pending:
                self._pending = None

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def _write(self, content: Checkpoint, epoch: int | None, is_best: bool) -> None:
        folder = self.folder
        names = [folder.last] if epoch is None else [folder.last, folder.epoch(epoch)]
        folder.will_write(*names, *([folder.best] if is_best else []))
        checkpoint.save(folder.last, content)
        if epoch is not None:
            folder.link(folder.last, folder.epoch(epoch))
        if is_best:
            folder.link(folder.last, folder.best)
        epochs = folder.epochs()
        for number in sorted(epochs)[: -self.keep_last]:
            folder.remove(epochs[number])

    def _files(self) -> list[Path]:
        """The existing checkpoints that the run wrote."""
        names = [self.folder.last, self.folder.best]
        return [path for path in names if self.folder.owns(path) and path.is_file()] + [*self.folder.epochs().values()]

    def _mend_best(self, state: TrainerState) -> None:
        """Makes `best` the checkpoint that had the lowest validation loss at the time of `state`, if that checkpoint
        still exists as `epoch-N`. `best` is wrong if the process was killed before it was linked, or if a later
        checkpoint was the best one."""
        if state.best_validation_loss is None:
            return
        found = _state_of(self.folder.best) if self.folder.owns(self.folder.best) else None
        if found is not None and _is_best(found, state):
            return
        for path in (*self.folder.epochs().values(), *self.folder.earlier_bests()):
            other = _state_of(path)
            if other is not None and _is_best(other, state):
                self.folder.link(path, self.folder.best)
                return


def _is_best(one: TrainerState, of: TrainerState) -> bool:
    """Whether the checkpoint with the state `one` is the best one that the state `of` names."""
    if of.best_step is not None:
        return one.step == of.best_step
    return one.validation_loss == of.best_validation_loss  # the first release did not write best_step


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
