"""The place of each stage in a run: its steps, epochs and positions, and the step from which schedules count."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from pathlib import Path

from nnue_trainer import config
from nnue_trainer.config import Recipe, stage_recipes, with_precision, with_seed
from nnue_trainer.config.stages import Stage
from nnue_trainer.files import checkpoint
from nnue_trainer.schedules import RunStep

_SEEDS = 0x9E3779B97F4A7C15  # between the seeds of two stages


@dataclass(frozen=True)
class StageOfRun:
    """One stage of a run. The trainer, metrics and checkpoints count steps and epochs through the whole run; schedules
    and λ count them from the last stage that restarted them."""

    whole: Recipe
    """the recipe of the run"""
    recipe: Recipe
    """the recipe of the stage, with its own seed, so that no two stages read the data in the same order"""
    stage: Stage | None
    """its entry in the recipe; None: a recipe without stages"""
    index: int
    of: int
    """stages of the run"""
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

    @classmethod
    def alone(cls, recipe: Recipe) -> StageOfRun:
        """A run of one stage."""
        (only,) = stages_of(recipe)
        return only

    @property
    def end(self) -> int:
        """Steps of the run up to the end of the stage."""
        return self.first_step + self.recipe.training.epochs * self.steps_per_epoch

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
        return self.first_positions + (step - self.first_step) * self.recipe.data.batch_size

    def with_recipe(self, recipe: Recipe) -> StageOfRun:
        """This stage with settings that are only known once the model exists, such as the precision."""
        return dataclasses.replace(self, recipe=recipe)

    @property
    def to_save(self) -> Recipe:
        """The recipe of the run as it is written to its files, with the precision that training uses."""
        return with_precision(self.whole, self.recipe.training.precision)

    @property
    def label(self) -> str:
        """ "stage 2/4 late: " for messages; nothing for a recipe without stages."""
        return f"stage {self.index + 1}/{self.of} {self.stage.name}: " if self.stage else ""


def stages_of(recipe: Recipe) -> list[StageOfRun]:
    """The stages of a run, in their order."""
    recipes = stage_recipes(recipe)
    stages: list[Stage | None] = [*recipe.stages] if recipe.stages else [None]
    per_epoch = [math.ceil(each.training.positions_per_epoch / each.data.batch_size) for each in recipes]
    epochs = [each.training.epochs for each in recipes]
    steps = [e * n for e, n in zip(epochs, per_epoch, strict=True)]
    step_before, epochs_before = ([0, *itertools.accumulate(counts)] for counts in (steps, epochs))
    sizes = [each.data.batch_size for each in recipes]
    positions_before = [0, *itertools.accumulate(n * size for n, size in zip(steps, sizes, strict=True))]
    begun = [i for i, stage in enumerate(stages) if i == 0 or stage is None or stage.carry == "weights"]
    seed = recipe.training.seed
    found = []
    for i, of_stage in enumerate(recipes):
        first = max(j for j in begun if j <= i)
        last = min([j for j in begun if j > i], default=len(recipes))
        clock = RunStep(
            step=step_before[i] - step_before[first],
            steps_per_epoch=per_epoch[i],
            epochs=epochs_before[last] - epochs_before[first],
            first_step=step_before[i] - step_before[first],
            first_epoch=epochs_before[i] - epochs_before[first],
            total=step_before[last] - step_before[first],
        )
        found.append(
            StageOfRun(
                whole=recipe,
                recipe=with_seed(of_stage, (seed + i * _SEEDS) % 2**63),
                stage=stages[i],
                index=i,
                of=len(recipes),
                first_step=step_before[i],
                first_epoch=epochs_before[i],
                first_positions=positions_before[i],
                steps_per_epoch=per_epoch[i],
                run_steps=step_before[-1],
                run_epochs=epochs_before[-1],
                clock=clock,
                jitter_seed=(seed + first * _SEEDS) % 2**63,
            )
        )
    return found


_FEW_STEPS = 4096
"""`idle_averages` tries the steps of a stage one by one only if there are at most this many."""


def idle_averages(stages: list[StageOfRun]) -> list[str]:
    """A line for each average that never begins, or never moves, in its stage or in one that continues it."""
    found: list[str] = []
    idle: dict[str, str] = {}  # of the stages that share a clock, by kind
    for stage in stages:
        if stage.stage is None or stage.stage.carry == "weights":
            found += idle.values()
            idle = {}
        average = stage.recipe.average
        if average is None:
            continue
        end = stage.now(stage.end)
        steps = range(stage.first_step + 1, stage.end + 1)
        if not average.begun(end):
            epochs = f"{end.epoch:,} epoch{'s' * (end.epoch != 1)}"
            why = f"does not begin within {epochs}, so the net is not an average: lower start_epoch"
        elif len(steps) <= _FEW_STEPS and not any(average.share_at(stage.now(step)) for step in steps):
            why = f"does not move within {len(steps):,} steps, so the net stays the initial one: lower every"
        else:
            idle.pop(average.kind, None)
            continue
        idle[average.kind] = f"{stage.label}average: {average.kind} {why}"
    return [*found, *idle.values()]


def left(last: Path) -> str:
    """The rest of the run of a last checkpoint, "step 3 of 9"; "" if it is finished, or a callback ended it."""
    saved = checkpoint.load(last, ())
    state = saved.trainer_state(last)
    end = stages_of(config.parse(saved.recipe))[-1].end
    return "" if state.stopped or state.step >= end else f"step {state.step:,} of {end:,}"
