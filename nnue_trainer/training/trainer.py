"""The training loop.

Apart from the copy of a batch, the host waits for the device only to write metrics, to validate and to save. This is
possible because the learning rate, λ and the sum of the losses are tensors on the device, and because the optimiser
itself skips a step with a non-finite loss or gradient.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nnue_trainer.base import foreign
from nnue_trainer.base.status import INTERRUPTED, PREEMPTED, TIME_IS_UP
from nnue_trainer.callbacks.base import Run, Summary
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.training import timeline
from nnue_trainer.training.batches import DeviceBatches, Stopped, Stopping
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.figures import LOSS, BestBy
from nnue_trainer.training.finite import FiniteCheck
from nnue_trainer.training.hooks import Hooks
from nnue_trainer.training.outputs import Nowhere, RunOutputs, Window
from nnue_trainer.training.parallel.sharding import Unsharded
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.saving import MAX_TIME, Saver
from nnue_trainer.training.schedule_values import LambdaValues, ScheduleValues
from nnue_trainer.training.stages import StageOfRun
from nnue_trainer.training.state import RunState
from nnue_trainer.training.step import ChosenStep
from nnue_trainer.training.step_records import StepRecords
from nnue_trainer.training.terminal import say
from nnue_trainer.training.validator import Validator


@dataclass(frozen=True)
class LoopConfig:
    """When the loop does what it does beside steps. The counts are of epochs or steps of the run."""

    validate_every: int
    """epochs"""
    checkpoint_every: int
    """epochs; an epoch with a new best validation is saved as well"""
    record_every: int
    """steps between two records of metrics"""
    max_hours: float
    """after which the process ends the run with a checkpoint, whatever the stage; 0: no limit"""
    best_by: BestBy
    """selects the best validation"""


@dataclass(eq=False)
class Trainer:
    """Trains one stage of a run. `assembly.assemble` makes its parts."""

    stage: StageOfRun
    config: LoopConfig
    state: RunState
    folder: RunFolder
    model: NnueModel
    optimizer: Optimizer
    sharding: Unsharded
    values: ScheduleValues
    lambdas: LambdaValues
    batches: DeviceBatches
    current_step: ChosenStep
    validator: Validator
    records: StepRecords
    saver: Saver
    finite: FiniteCheck
    hooks: Hooks
    stopping: Stopping
    open_outputs: Callable[[CheckpointStore | Nowhere], RunOutputs]
    view: Callable[[Trainer], Run]
    """makes what callbacks see of the trainer"""

    def __post_init__(self) -> None:
        self.ranks, self.device, self.run = self.sharding.ranks, self.current_step.device, self.view(self)
        self.outputs: RunOutputs | None = None  # while `train` runs
        self._several = self.ranks.several
        self.began: float | None = None
        """monotonic time from which `max_hours` count: the start of the first stage that this process trains"""
        self._has_run = False  # a step
        self._plans: tuple[Any, ...] = ()  # of the last batch

    @property
    def step(self) -> int:
        """Steps done, in the whole run."""
        return self.state.step

    @property
    def steps(self) -> int:
        """Steps of the run up to the end of the stage."""
        return self.stage.end

    def train(self) -> Summary:
        """Trains until the last step, or until a signal (`base.system.stop_signals`) stops the run, then saves a
        checkpoint and returns. An error, such as a damaged chunk of data, is raised after a checkpoint of the steps
        done so far has been saved, where that is possible."""
        first_step, saver = self.step, self.saver
        with saver.opened() as store:
            saver.settle(store)
            saver.reserve(store)
            self.ranks.on_loss(lambda: saver.last_good(store))
            self.outputs = run = self.open_outputs(store)
            self.began = run.began if self.began is None else self.began
            try:
                with self.stopping.on_signals():
                    try:
                        self.hooks.call("start", self.run)
                        self.current_step.choose_again()  # what has started may watch layers
                        with contextlib.suppress(Stopped), foreign.explaining():
                            self._loop(run)
                        run.end_steps(self.step)
                        timeline.mark("steps, validation, saves")
                        is_saved = self.state.saved_step == self.step
                        if not (is_saved or saver.repeats_steps(run, preempted=self.stopping.preempted)):
                            self._save(run, epoch=None, final=True)
                        store.wait()
                        timeline.mark("last write")
                        summary = self._summary(first_step, run)
                        self.hooks.call("end", self.run, summary)
                    except Exception:
                        self.ranks.speak()
                        saver.rescue(store, first_step)
                        raise
            finally:
                run.close()
                self.outputs = None
                self.ranks.on_loss(str)
        return summary

    def _loop(self, run: RunOutputs) -> None:
        stage, state, config = self.stage, self.state, self.config
        if state.epoch_end_pending:
            self._end_epoch(run)
        ends_at = (self.began or run.began) + 3600 * config.max_hours if config.max_hours else None
        while state.step < stage.end:
            stop, save = self.ranks.agree(self.stopping.is_set(), run.checkpoint_is_due())
            if stop:
                break
            self.advance()
            run.progress.update(state.step)
            if "step" in self.hooks:
                self.hooks.call("step", self.run)
            if ends_at is not None and time.monotonic() > ends_at and not state.stopped:
                self.stop(f"{MAX_TIME}, {config.max_hours:g} hours")
            ends = state.epoch_end_pending = stage.ends_epoch(state.step)
            if ends or state.step % config.record_every == 0:
                self._record_steps(run)
            if ends:
                self._end_epoch(run)
                run.window = Window(state.step)
            elif save:
                self._save(run, epoch=None)

    def advance(self) -> None:
        """Starts one training step and returns without waiting for the device."""
        state, optimizer, current = self.state, self.optimizer, self.current_step
        values = self.values.at(state.step)
        if values.rounds != current.rounds:
            current.set_rounding(values.rounds)
            self.batches.forget()  # they were prepared for the other forward pass
        optimizer.set_lr(values.lr)
        batch = self.stopping.wait(self.batches.__next__, self._several)
        if not self._has_run:
            timeline.mark("first batch")
        self._plans = batch.plans
        if batch.buffer is None:
            self.lambdas.set(batch, state.step)
        current.run(batch)
        state.step += 1
        if values.share:
            optimizer.average(values.share)
        if self.values.average is not None:
            optimizer.average_begun = values.average_begun
        self.batches.finish()
        if not self._has_run:
            self._has_run = True
            timeline.mark("first step")

    def _record_steps(self, run: RunOutputs) -> None:
        self.finite(run.store)
        self.saver.restore_folder(run)
        values = self.records.next(run)
        self.record("train", values)
        self.records.warn_of_irregular_rows(run, self._plans)
        self.saver.warn_of_slow_writes(run)
        run.progress.update(self.step, loss=f"{values['loss']:.6f}")

    def _end_epoch(self, run: RunOutputs) -> None:
        """Validates and saves a checkpoint after the last step of an epoch, if this is due in this epoch."""
        config, state, final = self.config, self.state, self.step == self.steps
        epoch, is_best = self.stage.epochs_at(self.step), False
        with run.progress.pause():
            loss = self.validate() if epoch % config.validate_every == 0 or final else None
            # This raises the error of an earlier write while `epoch_end_pending` is still set. So a resumed run
            # validates this epoch again, and `best` is not lost.
            run.store.check()
            if loss is not None:
                is_best = self._take_validation(run, epoch, loss)
            state.epoch_end_pending = False
            if is_best or final or epoch % config.checkpoint_every == 0:
                self._save(run, epoch=epoch, is_best=is_best, final=final)
            self.hooks.call("epoch", self.run, epoch)

    def _take_validation(self, run: RunOutputs, epoch: int, loss: float) -> bool:
        """Records a validation. Returns whether it is the best."""
        state, validator, best_by = self.state, self.validator, self.config.best_by
        state.validation_loss = loss if math.isfinite(loss) else None
        value = best_by.value(loss, state.fixed_figures)
        is_best = bool(self.ranks.same(best_by.is_better(value, state.best_value)))  # only rank 0 has the folder's best
        if is_best:
            state.best_validation_loss, state.best_value, state.best_step = loss, value, self.step
        values = {"epoch": epoch, "loss": loss, "best": state.best_validation_loss}
        values |= state.fixed_figures | state.net_figures
        # Losses of another figure cannot be compared with this one.
        values["figure"] = zlib.crc32(json.dumps(self.saver.saved.figure, sort_keys=True).encode())
        of_step = ""
        if validator.follows:
            values["lambda"] = lam = validator.lambda_at(self.step)
            of_step = f" at λ {lam:.4f}, the step's"
        self.record("validation", values)
        run.progress.update(self.step, val=f"{loss:.6f}")
        best = f" (best{'' if best_by.name == LOSS else f' by {best_by.name}'})" if is_best else ""
        others = "".join(f", {name} {state.fixed_figures[f'{name}/loss']:.6f}" for name in validator.more)
        run.progress.say(f"epoch {epoch}: validation loss {loss:.6f}{of_step}{best}{others}")
        self.hooks.call("validation", self.run, loss, state.fixed_figures | state.net_figures)
        return is_best

    def _save(self, run: RunOutputs, *, epoch: int | None, is_best: bool = False, final: bool = False) -> None:
        path = self.saver.save(run, epoch=epoch, is_best=is_best, final=final)
        if path is not None and "save" in self.hooks:
            run.store.wait()
            self.hooks.call("save", self.run, path, epoch)
        run.saved()

    def _summary(self, first_step: int, run: RunOutputs) -> Summary:
        state = self.state
        early = state.step < self.steps or state.epoch_end_pending
        stopped = early and bool(self.ranks.same(bool(state.stopped)))  # only rank 0 has the reason
        status = 0
        if stopped:
            status = TIME_IS_UP if self.ranks.same(state.stopped.startswith(MAX_TIME)) else 0
        elif early:
            status = PREEMPTED if self.ranks.any(self.stopping.preempted) else INTERRUPTED
        return Summary(
            step=state.step,
            steps=self.steps,
            positions=(state.step - first_step) * self.stage.batch_size,
            seconds=time.monotonic() - run.began,
            step_seconds=run.step_seconds,
            validation_loss=state.validation_loss,
            best_validation_loss=state.best_validation_loss,
            interrupted=early and not stopped,
            bad_chunks=self.records.bad_chunks(of_run=False),
            stopped=(state.stopped or "by the first process") if stopped else "",
            status=status,
        )

    def stop(self, reason: str) -> None:
        """Ends the run after the current step, with a checkpoint. It does not count as interrupted."""
        if not self.state.stopped:
            self.state.stopped = reason
            self.stopping.set()

    def record(self, event: str, values: Mapping[str, float | int | None]) -> None:
        """Writes a record of metrics for the last step, while `train` runs."""
        assert self.outputs is not None
        self.outputs.metrics.write(event, self.step, values)
        self.hooks.call("metrics", self.run, event, values)

    def say(self, text: str) -> None:
        """Prints a line, above the progress line if there is one."""
        (say if self.outputs is None else self.outputs.progress.say)(text)

    def warm_up(self) -> None:
        """On a GPU, validates on a batch while the loader fills its first buffer and the net's integers are checked."""
        if self.device.type == "cuda" and self.step < self.steps:
            self.validator.warm_up()

    def validate(self) -> float | None:
        """`Validator.validate`."""
        return self.validator.validate()

    def checkpoint(self, epoch: int | None = None) -> Checkpoint:
        """`Saver.checkpoint`."""
        return self.saver.checkpoint(epoch)
