"""`nnue run`: all steps from data to Elo in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nnue_trainer.errors import shown


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="YAML file with the steps (docs/pipeline.md).")],
    redo: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP", help="Redo this step and those after it; may be repeated."),
    ] = None,
) -> None:
    """Run data, train, export, permute, verify and match as listed in one file, and skip finished steps."""
    from nnue_trainer.cli.pipeline import run_way

    status = run_way(file, redo=redo or (), say=lambda line: print(shown(line), flush=True))
    if status:
        raise typer.Exit(status)
