"""Makes all of a stage: opens its data, builds its model, loads the weights that it begins from, assembles its trainer,
and continues from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import nets, registry, schema
from nnue_trainer.config import Recipe
from nnue_trainer.data.opened import described
from nnue_trainer.errors import UserError, out_of_memory
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.training import device as devices
from nnue_trainer.training import resuming, timeline, warm_start
from nnue_trainer.training.assembly.data import data_sources
from nnue_trainer.training.assembly.parts import assemble
from nnue_trainer.training.assembly.precision import without_auto
from nnue_trainer.training.assembly.recipes import RecipeStage, check_files, check_names, idle_averages, stages_of
from nnue_trainer.training.assembly.steps import divide
from nnue_trainer.training.counters import count_bad_chunks, count_unique
from nnue_trainer.training.device import choose_device, set_up_torch
from nnue_trainer.training.integer_check import start_check
from nnue_trainer.training.metrics import start_imports
from nnue_trainer.training.parallel.ranks import Ranks, digest
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.stage_data import StageData
from nnue_trainer.training.terminal import say
from nnue_trainer.training.trainer import Trainer


@dataclass(frozen=True)
class Begin:
    """The start of a stage."""

    checkpoint: Checkpoint | None = None
    path: Path = Path()
    resumed: bool = False
    """the checkpoint is of the stage itself; otherwise of the stage before, or there is none"""
    keep: bool = False
    """the folder has files of this run already"""


@dataclass(frozen=True)
class Begun:
    """A stage that can be trained."""

    trainer: Trainer
    data: StageData
    start: list[str]
    """the first lines on the terminal"""
    weights: list[str]
    """lines about the initial weights"""
    agreed: dict[str, object]
    """what must be the same in all processes"""
    integers_are_right: Callable[[], None] | None
    """waits for the check of the net's integers, and raises what it has found; None: another process checks them"""


def device_of(recipe: Recipe, ranks: Ranks) -> torch.device:
    """The device that a recipe names."""
    return choose_device(recipe.training.device, ranks)


def unused_gpu(recipe: Recipe) -> str | None:
    """One line about a GPU of this machine that a training of the recipe does not use, or that has no kernels; None if
    there is none."""
    name = recipe.training.device
    if (elsewhere := devices.offloaded(name)) is not None:
        return (
            f"training.device: {elsewhere} has no kernels of this project, so PyTorch's operators compute the forward "
            "and backward pass there, and the CPU all else"
        )
    return None if name != "auto" else devices.unused_gpu(choose_device(name))


def stages_from(recipe: Recipe, at: int, path: Path) -> tuple[list[RecipeStage], list[str]]:
    """The stages of a run from number `at` on, where the checkpoint `path` is, and doubts about them. UserError for a
    file that one would miss, perhaps days from now."""
    stages = stages_of(recipe)
    if at >= len(stages):
        raise UserError(
            f"{path}: is of stage {at + 1}, but the recipe has {len(stages)}; resume it with its own recipe"
        )
    check_files(stages[at:])
    return stages[at:], idle_averages(stages)


@contextmanager
def begin(
    stage: RecipeStage,
    folder: RunFolder,
    ranks: Ranks,
    device: torch.device,
    at: Begin,
    to_check: Sequence[RecipeStage],
) -> Iterator[Begun]:
    """Makes a stage, which begins `at` a checkpoint or anew; the end of the block closes its data. `to_check`: stages
    whose patterns of parameters are checked."""
    recipe, saved, path = stage.recipe, at.checkpoint if at.resumed else None, at.path
    set_up_torch(recipe.training, device)
    warm = recipe.training.initial_weights if at.checkpoint is None else None
    in_thread = not registry.foreign_modules()  # plugins need not expect several threads
    data: StageData | None = None
    try:
        if in_thread and not warm:  # a warm start prints lines
            data = StageData(data_sources(recipe, recipe.model, device, ranks), device, beginning=not at.resumed)
        if ranks.writes and recipe.logging.tensorboard:
            start_imports()
        model = nets.build(recipe.model)
        check_names(to_check, model)
        recipe = without_auto(
            recipe, model, device, None if at.checkpoint is None else dict(at.checkpoint.recipe or {})
        )
        weights = _load_weights(model, at, warm)
        # The check takes as long as the rest of this function.
        moves = device.type != "cpu" and not ranks.several
        integers_are_right = start_check(model, saved, path, moves=moves) if ranks.writes else None
        # A resumed run compares everything it loaded: each machine may have its own copy of the folder.
        tensors = at.checkpoint.tensors if at.checkpoint is not None else {"model": model.state_dict()}
        weights_digest = digest(tensors).hex() if ranks.several else ""
        parameters = sum(parameter.numel() for parameter in model.parameters())
        sharding, divided = divide(recipe, model, ranks, device)
        timeline.mark("model")
        if data is not None and data.features != model.feature_set:
            data.close()
            data = None
        if data is None:
            sources = data_sources(recipe, model, device, ranks)
            data = StageData(sources, device, beginning=not at.resumed, in_thread=in_thread)
        batches, validation = data.opened().batches, data.validation
        timeline.mark("data files")
        model = model.to(device)
        timeline.mark("model on the device")
        shared = recipe.data.shards > 1
        trainer = assemble(
            recipe,
            model,
            batches,
            validation,
            folder,
            validation_files=validation.files if validation else None,
            validation_contents=validation.contents if validation else None,
            bad_chunks=count_bad_chunks(batches, ranks, divided=shared) if recipe.data.skip_bad_chunks else None,
            unique=count_unique(batches, ranks, divided=shared) if recipe.logging.unique_positions else None,
            sharding=sharding,
            stage=stage,
            more_validation=data.more,
        )
        timeline.mark("optimizer")
        _continue(trainer, data, stage, at, skips=recipe.data.skip_bad_chunks)
        data.check()  # for a missing or wrong file the run must end before it writes anything
        timeline.mark("first positions")
        start = [_first_line(recipe, trainer, parameters, at)]
        if recipe.model.unreadable is not None:
            start.append(f"model.{recipe.model.unreadable}")
        if data.mixing is not None:
            start.append(str(data.mixing))
        if ranks.several:
            start += [divided, _reading_line(recipe, ranks)]
        agreed: dict[str, Any] = {
            "recipe": schema.to_data(stage.whole),
            "step": trainer.step,
            "weights": weights_digest,
            "place in the data": None if saved is None else saved.stream(path),
            "data files": batches.order() | {"files": described(batches.identities)},
            "validation files": described(trainer.saver.saved.validation_files or []),
            "kind of device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        }
        yield Begun(trainer, data, start, weights, agreed, integers_are_right)
    finally:
        if data is not None:
            data.close()


def _load_weights(model: NnueModel, at: Begin, warm: str | None) -> list[str]:
    """Loads the weights that a stage begins with, except those of its own checkpoint; lines about a warm start."""
    if at.checkpoint is not None and not at.resumed:
        checkpoint.load_into(at.checkpoint.tensors["model"], model, at.path)
    return warm_start.start_from(Path(warm), model, say) if warm else []


def _continue(trainer: Trainer, data: StageData, stage: RecipeStage, at: Begin, *, skips: bool) -> None:
    """Loads the checkpoint that the stage is resumed from, or what it takes of the stage before."""
    if at.checkpoint is None:
        return
    if at.resumed:
        if skips:
            resuming.allow_skipping(at.checkpoint)
        resuming.resume(trainer, at.checkpoint, at.path)
        if at.keep:
            resuming.check_best(trainer, at.checkpoint, at.path, stage.whole.stages[stage.index + 1 :])
        contents = at.checkpoint.tensors.get("validation", {}).get("contents")
        if at.keep and data.validation is not None and contents is not None:
            data.validation.restore(contents, str(at.path))
    elif stage.stage is not None and stage.stage.carry == "optimizer":
        resuming.carry_optimizer(trainer, at.checkpoint, at.path, from_net=stage.stage.take == "average")


def _first_line(recipe: Recipe, trainer: Trainer, parameters: int, at: Begin) -> str:
    """The first line that a run, or a stage of it, prints. `parameters`: how many the whole net has."""
    stage, path = trainer.stage, at.path
    if at.resumed:
        how = f", resumed at step {trainer.step:,} from {path}"
    elif at.checkpoint is not None and stage.stage is not None:
        how = f", from the {'weights' if stage.stage.carry == 'weights' else 'weights and optimizer'} of {path}"
    else:
        how = ""
    precision = "mixed precision" if recipe.training.precision == "mixed" else recipe.training.precision
    return (
        f"{trainer.folder.path}: {stage.label}{recipe.model.kind} with {parameters:,} parameters on {trainer.device} "
        f"in {precision}, {trainer.steps - stage.first_step:,} steps of {recipe.data.batch_size:,} positions{how}"
    )


def _reading_line(recipe: Recipe, ranks: Ranks) -> str:
    """One line with the share of the training data that each of several processes reads."""
    data = recipe.data
    if data.shards > 1:
        return f"each process reads {data.shards // ranks.size} of {data.shards} shards of the training data"
    possible = (shards for shards in (8, ranks.size) if shards % ranks.size == 0 and data.batch_size % shards == 0)
    shards = next(possible, None) if data.shuffle_buffer > 0 else None
    everything = "each process reads all of the training data"
    if shards is None:
        return everything
    hint = f"with data.shards={shards} a new run reads it once, a part in each process, if it has {shards} chunks"
    return f"{everything}; {hint}"


@contextmanager
def explaining_out_of_memory(recipe: Recipe) -> Iterator[None]:
    """Replaces an out-of-memory error by a UserError of one line, which names the fields of the recipe to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        memory = out_of_memory(error)
        if memory is None:
            raise
        size = f" (another {memory.wanted} could not be allocated)" if memory.wanted else ""
        raise UserError(
            f"out of {'GPU ' if memory.on_gpu else ''}memory{size} with data.batch_size {recipe.data.batch_size:,} and "
            f"data.shuffle_buffer {recipe.data.shuffle_buffer:,}: "
            + ("a smaller data.batch_size needs less" if memory.on_gpu else "smaller values need less")
        ) from None
