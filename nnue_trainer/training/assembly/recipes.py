"""The recipes of the stages of a run, and what they can be refused for before anything is built."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nnue_trainer import config
from nnue_trainer.config import Recipe, stage_recipes, with_precision, with_seed
from nnue_trainer.config.stages import Stage
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files import checkpoint
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.schedules import RunStep
from nnue_trainer.training.stages import StageOfRun

_SEEDS = 0x9E3779B97F4A7C15  # between the seeds of two stages


@dataclass(frozen=True, kw_only=True)
class RecipeStage(StageOfRun):
    """A stage with its recipe. What is assembled from it gets only the `StageOfRun`."""

    whole: Recipe
    """the recipe of the run"""
    recipe: Recipe
    """the recipe of the stage, with its own seed, so that no two stages read the data in the same order"""

    @classmethod
    def alone(cls, recipe: Recipe) -> RecipeStage:
        """A run of one stage."""
        (only,) = stages_of(recipe)
        return only

    def with_recipe(self, recipe: Recipe) -> RecipeStage:
        """This stage with settings that are only known once the model exists, such as the precision."""
        return dataclasses.replace(self, recipe=recipe)

    @property
    def to_save(self) -> Recipe:
        """The recipe of the run as it is written to its files, with the precision that training uses."""
        return with_precision(self.whole, self.recipe.training.precision)


def stages_of(recipe: Recipe) -> list[RecipeStage]:
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
            RecipeStage(
                whole=recipe,
                recipe=with_seed(of_stage, (seed + i * _SEEDS) % 2**63),
                stage=stages[i],
                index=i,
                of=len(recipes),
                epochs=epochs[i],
                batch_size=sizes[i],
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


def idle_averages(stages: list[RecipeStage]) -> list[str]:
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


def check_files(stages: Sequence[RecipeStage]) -> None:
    """UserError for a file that a stage would miss, perhaps days from now."""
    for stage in stages:
        recipe = stage.recipe
        lists = {"data.train": recipe.data.train, "data.validation": recipe.data.validation}
        lists |= {f"validation.sets.{number}.files": each.files for number, each in enumerate(recipe.validation.sets)}
        for key, files in lists.items():
            for file in files:
                if not Path(file).exists():
                    raise UserError(f"{stage.label}{key}: {shown(file)}: No such file or directory; create it first")


def check_names(stages: Sequence[RecipeStage], model: NnueModel) -> None:
    """UserError for patterns of parameters that do not fit the model, perhaps days before the stage that has them."""
    names = [name for name, _ in model.named_parameters()]
    for stage in stages:
        stage.recipe.optimizer.group_settings(names, stage.label)
        for number, penalty in enumerate(stage.recipe.training.penalties):
            penalty.check(model, f"{stage.label}training.penalties.{number}")
