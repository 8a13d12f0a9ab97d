"""`nnue data rescore`: a data file with the scores of a net or of an engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnue_trainer.base.progress import progress_bar
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.cli.data_tools import Inputs, Output, Scores, SkipBad, To, print_report, with_scores
from nnue_trainer.cli.engine_options import (
    Engines,
    HashMb,
    Timeout,
    UciOption,
    part_in,
    uci_options,
    units_per_centipawn,
)
from nnue_trainer.cli.net import Arch, Threads
from nnue_trainer.cli.outputs import Overwrite, check_no_input, note
from nnue_trainer.cli.plugins import with_plugins
from nnue_trainer.errors import UserError

if TYPE_CHECKING:
    from nnue_trainer.export import Evaluator

_HASH_MB, _TIMEOUT = 4, 600.0


@with_plugins
@with_scores
def rescore(
    inputs: Inputs,
    output: Output,
    net: Annotated[Path | None, typer.Option("--net", metavar="NET", help="Net to score with.")] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="ENGINE", help="UCI engine to score with: a path, or a name on PATH."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=2**63 - 1, help="Nodes that the engine searches per position.")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Depth to which the engine searches, instead of --nodes."),
    ] = None,
    concurrency: Engines = 0,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="With --engine: score only part I of N equal parts. Default: all positions.",
        ),
    ] = None,
    hash_mb: HashMb = _HASH_MB,
    option: UciOption = None,
    timeout: Timeout = _TIMEOUT,
    to: To = None,
    score_scale: Annotated[
        float | None,
        typer.Option(
            help="Factor for the net's scores, such as 0.48 for centipawns of 208; with --engine, internal units per "
            "centipawn. Default: 1; with --engine, by its name, only for Stockfish 12 to 16.1."
        ),
    ] = None,
    threads: Threads = 0,
    arch: Arch = None,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
    *,
    scores: Scores,
) -> None:
    """Write the positions of IN... with the scores of a net, or of an engine's search.

    A net is evaluated with integers, as in an engine. With --engine, the file depends only on engine, limit and input,
    if each engine searches on one thread. Run the same command again to continue after an interruption.
    """
    check_no_input([output], [net])
    if (net is None) == (engine is None):
        raise UserError("rescore: give either --net or --engine")
    writing: dict[str, Any] = {"to": to, "skip_bad": skip_bad, "overwrite": overwrite}
    if engine is None:
        if nodes or depth or part or option or concurrency or (hash_mb, timeout) != (_HASH_MB, _TIMEOUT):
            raise UserError(
                "rescore: --nodes, --depth, --part, --option, --concurrency, --hash and --timeout are for --engine"
            )
        from nnue_trainer.export import Evaluator, read_net

        assert net is not None
        evaluator = Evaluator(read_net(net, arch, note), threads=threads)
        _by_net(inputs, output, evaluator, 1.0 if score_scale is None else score_scale, writing, scores)
        return
    if threads or arch:
        raise UserError("rescore: --threads and --arch are for --net; --concurrency sets the number of engines")
    from nnue_trainer.data.engine_scores import EngineScoring, rescore_by_engine
    from nnue_trainer.engines.uci import find_engine

    scale = units_per_centipawn(score_scale, scores["pawn"])
    scoring = EngineScoring(find_engine(engine), nodes, depth, scale, hash_mb, uci_options(option), part_in(part))
    with progress_bar("scoring", "positions") as progress:
        report = rescore_by_engine(
            inputs,
            output,
            scoring,
            concurrency=concurrency or usable_cpus(),
            timeout=timeout,
            progress=progress,
            note=note,
            **writing,
            **scores,
        )
    print_report(report, output)


def _by_net(
    inputs: list[Path], output: Path, evaluator: Evaluator, score_scale: float, writing: dict[str, Any], scores: Scores
) -> None:
    from nnue_trainer.data.reading import ReadingOptions
    from nnue_trainer.export.rescore import LARGEST_SCORE
    from nnue_trainer.export.rescore import rescore as run

    reading = ReadingOptions(**scores)  # type: ignore[typeddict-item]
    with progress_bar("rescoring") as progress:
        report = run(inputs, output, evaluator, score_scale=score_scale, progress=progress, reading=reading, **writing)
    cut, report.cut_scores = report.cut_scores, 0
    print_report(report, output)
    if cut:
        print(f"  {cut:,} scores clamped to ±{LARGEST_SCORE}", file=sys.stderr)
