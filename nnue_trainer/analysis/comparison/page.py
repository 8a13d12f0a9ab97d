"""The page and the picture of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnue_trainer.analysis.comparison.recipes import changes
from nnue_trainer.analysis.comparison.result import Comparison, elo_text, signed, table, verdicts
from nnue_trainer.files.pages.page import Page, Section, Table
from nnue_trainer.files.pages.plots import SERIES, SOFT, Draw, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def compare_page(found: Comparison) -> Page:
    head, rows = table(found)
    games = len(found.match.games)
    subtitle = f"{', '.join(found.labels)}: {len(found.nets)} nets, {games:,} games"
    text = " ".join(f"{line}." for line in verdicts(found))
    sections = [Section("Answer", text, tables=[Table(head, rows)], plots=plots(found))]
    if found.ratings and len(found.labels) > 2:
        cells = {(each.first, each.second): elo_text(each) for each in found.ratings.differences}
        matrix = [
            (label, *(cells.get((row, column), "") for column in range(1, len(found.labels))))
            for row, label in enumerate(found.labels[:-1])
        ]
        tables = [Table(("", *found.labels[1:]), matrix)]
        sections.append(Section("Each against each", "Elo of the column's recipe against the row's.", tables=tables))
    first = found.plan.entrants[0].recipe()
    tables = [
        Table(("recipe", "field"), [(entrant.label, line) for line in changes(first, entrant.recipe())], numbers=2)
        for entrant in found.plan.entrants[1:]
    ]
    recipes = Section("Recipes", f"Fields that differ from {found.labels[0]}.", tables=tables)
    return Page("Comparison of recipes", subtitle, [*sections, _nets(found), recipes])


def _nets(found: Comparison) -> Section:
    names = found.figures
    ratings = found.ratings
    rows = []
    for number, net in enumerate(found.nets):
        elo = f"{signed(ratings.nets[number])} ± {ratings.net_errors[number]:.1f}" if ratings else "–"
        figures = (f"{net.figures[name]:.6g}" for name in names)
        rows.append((net.file, elo, *figures, f"{net.seconds:.1f}", net.sha256[:12]))
    text = "Elo against the mean of the first recipe's nets; the errors count games only."
    return Section("Nets", text=text, tables=[Table(("net", "Elo", *names, "seconds", "sha256"), rows)])


def plots(found: Comparison) -> list[Plot]:
    legend = [(label, _color(number)) for number, label in enumerate(found.labels)]
    drawn = []
    if found.ratings:
        note = "Against the first recipe, with the 95 % interval; dots: nets of the seeds."
        drawn.append(Plot("Elo", _elo(found), note=note, legend=legend))
        drawn += [
            Plot(f"Elo and {name}", _scatter(found, name), note="Each dot is a net.", legend=legend)
            for name in ("loss", "result_cross_entropy", "even_rank_correlation")
            if name in found.figures
        ]
    drawn.append(Plot("Seconds of training", _seconds(found), note="In steps, mean of the seeds.", legend=legend))
    return drawn


def _color(number: int) -> str:
    return SERIES[number % len(SERIES)]


def _elo(found: Comparison) -> Draw:
    def draw(axes: Axes) -> None:
        ratings = found.ratings
        assert ratings is not None
        axes.axhline(0, color=SOFT, linewidth=0.8)
        for number in range(len(found.labels)):
            difference = ratings.against_first(number)
            own = [elo for elo, team in zip(ratings.nets, found.plan.teams, strict=True) if team == number]
            axes.plot([number + 0.15] * len(own), own, "o", color=_color(number), markersize=3, alpha=0.6)
            elo, error = (difference.elo, difference.error) if difference else (0.0, 0.0)
            axes.errorbar([number], [elo], yerr=[error], fmt="o", color=_color(number), capsize=3)
        axes.set_xticks(range(len(found.labels)), [str(number + 1) for number in range(len(found.labels))])
        axes.set(xlabel="recipe", ylabel="Elo")

    return draw


def _scatter(found: Comparison, name: str) -> Draw:
    def draw(axes: Axes) -> None:
        ratings = found.ratings
        assert ratings is not None
        for net, elo, team in zip(found.nets, ratings.nets, found.plan.teams, strict=True):
            axes.plot([net.figures[name]], [elo], "o", color=_color(team), markersize=4)
        axes.locator_params(axis="x", nbins=4)
        axes.set(xlabel=name, ylabel="Elo")

    return draw


def _seconds(found: Comparison) -> Draw:
    def draw(axes: Axes) -> None:
        for number in range(len(found.labels)):
            nets = found.of_recipe(number)
            axes.bar([number], [sum(net.seconds for net in nets) / len(nets)], color=_color(number))
        axes.set_xticks(range(len(found.labels)), [str(number + 1) for number in range(len(found.labels))])
        axes.set_xlabel("recipe")

    return draw
