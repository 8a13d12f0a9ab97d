"""The result of a match: the pairs that each two players have played, the games that count, and Elo as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from nnue_trainer.match.play import PlayedGame
from nnue_trainer.match.statistics import Sprt, Statistics, statistics


@dataclass
class Pairing:
    """Two players, by number, and the pairs of games that they have played: the half points of the first (0 to 4) in
    each pair, in the order of the pairs."""

    first: int
    second: int
    points: list[int] = field(default_factory=list)
    games: list[int] = field(default_factory=lambda: [0, 0, 0])
    """lost, drawn and won by the first"""

    @property
    def counts(self) -> list[int]:
        return [self.points.count(n) for n in range(5)]

    @property
    def statistics(self) -> Statistics | None:
        return statistics(self.counts) if self.points else None


def counts_of(pairings: Sequence[Pairing]) -> list[int]:
    """The counts of all pairings together, from the view of their first players."""
    return [sum(each) for each in zip(*(pairing.counts for pairing in pairings), strict=True)]


@dataclass
class MatchResult:
    """The result of a match. `games` are those that count, by number."""

    players: list[str]
    pairings: list[Pairing]
    games: list[PlayedGame]
    complete: bool
    sprt: Sprt | None = None

    @property
    def verdict(self) -> str | None:
        """The decision of the sequential test: accepted, rejected, or None."""
        return self.sprt.verdict(counts_of(self.pairings)) if self.sprt else None

    @property
    def faults(self) -> list[PlayedGame]:
        """The games that ended because a player failed: a crash, an illegal move, no answer."""
        return [game for game in self.games if game.fault]


def elo_text(found: Statistics) -> str:
    """Elo, normalised Elo and LOS in one line; text where a number is not finite."""
    if math.isinf(found.elo):
        return f"Elo {'+' if found.elo > 0 else '-'}inf: all games {'won' if found.elo > 0 else 'lost'}"
    text = f"Elo {found.elo:+.1f} ± {found.elo_error:.1f}"
    if found.nelo is None:
        return f"{text}, all pairs with the same result"
    return f"{text}, nElo {found.nelo:+.1f} ± {found.nelo_error:.1f}, LOS {100 * (found.los or 0):.1f} %"
