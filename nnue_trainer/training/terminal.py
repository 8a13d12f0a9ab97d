"""Messages of a run on the terminal. The run may outlive the terminal: what cannot be printed is dropped without an
error."""

from __future__ import annotations

import contextlib
import os
import sys

from nnue_trainer.errors import shown
from nnue_trainer.parallel import is_first


def say(text: str) -> None:
    """Prints one line on standard error, whatever characters it has. Of several processes of a run only the first one
    speaks."""
    if not is_first():
        return
    try:
        print(shown(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # a closed pipe, a terminal that is gone, a full disk below a log file
        _let_go()


def _let_go() -> None:
    """If standard error is gone, it is replaced by /dev/null. Otherwise Python, which writes what is left in its buffer
    at exit, would complain and change the exit status."""
    with contextlib.suppress(Exception):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
