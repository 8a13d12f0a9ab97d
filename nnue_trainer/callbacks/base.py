"""The contract of callbacks, what they get of a run, and their registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.registry import Registry
from nnue_trainer.schema import section


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
    """the loss of the best validation of the run folder; None: there is none"""
    interrupted: bool
    """whether the run ended before its last step and the validation after it"""
    bad_chunks: int = 0
    """damaged chunks of the training files that were left out since this process started"""
    stopped: str = ""
    """why a callback or training.max_time ended the run before its last step; "" if none did"""
    status: int = 0
    """exit status of `nnue train`: 0, or the one of `base.status` for an early end after which it can be continued"""


class Folder(Protocol):
    """The folder of a run."""

    path: Path
    last: Path
    """the newest checkpoint"""

    def epoch(self, number: int) -> Path:
        """The checkpoint of an epoch."""

    def will_write(self, *paths: Path) -> None:
        """Adds files to the run: a new run in this folder may delete them."""


class Run:
    """A training run as callbacks get it (docs/extending.md). Its fields can only be read; `stop`, `record` and `say`
    act on the run."""

    recipe: Any
    """the `config.Recipe` of the run or its stage"""
    seed: int
    """seed of the stage: of the order of positions"""
    checkpoint_every: int
    """epochs between checkpoints"""
    model: NnueModel
    """the net in training"""
    optimizer: Optimizer
    """its optimiser"""
    device: torch.device
    """the device of the model"""
    folder: Folder
    """the run folder: `folder.path`; `folder.will_write(path)` adds a file to it"""
    step: int
    """steps done, in the whole run"""
    first_step: int
    """steps of the stages before this one"""
    steps: int
    """steps of the run up to the end of the stage"""
    epoch: int
    """complete epochs of the run"""
    positions: int
    """positions that the run was trained on"""
    ends_epoch: bool
    """whether the last step is the last of an epoch"""
    at_epoch_end: bool
    """whether the last step ended an epoch, and its validation and checkpoint are done"""
    validation_loss: float | None
    """the last validation loss; None: there is none, or it is not finite"""
    best_validation_loss: float | None
    """the loss of the best validation (`training.best_by`) of the run folder; None: there is none"""
    net_figures: Mapping[str, float]
    """figures of neurons and weights, from the last validation"""
    figure: Mapping[str, Any]
    """the definition of the validation loss beside the weights: only losses of one figure can be compared"""
    was_recorded: Callable[[str], bool]
    """whether the run was resumed at this step and already has a record of this event"""
    learning_rate: Callable[[], float]
    """the learning rate of the next step"""
    lambda_at: Callable[[int], float]
    """λ of a step, without jitter"""
    checkpoint: Callable[[], Checkpoint]
    """the whole state of the run; if several processes train together, all must call it. The tensors share memory with
    the training"""
    stop: Callable[[str], None]
    """ends the run after the current step, with a checkpoint, for a reason. It does not count as interrupted"""
    record: Callable[[str, Mapping[str, float | int | None]], None]
    """adds a record of the last step, an event and its values, to metrics.jsonl and TensorBoard"""
    say: Callable[[str], None]
    """prints a line, above the progress line if there is one"""

    def __init__(self, read: Mapping[str, Callable[[], Any]]) -> None:
        """`read`: what gives each of the fields above."""
        self.__dict__["_read"] = read

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("_read", ()):
            raise AttributeError(f"'Run' object has no attribute {name!r}")
        return self._read[name]()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: the fields of a run can only be read")


@section
class Callback:
    """An action during a run. A subclass is a section (`schema.section`) and defines the methods that it
    needs. They are called between steps, in the process that writes; training waits for them. A UserError that one
    raises ends the run after a checkpoint.

    They get a `nnue_trainer.training.Run` (docs/extending.md): its fields can be read, `run.stop(reason)` ends the run
    with a checkpoint, `run.record(event, values)` adds a line to metrics.jsonl, `run.say(text)` prints one.
    """

    kind: ClassVar[str]

    @property
    def memory(self) -> dict[str, Any]:
        """The callback's state, plain JSON data. It is saved in checkpoints and restored by a resume."""
        memory: dict[str, Any] = self.__dict__.setdefault("_memory", {})
        return memory

    def start(self, run: Run) -> None:
        """Before the first step, also of a resumed run."""

    def step(self, run: Run) -> None:
        """After a step was started; `run.step` counts it. Reading a tensor of the device makes the host wait."""

    def epoch(self, run: Run, epoch: int) -> None:
        """After the end of an epoch, from 1, its validation and its checkpoint."""

    def validation(self, run: Run, loss: float, figures: Mapping[str, float]) -> None:
        """After a validation."""

    def save(self, run: Run, checkpoint: Path, epoch: int | None) -> None:
        """After a checkpoint is on disk, that of an epoch or (None) of a step in between. Defining this method makes
        training wait until it is written."""

    def metrics(self, run: Run, event: str, values: Mapping[str, float | int | None]) -> None:
        """After a record of metrics: `event` is "train", "validation" or what a callback recorded."""

    def end(self, run: Run, summary: Summary) -> None:
        """After the last checkpoint of a run that ended without an error."""


CALLBACKS: Registry[Callback] = Registry("nnue_trainer.callbacks", lambda: Callback, what="callback")
