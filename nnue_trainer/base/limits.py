"""Limits of time that depend on the machine and not on the recipe, set by environment variables."""

from __future__ import annotations

import math
import os

from nnue_trainer.errors import UserError, quoted

_DEFAULTS = {
    "NNUE_GRACE_SECONDS": 30.0,  # SLURM's KillWait, and what torchrun waits for
    "NNUE_JOIN_SECONDS": 300.0,
    "NNUE_TELL_SECONDS": 20.0,
    "NNUE_LEASE_SECONDS": 60.0,
    "NNUE_FULL_DISK_SECONDS": 600.0,
}


def seconds(name: str) -> float:
    """The value of the environment variable `name` in seconds, or its default. UserError unless it is a number from
    0 on."""
    text = os.environ.get(name)
    if not text:
        return _DEFAULTS[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UserError(f"{name}: found {quoted(text)}, expected a number of seconds from 0 on")
    return value
