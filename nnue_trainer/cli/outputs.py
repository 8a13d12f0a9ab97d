"""What every command that writes a file has: the option `--overwrite`, and `check_new` before it works.

An output that exists is kept. A command may replace without `--overwrite` only what it made itself: a page of this
program, a file that `nnue data generate` finished, a file that holds the same bytes.
`tests/nets/test_outputs_of_commands.py` finds every option and argument that takes a path in the tree of commands, and
tries those that are written.
"""

from __future__ import annotations

from typing import Annotated

import typer

from nnue_trainer.files.atomic import check_new

__all__ = ["Overwrite", "check_new"]

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists already.")]
