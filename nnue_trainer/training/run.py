"""Trains a net from a recipe: finds the checkpoint to resume, builds all parts and starts the training loop."""

from __future__ import annotations

import base64
import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import config, nets, registry, schema
from nnue_trainer.base import foreign
from nnue_trainer.config import Recipe
from nnue_trainer.data import Loader, RecordLoader
from nnue_trainer.data.loader import joined_sketch, unique_positions, warn_of_left_out_chunks
from nnue_trainer.errors import UserError, out_of_memory, shown
from nnue_trainer.files import checkpoint
from nnue_trainer.files.atomic import replacing
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.parallel.ranks import Ranks, digest, joined
from nnue_trainer.training import timeline, warm_start
from nnue_trainer.training.assembly import divide
from nnue_trainer.training.device import choose_device, set_up_torch, start_device
from nnue_trainer.training.integer_check import start_check
from nnue_trainer.training.metrics import start_imports
from nnue_trainer.training.precision import settled
from nnue_trainer.training.run_folder import MANIFEST, RunFolder
from nnue_trainer.training.stage_data import StageData
from nnue_trainer.training.stages import StageOfRun, idle_averages, stages_of
from nnue_trainer.training.terminal import say
from nnue_trainer.training.trainer import Summary, Trainer

_log = logging.getLogger(__name__)


def train(recipe: Recipe, run_dir: Path, *, resume: str | None = None, overwrite: bool = False) -> Summary:
    """Trains a net by `recipe`, and writes all files of the run into `run_dir`.

    Args:
        recipe: what to train, and on which data.
        run_dir: the run folder; it is created if it does not exist.
        resume: None starts a new run; "auto" continues the run in `run_dir`, or starts a new one if there is none; a
            path continues from that checkpoint, or from the last checkpoint of that run folder.
        overwrite: replace a run that is already in `run_dir`; only files that this run wrote are deleted.

    Returns:
        How the run ended. A signal (`base.system.stop_signals`) ends it early, with a checkpoint.

    Raises:
        UserError: an error that the user can correct, such as a missing file, a checkpoint that does not fit the
            recipe, too little memory, or a program that only a file names (`config.require_consent`). A new run that
            fails before its first step is complete leaves no files.

    If torchrun has started several processes, they train one net together.
    """
    config.require_consent(recipe)
    with joined() as ranks, foreign.explaining(), contextlib.ExitStack() as stack:
        folder = RunFolder(run_dir)
        if ranks.writes:
            stack.enter_context(folder)
        stack.enter_context(_explaining_out_of_memory(recipe))
        saved, path = find_resumed(resume, run_dir)
        if saved is not None:
            check_resumable(recipe, saved, path)
        in_place = saved is not None and path.resolve().parent == folder.checkpoints.resolve()
        if ranks.writes and folder.holds_run() and not (in_place or overwrite):
            raise UserError(
                f"{run_dir}: already holds a run; --resume auto continues it, --run-dir DIR starts another, "
                "--overwrite replaces it"
            )
        timeline.mark("run folder and checkpoint")
        device = choose_device(recipe.training.device, ranks)
        start_device(device)
        timeline.mark("device")
        stages = stages_of(recipe)
        at = 0 if saved is None else saved.trainer_state(path).stage
        if at >= len(stages):
            raise UserError(
                f"{path}: is of stage {at + 1}, but the recipe has {len(stages)}; resume it with its own recipe"
            )
        for stage in stages[at:]:
            _check_files(stage)
        for doubt in idle_averages(stages) if ranks.writes else ():
            _log.warning("%s", doubt)
        begin = _Begin(saved, path, resumed=True, keep=in_place) if saved is not None else _Begin()
        total: Summary | None = None
        to_check = stages[at:]
        for stage in stages[at:]:
            summary = _train_stage(stage, folder, ranks, device, begin, to_check)
            to_check = []
            total = _joined(total, summary, stage.run_steps)
            if summary.interrupted or summary.stopped or stage.index + 1 == len(stages):
                break
            begin = _border(stage, stages[stage.index + 1], folder, ranks)
        assert total is not None
        return total


def _check_files(stage: StageOfRun) -> None:
    """UserError for a file that the stage would miss, perhaps days from now."""
    recipe = stage.recipe
    lists = {"data.train": recipe.data.train, "data.validation": recipe.data.validation}
    lists |= {f"validation.sets.{number}.files": each.files for number, each in enumerate(recipe.validation.sets)}
    for key, files in lists.items():
        for file in files:
            if not Path(file).exists():
                raise UserError(f"{stage.label}{key}: {shown(file)}: No such file or directory; create it first")


def _check_names(stages: list[StageOfRun], model: NnueModel) -> None:
    """UserError for patterns of parameters that do not fit the model, perhaps days before the stage that has them."""
    names = [name for name, _ in model.named_parameters()]
    for stage in stages:
        stage.recipe.optimizer.group_settings(names, stage.label)
        for number, penalty in enumerate(stage.recipe.training.penalties):
            penalty.check(model, f"{stage.label}training.penalties.{number}")


@dataclass(frozen=True)
class _Begin:
    """The start of a stage."""

    checkpoint: Checkpoint | None = None
    path: Path = Path()
    resumed: bool = False
    """the checkpoint is of the stage itself; otherwise of the stage before, or there is none"""
    keep: bool = False
    """the folder has files of this run already"""


def _border(stage: StageOfRun, following: StageOfRun, folder: RunFolder, ranks: Ranks) -> _Begin:
    """The checkpoint that the stage after a finished one begins from. It is read from the file, so that a run
    that was killed here begins from the same."""
    assert stage.stage is not None
    assert following.stage is not None
    kept = folder.stage(stage.stage.name)
    if ranks.writes:
        folder.link(folder.last, kept)
    ranks.same(0)  # the others wait until the files are there
    path = folder.best if following.stage.take == "best" else folder.last
    if not path.exists():
        raise UserError(f"{path}: no such checkpoint, expected the best one of {stage.label.removesuffix(': ')}")
    return _Begin(load_resumed(path), path, keep=True)


def _joined(total: Summary | None, stage: Summary, run_steps: int) -> Summary:
    """Summary of a run up to and including this stage; `total` is that of the stages before."""
    if total is not None:
        stage = replace(
            stage,
            positions=total.positions + stage.positions,
            seconds=total.seconds + stage.seconds,
            step_seconds=total.step_seconds + stage.step_seconds,
        )
    early = stage.interrupted or (stage.step < run_steps and not stage.stopped)
    return replace(stage, steps=run_steps, interrupted=early)


def _train_stage(
    stage: StageOfRun,
    folder: RunFolder,
    ranks: Ranks,
    device: torch.device,
    begin: _Begin,
    to_check: list[StageOfRun],
) -> Summary:
    """Trains one stage. `begin`: what it begins from; `to_check`: stages whose patterns of parameters are checked."""
    recipe, saved, path = stage.recipe, begin.checkpoint if begin.resumed else None, begin.path
    set_up_torch(recipe, device)
    weights: list[str] = []
    warm = recipe.training.initial_weights if begin.checkpoint is None else None
    beginning = not begin.resumed
    in_thread = not registry.foreign_modules()  # plugins need not expect several threads
    data: StageData | None = None
    try:
        if in_thread and not warm:  # a warm start prints lines
            data = StageData(recipe, recipe.model, device, ranks, beginning=beginning)
        if ranks.writes and recipe.logging.tensorboard:
            start_imports()
        model = nets.build(recipe.model)
        _check_names(to_check, model)
        recipe = settled(recipe, model, device, None if begin.checkpoint is None else _recipe_of(begin.checkpoint))
        if begin.checkpoint is not None and not begin.resumed:
            checkpoint.load_into(begin.checkpoint.tensors["model"], model, path)
        elif warm:
            weights = warm_start.start_from(Path(warm), model, say)
        # The check takes as long as the rest of this function.
        moves = device.type != "cpu" and not ranks.several
        integers_are_right = start_check(model, saved, path, moves=moves) if ranks.writes else None
        # A resumed run compares everything it loaded: each machine may have its own copy of the folder.
        tensors = begin.checkpoint.tensors if begin.checkpoint is not None else {"model": model.state_dict()}
        weights_digest = digest(tensors).hex() if ranks.several else ""
        parameters = sum(parameter.numel() for parameter in model.parameters())
        sharding, divided = divide(recipe, model, ranks, device)
        timeline.mark("model")
        if data is not None and data.features != model.feature_set:
            data.close()
            data = None
        if data is None:
            data = StageData(recipe, model, device, ranks, beginning=beginning, in_thread=in_thread)
        batches, validation, more = data.opened().batches, data.validation, data.more
        timeline.mark("data files")
        model = model.to(device)
        timeline.mark("model on the device")
        trainer = Trainer(
            recipe,
            model,
            batches,
            validation,
            folder,
            validation_files=validation.files if validation else None,
            validation_contents=validation.contents if validation else None,
            bad_chunks=_bad_chunks(recipe, batches, ranks) if recipe.data.skip_bad_chunks else None,
            unique=_unique(recipe, batches, ranks),
            sharding=sharding,
            stage=stage,
            more_validation=more,
        )
        timeline.mark("optimizer")
        if saved is not None:
            if recipe.data.skip_bad_chunks:
                allow_skipping(saved)
            trainer.resume(saved, path)
            contents = saved.state.get("validation_contents")
            if begin.keep and validation is not None and contents is not None:
                validation.restore(contents, str(path))
        elif begin.checkpoint is not None and stage.stage is not None and stage.stage.carry == "optimizer":
            trainer.carry_optimizer(begin.checkpoint, path, from_net=stage.stage.take == "average")
        data.check()  # for a missing or wrong file the run must end before it writes anything
        timeline.mark("first positions")
        start = [describe(trainer, parameters, begin)]
        if ranks.several:
            start += [divided, describe_reading(recipe, ranks)]
        # Rank 0 changes the folder after this, so every process must have read from it before. The check also finds
        # machines that see an older copy of a file.
        ranks.check_same(
            {
                "recipe": schema.to_data(stage.whole),
                "step": trainer.step,
                "weights": weights_digest,
                "place in the data": None if saved is None else saved.state["batches"],
                "data files": batches.state_dict()["order"],
                "validation files": trainer.validation_files,
                "kind of device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            },
        )
        trainer.warm_up()  # with exchanges, so only between processes that have the same
        timeline.mark("warm-up")
        if integers_are_right is not None:
            integers_are_right()
        timeline.mark("integer check")
        if not ranks.writes:
            return trainer.train()
        return _train_in(folder, trainer, keep=begin.keep, start=start, weights=weights)
    finally:
        if data is not None:
            data.close()


def _recipe_of(saved: Checkpoint) -> dict[str, Any]:
    return dict(saved.recipe or {})


def _train_in(folder: RunFolder, trainer: Trainer, *, keep: bool, start: list[str], weights: list[str]) -> Summary:
    """Writes the recipe and the first messages, then trains. Files of an earlier run in the folder are deleted first,
    unless `keep`. `start`: the first lines on the terminal; `weights`: the lines about the initial weights, which are
    also written to initial_weights.txt."""
    ours = (folder.recipe, folder.metrics, folder.initial_weights, folder.last, folder.best)
    folder.check_free(*ours, clear=not keep)
    if not keep:
        folder.clear()
    folder.will_write(folder.recipe)
    with replacing(folder.recipe) as output:
        output.write_text(config.to_yaml(trainer.stage.to_save))
    for line in [*start, *weights]:
        say(line)
    if weights:
        folder.will_write(folder.initial_weights)
        with replacing(folder.initial_weights) as output:
            output.write_text("\n".join(weights) + "\n")
    first_step = trainer.step
    try:
        return trainer.train()
    except BaseException:
        if trainer.step == first_step and not folder.holds_run():
            folder.clear()  # no step was completed, for example because the first one ran out of memory
        raise


def describe(trainer: Trainer, parameters: int, begin: _Begin) -> str:
    """The first line that a run, or a stage of it, prints. `parameters`: how many the whole net has."""
    recipe, stage, path = trainer.recipe, trainer.stage, begin.path
    if begin.resumed:
        how = f", resumed at step {trainer.step:,} from {path}"
    elif begin.checkpoint is not None and stage.stage is not None:
        how = f", from the {'weights' if stage.stage.carry == 'weights' else 'weights and optimizer'} of {path}"
    else:
        how = ""
    precision = "mixed precision" if recipe.training.precision == "mixed" else recipe.training.precision
    return (
        f"{trainer.folder.path}: {stage.label}{recipe.model.kind} with {parameters:,} parameters on {trainer.device} "
        f"in {precision}, {trainer.steps - stage.first_step:,} steps of {recipe.data.batch_size:,} positions{how}"
    )


def describe_reading(recipe: Recipe, ranks: Ranks) -> str:
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


def _bad_chunks(recipe: Recipe, batches: Loader | RecordLoader, ranks: Ranks) -> Callable[[], int]:
    """A function that returns how many damaged chunks the processes have left out, which all must call together."""
    if recipe.data.shards == 1 or not ranks.several:
        return lambda: batches.bad_chunks().chunks  # all of them read the same chunks
    told = False

    def together() -> int:
        nonlocal told
        counts, firsts = zip(*ranks.each(batches.bad_chunks()), strict=True)
        # The loader reports the first one, but only rank 0 prints.
        if sum(counts) and not told:
            told = True
            if not counts[0]:
                warn_of_left_out_chunks(next(first for first in firsts if first))
        return sum(counts)

    return together


def _unique(recipe: Recipe, batches: Loader | RecordLoader, ranks: Ranks) -> Callable[[], int] | None:
    """A function that estimates how many different positions the run has seen, which all processes must call
    together; None if they are not counted."""
    if not recipe.logging.unique_positions:
        return None
    if recipe.data.shards == 1 or not ranks.several:
        return lambda: round(unique_positions(batches.seen()))  # all of them see whole batches

    def together() -> int:
        every = ranks.each(base64.b64encode(batches.seen()).decode())
        return round(unique_positions(joined_sketch([base64.b64decode(text) for text in every])))

    return together


def find_resumed(resume: str | None, run_dir: Path) -> tuple[Checkpoint | None, Path]:
    """The checkpoint to continue from, and its path; the checkpoint is None if the run starts anew. `resume` and
    `run_dir` are those of `train`. UserError if the checkpoint cannot be read."""
    path = checkpoint_of(run_dir if resume in (None, "auto") else Path(str(resume)))
    if resume is None or (resume == "auto" and not path.exists()):
        return None, path
    return load_resumed(path), path


def load_resumed(path: Path, groups: tuple[str, ...] | None = None) -> Checkpoint:
    """`checkpoint.load`, whose error message also names the newest other checkpoint of an epoch in the same folder."""
    try:
        return checkpoint.load(path, groups)
    except UserError as error:
        others = [other for other in _epochs(path.parent) if not other.samefile(path)] if path.exists() else []
        hint = f"; --resume {others[-1]} may work" if others else ""
        raise UserError(f"{error}{hint}") from None


def checkpoint_of(path: Path) -> Path:
    """The path itself if it names a .safetensors file; otherwise the last checkpoint of the run folder `path`: `last`,
    or the newest one of an epoch. The file need not exist."""
    if path.suffix == ".safetensors" and not path.is_dir():
        return path
    folder = path / "checkpoints"
    last = folder / "last.safetensors"
    return last if last.exists() else next(reversed(_epochs(folder)), last)


def _epochs(folder: Path) -> list[Path]:
    """The checkpoints `epoch-N` in a folder, oldest first."""
    found = [(re.fullmatch(r"epoch-(\d{4,18})\.safetensors", path.name), path) for path in folder.glob("epoch-*")]
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def run_folder_of(path: Path) -> Path:
    """The run folder that contains a checkpoint. UserError if the checkpoint is not in the checkpoints folder of a run,
    because then it does not determine where the continued run writes."""
    folder = path.absolute().parent
    if folder.name != "checkpoints" or not any((folder.parent / name).exists() for name in (MANIFEST, "recipe.yaml")):
        raise UserError(f"{path}: not in the checkpoints folder of a run: pass --run-dir DIR")
    return path.parent.parent


def check_resumable(recipe: Recipe, saved: Checkpoint, path: Path) -> None:
    """Prints how `recipe` differs from the recipe in the checkpoint `saved`, read from `path`. UserError if a
    difference is not allowed on resume. The loader checks what else decides the order of positions, the trainer the
    number of steps per epoch."""
    changes = list(differences(_complete(saved.recipe), schema.to_data(recipe))) if saved.recipe else []
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
        if key == "training.positions_per_epoch" and _steps_per_epoch(saved.recipe) != _steps_per_epoch(
            schema.to_data(recipe)
        ):
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


@contextmanager
def _explaining_out_of_memory(recipe: Recipe) -> Iterator[None]:
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
