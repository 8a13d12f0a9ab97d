"""`nnue match`: games between nets or engines, and the Elo that follows from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnue_trainer.base import extras
from nnue_trainer.base.progress import progress_bar
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.cli.engine_options import HashMb, part_in, uci_options
from nnue_trainer.cli.outputs import AsJson, Overwrite, note
from nnue_trainer.cli.plugins import with_plugins
from nnue_trainer.errors import UserError, quoted, shown

if TYPE_CHECKING:
    from nnue_trainer.match.statistics import Sprt


EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Engine that plays with the nets: a path, or a name on PATH. Default: a small player for any net, "
        "compiled at first use.",
    ),
]
Nodes = Annotated[int | None, typer.Option(min=1, max=2**62, help="Search this many nodes per move. Default: 10000.")]
Book = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Openings: positions (FEN or EPD), games (PGN) or a data file to draw from. Default: random moves.",
    ),
]
Plies = Annotated[int, typer.Option(min=0, max=1000, help="Half-moves of a PGN or random opening.")]
OpeningSeed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed for the openings.")]
Concurrency = Annotated[
    int,
    typer.Option(
        "-j",
        "--concurrency",
        min=0,
        max=256,
        help="Games at a time; 0: one per CPU with a time limit, otherwise four.",
    ),
]
Test = Annotated[
    str | None,
    typer.Option(metavar="ELO0,ELO1", help="Stop when a sequential test decides between these two Elo values."),
]
EngineOptions = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="UCI option to set in all engines; may be repeated.")
]
PartOfWork = Annotated[
    str,
    typer.Option(metavar="I/N", help="Do only part I of N. Without --part, the parts in the folder are merged."),
]
NetOption = Annotated[str, typer.Option(metavar="NAME", help="UCI option for the net file.")]


# long: typer makes an option from each parameter
@with_plugins
def match(
    players: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C]...", help="Two or more nets, checkpoints, run folders or engines; each pair plays a match."
        ),
    ],
    engine: EngineName = None,
    engine_b: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Engine of the second player. Default: --engine.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Folder for the games and results. Default: match/A-B."),
    ] = None,
    pairs: Annotated[
        int,
        typer.Option(min=1, max=10_000_000, help="Pairs of games for each two players; with --sprt, at most."),
    ] = 500,
    nodes: Nodes = None,
    depth: Annotated[int | None, typer.Option(min=1, max=1000, help="Search to this depth.")] = None,
    movetime: Annotated[
        int | None, typer.Option(metavar="MS", min=1, max=10**9, help="Search for this many milliseconds.")
    ] = None,
    clock: Annotated[
        str | None, typer.Option("--tc", metavar="SECONDS+INCREMENT", help="Time control in seconds, such as 10+0.1.")
    ] = None,
    openings: Book = None,
    order: Annotated[str, typer.Option(metavar="random|sequential", help="Order of the opening book.")] = "random",
    start: Annotated[int, typer.Option(min=1, help="Number of the first opening in that order.")] = 1,
    plies: Plies = 8,
    seed: OpeningSeed = 0,
    concurrency: Concurrency = 0,
    sprt: Test = None,
    alpha: Annotated[float, typer.Option(help="Probability that the test accepts a net of ELO0.")] = 0.05,
    beta: Annotated[float, typer.Option(help="Probability that the test rejects a net of ELO1.")] = 0.05,
    model: Annotated[
        str, typer.Option("--elo-model", metavar="normalized|logistic", help="Elo model of the test.")
    ] = "normalized",
    resign_score: Annotated[
        int,
        typer.Option(min=1, help="Adjudicate a loss when a side's own score is this many centipawns below 0."),
    ] = 600,
    resign_moves: Annotated[int, typer.Option(min=0, help="Consecutive moves with such a score; 0: never.")] = 3,
    two_sided: Annotated[
        bool, typer.Option("--resign-two-sided", help="Adjudicate a loss only if both sides agree.")
    ] = False,
    draw_score: Annotated[
        int, typer.Option(min=0, help="Adjudicate a draw at this |score| in centipawns or less.")
    ] = 20,
    draw_moves: Annotated[
        int, typer.Option(min=0, help="Consecutive moves of both sides with such scores; 0: never.")
    ] = 8,
    draw_from: Annotated[
        int, typer.Option("--draw-from-move", min=0, help="First move at which a draw may be adjudicated.")
    ] = 34,
    max_moves: Annotated[int, typer.Option(min=0, help="End games of this many moves as draws; 0: never.")] = 0,
    chess960: Annotated[bool, typer.Option("--chess960", help="Play Chess960.")] = False,
    hash_mb: HashMb = 16,
    option: EngineOptions = None,
    option_b: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="UCI option to set for the second player; may be repeated."),
    ] = None,
    net_option: NetOption = "EvalFile",
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.01, help="Seconds to wait for an answer; a slower engine loses the game."
        ),
    ] = 60.0,
    part: PartOfWork = "1/1",
    fastchess: Annotated[
        str | None,
        typer.Option(metavar="PROGRAM", help="Let fastchess play the games: its path, or its name on PATH."),
    ] = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Play nets or engines against each other and estimate their Elo.

    Writes match.json, games.pgn and match.html into the folder. Run the same command again to continue after an
    interruption, or with a larger --pairs to play more games.
    """
    from nnue_trainer.match import run as matches
    from nnue_trainer.match.adjudication import Adjudication
    from nnue_trainer.match.openings import OpeningOptions
    from nnue_trainer.match.play import Limit
    from nnue_trainer.match.players import players_of

    if len(players) < 2:
        raise UserError(f"match: found {len(players)} player, expected two or more")
    if order not in ("random", "sequential"):
        raise UserError(f"--order {quoted(order)}: expected random or sequential")
    if (nodes, depth, movetime, clock) == (None,) * 4:
        nodes = 10_000
    test = sprt_of(sprt, alpha, beta, model)
    limit = Limit(nodes, depth, movetime, _clock(clock), timeout=timeout)
    options = matches.MatchOptions(
        limit=limit,
        pairs=pairs,
        openings=OpeningOptions(str(openings) if openings else None, order, seed, start, plies, chess960),  # type: ignore[arg-type]
        adjudication=Adjudication(resign_score, resign_moves, two_sided, draw_score, draw_moves, draw_from, max_moves),
        sprt=test,
        concurrency=concurrency or (1 if limit.timed else 4) * usable_cpus(),
    )
    folder = output or Path("match") / "-".join(re.sub(r"\W+", "_", Path(name).stem) for name in players[:4])
    matches.check_folder(folder, overwrite)
    common = {"Hash": str(hash_mb)} | uci_options(option)
    own = [common | (uci_options(option_b, "--option-b") if number == 1 else {}) for number in range(len(players))]
    engines = [engine_b or engine if number == 1 else engine for number in range(len(players))]
    chosen, identity = players_of(players, engines, own, folder / "nets", net_option=net_option)
    _note_equal_nets([player.name for player in chosen], identity["engines"])

    share = part_in(part)
    if fastchess is not None:
        from nnue_trainer.match.fastchess import find, play_with_fastchess

        if not share.is_whole:
            raise UserError(f"--part {part}: fastchess plays whole matches; remove --part")
        result = play_with_fastchess(find(fastchess), chosen, options, folder, identity=identity, note=note)
    else:
        with progress_bar("playing", "games") as progress:
            result = matches.play_match(
                chosen,
                options,
                folder,
                part=share,
                identity=identity,
                progress=progress,
                note=note,
            )
    if as_json:
        print(json.dumps(matches.as_json(result, {"players": result.players}), ensure_ascii=False))
        return
    for line in matches.summary(result):
        print(shown(line))
    if share.is_whole:
        problem = extras.missing("matplotlib")
        page = matches.PAGE if problem is None else f"no {matches.PAGE}, which {problem}"
        print(f"{shown(folder / matches.JSON)}, {matches.PGN}, {page}")
    else:
        print(f"{shown(folder)}: part {part} is played; without --part, the parts in one folder are merged")


def _note_equal_nets(names: Sequence[str], identities: Sequence[Mapping[str, Any]]) -> None:
    """A note for players that are one net, such as a run folder, which stands for `best`, and one of its epochs."""
    for (name, one), (name_b, other) in combinations(zip(names, identities, strict=True), 2):
        if "net" in one and one == other:
            note(f"{name} and {name_b} are the same net with the same options")


def sprt_of(bounds: str | None, alpha: float = 0.05, beta: float = 0.05, model: str = "normalized") -> Sprt | None:
    """The sequential test of --sprt. UserError for wrong bounds."""
    from nnue_trainer.match.statistics import Sprt

    if bounds is None:
        return None
    try:
        elo0, elo1 = (float(text) for text in bounds.split(","))
    except ValueError:
        raise UserError(f"--sprt {quoted(bounds)}: expected two numbers, such as 0,2") from None
    try:
        return Sprt(elo0, elo1, alpha, beta, model)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"--sprt {quoted(bounds)}: {error}") from None


def _clock(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:\+(\d+(?:\.\d+)?))?", text)
    if not found:
        raise UserError(f"--tc {quoted(text)}: expected seconds and an increment, such as 10+0.1")
    return float(found[1]), float(found[2] or 0)
