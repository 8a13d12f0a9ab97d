"""The place of a stage in a run: its steps, epochs and positions, and the step from which schedules count."""

from __future__ import annotations

from dataclasses import dataclass

from nnue_trainer.config.stages import Stage
from nnue_trainer.schedules import RunStep


@dataclass(frozen=True, kw_only=True)
class StageOfRun:
    """One stage of a run. The trainer, metrics and checkpoints count steps and epochs through the whole run; schedules
    and λ count them from the last stage that restarted them."""

    stage: Stage | None
    """its entry in the recipe; None: a recipe without stages"""
    index: int
    of: int
    """stages of the run"""
    epochs: int
    """of this stage"""
    batch_size: int
    first_step: int
    """steps of the stages before"""
    first_epoch: int
    first_positions: int
    steps_per_epoch: int
    run_steps: int
    """steps of the whole run"""
    run_epochs: int
    clock: RunStep
    """the first step of the stage, as schedules count"""
    jitter_seed: int
    """seed of λ's jitter, which restarts where schedules do"""

    @property
    def end(self) -> int:
        """Steps of the run up to the end of the stage."""
        return self.first_step + self.epochs * self.steps_per_epoch

    def now(self, step: int) -> RunStep:
        """A step of the run as schedules see it."""
        return self.clock._replace(step=self.clock.step + step - self.first_step)

    def epochs_at(self, step: int) -> int:
        """Whole epochs of the run that are done after `step` steps of it, which must be a step of this stage."""
        return self.first_epoch + (step - self.first_step) // self.steps_per_epoch

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch ends after `step` steps of the run."""
        return (step - self.first_step) % self.steps_per_epoch == 0

    def positions_at(self, step: int) -> int:
        """Positions of the run that are trained on after `step` steps of it."""
        return self.first_positions + (step - self.first_step) * self.batch_size

    @property
    def label(self) -> str:
        """ "stage 2/4 late: " for messages; nothing for a recipe without stages."""
        return f"stage {self.index + 1}/{self.of} {self.stage.name}: " if self.stage else ""
