"""How scores and results of a data file are read: their unit and their view, in the same way by all tools.

A score in a record is in the engine's internal units, from the side to move's view. Formats of records and text store
numbers whose unit they do not state, and these are copied. PGN and EPD state evaluations in pawns or centipawns, which
`pawn` converts. docs/data-formats.md, "Scores".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypedDict

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.errors import UserError

FORMATS_WITHOUT_SIDES = frozenset({"bulletformat"})
"""Formats that turn every board so that white is to move."""

FORMATS_IN_PAWNS = frozenset(_data.formats_in_pawns())
"""Formats whose scores are evaluations in pawns or centipawns."""

DEFAULT_PAWN = 208.0
"""Internal units per pawn of evaluations, unless a user sets `pawn`: those of Stockfish up to version 15."""

LEAST_SCALE, MOST_SCALE = 1e-4, 1e5
"""The smallest and the largest factor for scores. A score is at most 32,767, and one that is not 0 is at least 1."""

LEAST_PAWN, MOST_PAWN = 0.01, 10_000.0

View = Literal["auto", "mover", "white", "black", "opponent"]
"""Whose view scores or results in a file have in truth: that of the side to move (auto: as the format has it), of one
side, or of the side that is not to move."""
Place = Literal["auto", "before", "after"]
Unit = Literal["auto", "pawns", "cp"]

_PGN_VIEWS: dict[View, str] = {
    "auto": "auto",
    "mover": "mover",
    "white": "white",
    "black": "white",
    "opponent": "mover",
}
"""How evaluations of PGN are read; for the last two they are negated afterwards."""


class ReadingOptions(TypedDict, total=False):
    """The keyword arguments of all readers and tools about scores and results (`Reading`)."""

    pawn: float | None
    """for PGN and EPD: internal units per pawn; None: 208, and readers add a note"""
    score_scale: float
    """factor for scores, except for 32002 (none)"""
    score_view: View
    """the true view of the scores; they are converted to the side to move's"""
    result_view: View
    """likewise for results"""
    score_place: Place
    """for PGN: whether an evaluation belongs to the position before or after its move"""
    score_unit: Unit
    """for PGN: the unit of evaluations"""


@dataclass(frozen=True)
class Reading:
    """The values of `ReadingOptions`. UserError for a number out of range."""

    pawn: float | None = None
    score_scale: float = 1.0
    score_view: View = "auto"
    result_view: View = "auto"
    score_place: Place = "auto"
    score_unit: Unit = "auto"

    def __post_init__(self) -> None:
        check_score_scale(self.score_scale)
        if self.pawn is not None and not LEAST_PAWN <= self.pawn <= MOST_PAWN:
            raise UserError(f"pawn {self.pawn:g}, expected {LEAST_PAWN:g} to {MOST_PAWN:g} internal units")

    @property
    def settings(self) -> dict[str, str]:
        """The settings of compiled readers."""
        found = {
            "score_view": _PGN_VIEWS[self.score_view],
            "score_place": self.score_place,
            "score_unit": self.score_unit,
        }
        return found if self.pawn is None else found | {"pawn": str(self.pawn)}

    def changes(self, path: str | os.PathLike[str], format: str) -> _data.ScoreChanges | None:
        """The changes to the records of a file in `format`; None: they stay as they are read. UserError, naming `path`,
        for a view that a format without sides cannot have."""
        for option, view in (("score-view", self.score_view), ("result-view", self.result_view)):
            if view in ("white", "black") and format in FORMATS_WITHOUT_SIDES:
                raise UserError(
                    f"{path}: --{option} {view}: {format} has no side to move: convert the file's source with this "
                    "option"
                )
        # The reader of PGN has made the scores white's or the mover's.
        pgn = format == "pgn" and self.score_view in ("black", "opponent")
        turns = {
            "turn_white_scores": pgn or self.score_view in ("black", "opponent"),
            "turn_black_scores": pgn or (format != "pgn" and self.score_view in ("white", "opponent")),
            "turn_white_results": self.result_view in ("black", "opponent"),
            "turn_black_results": self.result_view in ("white", "opponent"),
        }
        if self.score_scale == 1 and not any(turns.values()):
            return None
        return _data.ScoreChanges(scale=self.score_scale, **turns)

    def notes(self, format: str) -> list[str]:
        """Lines for users about the unit of scores in a file in `format`: a unit that is assumed, and options that have
        no effect."""
        if format in FORMATS_IN_PAWNS:
            if self.pawn is not None:
                return [f"evaluations are converted with {self.pawn:g} internal units per pawn"]
            return [f"evaluations are converted with {DEFAULT_PAWN:g} internal units per pawn, the default of --pawn"]
        if self.pawn is not None:
            return [f"--pawn has no effect: {format} stores numbers, which --score-scale multiplies"]
        return []


def check_score_scale(scale: float) -> None:
    """UserError for a factor of scores that is out of range."""
    if not LEAST_SCALE <= scale <= MOST_SCALE:
        raise UserError(f"score scale {scale:g}, expected {LEAST_SCALE:g} to {MOST_SCALE:g}")


def any_scored(records: Records) -> bool:
    """Whether one of the records, uint8 [n, 32], has a score."""
    return bool(((records[:, 26] != 0xFA) | (records[:, 27] != 0x04)).any())  # 32002 as zig-zag, big endian
