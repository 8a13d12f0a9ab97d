"""What a run says on the terminal, which it outlives: what cannot be printed is dropped and ends nothing."""

from __future__ import annotations

import contextlib
import os
import sys

from nnue_trainer.errors import shown


def say(text: str) -> None:
    """One line on standard error, whatever stands in it."""
    try:
        print(shown(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # a closed pipe, a terminal that is gone, a full disk below a log file
        _let_go()


def _let_go() -> None:
    """Where standard error is gone, it leads nowhere from now on. Otherwise Python, which writes at exit what is left
    in its buffer, would complain and change the exit status."""
    with contextlib.suppress(Exception):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
