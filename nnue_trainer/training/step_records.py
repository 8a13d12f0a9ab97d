"""The records of metrics about training steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nnue_trainer.ops.perspectives import PerspectivePlan
from nnue_trainer.optim import Optimizer
from nnue_trainer.training.batches import DeviceBatches
from nnue_trainer.training.metrics import peak_memory
from nnue_trainer.training.outputs import RunOutputs
from nnue_trainer.training.schedule_values import ScheduleValues
from nnue_trainer.training.stages import StageOfRun
from nnue_trainer.training.state import RunState
from nnue_trainer.training.step import ChosenStep


@dataclass(eq=False)
class StepRecords:
    """Makes a record of the steps since the last one."""

    stage: StageOfRun
    state: RunState
    values: ScheduleValues
    step: ChosenStep
    optimizer: Optimizer
    batches: DeviceBatches
    count_bad_chunks: Callable[[], int] | None
    """returns how many damaged chunks of data were left out so far; None: not counted. All processes call this and the
    next one together"""
    count_unique: Callable[[], int] | None
    """returns how many different positions were seen"""

    def __post_init__(self) -> None:
        self._from = self.state.step  # the step after which the sum of losses begins
        self._warned_of_irregular_rows = False

    def bad_chunks(self, *, of_run: bool) -> int:
        """The damaged chunks that were left out, in this process or also before the run was resumed."""
        found = self.count_bad_chunks() if self.count_bad_chunks else 0
        return found + (self.state.bad_before if of_run else 0)

    def window(self) -> tuple[int, float]:
        """Steps since the last record, and the sum of their losses. Waits for the device."""
        return self.state.step - self._from, self.step.loss_sum.item()

    def continue_window(self, steps: int, loss: float) -> None:
        """The inverse of `window`, after a resume."""
        self._from = self.state.step - steps
        self.step.loss_sum.fill_(loss)

    def next(self, run: RunOutputs) -> dict[str, float]:
        """The record of the steps since the last one, which begins the next. Waits for the device."""
        stage, at = self.stage, self.state.step
        steps, seconds = run.window.restart(at)  # of this process
        run.step_seconds += seconds
        of_run = (at - run.first_step) * stage.batch_size / (run.window.began - run.began)
        of_window, loss = self.window()
        self.continue_window(0, 0.0)
        values: dict[str, float] = {
            "epoch": stage.epochs_at(at - 1) + 1,
            "positions": stage.positions_at(at),
            "loss": loss / of_window,
            "lr": self.optimizer.lr.item(),
            "lambda": self.values.lambda_at(at - 1),
            "positions_per_second": round(steps * stage.batch_size / seconds, 1),
            "run_positions_per_second": round(of_run, 1),
            "peak_memory_bytes": peak_memory(self.step.device),
        }
        if self.batches.passes is not None:
            values["pass"] = self.batches.passes()
        if self.count_bad_chunks is not None:
            values["bad_chunks"] = self.bad_chunks(of_run=True)
        if self.count_unique is not None:
            values["unique_positions"] = self.count_unique()
        return values

    def warn_of_irregular_rows(self, run: RunOutputs, plans: tuple[Any, ...]) -> None:
        """Reports once that a feature set keeps the kernels for compute capability 9.0 from their speed. `plans`: those
        of the last batch."""
        plans = () if self._warned_of_irregular_rows else plans
        for plan in (each for each in plans if isinstance(each, PerspectivePlan)):
            if found := plan.irregular_rows():
                self._warned_of_irregular_rows = True
                rows = 2 * len(plan.white)
                run.progress.say(
                    f"{found:,} of {rows:,} rows of a batch have a feature twice, or features of several king buckets: "
                    "they are added one by one, which is slow; another bucket_size may fit the features"
                )
