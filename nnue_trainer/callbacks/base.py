"""The contract of callbacks and their registry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nnue_trainer.registry import Registry
from nnue_trainer.schema import section

if TYPE_CHECKING:
    from nnue_trainer.training.run_view import Run
    from nnue_trainer.training.trainer import Summary


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
