"""Parses options of commands that run engines: UCI options and parts of a task."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from nnue_trainer.errors import UserError, quoted


def uci_options(texts: Sequence[str] | None, option: str = "--option") -> dict[str, str]:
    """Options of an engine from NAME=VALUE. UserError that begins with `option` for other texts."""
    options = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{option} {quoted(text)}: expected NAME=VALUE")
        options[name] = value
    return options


def part_of(text: str) -> tuple[int, int]:
    """The numbers of I/N, which --part takes. UserError for other texts; the range is the task's to check."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not found:
        raise UserError(f"--part {quoted(text)}: expected I/N, such as 2/4")
    return int(found[1]), int(found[2])


def units_per_centipawn(score_scale: float | None, pawn: float | None) -> float | None:
    """Internal units per centipawn, from --score-scale or --pawn. UserError if both are given and differ."""
    if pawn is None:
        return score_scale
    if score_scale is not None and not math.isclose(score_scale, pawn / 100):
        raise UserError(f"--pawn {pawn:g} is --score-scale {pawn / 100:g}, found {score_scale:g}: give one of them")
    return pawn / 100
