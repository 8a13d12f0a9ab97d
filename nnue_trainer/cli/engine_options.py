"""Options of commands that run engines, and their values: UCI options and parts of a task."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from nnue_trainer.errors import UserError, quoted

if TYPE_CHECKING:
    from nnue_trainer.data.files import Part

Engines = Annotated[int, typer.Option("-j", "--concurrency", min=0, max=1024, help="Engines to run; 0: one per CPU.")]
HashMb = Annotated[int, typer.Option("--hash", min=1, max=2**25, help="MB of hash for each engine.")]
UciOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="UCI option to set; may be repeated.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Seconds to wait for an answer of the engine.")]


def uci_options(texts: Sequence[str] | None, option: str = "--option") -> dict[str, str]:
    """Options of an engine from NAME=VALUE. UserError that begins with `option` for other texts."""
    options = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{option} {quoted(text)}: expected NAME=VALUE")
        options[name] = value
    return options


def part_in(text: str | None) -> Part:
    """The part that --part names as I/N; "array" stands for that of this task of a SLURM array, None for the whole.
    UserError for other texts."""
    from nnue_trainer.data.files import Part

    if text == "array":
        return Part(*_array_task())
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", "1/1" if text is None else text)
    if not found:
        raise UserError(f"--part {quoted(text)}: expected I/N, such as 2/4")
    part = Part(int(found[1]), int(found[2]))
    part.range(0)  # for its error
    return part


def _array_task() -> tuple[int, int]:
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_COUNT")
    found = {name: os.environ.get(name, "") for name in names}
    for name, value in found.items():
        if not re.fullmatch(r"\d{1,9}", value):
            raise UserError(
                f"--part array: {name} is {quoted(value) if value else 'not set'}: run it in `sbatch --array`"
            )
    task, first, last, count = (int(value) for value in found.values())
    step = (last - first) // max(count - 1, 1) or 1
    if first + step * (count - 1) != last or (task - first) % step:
        raise UserError(f"--part array: tasks {first} to {last}, {count} of them: expected equal steps, such as 1-100")
    return (task - first) // step + 1, count


def units_per_centipawn(score_scale: float | None, pawn: float | None) -> float | None:
    """Internal units per centipawn, from --score-scale or --pawn. UserError if both are given and differ."""
    if pawn is None:
        return score_scale
    if score_scale is not None and not math.isclose(score_scale, pawn / 100):
        raise UserError(f"--pawn {pawn:g} is --score-scale {pawn / 100:g}, found {score_scale:g}: give one of them")
    return pawn / 100
