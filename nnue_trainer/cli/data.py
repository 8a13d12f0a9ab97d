"""`nnue data …`: what is in a file of training data, whether it is sound, and how to make one."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nnue_trainer.base.progress import counted, progress_bar, size
from nnue_trainer.base.status import CONTRADICTORY
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.cli.data_tools import (
    Extra,
    InPart,
    Scores,
    To,
    chosen_filters,
    losses,
    with_filters,
    with_scores,
)
from nnue_trainer.cli.engine_options import (
    Engines,
    HashMb,
    Timeout,
    UciOption,
    part_in,
    uci_options,
    units_per_centipawn,
)
from nnue_trainer.cli.outputs import AsJson, Overwrite, check_no_input, note
from nnue_trainer.cli.pictures import Html, Png, check_pictures, present
from nnue_trainer.cli.plugins import with_plugins
from nnue_trainer.errors import UserError, shown

PipedFiles = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Data files in any format, plain or compressed; -: standard input."),
]
PipedFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Data file in any format, plain or compressed; -: standard input.")
]
FilterSeed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed for random decisions of filters.")]


@with_plugins
@with_scores
def info(
    files: PipedFiles,
    as_json: AsJson = False,
    html: Html = None,
    png: Png = None,
    overwrite: Overwrite = False,
    *,
    scores: Scores,
) -> None:
    """Show counts, sums, histograms and duplicates of whole files, on all CPUs."""
    from nnue_trainer.data.info import file_info, page
    from nnue_trainer.data.many_files import cpus_per_file, in_order

    check_pictures(html, png, overwrite, files, len(files))
    threads = cpus_per_file(len(files))
    with progress_bar("reading") as progress:
        for result in in_order(lambda file, show: file_info(file, show, threads, **scores), files, progress):
            for text in result.notes:
                note(f"{result.path}: {text}")
            present(page(result), result.as_dict, html, png, as_json=as_json)


@with_plugins
@with_scores
@with_filters
def head(
    file: PipedFile,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Number of positions to show.")] = 10,
    seed: FilterSeed = 0,
    extra: Extra = None,
    as_json: AsJson = False,
    *,
    values: Mapping[str, float],
    scores: Scores,
) -> None:
    """Show the first positions that pass the filters: FEN, move, score, ply and result; score and result from the side
    to move's view."""
    from nnue_trainer import _data
    from nnue_trainer.data.transform import Report, filtered

    report = Report()
    for block, _ in filtered([file], chosen_filters(values, extra), seed=seed, after=report.add_reader, **scores):
        for fen, move, score, ply, result in _data.describe(block.records[:count]):
            if as_json:
                print(json.dumps({"fen": fen, "move": move, "score": score, "ply": ply, "result": result}))
            else:
                print(f"{fen} | {move} | score {score} | ply {ply} | result {result}")
        count -= len(block.records)
        if count <= 0:
            break
    for text in report.notes + report.unit_notes:
        note(text)


@with_plugins
@with_scores
@with_filters
def count(
    files: PipedFiles,
    seed: FilterSeed = 0,
    extra: Extra = None,
    as_json: AsJson = False,
    *,
    values: Mapping[str, float],
    scores: Scores,
) -> None:
    """Count the positions of files, and those that pass the filters."""
    from nnue_trainer.data.filters import Filters
    from nnue_trainer.data.transform import Report, filtered

    filters = chosen_filters(values, extra)
    rows: list[dict[str, Any]] = []
    report = Report()
    with progress_bar("counting") as progress:
        for file in files:
            kept, dropped = 0, Counter[str]()
            for block, counts in filtered(
                [file], filters, seed=seed, progress=progress, after=report.add_reader, **scores
            ):
                kept += len(block.records)
                dropped.update(counts.dropped)
            positions = kept + dropped.total()
            rows.append({"path": str(file), "positions": positions, "kept": kept, "dropped": dict(dropped)})
    for text in report.notes + report.unit_notes:
        note(text)
    if as_json:
        print("\n".join(json.dumps(row) for row in rows))
        return
    if len(rows) > 1:
        rows.append({"path": "all"} | {key: sum(row[key] for row in rows) for key in ("positions", "kept")})
    for row in rows:
        passing = "" if filters == Filters.none() else f", {row['kept']:,} pass the filters"
        print(f"{shown(row['path'])}: {row['positions']:,} positions{passing}")
        for name, number in row.get("dropped", {}).items():
            print(f"  {name}: {number:,} dropped")


@with_plugins
@with_scores
def validate(
    files: PipedFiles,
    as_json: AsJson = False,
    part: InPart = None,
    *,
    scores: Scores,
) -> None:
    """Check every position and move of files, and whether scores and results are plausible.

    Exit with 1 if a position breaks the rules of chess, and with 3 if a file contradicts itself.
    """
    from nnue_trainer.data.files import files_of_part
    from nnue_trainer.data.many_files import cpus_per_file, in_order
    from nnue_trainer.data.score_units import ComparedFiles, differences
    from nnue_trainer.data.validation import validated

    failed = contradictory = False
    units = ComparedFiles()
    chosen = files_of_part(files, part_in(part))
    threads = cpus_per_file(len(chosen))
    with progress_bar("checking") as progress:
        for found in in_order(lambda one, show: validated(*one, show, threads, **scores), chosen, progress):
            units.add(found.units, found.sample)
            contradictory |= bool(found.verdict.contradictions)
            failed |= bool(found.problems)
            print(json.dumps(found.as_dict()) if as_json else "\n".join(map(shown, found.lines())))
    if different := differences(units.files):
        print(json.dumps({"units": different}) if as_json else "\n".join(f"doubt: {shown(line)}" for line in different))
    if failed or contradictory:
        raise typer.Exit(1 if failed else CONTRADICTORY)


def index(
    names: Annotated[list[str], typer.Argument(metavar="FILES...", help="Data files, folders of them, or patterns.")],
    again: Annotated[bool, typer.Option("--again", help="List the chunks again even where an index fits.")] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="Write to the cache folder instead of the folders of the data.")
    ] = False,
) -> None:
    """List the chunks of data files, so that trainings open them without reading them.

    Writes a file .nnue-index into each folder of data, or into the cache folder if that cannot be written. A training
    also makes an index, in the cache folder, and one that does not fit a file is made again.
    """
    from nnue_trainer.data.chunk_index import write
    from nnue_trainer.files.inputs import data_files

    files = data_files(names, "index")
    with progress_bar("indexing", "files") as progress:
        done = write(files, beside=not cache, again=again, progress=progress)
    listed = f"{done.listed:,} of them listed now" if done.listed else "all of them were listed already"
    print(f"{counted(done.files, 'file')}, {counted(done.chunks, 'chunk')}, {size(done.bytes)}; {listed}")
    for path in done.written:
        print(f"  {shown(path)}")
    for name, why in done.without:
        print(f"  {shown(name)}: without an index: {shown(why)}")
    if done.unwritten:
        raise UserError(
            f"{done.unwritten[0] or '.'}: the index cannot be written, neither beside the data nor in the cache folder "
            "($XDG_CACHE_HOME or ~/.cache)"
        )


# long: typer makes an option from each parameter
def generate(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="File to write; without --to, its suffix selects the format.")
    ],
    engine: Annotated[
        str, typer.Option("--engine", metavar="ENGINE", help="UCI engine that plays: a path, or a name on PATH.")
    ],
    positions: Annotated[
        int | None,
        typer.Option(min=1, max=2**62, help="Number of positions; the game that reaches it is the last."),
    ] = None,
    games: Annotated[
        int | None, typer.Option(min=1, max=2**32 - 1, help="Number of games, instead of --positions.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, max=2**63 - 1, help="Search this many nodes per move.")] = None,
    depth: Annotated[int | None, typer.Option(min=1, max=1000, help="Search to this depth per move.")] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**64 - 1, help="Seed for the openings; the same seed gives the same file."),
    ] = 0,
    random_plies: Annotated[
        int, typer.Option(min=0, max=1000, help="Number of random legal moves before the engine plays.")
    ] = 8,
    book: Annotated[
        Path | None, typer.Option(help="Openings: positions (FEN or EPD), games (PGN) or a data file.")
    ] = None,
    concurrency: Engines = 0,
    scale: Annotated[
        float | None,
        typer.Option(
            "--score-scale",
            help="Internal units per centipawn of the engine. "
            "Default: by the engine's name; only for Stockfish 12 to 16.1.",
        ),
    ] = None,
    pawn: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=10_000, help="Internal units per pawn of the engine, 100 times --score-scale, instead of it."
        ),
    ] = None,
    win_score: Annotated[int, typer.Option(min=1, max=32_000, help="Adjudicate a win at this |score| or more.")] = 2500,
    win_plies: Annotated[
        int,
        typer.Option(min=0, max=10_000, help="Plies in a row with such a score for a win; 0: play on to mate."),
    ] = 5,
    draw_score: Annotated[int, typer.Option(min=0, max=32_000, help="Adjudicate a draw at this |score| or less.")] = 20,
    draw_plies: Annotated[
        int, typer.Option(min=0, max=10_000, help="Plies in a row with such a score for a draw; 0: never.")
    ] = 10,
    draw_from_ply: Annotated[
        int, typer.Option(min=0, max=10_000, help="First ply at which a draw may be adjudicated.")
    ] = 80,
    max_ply: Annotated[int, typer.Option(min=1, max=10_000, help="End longer games as draws.")] = 400,
    opening_score: Annotated[
        int, typer.Option(min=1, max=32_000, help="Replace an opening whose first |score| is beyond this.")
    ] = 1000,
    chess960: Annotated[
        bool, typer.Option("--chess960", help="Play Chess960; without --book, from its 960 start positions.")
    ] = False,
    dfrc: Annotated[
        bool,
        typer.Option(
            "--dfrc", help="Play double Fischer random chess: each side starts from a different Chess960 position."
        ),
    ] = False,
    hash_mb: HashMb = 4,
    option: UciOption = None,
    to: To = None,
    part: InPart = None,
    timeout: Timeout = 600.0,
    overwrite: Overwrite = False,
) -> None:
    """Make training data by self-play of an engine, with scores in internal units.

    Engine, limits and seed determine the file; the number of engines does not change it. Run the same command again to
    continue after an interruption. With --games, several machines can play parts of a file.
    """
    from nnue_trainer.data.generate import GenerateOptions
    from nnue_trainer.data.generate import generate as run
    from nnue_trainer.engines.uci import find_engine

    options = GenerateOptions(
        engine=find_engine(engine),
        positions=positions,
        games=games,
        seed=seed,
        nodes=nodes,
        depth=depth,
        random_plies=random_plies,
        book=str(book) if book else None,
        score_scale=units_per_centipawn(scale, pawn),
        win_score=win_score,
        win_plies=win_plies,
        draw_score=draw_score,
        draw_plies=draw_plies,
        draw_from_ply=draw_from_ply,
        max_ply=max_ply,
        opening_score=opening_score,
        hash_mb=hash_mb,
        engine_options=uci_options(option),
        chess960="dfrc" if dfrc else "same" if chess960 else "",
    )
    check_no_input([out], [book])
    mine = part_in(part)
    of_part = range(*mine.range(games or 0))

    def shows(done: int, played: int) -> None:
        progress(*((played, len(of_part)) if positions is None else (done, positions)))

    with progress_bar("playing", "positions" if games is None else "games") as progress:
        made = run(
            out,
            options,
            to=to,
            concurrency=concurrency or usable_cpus(),
            overwrite=overwrite,
            timeout=timeout,
            progress=shows,
            note=note,
            part=mine,
        )
    already = "made already by this command, " if made.already else ""
    print(f"{shown(out)}: {already}{made.positions:,} positions of {made.games:,} games, {out.stat().st_size:,} bytes")
    if made.losses:
        print(f"  not stored by the format: {', '.join(losses(made.losses))}", file=sys.stderr)
