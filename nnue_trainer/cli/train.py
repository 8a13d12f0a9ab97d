"""`nnue train` trains a net from a recipe; `nnue config` shows what a recipe may say and what one says."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnue_trainer.errors import UserError

if TYPE_CHECKING:
    from nnue_trainer.config import Recipe
    from nnue_trainer.training.trainer import Summary

INTERRUPTED = 130  # exit status, as shells know it from SIGINT


def register(app: typer.Typer) -> None:
    app.command("train")(train)
    app.command("config")(config)


def train(
    overrides: Annotated[
        list[str] | None,
        # The backslash keeps rich from reading the list as markup.
        typer.Argument(help="Recipe fields to override: optimizer.lr=1e-3 'data.train=\\[a.binpack, b.binpack]'"),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--config", "-c", help="Recipe, a YAML file.", metavar="FILE", show_default=False)
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where to write. Default: runs/ and the recipe's name.", metavar="DIR")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="'auto': continue the run in the run directory if there is one. PATH: continue from this checkpoint "
            "or run directory; without --config, with the recipe it was trained with.",
            metavar="auto|PATH",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in the run directory.")] = False,
    help_recipe: Annotated[bool, typer.Option("--help-recipe", help="Print all recipe fields and exit.")] = False,
) -> None:
    """Train a net. Ctrl-C saves a checkpoint and stops; --resume continues, to the bit."""
    # Before torch is loaded: waiting threads of an operator must not spin where loader threads have work to do.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from nnue_trainer import config as recipes
    from nnue_trainer.training.run import train as run

    if help_recipe:
        print(recipes.reference())
        return
    if overwrite and resume:
        raise UserError("train: --overwrite and --resume exclude each other")
    if recipe is not None:
        chosen = recipes.load(recipe, overrides or ())
        folder = run_dir or Path("runs") / recipe.stem
    elif resume is not None and resume != "auto":
        chosen, folder = _resumed_recipe(resume, overrides or [])
        folder = run_dir or folder
    else:
        raise UserError("train: expected --config FILE, or --resume PATH of a run or checkpoint")
    summary = run(chosen, folder, resume=resume, overwrite=overwrite)
    print(report(summary, folder), file=sys.stderr)
    if summary.interrupted:
        raise typer.Exit(INTERRUPTED)


def config(
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe to check and print in full; none: print the reference of all fields.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Fields to override, as in nnue train.")] = None,
) -> None:
    """Print a recipe with every default filled in, or the reference of all recipe fields."""
    from nnue_trainer import config as recipes

    print(recipes.reference() if recipe is None else recipes.to_yaml(recipes.load(recipe, overrides or ())).rstrip())


def report(summary: Summary, run_dir: Path) -> str:
    """What to tell at the end of a run: how it went, where everything is, what to do next."""
    from nnue_trainer.training.metrics import positions

    checkpoints = run_dir / "checkpoints"
    speed = summary.positions / max(summary.seconds, 1e-9)
    lines = [
        f"{'stopped after' if summary.interrupted else 'finished'} step {summary.step:,} of {summary.steps:,}: "
        f"{positions(summary.positions)} positions in {timedelta(seconds=round(summary.seconds))}, "
        f"{positions(speed)} pos/s, validation included"
    ]
    if summary.validation_loss is not None and summary.best_validation_loss is not None:
        lines.append(f"validation loss {summary.validation_loss:.6f}, best {summary.best_validation_loss:.6f}")
    net = checkpoints / ("best.safetensors" if (checkpoints / "best.safetensors").exists() else "last.safetensors")
    lines += [f"best checkpoint  {net}"] if net.name.startswith("best") else []
    lines += [f"last checkpoint  {checkpoints / 'last.safetensors'}", f"metrics          {run_dir / 'metrics.jsonl'}"]
    if (run_dir / "tensorboard").is_dir():
        lines.append(f"curves           tensorboard --logdir {run_dir / 'tensorboard'}")
    if summary.interrupted:
        lines.append(f"continue with    nnue train --resume {run_dir}")
    else:
        lines.append(f"export with      nnue export {net} {run_dir / 'net.nnue'}")
    return "\n".join(lines)


def _resumed_recipe(resume: str, overrides: list[str]) -> tuple[Recipe, Path]:
    """The recipe in a checkpoint, with overrides, and the run directory the checkpoint lies in."""
    from nnue_trainer import checkpoint
    from nnue_trainer import config as recipes
    from nnue_trainer.training.run import checkpoint_of

    path = checkpoint_of(Path(resume))
    saved = checkpoint.load(path, groups=())
    if saved.recipe is None:
        raise UserError(f"{path}: carries no recipe, so it cannot be resumed without --config")
    return recipes.parse(saved.recipe, overrides, str(path)), path.parent.parent
