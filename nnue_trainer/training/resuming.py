"""Continues a run from a checkpoint: the conditions, and the loading of its state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import config, registry, schema
from nnue_trainer.config.stages import Stage
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.checkpoint import Checkpoint, TrainerState, load_into
from nnue_trainer.training import generators, loss_figure
from nnue_trainer.training.checkpoints import best_can_resume
from nnue_trainer.training.terminal import say
from nnue_trainer.training.trainer import Trainer


def resume(trainer: Trainer, saved: Checkpoint, path: Path) -> None:
    """Continues from the checkpoint `saved`, which was read from `path`. UserError if it is not from a run with the
    same architecture, optimiser, data and number of steps per epoch, or, if `path` is in the run folder, the same
    validation files."""
    own, run, device = saved.trainer_state(path), trainer.state, trainer.device
    in_place = path.resolve().parent == trainer.folder.checkpoints.resolve()
    check_same_net(trainer, saved, own, path, in_place=in_place)
    load_into(trainer.sharding.own(saved.tensors["model"]), trainer.model, path)
    _load_optimizer(trainer, saved, own, path)
    try:
        trainer.batches.load_state_dict(saved.stream(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise UserError(f"{path}: metadata state: batches: not a state of the stream of data") from None
    check_same_steps(trainer, own, path)
    generators.load(saved.tensors["rng"], device, path)
    print_rounding_differences(trainer, own, path)
    run.step = run.saved_step = own.step
    trainer.lambdas.continue_from(run.step)
    run.bad_before = own.bad_chunks
    trainer.hooks.load(own.callbacks)
    trainer.records.continue_window(own.window_steps, own.window_loss)
    changed = loss_figure.changed(own, trainer.saver.saved.figure)
    run.validation_loss = None if changed else own.validation_loss
    if trainer.values.average is not None:
        trainer.optimizer.average_begun = trainer.values.average_begun(run.step)
    run.first_update = run.step - trainer.optimizer.good_steps()
    run.epoch_end_pending = own.epoch_end_pending
    trainer.saver.resumed = (path, own) if in_place else None


def check_best(trainer: Trainer, saved: Checkpoint, path: Path, to_come: Sequence[Stage]) -> None:
    """UserError if a stage that was added since the run began takes `best` with an optimizer, which that lacks."""
    own = saved.trainer_state(path)
    if loss_figure.changed(own, trainer.saver.saved.figure):
        return  # `best` starts anew
    for stage in to_come:
        if stage.take == "best" and stage.carry == "optimizer" and not best_can_resume(trainer.folder, own):
            raise UserError(
                f"{trainer.folder.best}: found no state of the optimizer, which stage {stage.name} needs (take: best, "
                "carry: optimizer) and which a run keeps from the beginning only with such a stage; expected "
                "carry: weights or take: last"
            )


def carry_optimizer(trainer: Trainer, before: Checkpoint, path: Path, *, from_net: bool = False) -> None:
    """Loads the optimiser's state of the checkpoint `before`, read from `path`, whose net the model already has.
    `from_net`: train that, and not the weights whose average it is. UserError for a state that does not fit."""
    _load_optimizer(trainer, before, before.trainer_state(path), path, from_net=from_net)
    trainer.state.first_update = trainer.step - trainer.optimizer.good_steps()


def _load_optimizer(
    trainer: Trainer, saved: Checkpoint, state: TrainerState, path: Path, *, from_net: bool = False
) -> None:
    if not saved.resumes:
        raise UserError(f"{path}: found no state of the optimizer, expected a checkpoint that can be resumed")
    try:
        own = trainer.sharding.own(saved.tensors["optimizer"])
        trainer.optimizer.load_state_dict(own, good_steps=state.step, from_net=from_net)
    except ValueError as error:
        raise UserError(
            f"{path}: optimizer {error}; expected the same optimizer and rules of groups as in that run; another one "
            "begins from the weights alone: with training.initial_weights, or a stage with carry: weights"
        ) from None


def check_resumable(recipe: Mapping[str, Any], saved: Checkpoint, path: Path) -> None:
    """Prints how `recipe`, in plain data, differs from the recipe in the checkpoint `saved`, read from `path`.
    UserError if a difference is not allowed on resume. The loader checks what else decides the order of positions, the
    trainer the number of steps per epoch."""
    changes = list(differences(_complete(saved.recipe), recipe)) if saved.recipe else []
    for key, before, after in changes:
        if key.startswith("model."):
            raise UserError(
                f"{path}: {key} was {_short(before)}, now it is {_short(after)}, and a model cannot change on resume"
            )
        if key.startswith("data.filters.") and isinstance(before, bool | int | float):
            keep = str(before).lower()
            raise UserError(
                f"{path}: {key} was {keep}, now it is {str(after).lower()}: filters cannot change on resume, as they "
                f"decide the order of positions; {key}={keep} continues as before"
            )
        if key == "training.positions_per_epoch" and _steps_per_epoch(saved.recipe) != _steps_per_epoch(recipe):
            raise UserError(
                f"{path}: {key} was {_short(before)}, now it is {_short(after)}: it cannot change on resume, as the "
                "learning rate follows the epochs; to change it start a new run with training.initial_weights"
            )
    for key, before, after in changes:
        if key == "training.precision" and after == "auto":
            continue  # it stays as it was
        say(f"{path}: resuming with {shown(key)} {_short(after)}, it was {_short(before)}")
    for change in registry.changes(saved.state.get("plugins", {})):
        say(f"{path}: {change}")


def _complete(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the default for each field that it lacks, since recipes of earlier versions have fewer fields. A
    recipe that this version cannot read is returned unchanged."""
    try:
        return schema.to_data(config.parse(recipe))
    except UserError:
        return recipe


def _steps_per_epoch(recipe: Any) -> int | None:
    """The steps per epoch of a recipe in plain data; None if it does not state them."""
    try:
        return math.ceil(int(recipe["training"]["positions_per_epoch"]) / int(recipe["data"]["batch_size"]))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def _short(value: Any) -> str:
    """A value as a message shows it, cut to 200 characters."""
    text = shown(repr(value))
    return text if len(text) <= 200 else f"{text[:199]}…"


def allow_skipping(saved: Checkpoint) -> None:
    """Changes the loader's state in `saved` so that a loader with `skip_bad_chunks` accepts it. A run that ended at a
    damaged chunk can then continue without that chunk: the order of positions before it is the same."""
    batches = saved.state.get("batches")
    order = batches.get("order") if isinstance(batches, dict) else None
    if isinstance(order, dict) and order.get("skip_bad_chunks") is False:
        order["skip_bad_chunks"] = True


def differences(before: Any, after: Any, key: str = "") -> Iterable[tuple[str, Any, Any]]:
    """(dotted key, value before, value after) of each difference between two values of plain JSON data. `key` is the
    prefix of the dotted keys. A missing value is None."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            inner = f"{key}.{name}" if key else name
            yield from differences(before.get(name), after.get(name), inner)
    elif before != after:
        yield key, before, after


def check_same_net(trainer: Trainer, saved: Checkpoint, state: TrainerState, path: Path, *, in_place: bool) -> None:
    """UserError if the checkpoint `saved`, read from `path`, has another architecture, lacks tensors, or, if it is
    `in_place`, in the run folder, was validated on other files."""
    if saved.architecture != trainer.model.architecture:
        raise UserError(
            f"{path}: architecture is {saved.architecture!r:.200}, the recipe's is "
            f"{trainer.model.architecture!r:.200}; "
            "resume with the recipe of the checkpoint"
        )
    files = trainer.saver.saved.validation_files
    if in_place and state.validation_files is not None and not loss_figure.same_files(state, files):
        then, now = loss_figure.names(state.validation_files), loss_figure.names(files)
        raise UserError(
            f"{path}: the validation files are not those of this run ({then} then, {now} now, by size and "
            "content), so losses would not compare; resume into another folder with --run-dir"
        )
    for group in ("model", "optimizer", "rng"):
        if group not in saved.tensors:
            raise UserError(f"{path}: found no tensors of the group {group}, expected a training run's")


def check_same_steps(trainer: Trainer, state: TrainerState, path: Path) -> None:
    """UserError if an epoch has another number of steps now, or the stage begins at another step."""
    if state.steps_per_epoch not in (None, trainer.stage.steps_per_epoch):
        raise UserError(
            f"{path}: an epoch was {state.steps_per_epoch:,} steps, now it is {trainer.stage.steps_per_epoch:,}: "
            "training.positions_per_epoch and data.batch_size cannot change on resume, as the learning rate "
            "follows the epochs; to change them start a new run with training.initial_weights"
        )
    stage = trainer.stage
    if state.stage_first_step != stage.first_step:
        raise UserError(
            f"{path}: {stage.label}began after step {state.stage_first_step:,}, now it would begin after step "
            f"{stage.first_step:,}: epochs and batch sizes of the stages before it cannot change on resume"
        )


def print_rounding_differences(trainer: Trainer, state: TrainerState, path: Path) -> None:
    """Prints the reason if results will not be bit-identical to those of one run."""
    if state.processes != trainer.ranks.size:
        say(
            f"{path}: resuming in {trainer.ranks.size} processes, it was {state.processes}: sums are rounded "
            "differently, so results will not be bit-identical to one run"
        )
    threads = torch.get_num_threads()
    if state.device == trainer.device.type == "cpu" and state.cpu_threads not in (None, threads):
        say(
            f"{path}: resuming on {threads} CPU threads, it was {state.cpu_threads}: sums are "
            "rounded differently, so results will not be bit-identical to one run "
            f"(OMP_NUM_THREADS={state.cpu_threads} keeps them)"
        )
