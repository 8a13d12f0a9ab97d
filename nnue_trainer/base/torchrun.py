"""Lines of torchrun: one about missing nodes, as it starts no process, and prints nothing, before all have joined; and
one in place of its traceback when it ends.

torchrun loads `handler` through the entry point `torchrun.handlers`, whatever `--rdzv-backend` is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from nnue_trainer.base import limits
from nnue_trainer.errors import shown

_watched = False


def handler() -> Callable[[Any], Any]:
    """Starts the watch in a torchrun that starts this trainer. Returns what makes the rendezvous of
    `--rdzv-backend nnue`, which is c10d."""
    global _watched
    seconds = limits.seconds("NNUE_TELL_SECONDS")
    if not _starts_training(sys.argv):
        return _c10d
    if "nnue_trainer" in sys.argv and os.environ.get("NNUE_TRACEBACK", "0") in ("", "0"):
        sys.excepthook = _print_end
    if seconds and not _watched:
        _watched = True
        threading.Thread(target=_watch, args=(seconds, sys.argv), name="missing nodes", daemon=True).start()
    return _c10d


def _print_end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """An excepthook. The processes have printed why they ended."""
    line = _end(error)
    if line is None:
        sys.__excepthook__(kind, error, traceback)
    else:
        print(f"nnue: torchrun {line}", file=sys.stderr, flush=True)


def _end(error: Any) -> str | None:
    """Why torchrun ends, in words; None for an error that only its traceback explains."""
    name = type(error).__name__
    if name == "SignalException":
        return f"has ended its processes after {signal.Signals(error.sigval).name}"
    if name == "ChildFailedError":
        rank, failure = error.get_first_failure()
        how = f"exit status {failure.exitcode}" if failure.exitcode >= 0 else f"signal {-failure.exitcode}"
        return f"has ended, as process {rank} ended with {how}"
    if name == "RendezvousTimeoutError":
        return "has ended, as not all nodes came in time (--rdzv-conf join_timeout=SECONDS)"
    return None


def _c10d(parameters: Any) -> Any:
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


def _starts_training(arguments: Sequence[str]) -> bool:
    program = Path(arguments[0])
    is_torchrun = program.name == "torchrun" or program.parts[-3:] == ("torch", "distributed", "run.py")
    return is_torchrun and any(one == "nnue_trainer" or Path(one).name == "train.py" for one in arguments[1:])


def _watch(seconds: float, arguments: Sequence[str]) -> None:
    time.sleep(seconds)
    if _has_children():
        return
    nodes = _option(arguments, "nnodes")
    place = _option(arguments, "rdzv-endpoint") or _option(arguments, "master-addr")
    print(
        f"nnue: torchrun has started no process after {seconds:g} s: it waits for {shown(nodes) or 'other'} nodes"
        f"{f' at {shown(place)}' if place else ''}. Start it on all of them, with the same --rdzv-id and an address "
        "that each can reach; --rdzv-conf join_timeout=SECONDS limits the wait (default 600)",
        file=sys.stderr,
        flush=True,
    )


def _has_children() -> bool:
    """Whether this process has started others; True where the system does not show it."""
    own = f"PPid:\t{os.getpid()}\n"
    try:
        found = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    except OSError:
        return True
    for path in found:
        with contextlib.suppress(OSError):
            if own in (path / "status").read_text(errors="replace"):
                return True
    return not found


def _option(arguments: Sequence[str], name: str) -> str:
    """The value of an option of torchrun, "" if it is not given."""
    for number, argument in enumerate(arguments):
        key, _, value = argument.partition("=")
        if key.startswith("--") and key[2:].replace("_", "-") == name:
            return value or (arguments[number + 1] if number + 1 < len(arguments) else "")
    return ""
