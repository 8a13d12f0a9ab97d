"""Notes of commands: lines on standard error that are not errors."""

from __future__ import annotations

import sys

from nnue_trainer.errors import shown


def note(text: str) -> None:
    print(f"nnue: note: {shown(text)}", file=sys.stderr)
