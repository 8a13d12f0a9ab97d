"""Makes the trainer of a stage from its recipe, a model and a stream of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nnue_trainer import config, schema
from nnue_trainer.config import Recipe
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.training import loss_figure
from nnue_trainer.training.assembly.core import Core, core_of, is_recorded
from nnue_trainer.training.assembly.precision import without_auto
from nnue_trainer.training.assembly.recipes import RecipeStage
from nnue_trainer.training.autograd_step import StepLoss
from nnue_trainer.training.batches import BatchSource, DeviceBatches, Stopping
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.figures import BestBy
from nnue_trainer.training.finite import FiniteCheck
from nnue_trainer.training.hooks import Hooks
from nnue_trainer.training.outputs import Nowhere, RunOutputs
from nnue_trainer.training.parallel.ranks import Ranks
from nnue_trainer.training.parallel.sharding import Unsharded
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.run_view import view_of
from nnue_trainer.training.saving import Saved, Saver
from nnue_trainer.training.schedule_values import LambdaValues, ScheduleValues
from nnue_trainer.training.state import RunState
from nnue_trainer.training.step import ChosenStep
from nnue_trainer.training.step_records import StepRecords
from nnue_trainer.training.trainer import LoopConfig, Trainer
from nnue_trainer.training.validator import HeldOutBatches, Validator


def assemble(
    recipe: Recipe,
    model: NnueModel,
    batches: BatchSource,
    validation: HeldOutBatches | None,
    run_dir: Path | RunFolder,
    *,
    validation_files: list[Any] | None = None,
    validation_contents: Callable[[], Tensor] | None = None,
    bad_chunks: Callable[[], int] | None = None,
    unique: Callable[[], int] | None = None,
    sharding: Unsharded | None = None,
    stage: RecipeStage | None = None,
    more_validation: Mapping[str, HeldOutBatches] | None = None,
) -> Trainer:
    """The trainer of one model.

    Args:
        recipe: the recipe of the run. Of its section `data`, only the batch size is used, and file names in messages.
        model: the model, already on its device.
        batches: the endless stream of training batches.
        validation: a function that returns the same validation batches at each call; None: no validation.
        run_dir: the run folder, to which all files are written.
        validation_files: identifies the validation files, as plain JSON data; a resume checks that they are the same.
        validation_contents: a function that returns digests of what was read of them so far.
        bad_chunks: a function that returns how many damaged chunks of data were left out so far; all processes call it
            together.
        unique: a function that returns how many different positions were seen; all processes call it together.
        sharding: which part of each step this process computes; None: all of it. If several processes train together,
            only the process of rank 0 writes files and prints.
        stage: the stage of a run that is trained, whose recipe is `recipe`; None: `recipe` is the whole run.
        more_validation: functions as `validation` for more sets of held-out positions, by name.

    Raises:
        UserError: the recipe requires a CUDA graph, but a step of its optimizer cannot be recorded; or it names
            programs without consent (`config.require_consent`).
    """
    device = next(model.parameters()).device
    recipe = without_auto(recipe, model, device)
    stage = RecipeStage.alone(recipe) if stage is None else stage.with_recipe(recipe)
    folder = run_dir if isinstance(run_dir, RunFolder) else RunFolder(run_dir)
    core = core_of(recipe, model, device, Unsharded(Ranks(), model) if sharding is None else sharding)
    optimizer, ranks = core.optimizer, core.sharding.ranks
    state, stop = RunState(stage.first_step, stage.first_step), Stopping()
    values = ScheduleValues(
        stage, recipe.schedule, recipe.optimizer.lr, recipe.lambda_, recipe.model.qat_config, recipe.average
    )
    lambdas = LambdaValues(values, stage, device)
    loss = _loss(recipe, core, lambdas)
    copies_steps = not recipe.training.compile and not core.penalties.dense
    recorded = is_recorded(recipe, core)
    step = ChosenStep(
        lambda: core.step(loss), model, optimizer, ranks, state, recorded=recorded, copies_steps=copies_steps
    )
    source = _on_device(recipe, core, batches, step, lambdas)
    validator = _validator(recipe, core, loss, values, stop, state, stage, validation, more_validation or {})
    saved = _saved(stage, validator, validation_files, validation_contents)
    config.require_consent(recipe)
    hooks = Hooks(recipe.training.callbacks, active=ranks.writes)
    records = StepRecords(stage, state, values, step, optimizer, source, bad_chunks, unique)
    finite = FiniteCheck(optimizer, ranks, state, folder)
    training, logging = recipe.training, recipe.logging

    def open_outputs(store: CheckpointStore | Nowhere) -> RunOutputs:
        tensorboard, minutes = logging.tensorboard, training.checkpoint_minutes
        return RunOutputs(store, stage, state.step, source.passes, tensorboard=tensorboard, minutes=minutes)

    def open_store() -> CheckpointStore:
        every, kept = training.checkpoint_every, training.keep_every
        whole_best = any(later.take == "best" and later.carry == "optimizer" for later in stage.whole.stages)
        return CheckpointStore(
            folder, training.keep_last, every, kept, in_a_hurry=stop.by_signal, whole_best=whole_best
        )

    saver = Saver(
        saved, stage, state, folder, model, optimizer, core.sharding, source, records, hooks, finite, open_store
    )
    best_by = BestBy(training.best_by, validator.more)
    every = (training.validate_every, training.checkpoint_every, logging.every_steps)
    return Trainer(
        stage=stage,
        config=LoopConfig(*every, training.max_time, best_by),
        state=state,
        folder=folder,
        model=model,
        optimizer=optimizer,
        sharding=core.sharding,
        values=values,
        lambdas=lambdas,
        batches=source,
        current_step=step,
        validator=validator,
        records=records,
        saver=saver,
        finite=finite,
        hooks=hooks,
        stopping=stop,
        open_outputs=open_outputs,
        view=lambda trainer: view_of(trainer, recipe, training.seed),
    )


def _on_device(
    recipe: Recipe, core: Core, batches: BatchSource, step: ChosenStep, lambdas: LambdaValues
) -> DeviceBatches:
    weigher = recipe.position_weight
    source = DeviceBatches(
        batches,
        core.device,
        core.model.feature_set,
        step.prepare,
        core.sharding.share_of,
        on_fetch=lambdas.set_ahead,
        records=weigher is not None and weigher.reads_records,
        record=step.recorded,
    )
    core.sharding.ranks.before_end(source.forget)
    return source


def _loss(recipe: Recipe, core: Core, lambdas: LambdaValues) -> StepLoss:
    return StepLoss(
        core.model,
        recipe.loss,
        lambdas,
        core.penalties,
        weigher=recipe.position_weight,
        mixed=recipe.training.precision == "mixed",
        is_compiled=recipe.training.compile,
    )


def _validator(
    recipe: Recipe,
    core: Core,
    loss: StepLoss,
    values: ScheduleValues,
    stop: Stopping,
    state: RunState,
    stage: RecipeStage,
    held_out: HeldOutBatches | None,
    more: Mapping[str, HeldOutBatches],
) -> Validator:
    wanted, validation = recipe.validation.lambda_, recipe.validation

    def lambda_at(step: int) -> float:
        if wanted == "follow":
            return values.lambda_at(max(step - 1, stage.first_step))
        return values.final_lambda() if wanted == "end" else float(wanted)

    return Validator(
        loss,
        core.sharding,
        core.optimizer,
        stop,
        state,
        held_out,
        more,
        loss=validation.loss or recipe.loss,
        lambda_at=lambda_at,
        follows=wanted == "follow",
        scale=validation.scale,
        rounds=recipe.model.qat_config.qat,
        files=", ".join(recipe.data.validation),
    )


def _saved(
    stage: RecipeStage, validator: Validator, files: list[Any] | None, contents: Callable[[], Tensor] | None
) -> Saved:
    """The part of every checkpoint that comes from the recipe and from validation."""
    lam = "follow" if validator.follows else validator.lambda_at(stage.first_step)
    figure = loss_figure.figure_of(schema.to_data(stage.recipe), lam, files)
    return Saved(schema.to_data(stage.to_save), config.to_yaml(stage.to_save), figure, files, contents)
