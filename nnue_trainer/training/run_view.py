"""A run as callbacks see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.training.run_folder import RunFolder

if TYPE_CHECKING:
    from typing import Any

    from nnue_trainer.config import Recipe
    from nnue_trainer.training.trainer import Trainer


class Run:
    """A training run as callbacks get it (docs/extending.md). Its fields can only be read; `stop`, `record` and `say`
    act on the run."""

    __slots__ = ("_recipe", "_seed", "_trainer")

    def __init__(self, trainer: Trainer, recipe: Recipe, seed: int) -> None:
        self._trainer, self._recipe, self._seed = trainer, recipe, seed

    # ---- what is trained ----

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run or its stage."""
        return self._recipe

    @property
    def seed(self) -> int:
        """Seed of the stage: of the order of positions."""
        return self._seed

    @property
    def checkpoint_every(self) -> int:
        """Epochs between checkpoints."""
        return self._trainer.config.checkpoint_every

    @property
    def model(self) -> NnueModel:
        """The net in training."""
        return self._trainer.model

    @property
    def optimizer(self) -> Optimizer:
        """Its optimiser."""
        return self._trainer.optimizer

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._trainer.device

    @property
    def folder(self) -> RunFolder:
        """The run folder: `folder.path`; `folder.will_write(path)` adds a file to it."""
        return self._trainer.folder

    # ---- how far it is ----

    @property
    def step(self) -> int:
        """Steps done, in the whole run."""
        return self._trainer.step

    @property
    def first_step(self) -> int:
        """Steps of the stages before this one."""
        return self._trainer.stage.first_step

    @property
    def steps(self) -> int:
        """Steps of the run up to the end of the stage."""
        return self._trainer.stage.end

    @property
    def epoch(self) -> int:
        """Complete epochs of the run."""
        return self._trainer.stage.epochs_at(self.step)

    @property
    def positions(self) -> int:
        """Positions that the run was trained on."""
        return self._trainer.stage.positions_at(self.step)

    @property
    def ends_epoch(self) -> bool:
        """Whether the last step is the last of an epoch."""
        return self._trainer.stage.ends_epoch(self.step)

    @property
    def at_epoch_end(self) -> bool:
        """Whether the last step ended an epoch, and its validation and checkpoint are done."""
        return self.step > self.first_step and self.ends_epoch and not self._trainer.state.epoch_end_pending

    def was_recorded(self, event: str) -> bool:
        """Whether the run was resumed at this step and already has a record of this event."""
        outputs = self._trainer.outputs
        return outputs is not None and outputs.metrics.has(event, self.step)

    # ---- what it found ----

    @property
    def validation_loss(self) -> float | None:
        """The last validation loss; None: there is none, or it is not finite."""
        return self._trainer.state.validation_loss

    @property
    def best_validation_loss(self) -> float | None:
        """The loss of the best validation (`training.best_by`) of the run folder; None: there is none."""
        return self._trainer.state.best_validation_loss

    @property
    def net_figures(self) -> Mapping[str, float]:
        """Figures of neurons and weights, from the last validation."""
        return self._trainer.state.net_figures

    @property
    def figure(self) -> Mapping[str, Any]:
        """The definition of the validation loss beside the weights: only losses of one figure can be compared."""
        return self._trainer.saver.saved.figure

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self._trainer.values.lr_at(self.step)

    def lambda_at(self, step: int) -> float:
        """λ of a step, without jitter."""
        return self._trainer.values.lambda_at(step)

    def checkpoint(self) -> Checkpoint:
        """The whole state of the run; if several processes train together, all must call it. The tensors share memory
        with the training."""
        return self._trainer.checkpoint()

    # ---- what a callback may do ----

    def stop(self, reason: str) -> None:
        """Ends the run after the current step, with a checkpoint. It does not count as interrupted."""
        self._trainer.stop(reason)

    def record(self, event: str, values: Mapping[str, float | int | None]) -> None:
        """Adds a record of the last step to metrics.jsonl and TensorBoard."""
        self._trainer.record(event, values)

    def say(self, text: str) -> None:
        """Prints a line, above the progress line if there is one."""
        self._trainer.say(text)
