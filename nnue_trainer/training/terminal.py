"""Prints the messages of a run. The terminal may be gone before the run ends: what cannot be printed is dropped without
an error."""

from __future__ import annotations

import contextlib
import os
import sys

from nnue_trainer.errors import shown
from nnue_trainer.training.parallel import is_first


def say(text: str) -> None:
    """Prints `text` as one line on standard error; control characters are escaped. If several processes train together,
    only the process of rank 0 prints."""
    if not is_first():
        return
    try:
        print(shown(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # a closed pipe, a lost terminal, or a log file on a full disk
        _let_go()


def _let_go() -> None:
    """Replaces standard error by /dev/null. At exit Python flushes the buffer of standard error; without this the flush
    would fail, print an error and change the exit status."""
    with contextlib.suppress(Exception):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
