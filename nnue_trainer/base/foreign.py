"""All calls of users' code go through this module: the classes of every registry, and functions that users pass.

An error in such code is reported with file, line, class and method, and never as an internal error (`explaining`).
Values that its methods return are checked (`returned`). At its end the program waits at most five seconds for it
(`close_in_time`). This module imports nothing heavy.
"""

from __future__ import annotations

import math
import numbers
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nnue_trainer.errors import UserError, first_line, out_of_memory, quoted, shown

_PATIENCE = 5.0  # seconds
_abandoned: list[Callable[[], bool]] = []  # whether what was left has returned


@contextmanager
def explaining(function: object = None) -> Iterator[None]:
    """Turns an error of foreign code in the block into a UserError, `SystemExit` and any other `BaseException`
    included. The module of `function`, a function or an object, is foreign unless it is one of this package."""
    try:
        yield
    except (UserError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__.startswith("nnue_trainer"):
            raise  # of this package: it ends a training from inside of whatever runs
        message = None if out_of_memory(error) else blame(error, getattr(function, "__module__", None))
        if message is None:
            raise
        raise UserError(message) from error


def blame(error: BaseException, module: str | None = None) -> str | None:
    """One line that names the foreign code that an error went through: FILE:LINE: CLASS.METHOD: what is wrong. None if
    it went through none. `module` is foreign, too."""
    registry: Any = sys.modules.get("nnue_trainer.registry")
    modules: frozenset[str] = registry.foreign_modules() if registry is not None else frozenset()
    if module is not None and module.partition(".")[0] != __name__.partition(".")[0]:
        modules |= {module}
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__", ""))
        if name in modules or name.partition(".")[0] in modules:
            found = f"{frame.f_code.co_filename}:{line}: {frame.f_code.co_qualname}"
    if found is None:
        return None
    if isinstance(error, SystemExit):
        return f"{found}: ended the program (SystemExit); raise an exception instead"
    text = shown(first_line(error))[:300]
    if "stream is capturing" in text:  # an assert on a tensor, .item(), .cpu(), a branch on a value
        text += (
            "; it waits for the GPU, which no CUDA graph can record: remove that call, or set training.cuda_graph=false"
        )
    return f"{found}: {type(error).__name__}: {text}"


def reason(error: BaseException, module: str | None = None) -> str:
    """One line about an error that foreign code may have caused: `blame`, or the error's type and text."""
    if isinstance(error, UserError):
        return str(error)
    return blame(error, module) or f"{type(error).__name__}: {shown(first_line(error))[:300]}"


def returned(owner: object, method: str, value: Any, fits: bool, expected: str) -> None:
    """UserError unless `fits`, what the method of `owner` returned being `value`."""
    if fits:
        return
    shape = getattr(value, "shape", None)
    kind = f"{type(value).__name__} of {getattr(value, 'dtype', 'unknown')}"
    found = quoted(value) if shape is None else f"{kind} {list(shape)}"
    raise UserError(f"{place(owner, method)} returned {found}, expected {expected}")


def place(owner: object, method: str) -> str:
    """FILE: CLASS.METHOD, or FILE: FUNCTION of a function."""
    if code := getattr(owner, "__code__", None):
        return f"{code.co_filename}: {code.co_qualname}"
    cls = type(owner)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
    return f"{file}: {cls.__qualname__}.{method}"


def number(owner: object, method: str, value: Any) -> float:
    """`value`, which the method of `owner` returned, as a float; UserError for anything but a finite number."""
    real = isinstance(value, numbers.Real)
    returned(owner, method, value, real and math.isfinite(value), "a finite number")
    return float(value)


def close_in_time(close: Callable[[], None], what: str) -> None:
    """Calls `close`, which waits for threads that may be in foreign code, and gives up after five seconds or at Ctrl-C.
    `what` names that code in a line."""
    done = threading.Event()

    def call() -> None:
        try:
            close()
        finally:
            done.set()

    abandoned(done.is_set)
    # Not Thread.join: until Python 3.12, one that Ctrl-C interrupts takes the thread for ended.
    threading.Thread(target=call, name=f"closing {what}", daemon=True).start()
    if not done.wait(_PATIENCE):
        print(f"nnue: warning: {what} does not return; continuing without it", file=sys.stderr, flush=True)


def abandoned(done: Callable[[], bool]) -> None:
    """Notes that a thread was abandoned in code that does not return; `done` tests whether it has."""
    _abandoned.append(done)


def still_runs() -> bool:
    """Whether abandoned foreign code has still not returned. Then Python cannot end in an orderly way."""
    return not all(done() for done in _abandoned)
