"""Outputs of commands: the options `--overwrite` and `--json`, and `check_new`, which runs before the work.

An existing output is kept. Without `--overwrite`, a command replaces only files that this program made: its pages, a
file that `nnue data generate` finished, and a file with the same bytes.
`tests/nets/test_outputs_of_commands.py` finds every option and argument that takes a path in the tree of commands, and
tries those that are written.
"""

from __future__ import annotations

from typing import Annotated

import typer

from nnue_trainer.files.atomic import check_all_new, check_new

__all__ = ["AsJson", "Overwrite", "check_all_new", "check_new"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]
