"""Exit statuses of `nnue`; docs/command-line.md has the table."""

from __future__ import annotations

import os
import sys

from nnue_trainer.base import system
from nnue_trainer.errors import UserError

FAILED = 1
WRONG_COMMAND_LINE = 2

CONTRADICTORY = 3
"""A data file contradicts itself."""

IN_USE = 69  # EX_UNAVAILABLE of sysexits.h
"""Another process works on the same run or output, and the same command works when that has ended."""

INTERNAL_ERROR = 70

PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: try again
"""A scheduler's signal ended the command, and the same command continues."""

TIME_IS_UP = 76
"""`training.max_time` ended a training, and the same command continues."""

INTERRUPTED = 130  # as shells report SIGINT
"""A person ended the command."""

CLOSED_PIPE = 141  # as shells report SIGPIPE


class Preempted(KeyboardInterrupt):
    """A scheduler's signal, which ends everything that Ctrl-C ends."""


def of_error(error: BaseException) -> int:
    """The exit status for a command that is interrupted, or an error that a user can correct."""
    causes = (error, error.__cause__)
    if any(isinstance(each, Preempted) for each in causes):
        return PREEMPTED
    if any(isinstance(each, KeyboardInterrupt) for each in causes):
        return INTERRUPTED
    return error.exit_status if isinstance(error, UserError) else FAILED


STARTED = "started"
"""The content of the file from the start of the program, on all nodes, until there is a status."""

_path = ""


def begin(*, first: bool) -> None:
    """Begins the file that the environment names, if it does. Only the `first` of several processes writes it, and no
    command that this one runs: they all lose the name of the file. With several processes it is written when all have
    joined (`training.parallel`): without a status, a start has failed."""
    global _path
    path = os.environ.pop("NNUE_STATUS_FILE", "")
    _path = path if first else ""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        write(STARTED)


def write(status: int | str) -> None:
    """Writes an exit status into the file: torchrun turns all but 0 into 1."""
    global _path
    if _path:
        try:
            descriptor = os.open(_path, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                # Not truncated before: on a full disk the old content stays. Readers take the first line.
                os.truncate(descriptor, os.write(descriptor, f"{status}\n".encode()))
            finally:
                os.close(descriptor)
        except OSError as error:
            print(f"nnue: NNUE_STATUS_FILE: {_path}: {error.strerror or error}", file=sys.stderr, flush=True)
            _path = ""


class InUse(UserError):
    """Another process works on the same run or output."""

    exit_status = IN_USE


class Lost(UserError):
    """A process of a training is missing or lost. The others end with status 1, which is not written: the training may
    continue when it is started again."""


def of_signal(number: int) -> int:
    """The exit status of a command that a signal ends."""
    return PREEMPTED if system.is_schedulers(number) else INTERRUPTED
