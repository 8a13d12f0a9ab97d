"""Matches between nets and engines: players, games, statistics and results, as `nnue match` uses them."""

from typing import TYPE_CHECKING

from nnue_trainer.base import lazy

if TYPE_CHECKING:
    from nnue_trainer.match import statistics
    from nnue_trainer.match.adjudication import Adjudication
    from nnue_trainer.match.openings import OpeningOptions
    from nnue_trainer.match.play import Limit
    from nnue_trainer.match.players import players_of
    from nnue_trainer.match.result import MatchResult
    from nnue_trainer.match.run import MatchOptions, play_match, summary
    from nnue_trainer.match.statistics import Sprt

_HOME = {
    "Adjudication": "adjudication",
    "Limit": "play",
    "MatchOptions": "run",
    "MatchResult": "result",
    "OpeningOptions": "openings",
    "Sprt": "statistics",
    "play_match": "run",
    "players_of": "players",
    "summary": "run",
}
__all__ = [
    "Adjudication",
    "Limit",
    "MatchOptions",
    "MatchResult",
    "OpeningOptions",
    "Sprt",
    "play_match",
    "players_of",
    "statistics",
    "summary",
]

__getattr__ = lazy.attributes(__name__, _HOME, ("statistics",))
