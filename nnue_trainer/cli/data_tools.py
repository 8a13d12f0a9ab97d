"""`nnue data convert, filter, shuffle, interleave, split, dedup`: make data files from data files."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nnue_trainer import _data
from nnue_trainer.base.progress import counted, progress_bar
from nnue_trainer.cli.engine_options import part_in
from nnue_trainer.cli.outputs import Overwrite, note
from nnue_trainer.cli.plugins import with_options, with_plugins
from nnue_trainer.errors import UserError, shown

if TYPE_CHECKING:
    from nnue_trainer.data.filters import Filters
    from nnue_trainer.data.transform import Report

View = Literal["auto", "mover", "white", "black", "opponent"]
Scores = dict[str, Any]
"""Values of the options that `with_scores` adds (`data.reading.ReadingOptions`)."""
FileOptions = dict[str, Any]
"""Values of the options that `with_files` adds: those of `with_scores`, and how positions are written."""

Inputs = Annotated[list[Path], typer.Argument(metavar="IN...", help="Data files in any format, plain or compressed.")]
Piped = Annotated[
    list[Path],
    typer.Argument(metavar="IN...", help="Data files in any format, plain or compressed; -: standard input."),
]
Extra = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILTER",
        help="Python filter to run after the others, with its defaults: a name, or path/to/file.py:Class.",
    ),
]
Temporary = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Folder for temporary files. Default: the folder of OUT.")
]
Output = Annotated[Path, typer.Argument(metavar="OUT", help="File to write; it is complete or absent.")]
Seed = Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Seed; the same seed and inputs give the same file.")]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Skip and count damaged positions, or the rest of a damaged chunk in formats with chunks.",
    ),
]
FORMAT_NAMES = ", ".join(name for name, _, _ in _data.formats())
_TO = f"Format to write: {FORMAT_NAMES}, or path/to/file.py:Class. Default: by the suffix of OUT."
To = Annotated[str | None, typer.Option(metavar="FORMAT", help=_TO)]
InPart = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Work on part I of N only; `nnue data convert PARTS OUT` joins the outputs. array: the part of this task "
        "of a SLURM array.",
    ),
]


def _size(text: str) -> int:
    """Bytes from "500M", "2G", "1.5GiB"."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")) if match else 0
    if not 1 << 20 <= size <= 1 << 50:
        raise UserError(f"--memory: size {text!r}, expected 1M to 1024T: a number with K, M, G or T")
    return size


def losses(counts: Mapping[str, int]) -> list[str]:
    """Lines about what did not fit into the format that was written."""
    words = _data.losses()
    return [f"{count:,} positions {words[what]}" for what, count in sorted(counts.items())]


def print_report(report: Report, output: Path) -> None:
    print(f"{shown(output)}: {report.positions:,} positions, {output.stat().st_size:,} bytes")
    lost = losses(report.losses)
    if report.cut_scores:
        lost.append(f"{report.cut_scores:,} scores clamped to ±32767")
    if lost:
        print(f"  not stored by the format: {', '.join(lost)}", file=sys.stderr)
    from nnue_trainer.data.score_units import differences

    for line in [*report.notes, *report.unit_notes, *differences(report.units.files)]:
        print(f"  {shown(line)}", file=sys.stderr)
    if report.skipped:
        print(f"  left out: {report.skipped:,}; {'; '.join(map(shown, report.first_skipped))}", file=sys.stderr)


def chosen_filters(values: Mapping[str, float], extra: list[str] | None) -> Filters:
    """The filters that a command line names; none of them is on by itself."""
    from dataclasses import replace

    from nnue_trainer.data.filters import FILTERS, Filters
    from nnue_trainer.schema import as_option, validate

    filters: Any = validate(Filters, dict(values), lambda path: as_option("".join(path[:1])))
    chosen: Filters = replace(filters, extra=[FILTERS.find(kind)() for kind in extra or []])
    return chosen


def with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with an option per compiled filter in place of its parameter `values`."""
    options: dict[str, tuple[Any, Any]] = {}
    for name, kind, off, _, least, most, doc in _data.filters():
        word = "N" if kind is int else "X"
        limits: dict[str, Any] = {} if kind is bool else {"min": least, "max": most, "metavar": word}
        option = typer.Option(f"--{name.replace('_', '-')}", help=f"{doc[0].upper()}{doc[1:]}.", **limits)
        options[name] = Annotated[kind, option], off
    return with_options(command, "values", options)


_SCORES: dict[str, tuple[Any, Any]] = {
    "pawn": (
        Annotated[
            float | None,
            typer.Option(min=0.01, max=10_000, help="For PGN and EPD: internal units per pawn. Default: 208."),
        ],
        None,
    ),
    "score_scale": (
        Annotated[float, typer.Option(help="Factor for scores, such as 0.48 for internal units to centipawns of 208.")],
        1.0,
    ),
    "score_view": (
        Annotated[
            View,
            typer.Option(
                help="True view of the scores in the input; they are converted to the side to move's (mover). auto: "
                "the format's view; for PGN, by its notation."
            ),
        ],
        "auto",
    ),
    "result_view": (Annotated[View, typer.Option(help="True view of the results in the input, likewise.")], "auto"),
    "score_place": (
        Annotated[
            Literal["auto", "before", "after"],
            typer.Option(help="For PGN: whether an evaluation belongs to the position before or after its move."),
        ],
        "auto",
    ),
    "score_unit": (
        Annotated[Literal["auto", "pawns", "cp"], typer.Option(help="For PGN: the unit of evaluations.")],
        "auto",
    ),
}


_WRITING: dict[str, tuple[Any, Any]] = {
    "to": (To, None),
    "chess960": (
        Annotated[
            Literal["refuse", "drop-rights", "skip"],
            typer.Option(
                help="Chess960 castling rights where the format holds only standard ones: stop with an "
                "error, drop the rights, or skip the position."
            ),
        ],
        "refuse",
    ),
    "skip_bad": (SkipBad, False),
    "overwrite": (Overwrite, False),
}


def with_files(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with --plugin, and the options for reading and writing positions in place of its parameter `files`."""
    return with_plugins(with_options(command, "files", _WRITING | _SCORES))


def with_scores(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options for scores and results in place of its parameter `scores`."""
    return with_options(command, "scores", _SCORES)


@with_files
def convert(
    inputs: Piped,
    output: Output,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="FORMAT", help="Format of IN. Default: detected from the content."),
    ] = None,
    fen: Annotated[
        Literal["x-fen", "shredder"],
        typer.Option(
            help="Castling rights in text and plain: KQkq where that is unambiguous, or the rooks' files (HAha)."
        ),
    ] = "x-fen",
    part: InPart = None,
    *,
    files: FileOptions,
) -> None:
    """Write the positions of IN... in another format, and list what that format cannot store."""
    from nnue_trainer.data.transform import convert as run

    with progress_bar("converting") as progress:
        report = run(
            inputs,
            output,
            source=source,
            fen=fen,
            progress=progress,
            part=part_in(part),
            **files,
        )
    print_report(report, output)


@with_files
@with_filters
def filter_command(
    inputs: Piped,
    output: Output,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed for random decisions.")] = 0,
    extra: Extra = None,
    part: InPart = None,
    *,
    values: Mapping[str, float],
    files: FileOptions,
) -> None:
    """Write the positions of IN... that pass the filters, and count what each filter drops (rules: docs/data.md)."""
    from nnue_trainer.data.filters import Filters
    from nnue_trainer.data.transform import filter_positions

    filters = chosen_filters(values, extra)
    if filters == Filters.none():
        raise UserError("filter: found no filter, expected at least one, such as --quiet (nnue data filter --help)")
    with progress_bar("filtering") as progress:
        report, dropped = filter_positions(
            inputs,
            output,
            filters,
            seed=seed,
            progress=progress,
            part=part_in(part),
            **files,
        )
    print_report(report, output)
    for name, count in dropped.items():
        print(f"  {name}: {count:,} dropped")


@with_files
def shuffle(
    inputs: Piped,
    output: Output,
    seed: Seed = 0,
    by_game: Annotated[
        bool, typer.Option("--by-game", help="Shuffle games and keep the order within each, and so the chains.")
    ] = False,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory to use; positions beyond it go to temporary files.")
    ] = "2G",
    temporary: Temporary = None,
    part: InPart = None,
    *,
    files: FileOptions,
) -> None:
    """Write all positions of IN... in random order. In formats with chains, a position becomes a separate chain unless
    it follows the one before by chance, or games stay together (--by-game)."""
    from nnue_trainer.data.transform import shuffle as run

    size = _size(memory)
    with progress_bar("reading") as progress:
        report = run(
            inputs,
            output,
            seed=seed,
            memory=size,
            temporary=temporary,
            progress=progress,
            write_progress=lambda done, total: progress(34 * done, 34 * total, "writing"),
            part=part_in(part),
            by_game=by_game,
            **files,
        )
    print_report(report, output)


@with_scores
def interleave(
    inputs: Inputs,
    output: Output,
    seed: Seed = 0,
    weight: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1000,
            help="Weight of a file, given once for each of IN: 2 uses it twice, 0.5 only its first half. Default: 1.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    *,
    scores: Scores,
) -> None:
    """Mix files of one format chunk by chunk, in proportion to their sizes and weights, without decoding them."""
    from nnue_trainer.data.transform import interleave as run

    with progress_bar("copying") as progress:
        chunks, size = run(
            inputs, output, seed=seed, weights=weight or (), overwrite=overwrite, progress=progress, note=note, **scores
        )
    print(f"{shown(output)}: {counted(chunks, 'chunk')}, {size:,} bytes")


@with_files
def dedup(
    inputs: Inputs,
    output: Output,
    games: Annotated[bool, typer.Option("--games", help="Drop repeated games instead of repeated positions.")] = False,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for keys; keys beyond it go to temporary files.")
    ] = "1G",
    temporary: Temporary = None,
    *,
    files: FileOptions,
) -> None:
    """Write the positions of IN... without repeated boards, across all files; the first one is kept."""
    from nnue_trainer.data.dedup import dedup as run

    size = _size(memory)
    with progress_bar("reading") as progress:
        report, count, dropped = run(
            inputs,
            output,
            games=games,
            memory=size,
            temporary=temporary,
            progress=progress,
            write_progress=lambda done, total: progress(done, total, "writing"),
            **files,
        )
    print_report(report, output)
    print(f"  {count:,} {'games' if games else 'positions'}, {dropped:,} of them repeated and dropped")


@with_files
def split(
    inputs: Piped,
    train: Annotated[Path, typer.Option(metavar="OUT", help="File for the training positions.")],
    validation: Annotated[Path, typer.Option(metavar="OUT", help="File for the validation positions.")],
    share: Annotated[float, typer.Option(help="Share of the games for validation.")] = 0.01,
    seed: Seed = 0,
    block: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**40,
            help="Distribute blocks of this many positions instead of games, for games without plies; 0: games.",
        ),
    ] = 0,
    *,
    files: FileOptions,
) -> None:
    """Distribute the games of IN... at random between a training and a validation file; no game is in both.

    A game is a run of positions in which the ply rises and White's result stays the same. Both files appear together at
    the end.
    """
    from nnue_trainer.data.transform import split as run

    with progress_bar("splitting") as progress:
        report = run(
            inputs,
            train,
            validation,
            share=share,
            seed=seed,
            block=block,
            progress=progress,
            **files,
        )
    print(f"{report.games:,} {'blocks' if block else 'games'}, {report.validation_games:,} of them for validation")
    if report.note:
        note(report.note)
    print_report(report.train, train)
    print_report(report.validation, validation)
