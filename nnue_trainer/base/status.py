"""Exit statuses of `nnue`; docs/command-line.md has the table."""

from __future__ import annotations

from nnue_trainer.base import system

FAILED = 1
WRONG_COMMAND_LINE = 2

CONTRADICTORY = 3
"""A data file contradicts itself."""

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


def of_signal(number: int) -> int:
    """The exit status of a command that a signal ends."""
    return PREEMPTED if system.is_schedulers(number) else INTERRUPTED
