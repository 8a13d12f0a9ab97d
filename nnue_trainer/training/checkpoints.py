"""The checkpoints of one run: named, written in the background, thinned out, and never half there.

`epoch-0012.safetensors` after an epoch; `last` and `best` are hard links to the newest and to the one with the lowest
validation loss. A checkpoint of an interrupted run is written to `last` alone.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from nnue_trainer import checkpoint
from nnue_trainer.atomic import replacing
from nnue_trainer.checkpoint import Checkpoint


class CheckpointStore:
    """Checkpoints in `folder`. Use as a context: leaving it waits until everything is on disk."""

    def __init__(self, folder: Path, keep_last: int):
        self.folder = folder
        self.keep_last = keep_last
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        for leftover in folder.glob(".*.tmp"):  # of a run that was killed while writing
            leftover.unlink()

    @property
    def last(self) -> Path:
        return self.folder / "last.safetensors"

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"

    def save(self, content: Checkpoint, *, epoch: int | None, is_best: bool = False) -> None:
        """Takes a copy of `content` and writes it in the background; errors of an earlier write are raised here.
        `epoch` None: an interrupted run."""
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
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def _write(self, content: Checkpoint, epoch: int | None, is_best: bool) -> None:
        if epoch is None:
            checkpoint.save(self.last, content)
            return
        path = self.folder / f"epoch-{epoch:04d}.safetensors"
        checkpoint.save(path, content)
        _link(path, self.last)
        if is_best:
            _link(path, self.best)
        # Later epochs are of a future that a resumed run has left.
        epochs = {int(file.stem.removeprefix("epoch-")): file for file in self.folder.glob("epoch-*.safetensors")}
        keep = sorted(number for number in epochs if number <= epoch)[-self.keep_last :]
        for number in epochs.keys() - keep:
            epochs[number].unlink()


def _link(path: Path, name: Path) -> None:
    """Makes `name` another name of the file, atomically; a copy where the file system has no hard links."""
    with replacing(name) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
