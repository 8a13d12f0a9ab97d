"""Where the time of `nnue train` goes outside of its steps, for `--profile-start`.

`mark` notes the moment at which a phase has ended. The first phase begins when the operating system started the
process, so the imports count.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_marks: list[tuple[str, float]] = []


def mark(phase: str) -> None:
    """`phase` ends now, and with it the time since the last mark. Of phases with the same name the first one counts."""
    if all(phase != name for name, _ in _marks):
        _marks.append((phase, time.clock_gettime(time.CLOCK_BOOTTIME)))


def reset() -> None:
    """Forgets all marks: the next one begins a new run in this process."""
    _marks.clear()


def table() -> list[str]:
    """One line per phase: its seconds, and the seconds since the process began."""
    began = before = _process_start()
    lines = [f"{'phase':32} {'seconds':>8} {'since start':>12}"]
    for name, at in _marks:
        lines.append(f"{name:32} {at - before:8.2f} {at - began:12.2f}")
        before = at
    return lines


def _process_start() -> float:
    """When this process began, on the clock of `mark`; the first mark where the system does not show it."""
    try:
        # The command's name may contain spaces; the fields after it do not. Field 22 is the start, in clock ticks.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _marks[0][1] if _marks else 0.0
