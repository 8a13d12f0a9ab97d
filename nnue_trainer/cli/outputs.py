"""Outputs of commands: `--overwrite` and `--json`, checks that run before the work, and notes on standard error.

An output is never one of the inputs. Another existing output is kept: without `--overwrite`, a command replaces only
files that this program made: its pages, a file that `nnue data generate` finished, and a file with the same bytes.
`tests/nets/test_outputs_of_commands.py` finds every option and argument that takes a path in the tree of commands, and
tries those that are written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.atomic import check_all_new, check_new

__all__ = ["AsJson", "Overwrite", "check_all_new", "check_new", "check_no_input", "note"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]


def check_no_input(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """UserError if an output would replace a file that the command reads, which `--overwrite` does not allow either."""
    read = [source for source in inputs if source is not None and source.exists()]
    for out in outputs:
        if out is not None and out.exists() and any(map(out.samefile, read)):
            raise UserError(f"{out}: is an input of this command, expected another name for the output")


def note(text: str) -> None:
    """Prints a note on standard error."""
    print(f"nnue: note: {shown(text)}", file=sys.stderr)
