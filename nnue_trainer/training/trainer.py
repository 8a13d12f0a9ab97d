"""The training loop.

The host never waits for the device but to write a record of metrics, to validate and to save: learning rate and λ live
on the device, losses are summed there, and the optimiser refuses non-finite steps by itself. All that the future of a
run depends on is in `checkpoint()`, so a resumed run is bit-identical to one that was never stopped.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnue_trainer import schema
from nnue_trainer.architectures.base import NnueModel
from nnue_trainer.checkpoint import Checkpoint, load_into
from nnue_trainer.config import Recipe
from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.optim import Optimizer
from nnue_trainer.training.batches import BatchSource, DeviceBatches
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.cuda_graph import GraphedStep
from nnue_trainer.training.metrics import MetricsWriter, ProgressLine, peak_memory


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


class Trainer:
    """Trains `model`, which is on its device already, on the endless `batches`; `validation` opens the held-out
    positions, the same ones each time, or is None. Writes into `run_dir`."""

    def __init__(
        self,
        recipe: Recipe,
        model: NnueModel,
        batches: BatchSource,
        validation: Callable[[], Iterable[Batch]] | None,
        run_dir: Path,
    ):
        self.recipe = recipe
        self.model = model
        self.run_dir = run_dir
        self.device = next(model.parameters()).device
        self.batches = DeviceBatches(batches, self.device, model.feature_set)
        self.validation = validation
        self.optimizer = Optimizer(model, recipe.optimizer)
        self.forward: Callable[[Batch], Tensor] = torch.compile(model) if recipe.training.compile else model
        self.train_step: Callable[[Batch], None] = self._train_step
        wanted = recipe.training.cuda_graph
        if wanted or (wanted is None and self.device.type == "cuda"):
            self.train_step = GraphedStep(self._train_step, self.device)
        self.steps_per_epoch = math.ceil(recipe.training.positions_per_epoch / recipe.data.batch_size)
        self.steps = recipe.training.epochs * self.steps_per_epoch
        self.step = 0
        self._saved_step = -1
        self.validation_loss: float | None = None
        self.best_validation_loss: float | None = None
        self._lambda = torch.zeros((), device=self.device)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._stop = threading.Event()

    def train(self) -> Summary:
        """Runs to the last step, or until the process is told to stop (SIGINT, SIGTERM), then saves and returns."""
        first_step, started = self.step, time.monotonic()
        training, logging = self.recipe.training, self.recipe.logging
        store = CheckpointStore(self.run_dir / "checkpoints", training.keep_last)
        if not store.best.exists():  # resumed from a run in another folder: "best" is the best of this one
            self.best_validation_loss = None
        metrics = MetricsWriter(self.run_dir, self.step, logging.tensorboard)
        progress = ProgressLine(self.steps, self.steps_per_epoch, self.recipe.data.batch_size, self.step)
        window = _Window(self.step)
        try:
            with store, self._stopping_on_signals():
                while self.step < self.steps and not self._stop.is_set():
                    self.advance()
                    progress.update(self.step)
                    if self.step % logging.every_steps == 0 or self.step % self.steps_per_epoch == 0:
                        self._log(window, metrics, progress, store)
                    if self.step % self.steps_per_epoch == 0:
                        self._end_epoch(self.step // self.steps_per_epoch, metrics, progress, store)
                        window = _Window(self.step)
                if self._saved_step != self.step:
                    self._check_finite(store)
                    store.save(self.checkpoint(), epoch=None)
        finally:
            progress.close()
            metrics.close()
        return Summary(
            step=self.step,
            steps=self.steps,
            positions=(self.step - first_step) * self.recipe.data.batch_size,
            seconds=time.monotonic() - started,
            validation_loss=self.validation_loss,
            best_validation_loss=self.best_validation_loss,
            interrupted=self.step < self.steps,
        )

    def advance(self) -> None:
        """One step. Launches work and returns."""
        self.optimizer.lr.fill_(self.learning_rate())
        self._lambda.fill_(self.recipe.loss.lambda_at(self.step, self.steps))
        self.train_step(next(self.batches))
        self.step += 1

    def validate(self) -> float | None:
        """Loss over all held-out positions, with the λ of the end of the run, so that epochs compare."""
        if self.validation is None:
            return None
        lam = self.recipe.loss.final_lambda
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for batch in self.validation():
                terms = self._terms(self.model, batch.to(self.device, non_blocking=False), lam)
                sums += torch.stack(terms).double()
        loss, weight = sums.tolist()
        if weight == 0:
            raise UserError(f"{', '.join(self.recipe.data.validation)}: no positions to validate on")
        return float(loss / weight)

    def checkpoint(self) -> Checkpoint:
        """All that the rest of the run depends on. Shares memory with the running training."""
        rng = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        return Checkpoint(
            architecture=self.model.architecture,
            recipe=schema.to_data(self.recipe),
            tensors={"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "rng": rng},
            state={
                "step": self.step,
                "validation_loss": self.validation_loss,
                "best_validation_loss": self.best_validation_loss,
                "batches": self.batches.state_dict(),
            },
        )

    def resume(self, saved: Checkpoint, path: Path) -> None:
        """Continues from a checkpoint of a run with the same model and batches; `path` is for messages."""
        if "step" not in saved.state or "optimizer" not in saved.tensors:
            raise UserError(f"{path}: holds weights only; start from it with training.initial_weights={path}")
        load_into(saved.tensors["model"], self.model, path)
        try:
            self.optimizer.load_state_dict(saved.tensors["optimizer"])
        except ValueError as error:
            raise UserError(f"{path}: optimizer {error}") from None
        try:
            self.batches.load_state_dict(saved.state["batches"])
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        torch.set_rng_state(saved.tensors["rng"]["cpu"])
        if self.device.type == "cuda" and "cuda" in saved.tensors["rng"]:
            torch.cuda.set_rng_state(saved.tensors["rng"]["cuda"], self.device)
        self.step = self._saved_step = saved.state["step"]
        self.validation_loss = saved.state["validation_loss"]
        self.best_validation_loss = saved.state["best_validation_loss"]

    def _train_step(self, batch: Batch) -> None:
        weighted, weights = self._terms(self.forward, batch, self._lambda)
        loss = weighted / weights
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(loss)
        self._loss_sum += loss.detach()

    def _terms(self, forward: Callable[[Batch], Tensor], batch: Batch, lam: Tensor | float) -> tuple[Tensor, Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.training.precision == "bf16"):
            output = forward(batch)
        return self.recipe.loss.terms(output.float() * self.model.score_scale, batch.score, batch.result, lam)

    def learning_rate(self) -> float:
        """Of the step that comes next."""
        return self.recipe.schedule.lr_at(
            self.step, self.steps_per_epoch, self.recipe.training.epochs, self.recipe.optimizer.lr
        )

    def _log(self, window: _Window, metrics: MetricsWriter, progress: ProgressLine, store: CheckpointStore) -> None:
        self._check_finite(store)
        steps, seconds = window.restart(self.step)
        loss = self._loss_sum.item() / steps
        self._loss_sum.zero_()
        values = {
            "epoch": (self.step - 1) // self.steps_per_epoch + 1,
            "positions": self.step * self.recipe.data.batch_size,
            "loss": loss,
            "lr": self.optimizer.lr.item(),
            "lambda": self._lambda.item(),
            "positions_per_second": round(steps * self.recipe.data.batch_size / seconds, 1),
            "peak_memory_bytes": peak_memory(self.device),
        }
        metrics.write("train", self.step, values)
        progress.update(self.step, loss=f"{loss:.6f}")

    def _end_epoch(self, epoch: int, metrics: MetricsWriter, progress: ProgressLine, store: CheckpointStore) -> None:
        training, final = self.recipe.training, self.step == self.steps
        is_best = False
        with progress.pause():
            if self.validation is not None and (epoch % training.validate_every == 0 or final):
                loss = self.validate()
                assert loss is not None
                self.validation_loss = loss
                is_best = self.best_validation_loss is None or loss < self.best_validation_loss
                if is_best:
                    self.best_validation_loss = loss
                metrics.write(
                    "validation", self.step, {"epoch": epoch, "loss": loss, "best": self.best_validation_loss}
                )
                progress.update(self.step, val=f"{loss:.6f}")
                progress.say(f"epoch {epoch}: validation loss {loss:.6f}{' (best)' if is_best else ''}")
            if is_best or final or epoch % training.checkpoint_every == 0:
                store.save(self.checkpoint(), epoch=epoch, is_best=is_best)
                self._saved_step = self.step

    def _check_finite(self, store: CheckpointStore) -> None:
        if not self.optimizer.failed():
            return
        store.wait()
        good = f"{store.last} is the last good checkpoint" if store.last.exists() else "no checkpoint was written yet"
        raise UserError(
            f"{self.run_dir}: loss or gradient was not finite at step {self.optimizer.good_steps() + 1}; training "
            f"stopped, nothing was overwritten, {good}"
        )

    @contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM ends the run after the step in hand; the second acts as always."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous: dict[int, Any] = {}

        def stop(number: int, _: object) -> None:
            self._stop.set()
            signal.signal(number, previous[number])

        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            previous[number] = signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class _Window:
    """Steps and seconds since the last record."""

    def __init__(self, step: int):
        self.restart(step)

    def restart(self, step: int) -> tuple[int, float]:
        now = time.monotonic()
        since = (step - getattr(self, "_step", step), now - getattr(self, "_time", now))
        self._step, self._time = step, now
        return since
