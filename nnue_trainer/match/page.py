"""The page of a match: results, Elo and test over the pairs, faults, how games ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnue_trainer.files.pages.page import Page, Section, Table
from nnue_trainer.files.pages.plots import BAD, GOOD, SERIES, SOFT, Draw, Plot, thin
from nnue_trainer.match.result import MatchResult, Pairing, elo_text
from nnue_trainer.match.statistics import Sprt, statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS = 400
_MOST_FAULTS = 200


def match_page(result: MatchResult) -> Page:
    names = result.players
    sections = [_pairing_section(result, pairing) for pairing in result.pairings]
    reasons = [(reason, f"{n:,}") for reason, n in Counter(game.reason for game in result.games).most_common()]
    sections.append(Section("How games ended", tables=[Table(("reason", "games"), reasons)]))
    if result.faults:
        rows = [(str(game.number + 1), names[game.loser], game.reason, game.fault) for game in result.faults]
        table = Table(("game", "engine", "fault", "what happened"), rows[:_MOST_FAULTS], numbers=4)
        lost = f"{len(rows):,} games were lost by a fault of the engine"
        sections.append(Section("Faults of engines", warnings=[lost], tables=[table]))
    return Page("Match", f"{' against '.join(names)}, {len(result.games):,} games", sections)


def _pairing_section(result: MatchResult, pairing: Pairing) -> Section:
    found, counts = pairing.statistics, pairing.counts
    title = f"{result.players[pairing.first]} against {result.players[pairing.second]}"
    if found is None:
        return Section(title, "No pair of games is over.")
    lost, drawn, won = pairing.games
    facts = [
        ("result", elo_text(found)),
        ("score", f"{100 * found.score:.2f} %"),
        ("games", f"{won:,} won, {drawn:,} drawn, {lost:,} lost"),
    ]
    if counts[0] + counts[1]:
        facts.append(("pairs won per pair lost", f"{(counts[3] + counts[4]) / (counts[0] + counts[1]):.2f}"))
    good: list[str] = []
    plots = [Plot("Elo", _elo(pairing.points), note="Over the pairs, with its 95 % interval.")]
    if result.sprt and len(result.pairings) == 1:
        test = result.sprt
        facts.append(
            ("test", f"{test.model} Elo {test.elo0:g} to {test.elo1:g}, α {test.alpha:g}, β {test.beta:g}: "
             f"LLR {test.llr(counts):.3f}, bounds {test.lower:.3f} and {test.upper:.3f}")
        )  # fmt: skip
        good = [f"{result.verdict} after {len(pairing.points):,} pairs"] if result.verdict else []
        plots.append(Plot("Log-likelihood ratio", _llr(pairing.points, test), note="Dashed: the bounds of the test."))
    plots.append(Plot("Pairs", _pairs(counts), note="By the points of the first player."))
    return Section(title, facts=facts, good=good, plots=plots)


def _counts_over_time(points: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Pair numbers, and the counts up to each."""
    sums = np.cumsum(np.eye(5, dtype=np.int64)[list(points)], axis=0)
    at, rows = thin(np.arange(1, len(points) + 1), sums, most=_MOST_POINTS)
    return at.tolist(), rows.tolist()


def _elo(points: Sequence[int]) -> Draw:
    def draw(axes: Axes) -> None:
        at, rows = _counts_over_time(points)
        found = [statistics(row) for row in rows]
        elo = np.array([one.elo for one in found])
        error = np.array([one.elo_error for one in found])
        good = np.isfinite(elo)
        x = np.array(at)[good]
        axes.axhline(0, color=SOFT, linewidth=0.8)
        axes.plot(x, elo[good], "-" if len(x) > 1 else "o", color=SERIES[0])
        late = good & np.isfinite(error) & (error > 0)
        axes.fill_between(
            np.array(at)[late], (elo - error)[late], (elo + error)[late], color=SERIES[0], alpha=0.18, linewidth=0
        )
        if late.any() and len(x) > 20:
            settled = late & (np.array(at) > len(points) // 20)
            if settled.any():
                reach = float(np.max(np.abs(elo[settled]) + error[settled]))
                axes.set_ylim(-1.1 * reach, 1.1 * reach)
        axes.set(xlabel="pairs", ylabel="Elo")

    return draw


def _llr(points: Sequence[int], test: Sprt) -> Draw:
    def draw(axes: Axes) -> None:
        at, rows = _counts_over_time(points)
        axes.plot(at, [test.llr(row) for row in rows], "-" if len(at) > 1 else "o", color=SERIES[0])
        axes.axhline(test.upper, color=GOOD, linestyle="--", linewidth=1)
        axes.axhline(test.lower, color=BAD, linestyle="--", linewidth=1)
        axes.set(xlabel="pairs", ylabel="LLR")

    return draw


def _pairs(counts: Sequence[int]) -> Draw:
    def draw(axes: Axes) -> None:
        axes.bar(range(5), counts, color=SERIES[0])
        axes.set_xticks(range(5), ["0", "½", "1", "1½", "2"])
        axes.set(xlabel="points", ylabel="pairs")

    return draw
