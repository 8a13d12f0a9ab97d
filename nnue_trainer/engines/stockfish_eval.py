"""Stockfish's output for `eval`: how to read it, and how it writes an internal value, release by release.

Releases print a table with a row per bucket and the cells material, positional and total; a net without PSQT has one
cell per row. Cells are pawns with two decimals, in a unit that changed between releases, from the side to move. Below
stands "NNUE evaluation": pawns from white's side, and, from April 2026 on, the exact integer of the used bucket from
the side to move, with or without the pawns in a second such line. Builds of that spring print both of their nets, each
line beginning with "(Big net)" or "(Small net)"; the small net is ignored. In check nothing is evaluated.

Checked against binaries: 15.1 and 17.1. The others follow the source text of Stockfish.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nnue_trainer.errors import UserError, quoted

_ROW = re.compile(r"^\|\s*([0-9]{1,2})\s*\|(.*)$")
_CELL = re.compile(r"[+-]?[0-9]{1,6}\.[0-9]{2}")
_VALUE = re.compile(r"^NNUE evaluation:?\s+([+-]?[0-9]{1,9}(?:\.[0-9]{2})?) \(([^)]*)\)$")
_BIG, _SMALL = "(Big net) ", "(Small net) "
_IN_CHECK = "none (in check)"
_USED = "this bucket is used"


@dataclass(frozen=True)
class EvalOutput:
    """The output for one position.

    `cells` [bucket][column] as printed, blanks removed; `used` the marked bucket, None if none is marked. `value` is
    from the line "NNUE evaluation": internal units from the side to move if `is_exact`, else pawns from white's side
    with their sign. Where both are printed it is the exact one.
    """

    cells: list[list[str]] = field(default_factory=list)
    used: int | None = None
    value: str | None = None
    is_exact: bool = False
    in_check: bool = False


def parse_eval(lines: Sequence[str]) -> EvalOutput:
    """Reads the answer to `eval`. UserError, quoting the line, for a table or value that is not as expected."""
    cells: list[list[str]] = []
    used, value, is_exact, is_small = None, None, False, False
    for text in lines:
        if _IN_CHECK in text:
            return EvalOutput(in_check=True)
        is_small = text.startswith(_SMALL) or (is_small and text.startswith(("|", "+")))
        if is_small:
            continue
        line = text.removeprefix(_BIG)
        if row := _ROW.match(line):
            *columns, rest = row.group(2).split("|")
            found = [column.replace(" ", "") for column in columns]
            if int(row.group(1)) != len(cells) or not found or not all(map(_CELL.fullmatch, found)):
                raise UserError(f"the row {quoted(line)} of the table, expected bucket {len(cells)} and its values")
            cells.append(found)
            if _USED in rest:
                used = len(cells) - 1
        elif match := _VALUE.match(line):
            printed, unit = match.groups()
            if unit == "side to move, internal units" and "." not in printed:
                value, is_exact = printed, True
            elif unit not in ("white side", "white side, pawns") or "." not in printed:
                raise UserError(f"the line {quoted(line)}, expected '(white side)' or internal units")
            elif not is_exact:
                value = printed if printed[0] in "+-" else f"+{printed}"
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

    @classmethod
    def of_fen(cls, fen: str) -> Counts:
        board = fen.partition(" ")[0].lower()
        return cls(*(board.count(piece) for piece in "pnbrq"))

    @property
    def material(self) -> int:
        return self.pawns + 3 * self.knights + 3 * self.bishops + 5 * self.rooks + 9 * self.queens


@dataclass(frozen=True)
class Unit:
    """How a release prints internal values. `pawn` is how many of them are a pawn. `is_cut`: centipawns are cut toward
    zero, where others round them; None: not known which, so both pass."""

    pawn: Callable[[Counts], float]
    is_cut: bool | None = False

    def cells(self, value: int, counts: Counts) -> tuple[str, ...]:
        """The possible texts of a cell of the table for a value, without blanks."""
        sign = "-" if value < 0 else "+" if value > 0 else ""
        return tuple(f"{sign}{pawns}" for pawns in dict.fromkeys(self._pawns(abs(value), counts)))

    def values(self, white: int, counts: Counts) -> tuple[str, ...]:
        """The texts of the line "NNUE evaluation" for a value from white's side. Some releases print the sign of a zero
        that was rounded, others do not."""
        pawns = {f"{abs(white) / self.pawn(counts):.2f}", *self._pawns(abs(white), counts)}
        return tuple(
            f"{sign}{text}" for text in pawns for sign in ("+-" if float(text) == 0 else "-" if white < 0 else "+")
        )

    def _pawns(self, size: int, counts: Counts) -> list[str]:
        pawn = self.pawn(counts)
        texts = {True: f"{math.floor(100 * size / pawn) / 100:.2f}", False: f"{size / pawn:.2f}"}
        return [text for is_cut, text in texts.items() if self.is_cut in (is_cut, None)]


def unit_of(engine_name: str) -> Unit:
    """The unit of the release with this `id name`. UserError for one whose unit is not known; releases that print an
    exact integer need none."""
    match = re.fullmatch(r"Stockfish (\d+(?:\.\d+)?)(?: .*)?", engine_name)
    release = match.group(1) if match else ""
    if release not in _UNITS:
        raise UserError(f"engine {quoted(engine_name)}: the unit of its table is not known")
    return _UNITS[release]


def _constant(pawn: int, *, is_cut: bool | None = False) -> Unit:
    return Unit(lambda _: pawn, is_cut)


def _by_material(*cubic: float) -> Unit:
    """A cubic polynomial of the material, from the third power down."""

    def pawn(counts: Counts) -> float:
        return float(np.polyval(cubic, min(max(counts.material, 17), 78) / 58))

    return Unit(pawn)


_UNITS = {
    **dict.fromkeys(("12", "13", "14.1", "15"), _constant(208)),
    "14": _constant(208, is_cut=True),
    "15.1": _constant(361),
    "16": _constant(328, is_cut=None),
    "16.1": _constant(356, is_cut=True),
    "17": _by_material(-37.45051876, 121.19101539, -132.78783573, 420.70576692),
    "17.1": _by_material(-13.50030198, 40.92780883, -36.82753545, 386.83004070),
    "18": _by_material(-72.32565836, 185.93832038, -144.58862193, 416.44950446),
    "19": _by_material(-142.72052667, 372.35176398, -340.71073572, 415.23490212),
}
