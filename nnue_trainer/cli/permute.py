"""`nnue permute`: the first layer's neurons in an order in which engines skip more zeros."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnue_trainer.base.progress import progress_bar
from nnue_trainer.cli.net import Arch, NetOrRun
from nnue_trainer.cli.outputs import AsJson, Overwrite, check_all_new, check_no_input, note
from nnue_trainer.cli.pictures import check_pictures, present
from nnue_trainer.cli.plugins import with_plugins
from nnue_trainer.errors import UserError, shown

if TYPE_CHECKING:
    from nnue_trainer.analysis.permute import EngineSpeed, Permuted
    from nnue_trainer.export.net import QuantizedNet
    from nnue_trainer.files.pages.page import Page
    from nnue_trainer.files.pages.plots import Plot

METHODS = ("pagerank", "greedy", "densest")  # of analysis.neuron_order, which needs torch


@with_plugins
def permute(
    net: NetOrRun,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Net to write; for a checkpoint, a checkpoint with weights only.")
    ],
    data: Annotated[
        Path, typer.Option(metavar="FILE", help="Data file in any format, to measure which neurons are active.")
    ],
    method: Annotated[
        str, typer.Option(metavar="NAME", help=f"Method for the first order: {', '.join(METHODS)}.")
    ] = METHODS[0],
    positions: Annotated[
        int,
        typer.Option(min=5, max=1 << 22, help="Number of positions; a fifth of them measure the result."),
    ] = 1 << 16,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Stockfish whose speed is measured with both nets; none: skip this. Default: stockfish, if found.",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=99, help="Number of runs of the engine with each net.")] = 3,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the random walks and directions.")] = 1,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of which neurons are active together.")
    ] = None,
    as_json: AsJson = False,
    arch: Arch = None,
    overwrite: Overwrite = False,
) -> None:
    """Reorder the first layer's neurons so that engines skip more blocks of four zeros. Evaluations do not change."""
    import torch

    from nnue_trainer.analysis import neuron_order
    from nnue_trainer.analysis.agreement import spread
    from nnue_trainer.analysis.permute import columns_of, permuted_checkpoint
    from nnue_trainer.analysis.permute import permute as ordered
    from nnue_trainer.export import net_from_checkpoint, read_net, to_bytes
    from nnue_trainer.files import checkpoint as checkpoints
    from nnue_trainer.files.atomic import check_output, replacing

    check_pictures(None, png, overwrite, [net, data])
    if method not in METHODS:
        raise UserError(f"--method: found {method!r:.80}, expected one of {', '.join(METHODS)}")
    if net.is_dir():
        net = checkpoints.of_run(net)
    check_no_input([out], [net, data])
    if png is not None and png.absolute() == out.absolute():
        raise UserError(f"--png {png}: is the output, expected another name for the picture")
    check_output(out)
    check_all_new([out, *([png] if png else [])], overwrite)
    checkpoint = checkpoints.load(net, ("model", "net")) if net.suffix == ".safetensors" else None
    if (out.suffix == ".safetensors") != (checkpoint is not None):
        kind = (
            "a checkpoint (.safetensors), as the input is one (nnue export makes nets)"
            if checkpoint
            else "a net, as the input is one (nnue import makes checkpoints)"
        )
        raise UserError(f"{out}: expected {kind}")
    quantized = (
        read_net(net, arch, note) if checkpoint is None else net_from_checkpoint(checkpoint, str(net), any_l1=True)
    )
    columns_of(quantized.net, str(net))
    with progress_bar("reading positions", "positions") as show:
        show(0, positions)
        records = spread(data, positions)
        show(len(records), positions)
    with progress_bar("ordering neurons", "exchanges") as show:
        found = ordered(quantized, records, method, where=str(net if len(records) >= 5 else data), seed=seed, tell=show)
    speed, why_not = _speed(quantized, found.net, engine, runs)
    if checkpoint is not None:
        checkpoints.save(out, permuted_checkpoint(checkpoint, quantized.net, found.order, str(net)))
        size = f"{out.stat().st_size:,} bytes"
    else:
        written = to_bytes(found.net)
        with replacing(out) as output:
            output.write_bytes(written)
        size = f"{len(written):,} bytes, sha256 {hashlib.sha256(written).hexdigest()}"
    plots = neuron_order.plots(found.bits, 2 * found.held_out, torch.from_numpy(found.order)) if png else ()
    answer: dict[str, Any] = {"net": str(net), "out": str(out), **found.as_dict()}
    present(
        _page(net, found, plots, speed, why_not),
        lambda: answer | {"engine": asdict(speed) if speed else None},
        None,
        png,
        as_json=as_json,
    )
    if not as_json:
        print(f"{shown(out)}: {size}")


def _speed(
    before: QuantizedNet, after: QuantizedNet, engine: str | None, runs: int
) -> tuple[EngineSpeed | None, str | None]:
    """How fast an engine is with both nets, or why that is not known. UserError if the user named the engine."""
    from nnue_trainer.analysis.permute import engine_speed
    from nnue_trainer.engines.uci import find_engine
    from nnue_trainer.export import write_net

    if engine == "none":
        return None, None
    if engine is None and before.net.unreadable is not None:
        return None, f"{before.net.name}: {before.net.unreadable}"
    try:
        path = find_engine(engine)
        with tempfile.TemporaryDirectory() as folder, progress_bar("measuring the engine", "runs") as show:
            first, second = (Path(folder) / f"{name}.nnue" for name in ("before", "after"))
            write_net(before, first)
            write_net(after, second)
            return engine_speed(path, first, second, runs, show), None
    except UserError as error:
        if engine is not None:
            raise
        return None, str(error)


def _page(net: Path, found: Permuted, plots: Sequence[Plot], speed: EngineSpeed | None, why_not: str | None) -> Page:
    from nnue_trainer.files.pages.page import Page, Section

    before, after = found.before, found.after
    every = found.positions + found.held_out
    facts = [
        ("zero blocks", f"{before.share:.1%} -> {after.share:.1%}, on {found.held_out:,} held-out positions"),
        ("blocks in use", f"{before.in_use:.1f} -> {after.in_use:.1f} of {before.blocks} in a position"),
        ("evaluation", f"the same on all {every:,} positions"),
    ]
    if speed is not None:
        change = speed.after / speed.before - 1
        spread = max((high - low) / 2 for low, high in (speed.before_range, speed.after_range)) / speed.before
        measured = (
            f"{speed.engine}: {speed.before:,.0f} -> {speed.after:,.0f} nodes/s ({change:+.1%}; "
            f"runs differ by ±{spread:.1%}), bench of {speed.nodes:,} nodes with both"
        )
        facts.append(("engine", measured))
    elif why_not is not None:
        facts.append(("engine", f"not measured: {why_not}"))
    name = found.net.net.name
    what = f"{len(found.order):,} activations of each side in blocks of four, by {found.method}"
    return Page(net.name, name, [Section("", facts=facts, plots=plots)], f"{net}: {name}, {what}")
