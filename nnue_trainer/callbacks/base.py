"""The contract of callbacks and their registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nnue_trainer.registry import Registry
from nnue_trainer.schema import section

if TYPE_CHECKING:
    from nnue_trainer.training.trainer import Summary, Trainer


@section
class Callback:
    """An action during a run. A subclass is a section (`schema.section`) and defines the methods that it
    needs. They are called between steps, in the process that writes; training waits for them. A UserError that one
    raises ends the run after a checkpoint.

    `trainer` is the public object of the run (docs/extending.md): its fields can be read, `trainer.stop(reason)` ends
    the run with a checkpoint, `trainer.record(event, values)` adds a line to metrics.jsonl, `trainer.say(text)` prints
    one.
    """

    kind: ClassVar[str]

    @property
    def memory(self) -> dict[str, Any]:
        """The callback's state, plain JSON data. It is saved in checkpoints and restored by a resume."""
        memory: dict[str, Any] = self.__dict__.setdefault("_memory", {})
        return memory

    def start(self, trainer: Trainer) -> None:
        """Before the first step, also of a resumed run."""

    def step(self, trainer: Trainer) -> None:
        """After a step was started; `trainer.step` counts it. Reading a tensor of the device makes the host wait."""

    def epoch(self, trainer: Trainer, epoch: int) -> None:
        """After the end of an epoch, from 1, its validation and its checkpoint."""

    def validation(self, trainer: Trainer, loss: float, figures: Mapping[str, float]) -> None:
        """After a validation."""

    def save(self, trainer: Trainer, checkpoint: Path, epoch: int | None) -> None:
        """After a checkpoint is on disk, that of an epoch or (None) of a step in between. Defining this method makes
        training wait until it is written."""

    def metrics(self, trainer: Trainer, event: str, values: Mapping[str, float | int | None]) -> None:
        """After a record of metrics: `event` is "train", "validation" or what a callback recorded."""

    def end(self, trainer: Trainer, summary: Summary) -> None:
        """After the last checkpoint of a run that ended without an error."""


CALLBACKS: Registry[Callback] = Registry("nnue_trainer.callbacks", lambda: Callback, what="callback")
