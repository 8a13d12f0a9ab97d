"""The `nnue` command: one typer app, one module per group of subcommands, errors as one line on stderr.

Subcommands raise `nnue_trainer.errors.UserError` for anything the user can mend. `main` is the one place that prints
errors, escaped and as one line, and chooses the exit status (docs/command-line.md). Heavy imports (torch) stay inside
the subcommands, so `nnue --help` answers at once.
"""

from __future__ import annotations

import atexit
import gc
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from nnue_trainer.base import distribution, foreign, system
from nnue_trainer.base import status as exit_status
from nnue_trainer.base._unbuilt import is_old
from nnue_trainer.base.progress import Unfailing
from nnue_trainer.cli import doctor, info
from nnue_trainer.cli.group import Group, Interrupted
from nnue_trainer.cli.outputs import note
from nnue_trainer.cli.terminable import terminable
from nnue_trainer.errors import UserError, bounded, first_line, out_of_memory, shown
from nnue_trainer.files import finished
from nnue_trainer.training.parallel import is_first

app = typer.Typer(
    name="nnue",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help without rich, whose import takes as long as everything else
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _register() -> str | None:
    """Adds all commands. Where the compiled module is missing or cannot be loaded, only `nnue info` and `nnue doctor`
    exist; returns what is wrong."""
    app.command("info")(info.info_command)
    app.command("doctor")(doctor.doctor)
    try:
        from nnue_trainer import _data  # noqa: F401
    except ImportError as error:
        return str(error)
    from nnue_trainer.cli import (
        analysis,
        check,
        compare,
        data,
        data_tools,
        explain,
        match,
        net,
        permute,
        rescore,
        run,
        train,
    )

    commands: dict[str, Callable[..., None]] = {
        "export": net.export_command,
        "import": net.import_command,
        "eval": net.eval_command,
        "verify": net.verify_command,
        "check": check.check_command,
        "train": train.train,
        "config": train.config,
        "presets": train.list_presets,
        "explain": explain.explain,
        "report": analysis.report,
        "watch": analysis.watch,
        "inspect": analysis.inspect,
        "permute": permute.permute,
        "match": match.match,
        "compare": compare.compare,
        "run": run.run,
    }
    of_data: dict[str, Callable[..., None]] = {
        "info": data.info,
        "validate": data.validate,
        "index": data.index,
        "generate": data.generate,
        "head": data.head,
        "count": data.count,
        "convert": data_tools.convert,
        "shuffle": data_tools.shuffle,
        "split": data_tools.split,
        "dedup": data_tools.dedup,
        "interleave": data_tools.interleave,
        "filter": data_tools.filter_command,
        "rescore": rescore.rescore,
        "profile": analysis.profile,
    }
    data_app = typer.Typer(cls=Group, no_args_is_help=True, help="Inspect, check and make training data.")
    app.add_typer(data_app, name="data")
    for group, members in ((app, commands), (data_app, of_data)):
        for name, command in members.items():
            group.command(name)(command)
    return None


_without_data = _register()


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{distribution.NAME} {distribution.version}")
        raise typer.Exit


@app.callback()
def nnue(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Train, export and check NNUE nets, and make and inspect their training data."""


# The base of what typer raises for a wrong command line; typer brings its own click or uses the installed one.
UsageError: Any = typer.BadParameter.__base__


def main() -> None:
    # Python ends with several searches for unreachable objects, which take half a second where torch is loaded. The
    # system takes all memory back anyway, so nothing is left to be searched.
    atexit.register(gc.freeze)
    system.limit_threads()
    _prepare_streams()
    status = _run()
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        status = status or _explain(error)
        # Nothing can take what is still buffered, and Python must not try to write it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if foreign.still_runs():
        os._exit(status)  # Python would wait for it
    sys.exit(status)


def _run() -> int:
    lost = False
    exit_status.begin(first=is_first())
    finished.begin()
    try:
        with terminable(), foreign.explaining():
            status = int(app(standalone_mode=False, prog_name="nnue") or 0)  # the status of typer.Exit, or None
    except SystemExit as error:  # of shell completion, and what the library underneath makes of a closed pipe
        status = error.code if isinstance(error.code, int) else exit_status.FAILED
        if isinstance(error.__context__, BrokenPipeError):
            status = exit_status.CLOSED_PIPE
    except finished.Finished as done:
        note(str(done))
        status = 0
    except BaseException as error:
        status, lost = _explain(error), isinstance(error, exit_status.Lost)
    if not lost:
        exit_status.write(status)
    finished.end(again=status in (exit_status.PREEMPTED, exit_status.INTERRUPTED))
    return status


def _explain(error: BaseException) -> int:
    """Prints the one line for an error and gives the exit status for it."""
    if os.environ.get("NNUE_TRACEBACK", "0") not in ("", "0"):
        traceback.print_exception(error)
    status, message = exit_status.FAILED, str(error)
    if isinstance(error, UsageError) and _without_data is not None and not _works_without_data(error.ctx):
        reason = first_line(_without_data)
        message = f"nnue_trainer._data cannot be loaded: {reason} (only nnue info and nnue doctor work without it)"
    elif isinstance(error, UsageError):
        command, status = error.ctx.command_path if error.ctx else "nnue", exit_status.WRONG_COMMAND_LINE
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return status
        message = f"{' '.join(error.format_message().split())} (see {command} --help)"
    elif isinstance(error, KeyboardInterrupt | Interrupted | typer.Abort):
        status = exit_status.INTERRUPTED if isinstance(error, typer.Abort) else exit_status.of_error(error)
        message = "interrupted"
    elif isinstance(error, BrokenPipeError):  # `| head` has seen enough
        return exit_status.CLOSED_PIPE
    elif isinstance(error, UserError):
        status = error.exit_status
    elif isinstance(error, OSError):  # a folder that cannot be written, a full disk
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    elif (memory := out_of_memory(error)) is not None:
        size = f" (another {memory.wanted} could not be allocated)" if memory.wanted else ""
        message = f"out of memory{size}: use a smaller batch, buffer, net or number of threads"
    elif isinstance(error, RuntimeError) and (missing := re.search(r"operator nnue::\w+ does not exist", message)):
        message = f"{missing[0]}: the native parts are older than the Python files; build them again (make build)"
    else:
        status = exit_status.INTERNAL_ERROR
        frames = traceback.extract_tb(error.__traceback__)
        where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        message = (
            f"internal error: {type(error).__name__}: {first_line(message)[:300]}{where}; "
            + ("the native parts are older than their sources: run make build; if it stays, " if is_old() else "")
            + "please report it with the command line (NNUE_TRACEBACK=1 shows the traceback)"
        )
    # Each process of a run finds a wrong command line by itself, before they are connected; only the first prints it.
    if status != exit_status.WRONG_COMMAND_LINE or is_first():
        print(f"nnue: error: {shown(bounded(message))}", file=sys.stderr, flush=True)
    return status


def _works_without_data(context: Any) -> bool:
    return context is not None and context.command_path in ("nnue info", "nnue doctor")


class _OneLine(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if not is_first():
            return
        print(f"nnue: {record.levelname.lower()}: {shown(bounded(record.getMessage()))}", file=sys.stderr, flush=True)


def _prepare_streams() -> None:
    """Printing never fails because of an encoding, and what goes to standard error never fails at all."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout is None:  # closed by the caller: >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    if not isinstance(sys.stderr, Unfailing):
        sys.stderr = cast(Any, Unfailing(sys.stderr))
    log = logging.getLogger("nnue_trainer")
    if not any(isinstance(handler, _OneLine) for handler in log.handlers):
        log.addHandler(_OneLine())
