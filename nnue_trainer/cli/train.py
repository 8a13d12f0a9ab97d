"""`nnue train` trains a net from a recipe; `nnue config` shows the fields of recipes, and a recipe with all of them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnue_trainer.base import extras
from nnue_trainer.cli import plugins
from nnue_trainer.cli.plugins import Plugins, with_plugins
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.training.parallel import is_first

if TYPE_CHECKING:
    from nnue_trainer.callbacks.base import Summary
    from nnue_trainer.config import Recipe


Preset = Annotated[
    str | None,
    typer.Option(help="Recipe of the package (listed by nnue presets).", metavar="NAME"),
]


# long: typer makes an option from each parameter
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...",
            help="Recipe, a YAML file, and fields to override: optimizer.lr=1e-3 'data.train=[a.binpack, b.binpack]'",
        ),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--config", "-c", help="Recipe, as an option instead of an argument.", metavar="FILE")
    ] = None,
    preset: Preset = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the run. Default: runs/ and the recipe's name.", metavar="DIR"),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="auto: continue the run in the run folder if there is one. PATH: continue from this checkpoint or "
            "run folder; the recipe may be left out.",
            metavar="auto|PATH",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the run folder.")] = False,
    stage: Annotated[
        str | None,
        typer.Option(
            help="Train only this stage of the recipe, as a separate run, from training.initial_weights. "
            "Default: all stages.",
            metavar="NAME",
        ),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, help="Number of the recipe's seeds to train at the same time. Default: one per GPU."),
    ] = None,
    with_report: Annotated[
        bool,
        typer.Option("--report", help="Write report.html into the run's folder when the run ends or is interrupted."),
    ] = False,
    profile_start: Annotated[
        bool,
        typer.Option("--profile-start", help="Print the time of each phase before the first step and after the last."),
    ] = False,
    help_recipe: Annotated[bool, typer.Option("--help-recipe", help="Print all recipe fields and exit.")] = False,
    allow_commands: Annotated[
        bool,
        typer.Option(
            "--allow-commands",
            help="Run the programs, and send records to the account, that the recipe inside a checkpoint names, with "
            "--resume PATH.",
        ),
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Train a net. Ctrl-C saves a checkpoint and stops; --resume continues with bit-identical results."""
    with _starting(profile_start):
        plugins.load(plugin)
        from nnue_trainer import config as recipes
        from nnue_trainer.config.outline import outline
        from nnue_trainer.training.assembly import unused_gpu
        from nnue_trainer.training.run import train as run
        from nnue_trainer.training.terminal import say

        if help_recipe:
            print(recipes.reference())
            return
        if overwrite and resume:
            raise UserError("train: --overwrite and --resume exclude each other")
        path, overrides = recipe_path(arguments, recipe, preset, "train")
        if path is not None:
            chosen = recipes.load(path, overrides)
            folder = run_dir or Path("runs") / path.stem
        elif resume is not None and resume != "auto":
            chosen, folder = _resumed_recipe(resume, overrides or [], run_dir)
            for line in recipes.allow_programs(chosen) if allow_commands else ():
                say(f"{resume}: allowed: {line}")
            recipes.require_consent(chosen, resume)
        else:
            raise UserError(
                "train: expected a RECIPE, --preset NAME (nnue presets lists them), or --resume PATH of a run or "
                "checkpoint"
            )
        if stage is not None:
            chosen = recipes.only_stage(chosen, stage)
        if preset is not None:
            _require_data(preset, chosen)
        chosen, notes = recipes.with_files(chosen)
        for note in notes:
            say(note)
        gc.enable()
        if outline(chosen).seeds:
            _train_seeds(chosen, folder, resume, overwrite, at_once)
            return
        if with_report:
            extras.require("matplotlib", "--report")
        with_report = with_report and is_first()
        try:
            summary = run(chosen, folder, resume=resume, overwrite=overwrite)
        except UserError:
            # The run may have ended after hours: they are on the page, too.
            if with_report and (folder / "metrics.jsonl").exists() and not _is_busy(folder):
                _write_report(folder, say)
            raise
        for line in report(summary, folder, chosen):
            say(line)
        if (unused := unused_gpu(chosen)) is not None:
            say(unused)
        if with_report:
            _write_report(folder, say)
    if summary.status:
        raise typer.Exit(summary.status)


@contextlib.contextmanager
def _starting(profile_start: bool) -> Iterator[None]:
    """Loads torch for a training, and sees to its end."""
    # Before torch is loaded: waiting threads of an operator must not spin where loader threads have work to do.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from nnue_trainer.cli.terminable import ended_by_second_signal

    threading.Thread(target=_start_driver, name="start-driver", daemon=True).start()
    # Imported modules stay to the end. The collector would search them again and again, for a quarter of the imports.
    gc.disable()
    try:
        from nnue_trainer.training import run, timeline  # noqa: F401  run: counts as imports
        from nnue_trainer.training.parallel.ranks import joined

        timeline.reset()
        timeline.mark("imports")
        # Where torchrun has started several processes, an error of any of them ends all, printed once.
        with ended_by_second_signal(), joined():
            yield
    finally:
        gc.enable()
    if profile_start:
        timeline.mark("end")
        print("\n".join(timeline.table()), file=sys.stderr)


def _start_driver() -> None:
    """Starts NVIDIA's driver, if there is one, which takes seconds on some machines. torch is imported meanwhile."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuInit(0)


def _require_data(preset: str, recipe: Recipe) -> None:
    """A preset names files that an installed package does not have: UserError that gives the keys to set."""
    from nnue_trainer.config.outline import outline
    from nnue_trainer.files.inputs import data_files

    named = outline(recipe)
    for key, files in (("data.train", named.train), ("data.validation", named.validation)):
        for file in data_files(files, key):
            if not Path(file).exists():
                raise UserError(
                    f"--preset {preset}: {key}: {quoted(file)}: no such file; set data.train=FILE and "
                    "data.validation=FILE"
                )


def _train_seeds(chosen: Recipe, folder: Path, resume: str | None, overwrite: bool, at_once: int | None) -> None:
    from nnue_trainer.training import seeds
    from nnue_trainer.training.terminal import say

    runs = seeds.train_seeds(chosen, folder, resume=resume, overwrite=overwrite, at_once=at_once)
    for line in seeds.report(runs):
        say(line)
    if status := next((run.status for run in runs if run.status), 0):
        say("continue with    the same command and --resume auto")
        raise typer.Exit(status)
    say(f"figures          {folder / 'seeds.json'}")


def _write_report(folder: Path, say: Callable[[str], None]) -> None:
    """A page that cannot be written never changes how a training ended."""
    from nnue_trainer.analysis.report import write_for_training

    try:
        say(f"report           {write_for_training(folder)}")
    except Exception as error:
        say(f"{folder}: no report: {error}")


def _is_busy(folder: Path) -> bool:
    """Whether another process trains there: then the other process writes its own report."""
    from nnue_trainer.training.run_folder import RunFolder

    try:
        with RunFolder(folder):
            return False
    except UserError:
        return True


@with_plugins
def config(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...",
            help="Recipe to check and print in full, and fields to override. Without one, print the reference of all "
            "fields.",
        ),
    ] = None,
    preset: Preset = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Translate a nettest recipe (Stockfish's chains of nnue-pytorch) and print it, with comments at the "
            "top about what must be added.",
            metavar="FILE",
        ),
    ] = None,
    reference: Annotated[
        bool,
        typer.Option("--reference", help="Print all fields, also of --plugin files and of the recipe."),
    ] = False,
) -> None:
    """Print a recipe with every default filled in, or the reference of all recipe fields."""
    from nnue_trainer import config as recipes

    if source is not None:
        from nnue_trainer.config import nettest

        data, notes = nettest.translate(recipes.read_yaml(source), str(source))
        translated = recipes.parse(data, arguments or [], str(source))
        print("\n".join([*(f"# {note}" for note in notes), recipes.to_yaml(translated).rstrip()]))
        return
    path, overrides = recipe_path(arguments, None, preset, "config")
    if path is None and overrides:
        raise UserError(f"config: {quoted(overrides[0])}: expected a RECIPE or --preset NAME before it")
    chosen = recipes.load(path, overrides, trusted=False) if path is not None else None
    print(recipes.reference() if reference or chosen is None else recipes.to_yaml(chosen).rstrip())


def list_presets() -> None:
    """List the recipes of the package, for nnue train --preset NAME."""
    from nnue_trainer.files import presets

    names = presets.names()
    for name in names:
        print(f"{name:{max(map(len, names))}}  {presets.description(name)}")


def _is_file(name: str) -> bool:
    """Whether there is such a file; a long override cannot be the name of one."""
    try:
        return Path(name).is_file()
    except OSError:
        return False


def recipe_path(
    arguments: list[str] | None, option: Path | None, preset: str | None, command: str
) -> tuple[Path | None, list[str]]:
    """The recipe that a command line names, in one of three ways or not at all, and its overrides."""
    from nnue_trainer.files import presets

    overrides = list(arguments or [])
    named = [] if option is None else [option]
    if preset is not None:
        named.append(presets.path(preset))
    if overrides and ("=" not in overrides[0] or _is_file(overrides[0])):
        named.append(Path(overrides.pop(0)))
        if str(named[-1]) in presets.names() and not named[-1].exists():
            raise UserError(f"{named[-1]}: no such file; the preset of this name is --preset {named[-1]}")
    if len(named) > 1:
        raise UserError(f"{command}: {' and '.join(quoted(path) for path in named)}: expected one recipe")
    of_preset = presets.overrides(preset) if preset is not None else []
    return (named[0] if named else None), [*of_preset, *overrides]


def report(summary: Summary, run_dir: Path, recipe: Recipe | None = None) -> list[str]:
    """Lines to print at the end of a run of the recipe: how it went, where everything is, what to do next."""
    from nnue_trainer.base.progress import duration, positions
    from nnue_trainer.config.outline import outline

    def quote(path: Path) -> str:
        return shlex.quote(str(path))

    checkpoints = run_dir / "checkpoints"
    speed = summary.positions / max(summary.seconds, 1e-9)
    speed_of_steps = summary.positions / max(summary.step_seconds, 1e-9)
    lines = [
        f"{'stopped after' if summary.interrupted or summary.stopped else 'finished'} step {summary.step:,} of "
        f"{summary.steps:,}: "
        f"{positions(summary.positions)} positions in {duration(summary.seconds)}, "
        f"{positions(speed_of_steps)} pos/s in steps, {positions(speed)} pos/s with validation and saves"
    ]
    if summary.stopped:
        lines.append(f"stopped by       {summary.stopped}")
    if summary.validation_loss is not None and summary.best_validation_loss is not None:
        lines.append(f"validation loss {summary.validation_loss:.6f}, best {summary.best_validation_loss:.6f}")
    if summary.bad_chunks:
        lines.append(f"left out         {summary.bad_chunks:,} damaged chunks of data (data.skip_bad_chunks)")
    net = checkpoints / ("best.safetensors" if (checkpoints / "best.safetensors").exists() else "last.safetensors")
    lines += [f"best checkpoint  {net}"] if net.name.startswith("best") else []
    lines += [f"last checkpoint  {checkpoints / 'last.safetensors'}", f"metrics          {run_dir / 'metrics.jsonl'}"]
    if (run_dir / "tensorboard").is_dir():
        lines.append(f"curves           tensorboard --logdir {quote(run_dir / 'tensorboard')}")
    if summary.interrupted or summary.status:
        lines.append(f"continue with    nnue train --resume {quote(run_dir)}{plugins.resume_options()}")
    else:
        facts = outline(recipe) if recipe else None
        out = run_dir / f"net{facts.suffix if facts else '.nnue'}"
        sizes = " --any-l1" if facts and facts.unreadable is not None else ""  # which no Stockfish reads
        lines.append(f"export with      nnue export {quote(net)} {quote(out)}{sizes}{plugins.options()}")
    return lines


def _resumed_recipe(resume: str, overrides: list[str], run_dir: Path | None) -> tuple[Recipe, Path]:
    """The recipe in a checkpoint, with overrides, and where to write: `run_dir`, or the run folder that the
    checkpoint lies in."""
    from nnue_trainer import config as recipes
    from nnue_trainer.training.checkpoint_paths import checkpoint_of, load_resumed, run_folder_of

    path = checkpoint_of(Path(resume))
    saved = load_resumed(path, groups=())
    if saved.recipe is None:
        raise UserError(f"{path}: contains no recipe; name the recipe to resume it")
    return recipes.parse(saved.recipe, overrides, str(path)), run_dir or run_folder_of(path)
