"""Recognises an output that was complete when its command was killed, so that a job that is queued again ends well.

Just before an output gets its name, a small file beside it notes the command line and which file the output is. It goes
when the command has ended. If it is left, the same command line finds that the output is its own, and complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from nnue_trainer.errors import UserError

StrPath = str | os.PathLike[str]

_command: list[str] = []  # empty in programs that use the library
_expected: set[Path] = set()  # outputs that this command checked before its work
_notes: set[Path] = set()  # files beside outputs that this command wrote or found


class Finished(UserError):
    """The outputs of this command line were complete when it was killed before its end. It ends with status 0."""

    exit_status = 0


def begin() -> None:
    """Called at the start of a command, which then notes its outputs."""
    with contextlib.suppress(OSError):  # the working directory was deleted
        _command[:] = [str(Path.cwd()), *sys.argv[1:]]


def end(*, again: bool) -> None:
    """Called when the exit status of the command is known to all who wait for it. `again`: it will be started again."""
    for note in _notes if not again else ():
        with contextlib.suppress(OSError):
            note.unlink()
    _command.clear()
    _expected.clear()
    _notes.clear()


def expect(path: StrPath) -> bool:
    """Called before `path` is written, which is then noted. Returns whether an earlier start of this command line wrote
    the file there, and was killed before its end. The note about it goes at the end of this command."""
    path = Path(path).absolute()
    _expected.add(path)
    beside = _beside(path)
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found: Any = json.loads(beside.read_bytes()[: 1 << 20])
        if _command and found == {"command": _command, "file": _identity(os.lstat(path))}:
            _notes.add(beside)
            return True
    return False


def note(path: StrPath, status: os.stat_result) -> None:
    """Called before the file with this `status` gets the name `path`. A file that cannot be written is left out."""
    path = Path(path).absolute()
    if not _command or path not in _expected:
        return
    beside = _beside(path)
    _notes.add(beside)
    with contextlib.suppress(OSError):
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"command": _command, "file": _identity(status)}, file)
            file.flush()
            os.fsync(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.finished")


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_ino, status.st_size, status.st_mtime_ns]
