"""`nnue data convert, filter, shuffle, interleave, split`: data files into data files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnue_trainer.cli.progress import progress_bar, terminable
from nnue_trainer.errors import UserError

if TYPE_CHECKING:
    from nnue_trainer.data.transform import Report

Inputs = Annotated[list[Path], typer.Argument(metavar="IN...", help="Data files in any format, plain, gzip or zstd.")]
Output = Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; it appears whole or not at all.")]
Seed = Annotated[int, typer.Option(min=0, max=2**64 - 1, help="The same seed and inputs give the same file.")]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad", help="Leave out and count what is wrong (a position; of a binpack the rest of a chunk)."
    ),
]
_TO = "The format to write: binpack, bin, bulletformat, marlinformat, text or plain; without it, by the name of OUT."
To = Annotated[str | None, typer.Option("--to", metavar="FORMAT", help=_TO)]

_LOSSES = {
    "moves": "without their move",
    "castling": "without castling rights",
    "en_passant": "without their en-passant square",
    "rule50": "with the rule-50 counter dropped or cut",
    "ply": "with the ply dropped or moved by one",
    "black_to_move": "of black turned into white's",
    "scores": "with a score of -32768 cut",
}


def _size(text: str) -> int:
    """Bytes from "500M", "2G", "1.5GiB"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or (size := int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))) < 1 << 20:
        raise UserError(f"size {text!r}, expected at least 1M: a number with K, M, G or T")
    return size


def _print_report(report: Report, output: Path) -> None:
    print(f"{output}: {report.positions:,} positions, {output.stat().st_size:,} bytes")
    lost = [f"{count:,} positions {_LOSSES[what]}" for what, count in sorted(report.losses.items())]
    if report.cut_scores:
        lost.append(f"{report.cut_scores:,} scores cut to ±32767")
    if lost:
        print(f"  the format has no room: {', '.join(lost)}", file=sys.stderr)
    _print_skipped(report)


def _print_skipped(report: Report) -> None:
    if report.skipped:
        print(f"  left out: {report.skipped:,}; {'; '.join(report.first_skipped)}", file=sys.stderr)


def convert(
    inputs: Inputs,
    output: Output,
    to: To = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="FORMAT", help="The format of IN, where its content does not tell.")
    ] = None,
    score_scale: Annotated[
        float, typer.Option(help="Multiply scores by this, e.g. 0.48 for internal units to centipawns of 208.")
    ] = 1.0,
    skip_bad: SkipBad = False,
) -> None:
    """Writes the positions of IN... in another format. Says what the format has no room for."""
    from nnue_trainer.data.transform import convert as run

    with terminable(), progress_bar("converting") as progress:
        report = run(
            inputs, output, to=to, source=source, score_scale=score_scale, skip_bad=skip_bad, progress=progress
        )
    _print_report(report, output)


def filter_command(
    inputs: Inputs,
    output: Output,
    no_score: Annotated[bool, typer.Option("--no-score", help="Drop score 32002.")] = False,
    max_score: Annotated[int, typer.Option(min=0, help="Drop |score| beyond it; 0: off.")] = 0,
    placeholder_zero: Annotated[
        bool, typer.Option("--placeholder-zero", help="Drop a zero in a decided game right after a large score.")
    ] = False,
    min_ply: Annotated[int, typer.Option(min=-1, help="Drop plies up to it; -1: off.")] = -1,
    random_skip: Annotated[float, typer.Option(min=0, help="Keep one position of this + 1.")] = 0.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Drop positions in check and moves that capture.")] = False,
    wdl: Annotated[bool, typer.Option("--wdl", help="Keep with the probability of the result, by a model.")] = False,
    min_material: Annotated[int, typer.Option(min=0, help="Drop |material balance| below it; a pawn is 208.")] = 0,
    soft_ply: Annotated[int, typer.Option(min=0, help="Keep few early plies, all from this one on; 0: off.")] = 0,
    piece_counts: Annotated[bool, typer.Option("--piece-counts", help="Even out the piece counts.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the random decisions.")] = 0,
    to: To = None,
    skip_bad: SkipBad = False,
) -> None:
    """Writes the positions of IN... that pass, and says how many each filter dropped (rules: docs/data.md)."""
    from nnue_trainer.data.filters import Filters
    from nnue_trainer.data.transform import filter_positions

    options = {
        "no_score": no_score,
        "max_score": max_score,
        "placeholder_zero": placeholder_zero,
        "min_ply": min_ply,
        "random_skip": random_skip,
        "quiet": quiet,
        "wdl": wdl,
        "min_material": min_material,
        "soft_ply": soft_ply,
        "piece_counts": piece_counts,
    }
    filters = Filters(**options)
    if filters == Filters():
        raise UserError("no filter named: --quiet, --no-score, … (nnue data filter --help)")
    with terminable(), progress_bar("filtering") as progress:
        report, dropped = filter_positions(
            inputs, output, filters, seed=seed, to=to, skip_bad=skip_bad, progress=progress
        )
    _print_report(report, output)
    for name, count in dropped.items():
        print(f"  {name}: {count:,} dropped")


def shuffle(
    inputs: Inputs,
    output: Output,
    seed: Seed = 0,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory to use; more positions wait on disk.")] = "2G",
    temporary: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where they wait, 40 bytes each; without it, beside OUT.")
    ] = None,
    skip_bad: SkipBad = False,
) -> None:
    """Writes all positions of IN... in random order, as a binpack of single-position chains (34 bytes a position)."""
    from nnue_trainer.data.transform import shuffle as run

    size = _size(memory)
    with terminable(), progress_bar("reading") as progress:
        report = run(
            inputs,
            output,
            seed=seed,
            memory=size,
            temporary=temporary,
            skip_bad=skip_bad,
            progress=progress,
            write_progress=lambda done, total: progress(34 * done, 34 * total, "writing"),
        )
    _print_report(report, output)


def interleave(inputs: Inputs, output: Output, seed: Seed = 0) -> None:
    """Mixes binpacks chunk by chunk, in proportion to their sizes, without decoding them."""
    from nnue_trainer.data.transform import interleave as run

    with terminable(), progress_bar("copying") as progress:
        chunks, size = run(inputs, output, seed=seed, progress=progress)
    print(f"{output}: {chunks:,} chunks, {size:,} bytes")


def split(
    inputs: Inputs,
    train: Annotated[Path, typer.Option(metavar="OUT", help="The file for training.")],
    validation: Annotated[Path, typer.Option(metavar="OUT", help="The file for validation.")],
    share: Annotated[float, typer.Option(help="The share of games that goes to validation.")] = 0.01,
    seed: Seed = 0,
    to: To = None,
    skip_bad: SkipBad = False,
) -> None:
    """Deals the games of IN... at random to a training and a validation file; no game is in both.

    A game is a run of positions in which the ply rises and the result, seen by white, stays the same.
    """
    from nnue_trainer.data.transform import split as run

    with terminable(), progress_bar("splitting") as progress:
        report = run(inputs, train, validation, share=share, seed=seed, to=to, skip_bad=skip_bad, progress=progress)
    print(f"{report.games:,} games, {report.validation_games:,} of them for validation")
    _print_report(report.train, train)
    _print_report(report.validation, validation)


def register(app: typer.Typer) -> None:
    """Adds the commands to `nnue data`."""
    for command in (convert, shuffle, interleave, split):
        app.command()(command)
    app.command("filter")(filter_command)
