"""The training loop.

Apart from the copy of a batch, the host waits for the device only to write metrics, to validate and to save. This is
possible because the learning rate, λ and the sum of the losses are tensors on the device, and because the optimiser
itself skips a step with a non-finite loss or gradient. `checkpoint()` contains everything that later steps depend on,
so a resumed run is bit-identical to one that was never stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import config, registry, schema
from nnue_trainer.base import foreign, limits
from nnue_trainer.base.status import INTERRUPTED, PREEMPTED, TIME_IS_UP
from nnue_trainer.config import Recipe
from nnue_trainer.data.batch import Batch
from nnue_trainer.data.loader import merge_states
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import replacing
from nnue_trainer.files.checkpoint import Checkpoint, TrainerState, load_into
from nnue_trainer.nets.activity import ActivityMeter, reach_figures
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.ops.perspectives import PerspectivePlan
from nnue_trainer.optim import Optimizer
from nnue_trainer.parallel.ranks import Ranks
from nnue_trainer.parallel.sharding import Unsharded
from nnue_trainer.penalties.base import Penalties
from nnue_trainer.schedules import RunStep
from nnue_trainer.training import loss_figure, resuming, timeline
from nnue_trainer.training.assembly import StepKind, make_step
from nnue_trainer.training.batches import BatchSource, DeviceBatches
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.cuda_graph import GraphedStep
from nnue_trainer.training.hooks import Hooks
from nnue_trainer.training.memory import move_to_huge_pages
from nnue_trainer.training.metrics import environment, peak_memory
from nnue_trainer.training.outputs import Nowhere, RunOutputs, Window
from nnue_trainer.training.precision import settled
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.stages import StageOfRun
from nnue_trainer.training.step import Step
from nnue_trainer.training.step_loss import StepLoss
from nnue_trainer.training.stopping import Stopped, Stopping
from nnue_trainer.training.terminal import say
from nnue_trainer.training.validator import Validator

_TIME_IS_UP = "training.max_time"
_QUICK_WRITE = 5.0  # seconds: such a checkpoint is always written


@dataclass(frozen=True)
class Summary:
    """The end of a run: its steps, losses, and the reason."""

    step: int
    """steps done in the whole run"""
    steps: int
    """steps of a complete run"""
    positions: int
    """positions in the steps of this call of `train`"""
    seconds: float
    """wall-clock time of this call of `train`"""
    step_seconds: float
    """the part of it that passed in steps, without validations, saves and the time after the last record"""
    validation_loss: float | None
    """the last validation loss; None: there was no validation, or the loss was not finite"""
    best_validation_loss: float | None
    """the lowest validation loss of the run folder; None: there is none"""
    interrupted: bool
    """whether the run ended before its last step and the validation after it"""
    bad_chunks: int = 0
    """damaged chunks of the training files that were left out since this process started"""
    stopped: str = ""
    """why a callback or training.max_time ended the run before its last step; "" if none did"""
    status: int = 0
    """exit status of `nnue train`: 0, or the one of `base.status` for an early end after which it can be continued"""


def why_not_late(recipe: Recipe, device: torch.device, sharding: Unsharded, penalties: Penalties) -> str | None:
    """The reason why rows of feature transformers cannot be updated late, in words; None if they can. Each forward pass
    must read nothing but the rows of its batch."""
    if recipe.training.compile:
        return "training.compile: compiled code reads the whole weight"
    if recipe.training.precision == "mixed" and device.type == "cpu":
        return "training.precision: mixed: on a CPU autocast reads the whole weight"
    if penalties.dense:
        return "training.penalties: a penalty on weights moves every row"
    return "each process has rows of its own positions" if sharding.name == "positions" else None


class Trainer:
    """Trains one model.

    Args:
        recipe: the recipe of the run. Of its section `data`, only the batch size is used, and file names in messages.
        model: the model, already on its device.
        batches: the endless stream of training batches.
        validation: a function that returns the same validation batches at each call; None: no validation.
        run_dir: the run folder, to which all files are written.
        validation_files: identifies the validation files, as plain JSON data; a resume checks that they are the same.
        validation_contents: a function that returns what was read of them so far, as plain JSON data.
        bad_chunks: a function that returns how many damaged chunks of data were left out so far; all processes call it
            together.
        sharding: which part of each step this process computes; None: all of it. If several processes train together,
            only the process of rank 0 writes files and prints.
        more_validation: functions as `validation` for more sets of held-out positions, by name.
        stage: the stage of a run that is trained, whose recipe is `recipe`; None: `recipe` is the whole run.

    Raises:
        UserError: the recipe requires a CUDA graph, but a step of its optimizer cannot be recorded.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: NnueModel,
        batches: BatchSource,
        validation: Callable[[], Iterable[Batch]] | None,
        run_dir: Path | RunFolder,
        *,
        validation_files: list[Any] | None = None,
        validation_contents: Callable[[], list[str]] | None = None,
        bad_chunks: Callable[[], int] | None = None,
        unique: Callable[[], int] | None = None,
        sharding: Unsharded | None = None,
        stage: StageOfRun | None = None,
        more_validation: Mapping[str, Callable[[], Iterable[Batch]]] | None = None,
    ):
        self.model = model
        self.folder = run_dir if isinstance(run_dir, RunFolder) else RunFolder(run_dir)
        self.device = next(model.parameters()).device
        recipe = settled(recipe, model, self.device)
        self.recipe = recipe
        self.stage = StageOfRun.alone(recipe) if stage is None else stage.with_recipe(recipe)
        self.sharding = Unsharded(Ranks(), model) if sharding is None else sharding
        self.ranks = self.sharding.ranks
        self.validation = validation
        self.validation_files = validation_files
        self.more_validation = dict(more_validation or {})
        self.validation_contents = validation_contents
        self.bad_chunks = bad_chunks
        self.unique = unique
        self._bad_before = 0  # bad chunks before the run was resumed
        self.penalties = Penalties(recipe.training.penalties, model)
        self.optimizer = Optimizer(
            model,
            recipe.optimizer,
            late=why_not_late(recipe, self.device, self.sharding, self.penalties) is None,
            positions=recipe.data.batch_size,
            # The gradient of a penalty on weights is that of the weights themselves, in every row.
            copies=recipe.training.precision == "mixed" and not self.penalties.dense,
            averages=recipe.average is not None,
        )
        self.sharding.adopt(self.optimizer)
        if self.device.type == "cpu":
            with torch.no_grad():
                move_to_huge_pages([*model.parameters(), *self.optimizer.state_dict().values()])
        self.step_loss = StepLoss(recipe, self.stage, model, self.penalties)
        self._kind = StepKind.of(recipe)
        self._step = self._assembled_step()
        wanted, possible = recipe.training.cuda_graph, self.optimizer.capturable
        if wanted and not possible:
            raise UserError(
                f"training.cuda_graph: a step of the optimizer {recipe.optimizer.kind!r} cannot be recorded; "
                "remove the key, or set it to false"
            )
        self._graphed = bool(wanted or (wanted is None and possible and self.device.type == "cuda"))
        self.train_step = self._recorded_step()
        self.batches = DeviceBatches(
            batches,
            self.device,
            model.feature_set,
            lambda batch: self._step.prepare(batch),
            self.sharding.share_of,
            on_fetch=self.step_loss.set_lambda_ahead,
            records=recipe.position_weight is not None and recipe.position_weight.reads_records,
            record=self._graphed,
        )
        self.ranks.before_end(self.batches.forget)
        self.steps_per_epoch = self.stage.steps_per_epoch
        self.steps = self.stage.end  # of the run, up to the end of the stage
        self.step = self.stage.first_step
        self._first_update = self.step  # the step from which the optimiser counts its updates
        self.validation_loss: float | None = None
        self.best_validation_loss: float | None = None
        self.best_step: int | None = None
        lam = "follow" if recipe.validation.lambda_ == "follow" else self._validation_lambda()
        self.figure = loss_figure.figure_of(recipe, lam, self.validation_files)
        """what defines a validation loss beside the weights, as plain JSON data; `best` compares only losses of one"""
        self.net_figures: dict[str, float] = {}  # figures of neurons and weights, from the last validation
        self.fixed_figures: dict[str, float] = {}
        """`Figures` of the last validation, and loss and figures of each further set NAME as NAME/…"""
        self._saved_step = -1
        self._epoch_end_pending = False
        self._resumed: tuple[Path, TrainerState] | None = None
        self._updating = False  # whether the current step has begun to change the weights
        self._plans: tuple[Any, ...] = ()  # of the last batch
        self._warned_of_irregular_rows = self._warned_of_slow_writes = False
        self._grace = limits.seconds("NNUE_GRACE_SECONDS")
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._loss_from = self.step  # the step after which the sum begins
        self._stop = Stopping()
        self._validator = Validator(recipe, self.step_loss, self.sharding, self._stop)
        self.stopped = ""  # why a callback or training.max_time ends the run
        config.require_consent(recipe)
        self._hooks = Hooks(recipe.training.callbacks, active=self.ranks.writes)
        self._run: RunOutputs | None = None

    def train(self) -> Summary:
        """Trains until the last step, or until a signal (`base.system.stop_signals`) stops the run, then saves a
        checkpoint and returns. An error, such as a damaged chunk of data, is raised after a checkpoint of the steps
        done so far has been saved, where that is possible."""
        first_step = self.step
        with contextlib.ExitStack() as stack:
            store: CheckpointStore | Nowhere = Nowhere()
            if self.ranks.writes:
                stack.enter_context(self.folder)
                training = self.recipe.training
                store = CheckpointStore(self.folder, training.keep_last, training.checkpoint_every, training.keep_every)
                stack.enter_context(store)
            self._settle(store)
            if isinstance(store, CheckpointStore) and self.device.type == "cuda" and not self.ranks.several:
                store.reserve({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()})
            self.ranks.on_loss(lambda: self._last_good(store))
            self._run = run = RunOutputs(self, store)
            try:
                with self._stop.on_signals():
                    try:
                        self._hooks.call("start", self)
                        self._step = self._assembled_step()  # what has started may watch layers
                        with contextlib.suppress(Stopped), foreign.explaining():
                            self._loop(run)
                        run.end_steps(self.step)
                        timeline.mark("steps, validation, saves")
                        if self._saved_step != self.step and not self._repeats_steps(run):
                            self._save(run, epoch=None, final=True)
                        store.wait()
                        timeline.mark("last write")
                        summary = self._summary(first_step, run)
                        self._hooks.call("end", self, summary)
                    except Exception:
                        self.ranks.speak()
                        self._rescue(store, first_step)
                        raise
            finally:
                run.close()
                self._run = None
                self.ranks.on_loss(str)
        return summary

    def _repeats_steps(self, run: RunOutputs) -> bool:
        """Whether a preempted run ends without another checkpoint, because writing it takes longer than to repeat the
        steps since the last one."""
        since, write = run.seconds_since_save(), run.store.write_seconds()
        if not (self.ranks.any(self._stop.preempted) and self.ranks.same(write > max(since, _QUICK_WRITE))):
            return False
        if self.ranks.writes:
            say(
                f"{self.folder.last}: no other checkpoint is written, as a write takes {write:.0f} s: the next start "
                f"repeats the last {since:.0f} s"
            )
        return True

    def _summary(self, first_step: int, run: RunOutputs) -> Summary:
        early = self.step < self.steps or self._epoch_end_pending
        stopped = early and bool(self.ranks.same(bool(self.stopped)))  # only rank 0 has the reason
        status = 0
        if stopped:
            status = TIME_IS_UP if self.ranks.same(self.stopped.startswith(_TIME_IS_UP)) else 0
        elif early:
            status = PREEMPTED if self.ranks.any(self._stop.preempted) else INTERRUPTED
        return Summary(
            step=self.step,
            steps=self.steps,
            positions=(self.step - first_step) * self.recipe.data.batch_size,
            seconds=time.monotonic() - run.began,
            step_seconds=run.step_seconds,
            validation_loss=self.validation_loss,
            best_validation_loss=self.best_validation_loss,
            interrupted=early and not stopped,
            bad_chunks=self.bad_chunks() if self.bad_chunks else 0,
            stopped=(self.stopped or "by the first process") if stopped else "",
            status=status,
        )

    def stop(self, reason: str) -> None:
        """Ends the run after the current step, with a checkpoint. It does not count as interrupted."""
        if not self.stopped:
            self.stopped = reason
            self._stop.set()

    def record(self, event: str, values: Mapping[str, float | int | None]) -> None:
        """Writes a record of metrics for the last step. For callbacks during `train`."""
        assert self._run is not None
        self._run.metrics.write(event, self.step, values)
        self._hooks.call("metrics", self, event, values)

    def was_recorded(self, event: str) -> bool:
        """Whether the run was resumed at this step and already has a record of this event."""
        assert self._run is not None
        return self._run.metrics.has(event, self.step)

    @property
    def epoch(self) -> int:
        """The number of complete epochs of the run."""
        return self.stage.epochs_at(self.step)

    @property
    def at_epoch_end(self) -> bool:
        """Whether the last step ended an epoch, and its validation and checkpoint are done."""
        ended = self.step > self.stage.first_step and self.stage.ends_epoch(self.step)
        return ended and not self._epoch_end_pending

    def say(self, text: str) -> None:
        """Prints a line, above the progress line if there is one."""
        if self._run is not None:
            self._run.progress.say(text)
        else:
            say(text)

    def warm_up(self) -> None:
        """On a GPU, validates on a batch of each rank and drops the result, while the loader fills its first buffer and
        the net's integers are checked: otherwise the first validation would wait for its kernels to be loaded."""
        if self.device.type == "cuda" and self.validation is not None and self.step < self.steps:
            held_out = self.validation
            lam, meter = self._validation_lambda(), ActivityMeter(self.model)
            self._validator.of(lambda: itertools.islice(held_out(), self.ranks.size), lam, meter)

    def _loop(self, run: RunOutputs) -> None:
        if self._epoch_end_pending:
            self._end_epoch(run)
        limit = 3600 * self.recipe.training.max_time
        while self.step < self.steps:
            stop, save = self.ranks.agree(self._stop.is_set(), run.checkpoint_is_due())
            if stop:
                break
            self.advance()
            timeline.mark("first step")
            run.progress.update(self.step)
            if "step" in self._hooks:
                self._hooks.call("step", self)
            if limit and time.monotonic() - run.began > limit and not self.stopped:
                self.stop(f"{_TIME_IS_UP}, {self.recipe.training.max_time:g} hours")
            ends = self.stage.ends_epoch(self.step)
            self._epoch_end_pending = ends
            if ends or self.step % self.recipe.logging.every_steps == 0:
                self._log(run)
            if ends:
                self._end_epoch(run)
                run.window = Window(self.step)
            elif save:
                self._save(run, epoch=None)

    def advance(self) -> None:
        """Starts one training step and returns without waiting for the device."""
        self._set_rounding()
        self.optimizer.set_lr(self.learning_rate())
        with self._stop.interruptible(self.ranks.several):
            batch = next(self.batches)
        timeline.mark("first batch")
        self._plans = batch.plans
        if batch.buffer is None:
            self.step_loss.set_lambda(batch, self.step)
        self.train_step(batch)
        self.step += 1
        if self.recipe.average is not None:
            now = self._now(self.step)
            if share := self.recipe.average.share_at(now):
                self.optimizer.average(share)
            self.optimizer.average_begun = self.recipe.average.begun(now)
        self.batches.finish()

    def _now(self, step: int) -> RunStep:
        """A step as schedules see it."""
        return self.stage.now(step)

    def _assembled_step(self) -> Step:
        """The step of the net as it computes now."""
        return make_step(self._kind, self.model, self.sharding, self.optimizer, self.step_loss)

    def _recorded_step(self) -> Callable[[Batch], None]:
        """The function of one step: a new `GraphedStep` if steps are to be recorded, otherwise `_train_step`."""
        if not self._graphed:
            return self._train_step
        step = GraphedStep(self._train_step, self.device)
        self.ranks.before_end(step.forget)
        return step

    def _set_rounding(self) -> None:
        """Switches the engine's rounding on or off for the next step. Whether a step rounds depends only on its
        number."""
        now = self._now(self.step)
        rounding = self.recipe.model.qat_config.active(now.step, now.steps)
        if rounding != (self.model.rounded is not None):
            self.model.set_rounding(rounding)
            whole = self.recipe.training.compile or self.penalties.dense
            copied = self.model.rounded is not None and not whole
            self.optimizer.copy_in_steps(self.model.rounded.copies if copied else {})  # type: ignore[union-attr]
            self._step = self._assembled_step()
            # A CUDA graph recorded before contains the other forward pass, or prepares batches for it. The forward pass
            # makes what the batch in hand lacks.
            self.train_step = self._recorded_step()
            self.batches.forget()

    def validate(self) -> float | None:
        """The loss over all validation positions; None without validation. Its λ is that of the end of the run, unless
        the recipe has another one, and in quantisation-aware training it always rounds, so that the losses of all
        epochs can be compared. UserError if there are no positions."""
        self.fixed_figures = {}
        with self.optimizer.with_net():
            return self._validate()

    def _validate(self) -> float | None:
        loss, lam = None, self._validation_lambda()
        if self.validation is not None:
            meter = ActivityMeter(self.model)
            loss, self.fixed_figures = self._validator.of(self.validation, lam, meter)
            self.net_figures = self.sharding.figures(meter.figures(self.sharding.of_all) | reach_figures(self.model))
            if loss is None:
                raise UserError(f"{', '.join(self.recipe.data.validation)}: no positions to validate on")
        for name, held_out in self.more_validation.items():
            of_set, figures = self._validator.of(held_out, lam)
            if of_set is None:
                raise UserError(f"validation.sets.{name}: no positions to validate on")
            self.fixed_figures |= {f"{name}/{key}": value for key, value in ({"loss": of_set} | figures).items()}
        return loss

    def _validation_lambda(self) -> float:
        wanted = self.recipe.validation.lambda_
        if wanted == "follow":
            return self.step_loss.lambda_at(max(self.step - 1, self.stage.first_step))
        if wanted != "end":
            return float(wanted)
        end = self._now(self.steps)
        return self.recipe.lambda_.final_of(end._replace(step=end.steps))

    def checkpoint(self, epoch: int | None = None) -> Checkpoint:
        """Everything that the rest of the run depends on. The tensors share memory with the training. Call it within
        `optimizer.with_net()`, because the model in a checkpoint is the net. `epoch`: the
        epoch that has just ended, from 1; None in the middle of an epoch. If several processes train together, all must
        call this at the same step; only the checkpoint of rank 0 is complete."""
        return Checkpoint(
            architecture=self.model.architecture,
            recipe=schema.to_data(self.stage.to_save),
            tensors={
                "model": self.sharding.whole(self.model.state_dict()),
                "optimizer": self.sharding.whole(self.optimizer.state_dict()),
                "rng": resuming.generators(self.device),
            },
            state={  # a TrainerState
                "step": self.step,
                "batches": self._place(),
                "validation_loss": self.validation_loss,
                "best_validation_loss": self.best_validation_loss,
                "best_step": self.best_step,
                "epoch": epoch,
                "epoch_end_pending": self._epoch_end_pending,
                "steps_per_epoch": self.steps_per_epoch,
                "stage": self.stage.index,
                "stage_first_step": self.stage.first_step,
                "validation_files": self.validation_files,
                "figure": self.figure,
                "callbacks": self._hooks.state(),
                "stopped": "" if self.stopped.startswith(_TIME_IS_UP) else self.stopped,
                "bad_chunks": self._bad_before + (self.bad_chunks() if self.bad_chunks else 0),
                "window_steps": self.step - self._loss_from,
                "window_loss": self._loss_sum.item(),
                "validation_contents": self.validation_contents() if self.validation_contents else None,
                "device": self.device.type,
                "cpu_threads": torch.get_num_threads(),
                "processes": self.ranks.size,
                "plugins": registry.plugins(),
                "environment": environment(self.device),
            },
        )

    def _place(self) -> dict[str, Any]:
        """The state of the stream of batches from which any number of processes can continue. All must call this
        together, as each has only the places of its own shards."""
        first, *others = states = self.ranks.each(self.batches.state_dict())
        return merge_states(states) if any(state != first for state in others) else first

    def resume(self, saved: Checkpoint, path: Path) -> None:
        """Continues from the checkpoint `saved`, which was read from `path`. UserError if it is not from a run with the
        same architecture, optimiser, data and number of steps per epoch, or, if `path` is in the run folder, the same
        validation files."""
        state = saved.trainer_state(path)
        in_place = path.resolve().parent == self.folder.checkpoints.resolve()
        resuming.check_same_net(self, saved, state, path, in_place=in_place)
        load_into(self.sharding.own(saved.tensors["model"]), self.model, path)
        try:
            own = self.sharding.own(saved.tensors["optimizer"])
            self.optimizer.load_state_dict(own, good_steps=saved.state["step"])
        except ValueError as error:
            raise UserError(f"{path}: optimizer {error}") from None
        try:
            self.batches.load_state_dict(state.batches)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise UserError(f"{path}: metadata state: batches: not a state of the stream of data") from None
        resuming.check_same_steps(self, state, path)
        resuming.load_generators(saved.tensors["rng"], self.device, path)
        resuming.print_rounding_differences(self, state, path)
        self.step = self._saved_step = state.step
        self.step_loss.continue_from(self.step)
        self._bad_before = state.bad_chunks
        self._hooks.load(state.callbacks)
        self._loss_sum.fill_(state.window_loss)
        self._loss_from = state.step - state.window_steps
        changed = loss_figure.changed(saved, state, self.figure)
        self.validation_loss = None if changed else state.validation_loss
        if self.recipe.average is not None:
            self.optimizer.average_begun = self.recipe.average.begun(self._now(self.step))
        self._first_update = self.step - self.optimizer.good_steps()
        self._epoch_end_pending = state.epoch_end_pending
        self._resumed = (path, state) if in_place else None

    def carry_optimizer(self, before: Checkpoint, path: Path, *, from_net: bool = False) -> None:
        """Loads the optimiser's state of the checkpoint `before`, read from `path`, whose net the model already has.
        `from_net`: train that, and not the weights whose average it is. UserError for a state that does not fit."""
        try:
            own = self.sharding.own(before.tensors["optimizer"])
            self.optimizer.load_state_dict(own, good_steps=before.trainer_state(path).step, from_net=from_net)
        except ValueError as error:
            raise UserError(f"{path}: optimizer {error}") from None
        self._first_update = self.step - self.optimizer.good_steps()

    def _settle(self, store: CheckpointStore | Nowhere) -> None:
        """After a resume in the same folder, restores the state of the folder at that step. Reads the best validation
        loss from the folder."""
        self.best_validation_loss = self.best_step = None  # `best` is the best checkpoint of its own folder
        if isinstance(store, Nowhere) or (self._resumed is None and self.stage.index == 0):
            return
        if self._resumed is not None:
            path, state = self._resumed
            kept = store.continue_from(path, state)
            if kept is not None:
                say(
                    f"{self.folder.path}: records and checkpoints after step {state.step:,} are kept in {kept}, a "
                    "separate run folder"
                )
        best = store.best_of_folder()
        if best is None:
            return
        of_best = best.trainer_state(self.folder.best)
        if changed := loss_figure.changed(best, of_best, self.figure):
            kept = store.retire_best()
            say(
                f"{self.folder.path}: {', '.join(changed)} changed, so validation losses cannot be compared with those "
                f"before: the best one is chosen anew, and the previous best checkpoint is {kept.name}"
            )
        else:
            self.best_validation_loss, self.best_step = of_best.validation_loss, of_best.step

    def _train_step(self, batch: Batch) -> None:
        loss = self._step.gradients(batch)
        self._updating = True
        self._step.update(loss)
        self._updating = False
        self._loss_sum += loss

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.recipe.schedule.of(self._now(self.step), self.recipe.optimizer.lr)

    def _log(self, run: RunOutputs) -> None:
        self._check_finite(run.store)
        self._restore_folder(run)
        steps, seconds = run.window.restart(self.step)  # of this process
        run.step_seconds += seconds
        of_run = (self.step - run.first_step) * self.recipe.data.batch_size / (time.monotonic() - run.began)
        loss = self._loss_sum.item() / (self.step - self._loss_from)
        self._loss_sum.zero_()
        self._loss_from = self.step
        values = {
            "epoch": self.stage.epochs_at(self.step - 1) + 1,
            "positions": self.stage.positions_at(self.step),
            "loss": loss,
            "lr": self.optimizer.lr.item(),
            "lambda": self.step_loss.lambda_at(self.step - 1),
            "positions_per_second": round(steps * self.recipe.data.batch_size / seconds, 1),
            "run_positions_per_second": round(of_run, 1),
            "peak_memory_bytes": peak_memory(self.device),
        }
        if self.batches.passes is not None:
            values["pass"] = self.batches.passes()
        if self.bad_chunks is not None:
            values["bad_chunks"] = self._bad_before + self.bad_chunks()
        if self.unique is not None:
            values["unique_positions"] = self.unique()
        self.record("train", values)
        self._warn_of_irregular_rows(run)
        self._warn_of_slow_writes(run)
        run.progress.update(self.step, loss=f"{loss:.6f}")

    def _warn_of_slow_writes(self, run: RunOutputs) -> None:
        """Reports once that a checkpoint takes longer than a scheduler waits."""
        write, grace = run.store.write_seconds(), self._grace
        if write > grace and not self._warned_of_slow_writes:
            self._warned_of_slow_writes = True
            run.progress.say(
                f"{self.folder.last}: a write takes {write:.0f} s, but schedulers kill a run {grace:g} s after their "
                f"signal; request an earlier one, such as sbatch --signal=B:USR1@{2 * math.ceil(write)}, and set "
                "NNUE_GRACE_SECONDS to that time"
            )

    def _warn_of_irregular_rows(self, run: RunOutputs) -> None:
        """Reports once that a feature set keeps the kernels for compute capability 9.0 from their speed."""
        plans = () if self._warned_of_irregular_rows else self._plans
        for plan in (each for each in plans if isinstance(each, PerspectivePlan)):
            if found := plan.irregular_rows():
                self._warned_of_irregular_rows = True
                rows = 2 * len(plan.white)
                run.progress.say(
                    f"{found:,} of {rows:,} rows of a batch have a feature twice, or features of several king buckets: "
                    "they are added one by one, which is slow; another bucket_size may fit the features"
                )

    def _end_epoch(self, run: RunOutputs) -> None:
        """Validates and saves a checkpoint after the last step of an epoch, if the recipe requests it in this epoch."""
        training, final = self.recipe.training, self.step == self.steps
        epoch = self.stage.epochs_at(self.step)
        is_best = False
        with run.progress.pause():
            loss = self.validate() if epoch % training.validate_every == 0 or final else None
            # This raises the error of an earlier write while `_epoch_end_pending` is still set. So a resumed run
            # validates this epoch again, and `best` is not lost.
            run.store.check()
            if loss is not None:
                finite = math.isfinite(loss)
                self.validation_loss = loss if finite else None
                is_best = finite and (self.best_validation_loss is None or loss < self.best_validation_loss)
                is_best = bool(self.ranks.same(is_best))  # only rank 0 has the best loss of the folder
                if is_best:
                    self.best_validation_loss, self.best_step = loss, self.step
                values = {"epoch": epoch, "loss": loss, "best": self.best_validation_loss}
                values |= self.fixed_figures | self.net_figures
                # Losses of another figure cannot be compared with this one.
                values["figure"] = zlib.crc32(json.dumps(self.figure, sort_keys=True).encode())
                of_step = ""
                if self.recipe.validation.lambda_ == "follow":
                    values["lambda"] = lam = self._validation_lambda()
                    of_step = f" at λ {lam:.4f}, the step's"
                self.record("validation", values)
                run.progress.update(self.step, val=f"{loss:.6f}")
                others = "".join(f", {name} {self.fixed_figures[f'{name}/loss']:.6f}" for name in self.more_validation)
                best = " (best)" if is_best else ""
                run.progress.say(f"epoch {epoch}: validation loss {loss:.6f}{of_step}{best}{others}")
                self._hooks.call("validation", self, loss, self.fixed_figures | self.net_figures)
            self._epoch_end_pending = False
            if is_best or final or epoch % training.checkpoint_every == 0:
                self._save(run, epoch=epoch, is_best=is_best, final=final)
            self._hooks.call("epoch", self, epoch)

    def _save(self, run: RunOutputs, *, epoch: int | None, is_best: bool = False, final: bool = False) -> None:
        self._check_finite(run.store)
        self._restore_folder(run)
        with self.optimizer.with_net():
            saved = run.store.save(self.checkpoint(epoch), epoch=epoch, is_best=is_best, final=final)
        if self.ranks.same(saved):
            self._saved_step = self.step
            if "save" in self._hooks and saved:
                run.store.wait()
                path = self.folder.last if epoch is None else self.folder.epoch(epoch)
                self._hooks.call("save", self, path, epoch)
        run.saved()

    def _check_finite(self, store: CheckpointStore | Nowhere) -> None:
        """UserError if a loss, a gradient, a weight or a moment is not finite; called before each record of metrics and
        each save, so that neither is ever made of such values. Waits for the device."""
        step = self._first_update + self.ranks.least(self.optimizer.good_steps())
        if self.ranks.any(self.optimizer.failed()):
            what = f"loss or gradient was not finite at step {step + 1}"
        elif self.ranks.any(not self.optimizer.finite()):
            what = f"the update made weights or moments that are not finite, at step {step} or before"
        else:
            return
        store.wait()
        last = self.folder.last
        good = f"{last} is the last good checkpoint" if last.exists() else "no checkpoint was written yet"
        raise UserError(f"{self.folder.path}: {what}; training stopped, nothing was overwritten, {good}")

    def _restore_folder(self, run: RunOutputs) -> None:
        """Makes the run folder again if it was moved or deleted: with the recipe, the records of this process
        and soon a checkpoint. UserError if it cannot be made."""
        found = self.folder.lost()
        if found is None:
            return
        with contextlib.suppress(UserError):
            run.store.wait()
        say(f"{self.folder.path}: {found}; it is made again, with a checkpoint of step {self.step:,} and all records")
        self.folder.make_again()
        self.folder.will_write(self.folder.recipe, self.folder.metrics)
        with replacing(self.folder.recipe) as output:
            output.write_text(config.to_yaml(self.stage.to_save))
        run.metrics.make_again()
        run.save_now()

    def _last_good(self, store: CheckpointStore | Nowhere) -> str:
        """The end of the message about a lost process: which checkpoint is the last good one."""
        with contextlib.suppress(Exception):
            store.wait()  # let a write in progress complete
        last = self.folder.last
        return f"; {last} is the last good checkpoint" if last.exists() else "; no checkpoint was written yet"

    def _rescue(self, store: CheckpointStore | Nowhere, first_step: int) -> None:
        """After an error, saves the steps done since the last save. It does not if the error came while the weights
        were being updated."""
        # A write in the background may have failed after `_saved_step` was set. Only rank 0 notices that.
        saved_step = self._saved_step if self.ranks.several else store.written_step
        if self.step in (first_step, saved_step) or self._updating:
            return
        # A checkpoint needs all ranks. An error that all of them meet, such as a damaged chunk that all of them read,
        # brings all of them here.
        if not self.ranks.meet(f"rescue-{self.step}"):
            return
        # An error in here, of the disk or the device, must not hide the error that ended the run.
        with contextlib.suppress(Exception):
            store.wait()
            self._check_finite(store)
            with self.optimizer.with_net():
                store.save(self.checkpoint(), epoch=None, final=True)
            store.wait()
            say(f"{self.folder.last}: saved at step {self.step:,}, before the error that ends this run")
