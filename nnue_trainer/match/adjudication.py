"""When a game is over before the rules of chess end it: both engines agree on its result."""

from __future__ import annotations

from dataclasses import dataclass

_MATE = 1 << 20  # beyond every score in centipawns


@dataclass(frozen=True)
class Adjudication:
    """The limits, those of fishtest by default. Scores are centipawns of UCI, moves are those of one side; 0 moves
    switch a rule off."""

    resign_score: int = 600
    resign_moves: int = 3
    resign_two_sided: bool = False
    """both engines must agree; otherwise a side resigns by its own scores"""
    draw_score: int = 20
    draw_moves: int = 8
    draw_from_move: int = 34
    max_moves: int = 0
    """a game of so many moves is a draw"""


class Adjudicator:
    """Watches one game."""

    def __init__(self, rules: Adjudication) -> None:
        self._rules = rules
        self._resigning = [0, 0]
        self._decided = self._drawish = self._plies = 0

    def after(self, side: int, kind: str, value: int, rule50: int, move_number: int) -> tuple[int | None, str]:
        """White's result, 1, 0 or −1, and the reason, once a move was played; (None, "") while the game goes on.

        `side` moved: 0 is white. `kind` and `value` are its score, "" for none; `rule50` and `move_number` are those
        of the position after the move."""
        rules = self._rules
        self._plies += 1
        score = value if kind != "mate" else _MATE if value > 0 else -_MATE
        losing = bool(kind) and score <= -rules.resign_score
        self._resigning[side] = self._resigning[side] + 1 if losing else 0
        self._decided = self._decided + 1 if kind and abs(score) >= rules.resign_score else 0
        if rule50 == 0:
            self._drawish = 0
        self._drawish = self._drawish + 1 if kind and abs(score) <= rules.draw_score else 0
        if rules.resign_moves and losing:
            count, needed = self._resigning[side], rules.resign_moves
            if rules.resign_two_sided:
                count, needed = self._decided, 2 * rules.resign_moves
            if count >= needed:
                return (-1 if side == 0 else 1), "resignation"
        if rules.draw_moves and self._drawish >= 2 * rules.draw_moves and move_number - 1 >= rules.draw_from_move:
            return 0, "agreed draw"
        if rules.max_moves and self._plies >= 2 * rules.max_moves:
            return 0, "maximum length"
        return None, ""
