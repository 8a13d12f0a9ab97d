"""`nnue compare`: recipes are trained with several seeds, and their nets play each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from nnue_trainer.base import extras
from nnue_trainer.base.progress import progress_bar
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.cli.engine_options import HashMb, part_in, uci_options
from nnue_trainer.cli.match import (
    Book,
    Concurrency,
    EngineName,
    EngineOptions,
    NetOption,
    Nodes,
    OpeningSeed,
    PartOfWork,
    Plies,
    Test,
    sprt_of,
)
from nnue_trainer.cli.outputs import AsJson, Overwrite, note
from nnue_trainer.cli.plugins import with_plugins
from nnue_trainer.cli.terminable import ended_by_second_signal
from nnue_trainer.errors import UserError, quoted, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nnue_trainer.analysis.comparison.plan import Plan
    from nnue_trainer.analysis.comparison.recipes import Entrant
    from nnue_trainer.analysis.comparison.result import Comparison
    from nnue_trainer.analysis.comparison.run import TrainedNet
    from nnue_trainer.data.files import Part
    from nnue_trainer.match.play import Limit
    from nnue_trainer.match.result import MatchResult
    from nnue_trainer.match.run import MatchOptions

_MOVES = 110  # moves of both sides in a usual game, as it is adjudicated
JSON, PAGE, PICTURE = "compare.json", "compare.html", "compare.png"


# long: typer makes an option from each parameter
@with_plugins
def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE...",
            help="Recipes: files, presets, or changes of the one before in one word, 'optimizer.kind=muon "
            "optimizer.lr=1e-3'. 'NAME: …' gives a recipe a name. The first one is the measure of the others. A recipe "
            "named twice trains with other seeds: a test of the comparison.",
        ),
    ],
    common: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Field to override in all recipes; may be repeated."),
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="N|LIST", help="Number of seeds of each recipe, or a list such as 7,8,9 or 7,")
    ] = "3",
    equal: Annotated[
        str,
        typer.Option(
            metavar="positions|time|none",
            help="positions: all recipes train on equally many. time: on as many as they manage in the time of the "
            "first. none: as each recipe has it.",
        ),
    ] = "positions",
    engine: EngineName = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder of the comparison. Default: compare/A-B."),
    ] = None,
    pairs: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Pairs of games for each two recipes; with --sprt, at most.")
    ] = 500,
    gauntlet: Annotated[
        bool, typer.Option("--gauntlet", help="Play only the first recipe against each of the others.")
    ] = False,
    nodes: Nodes = None,
    openings: Book = None,
    plies: Plies = 8,
    seed: OpeningSeed = 0,
    concurrency: Concurrency = 0,
    sprt: Test = None,
    hash_mb: HashMb = 16,
    option: EngineOptions = None,
    net_option: NetOption = "EvalFile",
    part: PartOfWork = "1/1",
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Train recipes with several seeds, play their nets against each other, and report which recipe is stronger.

    Writes compare.json, compare.html and compare.png into the folder. Run the same command again to continue after an
    interruption, or with a larger --pairs to play more games.
    """
    from nnue_trainer.analysis.comparison import plan as plans
    from nnue_trainer.analysis.comparison import run as runs
    from nnue_trainer.analysis.comparison.recipes import check_comparable, entrants_of
    from nnue_trainer.analysis.comparison.result import Comparison
    from nnue_trainer.match.openings import OpeningOptions
    from nnue_trainer.match.play import Limit
    from nnue_trainer.match.run import MatchOptions

    if equal not in ("positions", "time", "none"):
        raise UserError(f"--equal {quoted(equal)}: expected positions, time or none")
    entrants = entrants_of(recipes, common or ())
    check_comparable(entrants, same_positions=equal == "positions", any_net=engine is None)
    share = part_in(part)
    folder = output or Path("compare") / "-".join(re.sub(r"\W+", "_", entrant.label) for entrant in entrants[:4])
    if overwrite:
        _clear(folder)
    options = MatchOptions(
        Limit(nodes=nodes or 10_000),
        pairs,
        OpeningOptions(str(openings) if openings else None, seed=seed, plies=plies),
        sprt=sprt_of(sprt),
        concurrency=concurrency or 4 * usable_cpus(),
    )
    player = _Player(engine, {"Hash": str(hash_mb)} | uci_options(option), net_option)
    with ended_by_second_signal():
        playing = any((folder / runs.MATCH).glob("*.journal"))  # its own progress has the time
        pace = None if playing else _pace(entrants, player, options.limit)
        plan = plans.make_plan(folder, entrants, seeds_of(seeds), equal, first=share.number == 1, say=note)  # type: ignore[arg-type]
        for number, entrant in enumerate(plan.entrants):
            if entrant.copy:
                note(f"{entrant.label}: a recipe again, with the seeds {', '.join(map(str, plan.seeds_of(number)))}")
        options = runs.tournament(plan, options, gauntlet=gauntlet)
        _say_expectation(folder, plan, options, share, pace)
        if status := runs.train_nets(folder, plan, share, note, as_nnue=engine is None):
            raise typer.Exit(status)
    nets = runs.trained(folder, plan)
    missing = [plan.name(*net) for net in plan.nets if plan.name(*net) not in nets]
    if missing:
        names = f"{', '.join(missing[:4])}{', …' * (len(missing) > 4)}"
        print(f"{shown(folder)}: part {part} has its nets; missing are {names}")
        print(f"when the other parts have trained them into {shown(folder / runs.NETS)}, the same command plays")
        return
    found = _play(folder, nets.values(), options, share, player)
    if not share.is_whole:
        print(f"{shown(folder)}: part {part} is played; without --part, the parts in one folder are merged")
        return
    _answer(folder, Comparison.of(plan, nets, found), options, as_json=as_json)


class _Player(NamedTuple):
    """How nets play: in which engine, with which options, and which of them takes the net."""

    engine: str | None
    options: dict[str, str]
    net_option: str


def seeds_of(text: str) -> list[int]:
    """The seeds of --seeds: 1 to N, or a list, of which a comma may follow the last one. UserError for other texts."""
    if not re.fullmatch(r"\d{1,18}(,\d{1,18})*,?", text):
        raise UserError(f"--seeds {quoted(text)}: expected a number of seeds, or a list such as 7,8,9 or 7,")
    numbers = [int(number) for number in text.split(",") if number]
    found = numbers if "," in text else list(range(1, numbers[0] + 1))
    if not 1 <= len(found) <= 1000 or len(set(found)) < len(found):
        raise UserError(f"--seeds {quoted(text)}: expected 1 to 1000 different seeds")
    return found


def _pace(entrants: Sequence[Entrant], player: _Player, limit: Limit) -> float:
    """The expected seconds of a game on one CPU. UserError, before hours of training, for an engine that does not
    read the nets of a recipe."""
    from nnue_trainer import schema
    from nnue_trainer.config.outline import outline
    from nnue_trainer.match.players import check_engine

    engine, options, net_option = player
    search, slowest = limit.command(()), 0.0
    for entrant in entrants:
        recipe = entrant.recipe()
        try:
            data = schema.to_data(recipe)
            seconds = check_engine(outline(recipe).architecture, data, engine, options, net_option, search)
        except UserError as error:
            raise UserError(f"compare: {entrant.label}: {error}") from None
        slowest = max(slowest, seconds)
    return _MOVES * slowest


def _clear(folder: Path) -> None:
    """Removes the files of a comparison, and its runs."""
    import shutil

    from nnue_trainer.analysis.comparison.plan import PLAN
    from nnue_trainer.analysis.comparison.run import MATCH, NETS, RUNS

    if not (folder / PLAN).is_file():
        return  # of something else, or nothing
    for name in (RUNS, NETS, MATCH):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (PLAN, JSON, PAGE, PICTURE):
        (folder / name).unlink(missing_ok=True)


def _say_expectation(folder: Path, plan: Plan, options: MatchOptions, part: Part, pace: float | None) -> None:
    """`pace`: seconds of a game on one CPU, None if it was not measured."""
    from nnue_trainer.analysis.comparison.result import expectation
    from nnue_trainer.analysis.comparison.run import trained
    from nnue_trainer.match.run import Count

    there = trained(folder, plan)
    own = plan.nets[part.number - 1 :: part.of]
    missing = sum(plan.name(*net) not in there for net in own)
    names = [plan.name(*net) for net in plan.nets]
    total = Count(names, None, options.pairs, options.teams, options.gauntlet).total
    games = 2 * len(range(part.number - 1, total, part.of))
    note(expectation(plan, games, pace and games * pace / usable_cpus(), missing))


def _play(folder: Path, nets: Iterable[TrainedNet], options: MatchOptions, part: Part, player: _Player) -> MatchResult:
    from nnue_trainer.analysis.comparison.run import MATCH, NETS
    from nnue_trainer.match.players import players_of
    from nnue_trainer.match.run import play_match

    files = [str(folder / NETS / net.file) for net in nets]
    engines, each = [player.engine] * len(files), [player.options] * len(files)
    players, identity = players_of(files, engines, each, folder / NETS, net_option=player.net_option)
    with progress_bar("playing", "games") as progress:
        return play_match(players, options, folder / MATCH, part=part, identity=identity, progress=progress, note=note)


def _answer(folder: Path, found: Comparison, options: MatchOptions, *, as_json: bool) -> None:
    from nnue_trainer.analysis.comparison import result as results
    from nnue_trainer.files.atomic import replacing

    data = results.as_json(found, {"nodes": options.limit.nodes, "pairs_of_each_two_nets": options.pairs})
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    with replacing(folder / JSON) as written:
        written.write_text(text)
    problem = extras.missing("matplotlib")
    if problem is None:
        _pictures(found, folder)
    if as_json:
        print(text, end="")
        return
    for line in results.text(found):
        print(shown(line))
    pictures = f"{PAGE}, {PICTURE}" if problem is None else f"no page and picture: {problem}"
    print(f"{shown(folder / JSON)}, {pictures}")


def _pictures(found: Comparison, folder: Path) -> None:
    from nnue_trainer.analysis.comparison.page import compare_page, plots
    from nnue_trainer.files.pages.page import save
    from nnue_trainer.files.pages.plots import save_png

    save(compare_page(found), folder / PAGE)
    save_png(plots(found), folder / PICTURE, " · ".join(found.labels))
