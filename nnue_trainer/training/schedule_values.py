"""The values of a step that depend only on its number: learning rate, λ, rounding and the share of the average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nnue_trainer.data.batch import Batch
from nnue_trainer.nets.rounded_forward import QatConfig
from nnue_trainer.optim.averages import Average
from nnue_trainer.schedules import LambdaSchedule, Schedule
from nnue_trainer.training.stages import StageOfRun

_BLOCK = 256  # steps


class StepValues(NamedTuple):
    """The values of one step."""

    lr: float
    lam: float | None
    """λ of the batch; None: each position has its own"""
    rounds: bool
    """whether the forward pass rounds as the engine does"""
    share: float
    """of the way that the average moves after the step; 0: it does not"""
    average_begun: bool
    """whether the net is the average after the step"""


@dataclass(eq=False)
class ScheduleValues:
    """The values of the steps of a stage. They are computed in blocks, ahead of the steps."""

    stage: StageOfRun
    """the place of the stage, whose clock the schedules count by"""
    schedule: Schedule
    """of the learning rate, from `lr`"""
    lr: float
    lambda_: LambdaSchedule
    qat: QatConfig
    """when rounding begins"""
    average: Average | None
    """of the weights; None: there is none"""

    def __post_init__(self) -> None:
        self._begin, self._block = 0, list[StepValues]()
        self.of_positions = self.lambda_.jitter > 0
        """whether each position has its own λ"""

    def at(self, step: int) -> StepValues:
        """The values of a step of the stage."""
        place = step - self._begin
        if not 0 <= place < len(self._block):
            self._fill(step)
            place = 0
        return self._block[place]

    def _fill(self, step: int) -> None:
        self._begin, self._block = step, []
        for each in range(step, max(step + 1, min(step + _BLOCK, self.stage.end))):
            try:
                self._block.append(self._of(each))
            except (Exception, SystemExit):
                if each == step:
                    raise
                return  # a schedule's error is raised at its own step

    def _of(self, step: int) -> StepValues:
        now, after = self.stage.now(step), self.stage.now(step + 1)
        lam = None if self.of_positions else self.lambda_.of_batch(now, self.stage.jitter_seed, 0)
        assert not isinstance(lam, Tensor)
        average = self.average
        return StepValues(
            self.lr_at(step),
            lam,
            self.qat.active(now.step, now.steps),
            0.0 if average is None else average.share_at(after),
            average is not None and average.begun(after),
        )

    def lr_at(self, step: int) -> float:
        """The learning rate of a step."""
        return self.schedule.of(self.stage.now(step), self.lr)

    def lambda_at(self, step: int) -> float:
        """λ of a step, before its jitter."""
        return self.lambda_.of(self.stage.now(step))

    def final_lambda(self) -> float:
        """λ of validations at the end of the run."""
        end = self.stage.now(self.stage.end)
        return self.lambda_.final_of(end._replace(step=end.steps))

    def average_begun(self, step: int) -> bool:
        """Whether the net is the average after `step` steps."""
        return self.average is not None and self.average.begun(self.stage.now(step))

    def lambda_of_positions(self, step: int, positions: int, device: torch.device) -> Tensor:
        """λ of each position of a step's batch with its jitter, fp32 [positions]."""
        found = self.lambda_.of_batch(self.stage.now(step), self.stage.jitter_seed, positions, device)
        assert isinstance(found, Tensor)
        return found


class LambdaValues(dict[int | None, Tensor]):
    """λ as the loss gets it, by `Batch.buffer`, because the next step's is set while this one runs: fp32 on the device,
    a scalar for the step, or with jitter [batch size], one for each position of the whole batch."""

    def __init__(self, values: ScheduleValues, stage: StageOfRun, device: torch.device) -> None:
        self._values, self._device = values, device
        self._shape = (stage.batch_size,) if values.of_positions else ()
        self._ahead, self._last = stage.first_step, stage.end - 1

    def __missing__(self, buffer: int | None) -> Tensor:
        return self.setdefault(buffer, torch.zeros(self._shape, dtype=torch.float32, device=self._device))

    def set(self, batch: Batch, step: int) -> None:
        """Sets λ of a step, which has this batch."""
        lambdas, lam = self[batch.buffer], self._values.at(step).lam
        if lam is None:
            lambdas.copy_(self._values.lambda_of_positions(step, len(lambdas), self._device))
        else:
            lambdas.fill_(lam)

    def set_ahead(self, batch: Batch) -> None:
        """Sets λ of the next step; called with each batch that is fetched. One more is fetched than there are steps."""
        if batch.buffer is not None:
            self.set(batch, min(self._ahead, self._last))
        self._ahead += 1

    def continue_from(self, step: int) -> None:
        """The next batch that is fetched belongs to this step."""
        self._ahead = step
