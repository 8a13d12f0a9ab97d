"""The `nnue` command: one typer app, one module a group of subcommands, errors as one line on stderr.

Subcommands raise `nnue_trainer.errors.UserError` for anything the user can mend; `main` prints it and exits with 1.
Heavy imports (torch) stay inside the subcommands, so `nnue --help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from nnue_trainer.cli import data, data_tools, info, net, train
from nnue_trainer.errors import UserError

app = typer.Typer(name="nnue", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(data.app, name="data")
data_tools.register(data.app)
info.register(app)
net.register(app)
train.register(app)


def main() -> None:
    try:
        app()
    except UserError as error:
        print(f"nnue: error: {error}", file=sys.stderr)
        sys.exit(1)
