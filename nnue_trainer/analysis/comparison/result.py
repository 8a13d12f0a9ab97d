"""The answer of a comparison: a table of recipes, and which one is stronger."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nnue_trainer.analysis.comparison.plan import Plan
from nnue_trainer.analysis.comparison.recipes import changes
from nnue_trainer.analysis.comparison.run import TrainedNet
from nnue_trainer.base.progress import duration, size
from nnue_trainer.base.progress import positions as positions_text
from nnue_trainer.files.pages.page import Table, aligned, plain
from nnue_trainer.match.ratings import Difference, Ratings, rate
from nnue_trainer.match.result import MatchResult
from nnue_trainer.match.run import test_text

FORMAT_VERSION = 1
_SHOWN = ("loss", "score_cross_entropy", "result_cross_entropy", "rank_correlation", "even_rank_correlation")


@dataclass(frozen=True)
class Comparison:
    """A plan, its nets in the order of the plan, and the games between them. `ratings`: None while there are too few
    games."""

    plan: Plan
    nets: list[TrainedNet]
    match: MatchResult
    ratings: Ratings | None

    @classmethod
    def of(cls, plan: Plan, nets: Mapping[str, TrainedNet], match: MatchResult) -> Comparison:
        return cls(plan, list(nets.values()), match, rate(match.pairings, plan.teams))

    @property
    def labels(self) -> list[str]:
        return [entrant.label for entrant in self.plan.entrants]

    def of_recipe(self, number: int) -> list[TrainedNet]:
        return [net for net, team in zip(self.nets, self.plan.teams, strict=True) if team == number]

    def games(self, number: int) -> int:
        """The games of a recipe's nets."""
        teams = self.plan.teams
        return sum(
            2 * len(each.points) for each in self.match.pairings if number in (teams[each.first], teams[each.second])
        )

    @property
    def figures(self) -> list[str]:
        """The figures that all nets have, the usual ones first."""
        common = [name for name in self.nets[0].figures if all(name in net.figures for net in self.nets)]
        return sorted(common, key=lambda name: _SHOWN.index(name) if name in _SHOWN else len(_SHOWN))

    def mean(self, number: int, figure: str) -> tuple[float, float]:
        """The mean of a figure over the seeds, and its standard deviation (of a sample)."""
        values = [net.figures[figure] for net in self.of_recipe(number)]
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def signed(elo: float) -> str:
    """With one digit after the point, and without the sign of −0."""
    return f"{round(elo, 1) + 0.0:+.1f}"


def elo_text(found: Difference | None) -> str:
    return "0" if found is None else f"{signed(found.elo)} ± {found.error:.1f}"


def table(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of recipes, as text."""
    chosen = [name for name in found.figures if name in _SHOWN]
    head = ["recipe", "Elo", "games", *chosen, "positions", "seconds", "bytes"]
    rows = []
    for number, label in enumerate(found.labels):
        nets = found.of_recipe(number)
        rating = "–" if found.ratings is None else elo_text(found.ratings.against_first(number))
        means = [found.mean(number, name) for name in chosen]
        rows.append([
            label,
            rating,
            f"{found.games(number):,}",
            *(f"{mean:.5f} ± {deviation:.5f}" for mean, deviation in means),
            positions_text(nets[0].positions),
            f"{statistics.fmean(net.seconds for net in nets):.1f}",
            size(nets[0].bytes),
        ])  # fmt: skip
    return head, rows


def verdicts(found: Comparison) -> list[str]:
    """The answer in words: how sure each difference is, and what the errors count."""
    ratings, labels = found.ratings, found.labels
    if ratings is None:
        return ["too few games for an answer"]
    lines = []
    for each in ratings.differences:
        first, second = labels[each.first], labels[each.second]
        sure = f"{signed(each.elo)} ± {each.error:.1f} Elo, of which games ± {each.of_games:.1f}"
        if each.winner is None:
            lines.append(f"{second} against {first}: no winner: {sure}")
        else:
            won, chance = labels[each.winner], max(each.stronger, 1 - each.stronger)
            lines.append(f"{second} against {first}: {won} is stronger ({100 * chance:.1f} %): {sure}")
    if ratings.seed_spread is None:
        lines.append("one seed: the errors count games only, and another seed may give another answer (--seeds 3)")
    else:
        lines.append(f"standard deviation between seeds of a recipe: {ratings.seed_spread:.1f} Elo")
    if found.match.sprt:
        lines.append(f"{labels[0]} against {labels[1]}, of these nets: {test_text(found.match)}")
    return lines


def text(found: Comparison) -> list[str]:
    """The whole answer as lines of text."""
    return [*aligned(Table(*table(found))), *verdicts(found)]


def as_json(found: Comparison, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison as plain JSON data: docs/comparing-recipes.md."""
    ratings = found.ratings
    first = found.plan.entrants[0].recipe()
    elo = ratings.nets if ratings else [math.nan] * len(found.nets)
    errors = ratings.net_errors if ratings else elo
    return {
        "format_version": FORMAT_VERSION,
        "made_by": "nnue compare",
        "settings": {"equal": found.plan.equal, "seeds": list(found.plan.seeds), **settings},
        "complete": found.match.complete,
        "recipes": [
            {
                "recipe": entrant.label,
                "changes": changes(first, entrant.recipe()),
                "games": found.games(number),
                "nets": [
                    asdict(net) | {"elo": plain(elo[at]), "elo_error": plain(errors[at])}
                    for at, net in enumerate(found.nets)
                    if found.plan.teams[at] == number
                ],
            }
            for number, entrant in enumerate(found.plan.entrants)
        ],
        "seed_spread": ratings.seed_spread if ratings else None,
        "differences": [
            asdict(each)
            | {
                "first": found.labels[each.first],
                "second": found.labels[each.second],
                "winner": None if each.winner is None else found.labels[each.winner],
            }
            for each in (ratings.differences if ratings else ())
        ],
        **({"sprt": {**asdict(found.match.sprt), "verdict": found.match.verdict}} if found.match.sprt else {}),
    }


def expectation(plan: Plan, games: int, seconds_of_games: float | None, nets: int) -> str:
    """The line about the time that a comparison takes. `nets`: how many are still to be trained; `seconds_of_games`:
    None if it is not known."""
    training = sum(sorted((plan.seconds(number) for number, _ in plan.nets), reverse=True)[:nets])
    playing = "" if seconds_of_games is None else f", about {duration(seconds_of_games)}"
    return (
        f"{nets} of {len(plan.nets)} nets to train, about {duration(training)} of steps on one device; "
        f"{games:,} games{playing}"
    )
