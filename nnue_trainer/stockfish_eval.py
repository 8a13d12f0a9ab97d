"""What Stockfish prints for `eval`: how to read it, and how it writes an internal value, release by release.

Releases print a table with a row per bucket and the cells material, positional and total; a net without PSQT has one
cell per row. Cells are pawns with two decimals, in a unit that changed between releases, from the side to move. Below
stands "NNUE evaluation": pawns from white's side, or, from April 2026 on, the exact integer of the used bucket from the
side to move. In check nothing is evaluated.

Checked against a binary: 15.1. The others follow what is known of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nnue_trainer.errors import UserError, quoted

_ROW = re.compile(r"^\|\s*([0-9]{1,2})\s*\|(.*)$")
_CELL = re.compile(r"[+-]?[0-9]{1,6}\.[0-9]{2}")
_VALUE = re.compile(r"^NNUE evaluation\s+([+-]?[0-9]{1,9}(?:\.[0-9]{2})?) \(([^)]*)\)$")
_IN_CHECK = "none (in check)"
_USED = "this bucket is used"


@dataclass(frozen=True)
class EvalOutput:
    """What was printed for one position.

    `cells` [bucket][column] as printed, blanks removed; `used` the marked bucket, None if none is marked. `value` is
    from the line "NNUE evaluation": internal units from the side to move if `is_exact`, else pawns from white's side.
    """

    cells: list[list[str]] = field(default_factory=list)
    used: int | None = None
    value: str | None = None
    is_exact: bool = False
    in_check: bool = False


def parse_eval(lines: Sequence[str]) -> EvalOutput:
    """Reads the answer to `eval`. UserError, quoting the line, for a table or value that is not as expected."""
    cells: list[list[str]] = []
    used, value, is_exact = None, None, False
    for line in lines:
        if _IN_CHECK in line:
            return EvalOutput(in_check=True)
        if row := _ROW.match(line):
            *columns, rest = row.group(2).split("|")
            found = [column.replace(" ", "") for column in columns]
            if int(row.group(1)) != len(cells) or not found or not all(map(_CELL.fullmatch, found)):
                raise UserError(f"the row {quoted(line)} of the table, expected bucket {len(cells)} and its values")
            cells.append(found)
            if _USED in rest:
                used = len(cells) - 1
        elif match := _VALUE.match(line):
            value, unit = match.groups()
            is_exact = "internal units" in unit
            if not is_exact and unit != "white side":
                raise UserError(f"the line {quoted(line)}, expected '(white side)' or internal units")
    if not cells and value is None:
        raise UserError("neither a table of buckets nor a line 'NNUE evaluation'")
    return EvalOutput(cells, used, value, is_exact)


@dataclass(frozen=True)
class Counts:
    """Pieces of both sides on the board, which the unit of later releases depends on."""

    pawns: int
    knights: int
    bishops: int
    rooks: int
    queens: int

    @property
    def material(self) -> int:
        return self.pawns + 3 * self.knights + 3 * self.bishops + 5 * self.rooks + 9 * self.queens


def cell_of(engine_name: str) -> Callable[[int, Counts], str]:
    """How the release with this `id name` prints a value in internal units in a cell, blanks removed.

    UserError for a release whose unit is not known; those that print an exact integer need no table.
    """
    match = re.fullmatch(r"Stockfish (\d+(?:\.\d+)?)(?: .*)?", engine_name)
    release = match.group(1) if match else ""
    if release in _PAWN:
        pawn = _PAWN[release]
        return lambda value, counts: _signed(value, f"{abs(value) / pawn:.2f}")
    if release in _TRUNCATED:
        divisor = _TRUNCATED[release]
        return lambda value, counts: _signed(value, f"{100 * abs(value) // divisor / 100:.2f}")
    if release in _BY_MATERIAL:
        cubic = _BY_MATERIAL[release]
        return lambda value, counts: _signed(value, f"{_centipawns(abs(value), cubic, counts) / 100:.2f}")
    raise UserError(f"engine {quoted(engine_name)}: the unit of its table is not known")


# Internal units per pawn, printed with two decimals.
_PAWN = {"15.1": 361, "16": 328} | dict.fromkeys(("12", "13", "14.1", "15"), 208)
# The same, cut to whole centipawns.
_TRUNCATED = {"14": 208, "16.1": 356}
# Coefficients of a cubic polynomial of the material, from the third power down; rounded to whole centipawns.
_BY_MATERIAL = {
    "17": (-37.45051876, 121.19101539, -132.78783573, 420.70576692),
    "17.1": (-13.50030198, 40.92780883, -36.82753545, 386.83004070),
    "18": (-72.32565836, 185.93832038, -144.58862193, 416.44950446),
    "19": (-142.72052667, 372.35176398, -340.71073572, 415.23490212),
}


def _centipawns(value: int, cubic: tuple[float, ...], counts: Counts) -> int:
    m = min(max(counts.material, 17), 78) / 58
    a = 0.0
    for coefficient in cubic:
        a = a * m + coefficient
    return math.floor(100 * value / a + 0.5)


def _signed(value: int, text: str) -> str:
    return f"{'-' if value < 0 else '+' if value > 0 else ''}{text}"
