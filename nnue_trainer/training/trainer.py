"""The training loop.

The host never waits for the device but to write a record of metrics, to validate and to save: learning rate and λ live
on the device, losses are summed there, and the optimiser refuses non-finite steps by itself. All that the future of a
run depends on is in `checkpoint()`, so a resumed run is bit-identical to one that was never stopped.
"""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnue_trainer import registry, schema
from nnue_trainer.checkpoint import Checkpoint, TrainerState, check_like, load_into
from nnue_trainer.config import Recipe
from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError, shown
from nnue_trainer.losses import Loss, mean
from nnue_trainer.nets.activity import ActivityMeter, reach_figures
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.parallel.division import Whole
from nnue_trainer.parallel.ranks import Ranks
from nnue_trainer.progress import TrainingProgress
from nnue_trainer.training.batches import BatchSource, DeviceBatches
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.cuda_graph import GraphedStep
from nnue_trainer.training.memory import move_to_huge_pages
from nnue_trainer.training.metrics import MetricsWriter, environment, peak_memory
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.terminal import say


class _Stopped(BaseException):
    """Raised by the signal handler while the run waits for data, which can take long."""


@dataclass(frozen=True)
class Summary:
    """How a run ended. Losses are None where there was nothing to measure."""

    step: int
    steps: int
    positions: int
    seconds: float
    validation_loss: float | None
    best_validation_loss: float | None
    interrupted: bool
    bad_chunks: int = 0
    """chunks of the training files that were left out since this process started"""


class Trainer:
    """Trains `model`, which is on its device already, on the endless `batches`; `validation` opens the held-out
    positions, the same ones each time, or is None. Writes into `run_dir`.

    `validation_files` identifies the held-out positions, as plain JSON data. `bad_chunks` says how many chunks of data
    were left out so far. `division` says what of the training this process does; of several, the first one has the run
    folder and the terminal.
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
        bad_chunks: Callable[[], int] | None = None,
        division: Whole | None = None,
    ):
        self.recipe = recipe
        self.model = model
        self.folder = run_dir if isinstance(run_dir, RunFolder) else RunFolder(run_dir)
        self.device = next(model.parameters()).device
        self.division = Whole(Ranks(), model) if division is None else division
        self.ranks = self.division.ranks
        # The compiler is to see the whole forward pass.
        prepare = None if recipe.training.compile else self.division.prepare
        part = self.division.part if self.ranks.several else None
        self.validation = validation
        self.validation_files = validation_files
        self.bad_chunks = bad_chunks
        # The compiler and autocast would look at all rows of a weight.
        late = not recipe.training.compile and recipe.training.precision == "fp32" and not self.ranks.several
        self.optimizer = Optimizer(model, recipe.optimizer, late=late, copies=recipe.training.precision == "mixed")
        self.division.adopt(self.optimizer)
        if self.device.type == "cpu":
            with torch.no_grad():
                move_to_huge_pages([*model.parameters(), *self.optimizer.state_dict().values()])
        self.forward: Callable[[Batch], Tensor] = torch.compile(model) if recipe.training.compile else model
        wanted, possible = recipe.training.cuda_graph, self.optimizer.capturable
        if wanted and not possible:
            raise UserError(
                f"training.cuda_graph: a step of the optimizer {recipe.optimizer.kind!r} cannot be recorded; leave it "
                "out, or say false"
            )
        self._graphed = bool(wanted or (wanted is None and possible and self.device.type == "cuda"))
        self.train_step = self._recorded_step()
        self.batches = DeviceBatches(
            batches,
            self.device,
            model.feature_set,
            prepare,
            part,
            on_fetch=self._set_lambda_ahead,
            record=self._graphed,
            alone=not self.ranks.several,
        )
        self.steps_per_epoch = math.ceil(recipe.training.positions_per_epoch / recipe.data.batch_size)
        self.steps = recipe.training.epochs * self.steps_per_epoch
        self.step = 0
        self.validation_loss: float | None = None
        self.best_validation_loss: float | None = None
        self.best_step: int | None = None
        self.net_figures: dict[str, float] = {}  # of the last validation
        self._saved_step = -1
        self._epoch_end_pending = False
        self._resumed: tuple[Path, TrainerState] | None = None
        self._updating = False  # whether the step in hand has begun to change the weights
        # λ of the step, or of each position; for each buffer of batches, since it is set while the step before runs.
        self._lambdas: dict[int | None, Tensor] = {}
        self._steps_ahead = 0  # the number of the step whose λ is set next
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._stop = threading.Event()
        self._waiting = False

    def train(self) -> Summary:
        """Runs to the last step, or until the process is told to stop (SIGINT, SIGTERM, SIGHUP), then saves and
        returns. An error, such as a damaged chunk of data, is raised when what was trained so far is saved."""
        first_step, started = self.step, time.monotonic()
        with contextlib.ExitStack() as stack:
            store: CheckpointStore | _Nowhere = _Nowhere()
            if self.ranks.writes:
                stack.enter_context(self.folder)
                store = stack.enter_context(CheckpointStore(self.folder, self.recipe.training.keep_last))
            self._settle(store)
            self.ranks.on_loss(lambda: self._last_good(store))
            run = _Run(self, store)
            try:
                with self._stopping_on_signals():
                    try:
                        self._loop(run)
                    except _Stopped:
                        pass
                    except Exception:
                        self.ranks.speak()
                        self._rescue(store, first_step)
                        raise
                    if self._saved_step != self.step:
                        self._check_finite(store)
                        store.save(self.checkpoint(), epoch=None)
                        store.wait()
            finally:
                run.close()
                self.ranks.on_loss(str)
        return Summary(
            step=self.step,
            steps=self.steps,
            positions=(self.step - first_step) * self.recipe.data.batch_size,
            seconds=time.monotonic() - started,
            validation_loss=self.validation_loss,
            best_validation_loss=self.best_validation_loss,
            interrupted=self.step < self.steps or self._epoch_end_pending,
            bad_chunks=self.bad_chunks() if self.bad_chunks else 0,
        )

    def _loop(self, run: _Run) -> None:
        if self._epoch_end_pending:
            self._end_epoch(run)
        while self.step < self.steps:
            stop, save = self.ranks.agree(self._stop.is_set(), run.checkpoint_is_due())
            if stop:
                break
            self.advance()
            run.progress.update(self.step)
            ends = self.step % self.steps_per_epoch == 0
            self._epoch_end_pending = ends
            if ends or self.step % self.recipe.logging.every_steps == 0:
                self._log(run)
            if ends:
                self._end_epoch(run)
                run.window = _Window(self.step)
            elif save:
                self._check_finite(run.store)
                run.store.save(self.checkpoint(), epoch=None)
                self._saved_step = self.step
                run.saved()

    def advance(self) -> None:
        """One step. Launches work and returns."""
        self._set_rounding()
        self.optimizer.set_lr(self.learning_rate())
        with self._interruptible():
            batch = next(self.batches)
        if batch.buffer is None:
            self._set_lambda(batch, self.step)
        self.train_step(batch)
        self.step += 1
        self.batches.finish()

    def lambda_at(self, step: int) -> float:
        """λ of a step, before its jitter."""
        return self.recipe.lambda_.lambda_at(step, self.steps_per_epoch, self.recipe.training.epochs)

    def lambdas(self, batch: Batch) -> Tensor:
        """λ of the step with this batch on the device: fp32, a scalar or one for each position of the whole batch."""
        if batch.buffer not in self._lambdas:
            size = (self.recipe.data.batch_size,) if self.recipe.lambda_.jitter > 0 else ()
            self._lambdas[batch.buffer] = torch.zeros(size, device=self.device)
        return self._lambdas[batch.buffer]

    def _set_lambda(self, batch: Batch, step: int) -> None:
        lambdas, lam = self.lambdas(batch), self.lambda_at(step)
        if lambdas.dim() == 0:
            lambdas.fill_(lam)
        else:
            seed = self.recipe.training.seed
            lambdas.copy_(self.recipe.lambda_.of_positions(lam, seed, step, len(lambdas), self.device))

    def _set_lambda_ahead(self, batch: Batch) -> None:
        self._set_lambda(batch, self._steps_ahead)
        self._steps_ahead += 1

    def _recorded_step(self) -> Callable[[Batch], None]:
        if not self._graphed:
            return self._train_step
        step = GraphedStep(self._train_step, self.device, alone=not self.ranks.several)
        self.ranks.before_end(step.forget)
        return step

    def _set_rounding(self) -> None:
        """Whether the step that comes next rounds as the engine does, which depends only on its number."""
        rounding = self.recipe.model.awareness.active(self.step, self.steps)
        if rounding != (self.model.rounded is not None):
            self.model.set_rounding(rounding)
            self.train_step = self._recorded_step()  # a recorded step has the other forward pass

    def validate(self) -> float | None:
        """Loss over all held-out positions, with the λ of the end of the run, and in a run that becomes aware of
        quantisation with its rounding from the start, so that epochs compare."""
        if self.validation is None:
            return None
        lam = self.recipe.lambda_.final_lambda(self.steps_per_epoch, self.recipe.training.epochs)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        meter = ActivityMeter(self.model)
        with self._interruptible():
            batches = iter(self.validation())
        with torch.no_grad(), self.model.rounding(self.recipe.model.awareness.aware):
            while True:
                if self.ranks.several and self.ranks.agree(self._stop.is_set(), False)[0]:
                    raise _Stopped
                with self._interruptible():
                    batch = next(batches, None)
                if batch is None:
                    break
                batch = batch.to(self.device, non_blocking=False)
                terms = self._terms(self.division.forward, batch, lam)
                sums += torch.stack(terms).double()
                meter.add(batch)
        loss, weight = sums.tolist()
        self.net_figures = self.division.figures(meter.figures() | reach_figures(self.model))
        if weight == 0:
            raise UserError(f"{', '.join(self.recipe.data.validation)}: no positions to validate on")
        return float(loss / weight)

    def checkpoint(self, epoch: int | None = None) -> Checkpoint:
        """All that the rest of the run depends on. Shares memory with the running training. `epoch`: the one that has
        ended, None in the middle of one. Several processes have to ask for it together; the first one gets all."""
        rng = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        return Checkpoint(
            architecture=self.model.architecture,
            recipe=schema.to_data(self.recipe),
            tensors={
                "model": self.division.whole(self.model.state_dict()),
                "optimizer": self.division.whole(self.optimizer.state_dict()),
                "rng": rng,
            },
            state={  # a TrainerState
                "step": self.step,
                "batches": self.batches.state_dict(),
                "validation_loss": self.validation_loss,
                "best_validation_loss": self.best_validation_loss,
                "best_step": self.best_step,
                "epoch": epoch,
                "epoch_end_pending": self._epoch_end_pending,
                "steps_per_epoch": self.steps_per_epoch,
                "validation_files": self.validation_files,
                "device": self.device.type,
                "cpu_threads": torch.get_num_threads(),
                "processes": self.ranks.size,
                "plugins": registry.plugins(),
                "environment": environment(self.device),
            },
        )

    def resume(self, saved: Checkpoint, path: Path) -> None:
        """Continues from a checkpoint of a run with the same model and batches; `path` is for messages, and says
        whether the checkpoint lies in the run folder. UserError for one that does not fit."""
        state = saved.trainer_state(path)
        if saved.architecture != self.model.architecture:
            raise UserError(
                f"{path}: architecture is {saved.architecture!r:.200}, the recipe's is {self.model.architecture!r:.200}"
            )
        in_place = path.resolve().parent == self.folder.checkpoints.resolve()
        if in_place and state.validation_files is not None and not _same_files(state, self.validation_files):
            raise UserError(
                f"{path}: the validation files are not those of this run ({_names(state.validation_files)} then, "
                f"{_names(self.validation_files)} now, by size and content), so losses would not compare; resume into "
                "another folder with --run-dir"
            )
        for group in ("model", "optimizer", "rng"):
            if group not in saved.tensors:
                raise UserError(f"{path}: without tensors of the group {group}, expected those of a training run")
        load_into(self.division.own(saved.tensors["model"]), self.model, path)
        try:
            own = self.division.own(saved.tensors["optimizer"])
            self.optimizer.load_state_dict(own, good_steps=saved.state["step"])
        except ValueError as error:
            raise UserError(f"{path}: optimizer {error}") from None
        try:
            self.batches.load_state_dict(state.batches)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise UserError(f"{path}: metadata state: batches: not a state of the stream of data") from None
        if state.steps_per_epoch not in (None, self.steps_per_epoch):
            raise UserError(
                f"{path}: an epoch was {state.steps_per_epoch:,} steps, now it is {self.steps_per_epoch:,}: "
                "training.positions_per_epoch and data.batch_size cannot change on resume, as the learning rate "
                "follows the epochs; to change them start a new run with training.initial_weights"
            )
        self._load_generators(saved.tensors["rng"], path)
        if state.processes != self.ranks.size:
            say(
                f"{path}: resuming in {self.ranks.size} processes, it was {state.processes}: sums are rounded "
                "differently, so the bits will not be those of one run"
            )
        if state.device == self.device.type == "cpu" and state.cpu_threads not in (None, torch.get_num_threads()):
            say(
                f"{path}: resuming on {torch.get_num_threads()} CPU threads, it was {state.cpu_threads}: sums are "
                f"rounded differently, so the bits will not be those of one run (OMP_NUM_THREADS={state.cpu_threads} "
                "keeps them)"
            )
        self.step = self._saved_step = self._steps_ahead = state.step
        self.validation_loss = state.validation_loss
        self._epoch_end_pending = state.epoch_end_pending
        self._resumed = (path, state) if in_place else None

    def _load_generators(self, states: Mapping[str, Tensor], path: Path) -> None:
        generators: dict[str, tuple[Tensor, Callable[[Tensor], object]]] = {
            "cpu": (torch.get_rng_state(), torch.set_rng_state)
        }
        if self.device.type == "cuda" and "cuda" in states:  # absent where the run was on a CPU before
            restore = functools.partial(torch.cuda.set_rng_state, device=self.device)
            generators["cuda"] = (torch.cuda.get_rng_state(self.device), restore)
        for name, (own, set_state) in generators.items():
            what = f"{path}: tensor rng/{name}"
            if name not in states:
                raise UserError(f"{what} is missing")
            check_like(states[name], own, what)
            try:
                set_state(states[name])
            except RuntimeError:
                raise UserError(f"{what} is no state of torch's random generator") from None

    def _settle(self, store: CheckpointStore | _Nowhere) -> None:
        """Makes the run folder what it was at the step to continue from."""
        self.best_validation_loss = self.best_step = None  # "best" is the best of the folder it stands in
        if self._resumed is None or isinstance(store, _Nowhere):
            return
        path, state = self._resumed
        kept = store.continue_from(path, state)
        if kept is not None:
            say(f"{self.folder.path}: what came after step {state.step:,} is kept in {kept}, a run folder by itself")
        best = store.best_of_folder()
        if best is not None:
            self.best_validation_loss, self.best_step = best.validation_loss, best.step

    def _train_step(self, batch: Batch) -> None:
        loss = self.division.backward(self, batch)
        self._updating = True
        self.optimizer.step(loss)
        self._updating = False
        self._loss_sum += loss

    @property
    def loss_kind(self) -> Loss:
        return self.recipe.loss

    def loss(self, batch: Batch) -> Tensor:
        """The mean loss of a whole batch."""
        loss = None
        if not self.recipe.training.compile:
            with self.autocast():
                loss = self.model.loss(batch, self.recipe.loss, self.lambdas(batch))
        return mean(*self.terms(batch, self.lambdas(batch))) if loss is None else loss

    def terms(self, batch: Batch, lam: Tensor) -> tuple[Tensor, Tensor]:
        return self._terms(self.forward, batch, lam)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.training.precision == "mixed")

    def _terms(self, forward: Callable[[Batch], Tensor], batch: Batch, lam: Tensor | float) -> tuple[Tensor, Tensor]:
        with self.autocast():
            output = forward(batch)
        return self.recipe.loss.terms(output.float() * self.model.score_scale, batch.score, batch.result, lam)

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.recipe.schedule.lr_at(
            self.step, self.steps_per_epoch, self.recipe.training.epochs, self.recipe.optimizer.lr
        )

    def _log(self, run: _Run) -> None:
        self._check_finite(run.store)
        steps, seconds = run.window.restart(self.step)
        loss = self._loss_sum.item() / steps
        self._loss_sum.zero_()
        values = {
            "epoch": (self.step - 1) // self.steps_per_epoch + 1,
            "positions": self.step * self.recipe.data.batch_size,
            "loss": loss,
            "lr": self.optimizer.lr.item(),
            "lambda": self.lambda_at(self.step - 1),
            "positions_per_second": round(steps * self.recipe.data.batch_size / seconds, 1),
            "peak_memory_bytes": peak_memory(self.device),
        }
        if self.batches.passes is not None:
            values["pass"] = self.batches.passes()
        if self.bad_chunks is not None:
            values["bad_chunks"] = self.bad_chunks()
        run.metrics.write("train", self.step, values)
        run.progress.update(self.step, loss=f"{loss:.6f}")

    def _end_epoch(self, run: _Run) -> None:
        """Validates and saves after the last step of an epoch, as the recipe says."""
        training, final = self.recipe.training, self.step == self.steps
        epoch = self.step // self.steps_per_epoch
        is_best = False
        with run.progress.pause():
            loss = self.validate() if epoch % training.validate_every == 0 or final else None
            # An error of an earlier write is raised here, while this end of the epoch still counts as to come: a run
            # that is resumed validates again, and `best` is not missed.
            run.store.wait()
            if loss is not None:
                finite = math.isfinite(loss)
                self.validation_loss = loss if finite else None
                is_best = finite and (self.best_validation_loss is None or loss < self.best_validation_loss)
                is_best = bool(self.ranks.same(is_best))  # only one process knows the best of the folder
                if is_best:
                    self.best_validation_loss, self.best_step = loss, self.step
                values = {"epoch": epoch, "loss": loss, "best": self.best_validation_loss, **self.net_figures}
                run.metrics.write("validation", self.step, values)
                run.progress.update(self.step, val=f"{loss:.6f}")
                run.progress.say(f"epoch {epoch}: validation loss {loss:.6f}{' (best)' if is_best else ''}")
            self._epoch_end_pending = False
            if is_best or final or epoch % training.checkpoint_every == 0:
                self._check_finite(run.store)
                run.store.save(self.checkpoint(epoch), epoch=epoch, is_best=is_best)
                self._saved_step = self.step
                run.saved()

    def _check_finite(self, store: CheckpointStore | _Nowhere) -> None:
        """Nothing that is not finite is ever saved. Waits for the device."""
        step = self.ranks.least(self.optimizer.good_steps())
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

    def _last_good(self, store: CheckpointStore | _Nowhere) -> str:
        """What a run that another process has ended leaves behind."""
        with contextlib.suppress(Exception):
            store.wait()  # a checkpoint that is being written will be whole
        last = self.folder.last
        return f"; {last} is the last good checkpoint" if last.exists() else "; no checkpoint was written yet"

    def _rescue(self, store: CheckpointStore | _Nowhere, first_step: int) -> None:
        """Saves what was trained before an error, if the error left it whole."""
        if self.step == first_step or self.step == self._saved_step or self._updating:
            return
        # Ranks that all meet a damaged chunk are all here.
        if not self.ranks.meet(f"rescue-{self.step}"):
            return
        # What fails here (the disk, the device) must not hide the error that ended the run.
        with contextlib.suppress(Exception):
            store.wait()
            self._check_finite(store)
            store.save(self.checkpoint(), epoch=None)
            store.wait()
            self._saved_step = self.step
            say(f"{self.folder.last}: saved at step {self.step:,}, before the error that ends this run")

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Waits for data: a signal that ends the run does so at once, and not when the data is there."""
        if self.ranks.several:  # they stop together
            yield
            return
        self._waiting = True
        try:
            if self._stop.is_set():
                raise _Stopped
            yield
        finally:
            self._waiting = False

    @contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        """The first SIGINT, SIGTERM or SIGHUP (a dropped connection, unless `nohup` ignores it) ends the run after the
        step in hand; the second acts as always."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous: dict[int, Any] = {}

        def stop(number: int, _: object) -> None:
            self._stop.set()
            signal.signal(number, previous[number])
            if self._waiting:
                raise _Stopped

        for number in (int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP)):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                previous[number] = signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class _Run:
    """What the loop of one process writes to."""

    metrics: MetricsWriter | _Nowhere
    progress: TrainingProgress | _Nowhere

    def __init__(self, trainer: Trainer, store: CheckpointStore | _Nowhere):
        recipe, passes = trainer.recipe, trainer.batches.passes
        self.store = store
        if isinstance(store, _Nowhere):
            self.metrics = self.progress = store
        else:
            self.metrics = MetricsWriter(trainer.folder, trainer.step, recipe.logging.tensorboard)
            self.progress = TrainingProgress(
                trainer.steps, trainer.steps_per_epoch, recipe.data.batch_size, trainer.step, passes=passes
            )
        self.window = _Window(trainer.step)
        self._seconds_between_saves = 60 * recipe.training.checkpoint_minutes or math.inf
        self.saved()

    def saved(self) -> None:
        self._saved = time.monotonic()

    def checkpoint_is_due(self) -> bool:
        return time.monotonic() - self._saved >= self._seconds_between_saves

    def close(self) -> None:
        self.progress.close()
        self.metrics.close()


class _Nowhere:
    """The checkpoints, metrics and progress line of a process that writes none."""

    def save(self, content: Checkpoint, *, epoch: int | None, is_best: bool = False) -> None: ...

    def wait(self) -> None: ...

    def write(self, event: str, step: int, values: Mapping[str, float | int | None]) -> None: ...

    def update(self, step: int, **figures: str) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...

    def pause(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _Window:
    """Steps and seconds since the last record."""

    def __init__(self, step: int):
        self.restart(step)

    def restart(self, step: int) -> tuple[int, float]:
        now = time.monotonic()
        since = (step - getattr(self, "_step", step), now - getattr(self, "_time", now))
        self._step, self._time = step, now
        return since


def _same_files(state: TrainerState, now: list[Any] | None) -> bool:
    """Whether size and content of the held-out files are what they were; their names do not matter."""

    def contents(files: list[Any] | None) -> list[Any]:
        return [file[1:] if isinstance(file, list) else file for file in files or []]

    return contents(state.validation_files) == contents(now)


def _names(files: list[Any] | None) -> str:
    return shown(
        ", ".join(str(file[0]) if isinstance(file, list) and file else str(file) for file in files or ["none"])
    )
