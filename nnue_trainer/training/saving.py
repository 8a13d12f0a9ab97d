"""Saves a run: the contents of a checkpoint, and when one is written. A resumed run is bit-identical to one that was
never stopped."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnue_trainer import registry
from nnue_trainer.base import limits
from nnue_trainer.data.loader import merge_over
from nnue_trainer.errors import UserError
from nnue_trainer.files.checkpoint import Checkpoint, TrainerState
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.training import generators, loss_figure
from nnue_trainer.training.batches import DeviceBatches
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.finite import FiniteCheck
from nnue_trainer.training.hooks import Hooks
from nnue_trainer.training.metrics import environment
from nnue_trainer.training.outputs import Nowhere, RunOutputs
from nnue_trainer.training.parallel.sharding import Unsharded
from nnue_trainer.training.run_folder import RunFolder, TakenOver
from nnue_trainer.training.stages import StageOfRun
from nnue_trainer.training.state import RunState
from nnue_trainer.training.step_records import StepRecords
from nnue_trainer.training.terminal import say

MAX_TIME = "training.max_time"
_QUICK_WRITE = 5.0  # seconds: such a checkpoint is always written


@dataclass(frozen=True)
class Saved:
    """The part of every checkpoint of a stage that does not change.

    recipe: of the whole run, in plain data; yaml: the same as it is written to recipe.yaml.
    figure: what defines a validation loss beside the weights, as plain JSON data; `best` compares only losses of one.
    validation_files: identifies the validation files; a resume checks that they are the same.
    validation_contents: returns digests of what was read of them so far (`Loader.contents`).
    """

    recipe: dict[str, Any]
    yaml: str
    figure: dict[str, Any]
    validation_files: list[Any] | None
    validation_contents: Callable[[], Tensor] | None


@dataclass(eq=False)
class Saver:
    """Makes and writes the checkpoints of a stage."""

    saved: Saved
    stage: StageOfRun
    state: RunState
    folder: RunFolder
    model: NnueModel
    optimizer: Optimizer
    sharding: Unsharded
    batches: DeviceBatches
    records: StepRecords
    hooks: Hooks
    finite: FiniteCheck
    open_store: Callable[[], CheckpointStore]
    """makes the store of the run folder, in the process that writes"""
    resumed: tuple[Path, TrainerState] | None = None
    """the checkpoint in the run folder that the run continues from"""

    def __post_init__(self) -> None:
        self._ranks = self.sharding.ranks
        self._grace, self._warned_of_slow_writes = limits.seconds("NNUE_GRACE_SECONDS"), False

    @contextlib.contextmanager
    def opened(self) -> Iterator[CheckpointStore | Nowhere]:
        """The store of checkpoints in the locked run folder, or `Nowhere` in a process that does not write."""
        if not self._ranks.writes:
            yield Nowhere()
            return
        with self.folder, self.open_store() as store:
            yield store

    def checkpoint(self, epoch: int | None = None) -> Checkpoint:
        """Everything that the rest of the run depends on. The tensors share memory with the training. Call it within
        `optimizer.with_net()`, because the model in a checkpoint is the net. `epoch`: the epoch that has just ended,
        from 1; None in the middle of an epoch. If several processes train together, all must call this at the same
        step; only the checkpoint of rank 0 is complete."""
        state, stage, saved, device = self.state, self.stage, self.saved, next(self.model.parameters()).device
        window_steps, window_loss = self.records.window()
        stream, contents = self._place(), saved.validation_contents() if saved.validation_contents else None
        return Checkpoint(
            architecture=self.model.architecture,
            recipe=saved.recipe,
            tensors={
                "model": self.sharding.whole(self.model.state_dict()),
                "optimizer": self.sharding.whole(self.optimizer.state_dict()),
                "rng": generators.states(device),
                "batches": {key: value for key, value in stream.items() if isinstance(value, Tensor)},
                "validation": {} if contents is None else {"contents": contents},
            },
            state={  # a TrainerState
                "step": state.step,
                "batches": _json_of(stream),
                "validation_loss": state.validation_loss,
                "best_validation_loss": state.best_validation_loss,
                "best_value": state.best_value,
                "best_step": state.best_step,
                "epoch": epoch,
                "epoch_end_pending": state.epoch_end_pending,
                "steps_per_epoch": stage.steps_per_epoch,
                "stage": stage.index,
                "stage_first_step": stage.first_step,
                "validation_files": saved.validation_files,
                "figure": saved.figure,
                "callbacks": self.hooks.state(),
                "stopped": "" if state.stopped.startswith(MAX_TIME) else state.stopped,
                "bad_chunks": self.records.bad_chunks(of_run=True),
                "window_steps": window_steps,
                "window_loss": window_loss,
                "device": device.type,
                "cpu_threads": torch.get_num_threads(),
                "processes": self._ranks.size,
                "plugins": registry.plugins(),
                "environment": environment(device),
            },
        )

    def _place(self) -> dict[str, Any]:
        """The state of the stream of batches from which any number of processes can continue. All must call this
        together, as each has only the places of its own shards."""
        state = self.batches.state_dict()
        if not self._ranks.several:
            return state
        first, *others = self._ranks.each(_json_of(state))
        if any(other != first for other in others):
            raise UserError("train: the processes have different states of the stream of batches")
        return merge_over(state, self._ranks.maximum, self._ranks.at_first, self._ranks.any)

    def settle(self, store: CheckpointStore | Nowhere) -> None:
        """After a resume in the same folder, restores the state of the folder at that step. Reads the best validation
        from the folder."""
        state, folder = self.state, self.folder
        # `best` is the best checkpoint of its own folder.
        state.best_validation_loss = state.best_value = state.best_step = None
        if isinstance(store, Nowhere) or (self.resumed is None and self.stage.index == 0):
            return
        if self.resumed is not None:
            path, of_resumed = self.resumed
            kept = store.continue_from(path, of_resumed)
            if kept is not None:
                say(
                    f"{folder.path}: records and checkpoints after step {of_resumed.step:,} are kept in {kept}, a "
                    "separate run folder"
                )
        best = store.best_of_folder()
        if best is None:
            return
        of_best = best.trainer_state(folder.best)
        if changed := loss_figure.changed(of_best, self.saved.figure):
            kept = store.retire_best()
            say(
                f"{folder.path}: {', '.join(changed)} changed, so validations cannot be compared with those "
                f"before: the best one is chosen anew, and the previous best checkpoint is {kept.name}"
            )
        else:
            state.best_validation_loss, state.best_step = of_best.validation_loss, of_best.step
            state.best_value = of_best.validation_loss if of_best.best_value is None else of_best.best_value

    def reserve(self, store: CheckpointStore | Nowhere) -> None:
        """Allocates the host memory for checkpoints of a GPU in the background, and prints a line if the disk lacks
        the room for them."""
        if isinstance(store, Nowhere):
            return
        tensors = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        store.warn_of_little_room(tensors, self.stage.run_epochs)
        if next(self.model.parameters()).device.type == "cuda" and not self._ranks.several:
            store.reserve(tensors)

    def save(self, run: RunOutputs, *, epoch: int | None, is_best: bool = False, final: bool = False) -> Path | None:
        """Saves a checkpoint, which is written in the background. Returns its path; None if it is left out."""
        self.finite(run.store)
        self.restore_folder(run)
        with self.optimizer.with_net():
            saved = run.store.save(self.checkpoint(epoch), epoch=epoch, is_best=is_best, final=final)
        if not self._ranks.same(saved):
            return None
        self.state.saved_step = self.state.step
        return self.folder.last if epoch is None else self.folder.epoch(epoch)

    def repeats_steps(self, run: RunOutputs, *, preempted: bool) -> bool:
        """Whether a run that was `preempted` ends without another checkpoint, because writing it takes longer than to
        repeat the steps since the last one."""
        since, write = run.seconds_since_save(), run.store.write_seconds()
        if not (self._ranks.any(preempted) and self._ranks.same(write > max(since, _QUICK_WRITE))):
            return False
        if self._ranks.writes:
            say(
                f"{self.folder.last}: no other checkpoint is written, as a write takes {write:.0f} s: the next start "
                f"repeats the last {since:.0f} s"
            )
        return True

    def warn_of_slow_writes(self, run: RunOutputs) -> None:
        """Reports once that a checkpoint takes longer than a scheduler waits."""
        write, grace = run.store.write_seconds(), self._grace
        if write > grace and not self._warned_of_slow_writes:
            self._warned_of_slow_writes = True
            run.progress.say(
                f"{self.folder.last}: a write takes {write:.0f} s, but schedulers kill a run {grace:g} s after their "
                f"signal; request an earlier one, such as sbatch --signal=B:USR1@{2 * math.ceil(write)}, and set "
                "NNUE_GRACE_SECONDS to that time"
            )

    def restore_folder(self, run: RunOutputs) -> None:
        """Makes the run folder again if it was moved or deleted: with the recipe, the records of this process
        and soon a checkpoint. UserError if it cannot be made, or if another process has taken over the run."""
        folder = self.folder
        folder.check_owned()
        found = folder.lost()
        if found is None:
            return
        with contextlib.suppress(UserError):
            run.store.wait()
        say(f"{folder.path}: {found}; it is made again, with a checkpoint of step {self.state.step:,} and all records")
        folder.make_again()
        folder.will_write(folder.recipe, folder.metrics)
        with folder.replacing(folder.recipe) as output:
            output.write_text(self.saved.yaml)
        run.metrics.make_again()
        run.save_now()

    def last_good(self, store: CheckpointStore | Nowhere) -> str:
        """The end of the message about a lost process: which checkpoint is the last good one."""
        with contextlib.suppress(Exception):
            store.wait()  # let a write in progress complete
        last = self.folder.last
        return f"; {last} is the last good checkpoint" if last.exists() else "; no checkpoint was written yet"

    def rescue(self, store: CheckpointStore | Nowhere, first_step: int) -> None:
        """After an error, saves the steps done since the last save. It does not if the error came while the weights
        were being updated, or if another process has taken over the run."""
        try:
            self.folder.check_owned()
        except TakenOver:
            return
        state = self.state
        # A write in the background may have failed after `saved_step` was set. Only rank 0 notices that.
        saved_step = state.saved_step if self._ranks.several else store.written_step
        if state.step in (first_step, saved_step) or state.updating:
            return
        # A checkpoint needs all ranks. An error that all of them meet, such as a damaged chunk that all of them read,
        # brings all of them here.
        if not self._ranks.meet(f"rescue-{state.step}"):
            return
        # An error in here, of the disk or the device, must not hide the error that ended the run.
        with contextlib.suppress(Exception):
            store.wait()
            self.finite(store)
            with self.optimizer.with_net():
                store.save(self.checkpoint(), epoch=None, final=True)
            store.wait()
            say(f"{self.folder.last}: saved at step {state.step:,}, before the error that ends this run")


def _json_of(state: dict[str, Any]) -> dict[str, Any]:
    """The part of a stream's state that is not tensors."""
    return {key: value for key, value in state.items() if not isinstance(value, Tensor)}
