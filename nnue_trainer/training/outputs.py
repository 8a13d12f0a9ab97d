"""The outputs of the training loop in one process: checkpoints, metrics and the progress line.

Only the process of rank 0 writes. The others have a `Nowhere` instead of each.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping

from nnue_trainer.base.progress import TrainingProgress
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.metrics import MetricsWriter
from nnue_trainer.training.stages import StageOfRun


class RunOutputs:
    """The outputs of the training loop in one process: checkpoints, metrics and the progress line.

    Args:
        step: steps of the run that are done when the loop begins.
        passes: returns the number of the current pass over the data; None: they are not counted.
        tensorboard: write TensorBoard events, too.
        minutes: from a checkpoint to the next one within an epoch; 0: there are none.
    """

    metrics: MetricsWriter | Nowhere
    progress: TrainingProgress | Nowhere

    def __init__(
        self,
        store: CheckpointStore | Nowhere,
        stage: StageOfRun,
        step: int,
        passes: Callable[[], int] | None,
        *,
        tensorboard: bool,
        minutes: float,
    ) -> None:
        self.store = store
        if isinstance(store, Nowhere):
            self.metrics = self.progress = store
        else:
            self.metrics = MetricsWriter(store.folder, step, tensorboard)
            self.progress = TrainingProgress(
                stage.run_steps,
                stage.steps_per_epoch,
                stage.batch_size,
                step,
                passes=passes,
                first_step=stage.first_step,
                first_epoch=stage.first_epoch,
                epochs=stage.run_epochs,
                stage=stage.label.removesuffix(": "),
            )
        self.window = Window(step)
        self.began, self.first_step = self.window.began, step
        self.step_seconds = 0.0
        self._seconds_between_saves = 60 * minutes or math.inf
        self.saved()

    def saved(self) -> None:
        self._saved = time.monotonic()

    def save_now(self) -> None:
        """Makes the next answer of `checkpoint_is_due` true."""
        self._saved = -math.inf

    def checkpoint_is_due(self) -> bool:
        return self._saved == -math.inf or time.monotonic() - self._saved >= self._seconds_between_saves

    def seconds_since_save(self) -> float:
        return time.monotonic() - self._saved

    def end_steps(self, step: int) -> None:
        """Counts the time of the steps since the last record, at the end of the run."""
        steps, seconds = self.window.restart(step)
        self.step_seconds += seconds if steps else 0.0

    def close(self) -> None:
        self.progress.close()
        self.metrics.close()


class Nowhere:
    """Takes the place of the checkpoint store, the metrics and the progress line in a process that writes nothing."""

    written_step: int | None = None

    def write_seconds(self) -> float:
        return 0.0

    def save(self, content: Checkpoint, *, epoch: int | None, is_best: bool = False, final: bool = False) -> bool:
        return True

    def check(self) -> None: ...

    def wait(self) -> None: ...

    def write(self, event: str, step: int, values: Mapping[str, float | int | None]) -> None: ...

    def has(self, event: str, step: int) -> bool:
        return False

    def make_again(self) -> None: ...

    def update(self, step: int, **figures: str) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...

    def pause(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Window:
    """Counts steps and seconds since the last record of metrics."""

    def __init__(self, step: int):
        self.first_step, self.began = step, time.monotonic()

    def restart(self, step: int) -> tuple[int, float]:
        first_step, began = self.first_step, self.began
        self.first_step, self.began = step, time.monotonic()
        return step - first_step, self.began - began
