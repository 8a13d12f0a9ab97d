"""`nnue data rescore`: a data file with the scores of a net."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nnue_trainer.cli import plugins
from nnue_trainer.cli.data_tools import Inputs, Output, SkipBad, To, print_report
from nnue_trainer.cli.outputs import Overwrite
from nnue_trainer.cli.plugins import Plugins
from nnue_trainer.cli.terminable import terminable
from nnue_trainer.errors import shown
from nnue_trainer.progress import progress_bar


def rescore(
    inputs: Inputs,
    output: Output,
    net: Annotated[Path, typer.Option(metavar="NET", help="The net that scores.")],
    to: To = None,
    score_scale: Annotated[
        float, typer.Option(help="Multiply the net's scores by this, e.g. 0.48 for centipawns of 208.")
    ] = 1.0,
    threads: Annotated[int, typer.Option(min=0, max=256, help="At most so many threads; 0: one per CPU.")] = 0,
    arch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Architecture of a net whose file does not contain it.")
    ] = None,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
    plugin: Plugins = None,
) -> None:
    """Write the positions of IN... with a net's own evaluations, as the engine computes them, in place of scores."""
    from nnue_trainer.export import Evaluator, read_net
    from nnue_trainer.export.rescore import LARGEST_SCORE
    from nnue_trainer.export.rescore import rescore as run

    plugins.load(plugin)
    quantized = read_net(net, arch, lambda text: print(f"nnue: note: {shown(text)}", file=sys.stderr))
    with terminable(), progress_bar("rescoring") as progress:
        report = run(
            inputs,
            output,
            Evaluator(quantized, threads=threads),
            to=to,
            score_scale=score_scale,
            skip_bad=skip_bad,
            overwrite=overwrite,
            progress=progress,
        )
    cut, report.cut_scores = report.cut_scores, 0
    print_report(report, output)
    if cut:
        print(f"  {cut:,} scores cut to ±{LARGEST_SCORE}", file=sys.stderr)


def register(app: typer.Typer) -> None:
    """Add the command to `nnue data`."""
    app.command()(rescore)
