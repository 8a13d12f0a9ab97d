"""The `nnue` command: one typer app, one module a group of subcommands, errors as one line on stderr.

Subcommands raise `nnue_trainer.errors.UserError` for anything the user can mend; `main` prints it, or what the system
says of a file, and exits with 1; a wrong command line exits with 2.
Heavy imports (torch) stay inside the subcommands, so `nnue --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Any

import typer

from nnue_trainer.cli import data, data_tools, info, net, train
from nnue_trainer.errors import UserError

app = typer.Typer(name="nnue", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(data.app, name="data")
data_tools.register(data.app)
info.register(app)
net.register(app)
train.register(app)


# The base of what typer raises for a wrong command line; typer brings its own click or uses the installed one.
UsageError: Any = typer.BadParameter.__base__


def main() -> None:
    status = 1
    try:
        sys.exit(app(standalone_mode=False))  # the status of typer.Exit, or None
    except UsageError as error:
        command, status = error.ctx.command_path if error.ctx else "nnue", error.exit_code
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            sys.exit(status)
        message = f"{' '.join(error.format_message().split())} (see {command} --help)"
    except UserError as error:
        message = str(error)
    except OSError as error:  # a folder that cannot be written, a full disk
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except MemoryError as error:
        message = f"out of memory: {error}".rstrip(": ")
    print(f"nnue: error: {message}", file=sys.stderr)
    sys.exit(status)
