"""When a game is over before the rules of chess end it. The C++ library applies it (data_loader/chess/match_game.h)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from nnue_trainer import _data


@dataclass(frozen=True)
class Adjudication:
    """The limits of adjudication, by default fishtest's. Scores are centipawns of UCI, moves count for one
    side; 0 moves switch a rule off."""

    resign_score: int = 600
    resign_moves: int = 3
    resign_two_sided: bool = False
    """both engines must agree; otherwise a side resigns by its own scores"""
    draw_score: int = 20
    draw_moves: int = 8
    draw_from_move: int = 34
    max_moves: int = 0
    """a game of this many moves is a draw"""

    def native(self) -> _data.Adjudication:
        """The rules in the form of the C++ library."""
        return _data.Adjudication(**asdict(self))
