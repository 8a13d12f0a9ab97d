"""`nnue report`, `inspect` and `data profile`: pages and plots of runs, nets and data."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nnue_trainer.base import extras
from nnue_trainer.base.progress import progress_bar
from nnue_trainer.base.status import CONTRADICTORY
from nnue_trainer.cli.data_tools import Scores, with_scores
from nnue_trainer.cli.net import Arch, NetOrRun
from nnue_trainer.cli.outputs import AsJson, Overwrite, check_no_input, note
from nnue_trainer.cli.pictures import Html, Png, check_pictures, present
from nnue_trainer.cli.plugins import with_plugins
from nnue_trainer.errors import UserError, shown


@with_plugins
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are compared.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.html",
            help="Page to write. Default: report.html, in the run folder, or in the current folder for several runs.",
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write one self-contained HTML page about runs: losses, speed, weights, neurons, data, recipes."""
    extras.require("matplotlib", "nnue report")
    from nnue_trainer.analysis.report import write

    check_no_input([out], (file for run in runs for file in (run, *run.rglob("*")) if file.suffix != ".html"))
    path = write(runs, out, overwrite, apart=True)
    print(f"{shown(path)}: {path.stat().st_size:,} bytes")


@with_plugins
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder; the run may begin later.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: a free one.")] = 0,
    every: Annotated[
        int, typer.Option(min=1, max=86_400, metavar="SECONDS", help="Seconds after which the page renews itself.")
    ] = 30,
) -> None:
    """Serve one page about a run, for this machine only: losses, rate, time left, weights, neurons, last games.

    The page renews itself until you end the command with Ctrl-C.
    """
    extras.require("matplotlib", "nnue watch")
    from nnue_trainer.analysis.watch import Server, may_begin

    with Server(run, every, port) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"{server.url} shows {shown(run)} and renews itself every {every} s; Ctrl-C ends this", flush=True)
        if may_begin(server.path):
            print(f"{shown(run)}: waiting for the first file of a run in this folder", flush=True)
        server.serve_forever()


@with_plugins
def inspect(
    net: NetOrRun,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Data file whose positions activate the neurons. Default: a checkpoint's validation data, or "
            "built-in positions for a net.",
        ),
    ] = None,
    positions: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Number of positions to read from the file.")
    ] = 4096,
    against: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="Compare with another net or checkpoint.")
    ] = None,
    neuron: Annotated[list[int] | None, typer.Option(help="Draw the weights of this neuron; may be repeated.")] = None,
    png: Png = None,
    html: Html = None,
    as_json: AsJson = False,
    arch: Arch = None,
    overwrite: Overwrite = False,
) -> None:
    """Show what is in a net: sizes, ranges, dead and saturated neurons, weight maps, differences."""

    from nnue_trainer.analysis import net_inspect, net_page
    from nnue_trainer.analysis.agreement import Positions, spread

    check_pictures(html, png, overwrite, [net, data, against])
    chosen = None
    if data is not None:
        records = spread(data, positions)
        if not len(records):
            raise UserError(f"{data}: no positions")
        chosen = Positions(records, f"{len(records):,} positions of {data.name}")
    with progress_bar("inspecting", "tensors") as progress:
        found = net_inspect.inspect(
            net,
            chosen,
            against=against,
            arch=arch,
            note=note,
            progress=progress,
        )
    present(net_page.page(found, neuron or ()), lambda: net_page.as_dict(found), html, png, as_json=as_json)


@with_scores
def profile(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Data files in any format, plain or compressed.")
    ],
    html: Html = None,
    png: Png = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
    *,
    scores: Scores,
) -> None:
    """Show how data changes along each file, whether it drifts or repeats, and how scores predict results.

    Files are read on all CPUs. Exit with 3 if a file contradicts itself.
    """
    from nnue_trainer.analysis import data_profile
    from nnue_trainer.data.many_files import cpus_per_file, in_order

    check_pictures(html, png, overwrite, files, len(files))
    threads = cpus_per_file(len(files))
    contradictory = False
    with progress_bar("reading") as progress:
        profiles = in_order(
            lambda file, show: data_profile.data_profile(file, show, threads, **scores), files, progress
        )
        for file, found in zip(files, profiles, strict=True):
            for line in found.notes:
                note(f"{file}: {line}")
            present(data_profile.page(found), partial(data_profile.as_dict, found), html, png, as_json=as_json)
            contradictory |= bool(found.verdict.contradictions)
    if contradictory:
        raise typer.Exit(CONTRADICTORY)
