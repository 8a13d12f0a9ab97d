"""Where the time of `nnue train` goes outside of its steps, for `--profile-start`.

`mark` notes the moment at which a phase has ended. The first phase begins when the operating system started the
process, so the imports count.
"""

from __future__ import annotations

from nnue_trainer.base import system

_marks: list[tuple[str, float]] = []


def mark(phase: str) -> None:
    """`phase` ends now, and with it the time since the last mark. Of phases with the same name the first one counts."""
    if all(phase != name for name, _ in _marks):
        _marks.append((phase, system.seconds_since_boot()))


def reset() -> None:
    """Forgets all marks: the next one begins a new run in this process."""
    _marks.clear()


def table() -> list[str]:
    """One line per phase: its seconds, and the seconds since the process began."""
    # Where the system does not show when this process began, the first mark is the begin.
    began = system.process_start()
    if began is None:
        began = _marks[0][1] if _marks else 0.0
    before = began
    lines = [f"{'phase':32} {'seconds':>8} {'since start':>12}"]
    for name, at in _marks:
        lines.append(f"{name:32} {at - before:8.2f} {at - began:12.2f}")
        before = at
    return lines
