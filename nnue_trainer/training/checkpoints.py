"""The checkpoints of one run: named, written in the background, thinned out, and never written in part.

`last` is the run: writing it is one rename, and everything else follows from what it holds. `epoch-0012.safetensors`,
after an epoch, and `best`, the one with the lowest validation loss, are hard links that are made after it. A kill
between two of these steps leaves a link that is missing or stale; `continue_from` mends it. A checkpoint in the middle
of an epoch is written to `last` alone.
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
    """Checkpoints in `folder`, which the caller owns. Use as a context: leaving it waits until everything is on
    disk."""

    def __init__(self, folder: RunFolder, keep_last: int):
        self.folder = folder
        self.keep_last = keep_last
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def continue_from(self, path: Path, state: TrainerState) -> Path | None:
        """Brings the folder into the state that the run had with the checkpoint `path`, which lies in it.

        Files that an earlier process wrote for later steps go to a folder of their own, which is returned if there is
        one. `last` becomes `path`; missing or stale links are made again.
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

    def best_of_folder(self) -> TrainerState | None:
        """What `best` says of itself; None where there is none."""
        return _state_of(self.folder.best) if self.folder.owns(self.folder.best) else None

    def save(self, content: Checkpoint, *, epoch: int | None, is_best: bool = False) -> None:
        """Takes a copy of `content` and writes it in the background; errors of an earlier write are raised here.
        `epoch` None: in the middle of an epoch."""
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
        """Returns when the last save is on disk, or raises what went wrong."""
        pending = self._pending
        if pending is None:
            return
        try:
            pending.result()
        finally:
            # Only now: another thread may wait for the same save (`Trainer._last_good`).
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
        """The checkpoints that the run wrote."""
        names = [self.folder.last, self.folder.best]
        return [path for path in names if self.folder.owns(path) and path.is_file()] + [*self.folder.epochs().values()]

    def _mend_best(self, state: TrainerState) -> None:
        """A kill may have come between the links of a save, and `best` may have been superseded: makes it the best
        checkpoint before `state` if that is still there under the name of its epoch."""
        if state.best_validation_loss is None:
            return
        found = self.best_of_folder()
        if found is not None and _is_best(found, state):
            return
        for path in self.folder.epochs().values():
            other = _state_of(path)
            if other is not None and _is_best(other, state):
                self.folder.link(path, self.folder.best)
                return


def _is_best(one: TrainerState, of: TrainerState) -> bool:
    if of.best_step is not None:
        return one.step == of.best_step
    return one.validation_loss == of.best_validation_loss  # the first release did not write best_step


def _state_of(path: Path) -> TrainerState | None:
    """None where the file is missing, damaged, or no checkpoint of a run."""
    with contextlib.suppress(UserError):
        return checkpoint.load(path, groups=()).trainer_state(path)
    return None


def _step_of(path: Path) -> float:
    """A damaged checkpoint counts as later than any other, so it is put aside with those."""
    state = _state_of(path)
    return float("inf") if state is None else state.step
