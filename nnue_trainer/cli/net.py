"""`nnue export`, `import`, `eval`, `verify`: between checkpoints and nets, and what a net says of a position."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnue_trainer.cli import plugins
from nnue_trainer.cli.plugins import Plugins
from nnue_trainer.errors import UserError, shown
from nnue_trainer.inputs import read_lines

if TYPE_CHECKING:
    from nnue_trainer.export import Evaluation, QuantizedNet
    from nnue_trainer.nnue_file.formats import NetFormat

Arch = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Architecture of a net whose file does not tell it (SFNNv4 looks like SFNNv5)."),
]
Fen = Annotated[list[str] | None, typer.Option("--fen", metavar="FEN", help="A position; may be given several times.")]
Fens = Annotated[Path | None, typer.Option("--fens", metavar="FILE", help="Positions, one FEN per line.")]
NetFile = Annotated[Path, typer.Argument(metavar="NET", help="A .nnue file.")]

_CHUNK = 4096


def register(app: typer.Typer) -> None:
    app.command("export")(export_command)
    app.command("import")(import_command)
    app.command("eval")(eval_command)
    app.command("verify")(verify_command)


def _note(text: str) -> None:
    print(f"nnue: note: {shown(text)}", file=sys.stderr)


def export_command(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT", help="A checkpoint, or the folder of a run: its best checkpoint, or else its last."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The net to write; in a folder, nn-<sha256>.nnue, .bin.")],
    any_l1: Annotated[bool, typer.Option("--any-l1", help="Allow widths that no Stockfish reads.")] = False,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME|FILE.yaml",
            help="nnue: the container of the net; raw: its tensors alone; FILE.yaml: a layout of your own. Default: "
            "what the recipe says under export.",
        ),
    ] = None,
    header: Annotated[
        bool, typer.Option("--header", help="With a raw net, write a C++ header with its sizes beside it.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Write the net of a checkpoint. Weights that do not fit the integers are refused by name."""
    from nnue_trainer import checkpoint as checkpoints
    from nnue_trainer.atomic import replacing
    from nnue_trainer.export import exported, format_of, net_from_checkpoint
    from nnue_trainer.export.convert import accumulator_bound

    plugins.load(plugin)
    if checkpoint.is_dir():
        checkpoint = checkpoints.of_run(checkpoint)
        _note(f"exporting {checkpoint}")
    loaded = checkpoints.load(checkpoint, ("model", "net"))
    chosen = format_of(loaded, str(checkpoint)) if file_format is None else _format(file_format)
    chosen = _with_header(chosen) if header else chosen
    quantized = net_from_checkpoint(loaded, str(checkpoint), any_l1=any_l1)
    where = file_format if file_format and file_format.endswith((".yaml", ".yml")) else f"format {chosen.kind}"
    data = chosen.to_bytes(exported(quantized, loaded), where)
    sha256 = hashlib.sha256(data).hexdigest()
    if out.is_dir():
        out = out / f"nn-{sha256[:12]}{chosen.suffix}"
    files = {out: data}
    if chosen.header_wanted():
        text = quantized.net.header()
        if text is None:
            raise UserError(f"{checkpoint}: examples/engine does not know nets like this one ({quantized.net.name})")
        if out.suffix == ".h":
            raise UserError(f"{out}: expected another name: the header beside the net ends in .h")
        files[out.with_suffix(".h")] = text.encode()
    for path, content in files.items():
        with replacing(path) as output:
            output.write_bytes(content)
    bound, limit = accumulator_bound(quantized), quantized.net.accumulator_limit
    if bound > limit:
        _note(f"{out}: accumulators may reach {bound}; the engine holds {limit} and wraps around beyond")
    print(f"{shown(out)}: {quantized.net.name}, {len(data):,} bytes, sha256 {sha256}")
    if chosen.kind == "raw":
        for tensor in quantized.net.tensors():
            print(
                f"  {tensor.name}: i{8 * int(tensor.dtype[-1])} {list(tensor.shape)}, {tensor.scale:.6g} steps in 1.0"
            )


def _format(name: str) -> NetFormat:
    """The format that `--format` names."""
    from nnue_trainer import config
    from nnue_trainer.export import parse_format

    if not name.endswith((".yaml", ".yml")):
        return parse_format({"kind": name}, "--format")
    data = config.read_yaml(name)
    return parse_format({"kind": "raw", **data} if isinstance(data, dict) else data, name)


def _with_header(chosen: NetFormat) -> NetFormat:
    from nnue_trainer.export import parse_format
    from nnue_trainer.schema import to_data

    data = to_data(chosen)
    if "header" not in data:
        raise UserError(f"--header: expected --format raw with it, found format {chosen.kind}")
    return parse_format({"kind": chosen.kind, **data, "header": True}, "--header")


def import_command(
    net: NetFile,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The checkpoint to write (.safetensors).")],
    arch: Arch = None,
    plugin: Plugins = None,
) -> None:
    """Make a checkpoint of a net, to train on from it. Exported again, it is the same file."""
    from nnue_trainer import checkpoint as checkpoints
    from nnue_trainer.export import checkpoint_from_net, read_net

    plugins.load(plugin)
    checkpoint = checkpoint_from_net(read_net(net, arch, _note), str(net))
    checkpoints.save(out, checkpoint)
    print(f"{shown(out)}: {json.dumps(checkpoint.architecture)}")


def eval_command(
    net: NetFile,
    fen: Fen = None,
    fens: Fens = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per position, raw values included.")
    ] = False,
    arch: Arch = None,
    plugin: Plugins = None,
) -> None:
    """Evaluate positions with integers, exactly as the engine does."""
    from nnue_trainer.export import read_net

    if not fen and fens is None:
        raise UserError("nothing to evaluate: give --fen FEN or --fens FILE")
    plugins.load(plugin)
    quantized = read_net(net, arch, _note)
    positions = iter([*(fen or []), *(_read_fens(fens) if fens else [])])
    while chunk := list(islice(positions, _CHUNK)):
        evaluation = _evaluate(quantized, chunk)
        for i, position in enumerate(chunk):
            print(_json_line(evaluation, i, position) if as_json else _table(quantized, evaluation, i, position))


def verify_command(
    net: NetFile,
    engine: Annotated[
        str | None, typer.Option(metavar="PATH", help="A Stockfish that reads the net; default: stockfish.")
    ] = None,
    fens: Fens = None,
    positions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=10**9,
            help="Compare N positions: the first of the file, or else built-in ones and, beyond those, random games.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Of the random games.")] = 1,
    arch: Arch = None,
) -> None:
    """Load a net into a Stockfish and compare what it prints for `eval` with ours, position by position.

    Ends with status 1 at the first difference.
    """
    from nnue_trainer.export import read_net
    from nnue_trainer.export.check_positions import CHECK_POSITIONS, random_positions
    from nnue_trainer.export.engine_check import verify
    from nnue_trainer.progress import progress_bar
    from nnue_trainer.uci import find_engine

    quantized = read_net(net, arch, _note)
    path = find_engine(engine)
    at_hand = list(_read_fens(fens) if fens else CHECK_POSITIONS)
    if fens and len(at_hand) < (positions or 1):
        raise UserError(f"--positions {positions or 1}: there are {len(at_hand)} in {fens}")
    total = positions or len(at_hand)
    more = random_positions(seed) if total > len(at_hand) else ()
    with progress_bar(f"verifying {net.name}", "positions") as show:
        result = verify(path, net, quantized, islice(chain(at_hand, more), total), lambda done: show(done, total))
    compared = f"{result.positions - result.in_check:,} positions"
    if result.buckets:
        compared += f" x {result.buckets} buckets x {result.columns} columns"
    compared += " and exact values" * result.exact
    skipped = f", {result.in_check:,} in check and skipped" if result.in_check else ""
    print(f"{shown(path)} ({shown(result.engine)}): {compared} compared{skipped}, no differences")


def _read_fens(path: Path) -> Iterator[str]:
    return (line.strip() for line in read_lines(path) if line.strip() and not line.startswith("#"))


def _evaluate(quantized: QuantizedNet, fens: Iterable[str]) -> Evaluation:
    from nnue_trainer import data
    from nnue_trainer.export import evaluate

    return evaluate(quantized, data.expand(data.records_from_fens(list(fens)), quantized.net.integer_feature_set))


def _json_line(evaluation: Evaluation, i: int, fen: str) -> str:
    return json.dumps(
        {
            "fen": fen,
            "bucket": int(evaluation.bucket[i]),
            "psqt_raw": evaluation.psqt_raw[i].tolist(),
            "positional_raw": evaluation.positional_raw[i].tolist(),
            "score": int(evaluation.score[i]),
        }
    )


def _table(quantized: QuantizedNet, evaluation: Evaluation, i: int, fen: str) -> str:
    """Engine units, side to move's view."""
    import numpy as np

    used = int(evaluation.bucket[i])
    lines = [shown(fen), "  bucket      PSQT    layers     total"]
    stacks = evaluation.psqt_raw.shape[1]
    for bucket in range(stacks) if stacks == quantized.net.num_stacks else [used]:
        column = [bucket if stacks > 1 else 0]
        psqt, positional = evaluation.psqt_raw[i, column], evaluation.positional_raw[i, column]
        nothing = np.zeros_like(psqt)
        score = quantized.net.score
        cells = [int(part[0]) for part in (score(psqt, nothing), score(nothing, positional), score(psqt, positional))]
        mark = "  <-- used" if bucket == used else ""
        lines.append(f"  {bucket:6}{cells[0]:+10}{cells[1]:+10}{cells[2]:+10}{mark}")
    lines.append(f"  evaluation {int(evaluation.score[i]):+} (engine units, side to move)\n")
    return "\n".join(lines)
