"""`nnue export`, `import`, `eval`, `verify`: between checkpoints and nets, and a net's evaluation of a position."""

from __future__ import annotations

import hashlib
import json
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnue_trainer.cli.outputs import Overwrite, check_all_new, check_new, check_no_input, note
from nnue_trainer.cli.plugins import with_plugins
from nnue_trainer.errors import UserError, shown

if TYPE_CHECKING:
    from nnue_trainer.export import Evaluation, QuantizedNet
    from nnue_trainer.files.checkpoint import Checkpoint
    from nnue_trainer.nets import Net
    from nnue_trainer.nnue_file.formats import NetFormat

Arch = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Architecture of a net whose file does not record it (SFNNv4 looks like SFNNv5)."
    ),
]
CheckpointOrRun = Annotated[
    Path,
    typer.Argument(metavar="CHECKPOINT", help="Checkpoint, or a run folder: its best checkpoint, or else its last."),
]
NetOrRun = Annotated[Path, typer.Argument(metavar="NET|CHECKPOINT", help="Net, checkpoint or run folder.")]
Threads = Annotated[int, typer.Option(min=0, max=256, help="Maximum number of threads; 0: one per CPU.")]
Fen = Annotated[list[str] | None, typer.Option("--fen", metavar="FEN", help="Position as a FEN; may be repeated.")]
Fens = Annotated[Path | None, typer.Option(metavar="FILE", help="Positions: lines of FEN or EPD, or a data file.")]
NetOrCheckpoint = Annotated[
    Path,
    typer.Argument(
        metavar="NET|CHECKPOINT",
        help=".nnue file, or with --format a file of that format; or a checkpoint or run folder, which is exported "
        "first.",
    ),
]
NetFile = Annotated[Path, typer.Argument(metavar="NET", help=".nnue file.")]
ReadNet = Annotated[Path, typer.Argument(metavar="NET", help=".nnue file, or with --format a file of that format.")]
ReadFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME|FILE.yaml",
        help="Format of a net file without a header, as for nnue export: raw, or your own layout.",
    ),
]
OfModel = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Recipe, checkpoint, run or net with the architecture, for a net whose file does not record it. Default: "
        "model in the FILE.yaml of --format.",
    ),
]

_CHUNK = 4096


@with_plugins
def export_command(
    checkpoint: CheckpointOrRun,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; in a folder, nn-<sha256>.nnue or .bin.")],
    any_l1: Annotated[
        bool, typer.Option("--any-l1", help="Allow sizes and stacks of layers that no Stockfish reads.")
    ] = False,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME|FILE.yaml",
            help="nnue: the engine's container; raw: only the tensors; FILE.yaml: your own layout. Default: the "
            "recipe's section export.",
        ),
    ] = None,
    header: Annotated[
        bool, typer.Option("--header", help="Write a C++ header with the net's sizes beside a raw net.")
    ] = False,
    rust: Annotated[
        bool, typer.Option("--rust", help="Write a Rust file with the net's sizes beside a raw net.")
    ] = False,
    header_namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="C++ namespace of the header, for several nets in a program. Default: none."),
    ] = None,
    header_include: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Path of the inference code in the header's #include. Default: nnue.h."),
    ] = None,
    overwrite: Overwrite = False,
    compression: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Compression of a .nnue file: raw, leb128, huffman or zlib, where the net supports it. Default: that "
            "of the imported net, or of the engine's published nets.",
        ),
    ] = None,
    description: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Description in a .nnue file. Default: the imported net's, or a generated one."
        ),
    ] = None,
) -> None:
    """Write the net of a checkpoint. A weight outside its integer range is an error that names the tensor."""
    from nnue_trainer.export import exported, format_of, net_from_checkpoint
    from nnue_trainer.export.bounds import overflows
    from nnue_trainer.files import checkpoint as checkpoints
    from nnue_trainer.files.atomic import replacing
    from nnue_trainer.nnue_file.formats import file_bytes

    if checkpoint.is_dir():
        checkpoint = checkpoints.of_run(checkpoint)
        note(f"exporting {checkpoint}")
    loaded = checkpoints.load(checkpoint, ("model", "net"))
    chosen, model = (format_of(loaded, str(checkpoint)), None) if file_format is None else _format(file_format)
    options = {
        "header": header or None,
        "rust": rust or None,
        "compression": compression,
        "description": description,
        "header_namespace": header_namespace,
        "header_include": header_include,
    }
    for option, value in options.items():
        if value is not None:
            chosen = _with_option(chosen, option, value)
    quantized = net_from_checkpoint(loaded, str(checkpoint), any_l1=any_l1)
    if model is not None and model != quantized.net:
        raise UserError(f"{file_format}: model: found another net than that of {checkpoint} ({quantized.net.name})")
    where = file_format if file_format and file_format.endswith((".yaml", ".yml")) else f"format {chosen.kind}"
    net = exported(quantized, loaded)
    data = file_bytes(chosen, net, where)
    sha256 = hashlib.sha256(data).hexdigest()
    if out.is_dir():
        out = out / f"nn-{sha256[:12]}{chosen.suffix}"
    check_no_input([out], [checkpoint])
    files = {out: data, **_files_beside(out, quantized.net, chosen, checkpoint)}
    for path, content in files.items():
        check_new(path, overwrite, content)
    for path, content in files.items():
        with replacing(path) as output:
            output.write_bytes(content)
    for line in overflows(quantized):
        note(f"{out}: {line}")
    print(f"{shown(out)}: {quantized.net.name}, {len(data):,} bytes, sha256 {sha256}")
    for line in chosen.listing(net):
        print(f"  {line}")


def _files_beside(out: Path, net: Net, chosen: NetFormat, checkpoint: Path) -> dict[Path, bytes]:
    """The C++ header and the Rust file with the net's sizes, those of them that the format writes beside a net."""
    from nnue_trainer.nets.engine_header import engine_header
    from nnue_trainer.nets.engine_rust import engine_rust

    files = {}
    for suffix, options in chosen.beside().items():
        own, general = (net.header, engine_header) if suffix == ".h" else (net.rust, engine_rust)
        text = own(**options) or general(net, **options)
        if text is None:
            raise UserError(
                f"{checkpoint}: examples/engine does not support nets like this one ({net.name} of "
                f"{shown(net.feature_set)})"
            )
        if out.suffix == suffix:
            raise UserError(f"{out}: expected another name: the header beside the net ends in {suffix}")
        files[out.with_suffix(suffix)] = text.encode()
    return files


def _format(name: str) -> tuple[NetFormat, Net | None]:
    """The format that `--format` names, and the architecture that its file may have under `model`."""
    from nnue_trainer import config, nets
    from nnue_trainer.export import parse_format

    if not name.endswith((".yaml", ".yml")):
        return parse_format({"kind": name}, "--format"), None
    data = config.read_yaml(name)
    if not isinstance(data, dict):
        return parse_format(data, name), None
    model = data.pop("model", None)
    if model is not None and not isinstance(model, dict):
        raise UserError(f"{name}: model: found {model!r:.80}, expected a section of keys")
    return parse_format({"kind": "raw", **data}, name), None if model is None else nets.parse(model, f"{name}: model")


def _read(
    path: Path, arch: str | None, file_format: str | None, model: Path | None
) -> tuple[QuantizedNet, Checkpoint | None]:
    """A net; where its format does not record the architecture, also its checkpoint."""
    from nnue_trainer.export import exported, net_from_checkpoint, read_format, read_net
    from nnue_trainer.nnue_file.formats import file_bytes
    from nnue_trainer.nnue_file.reader import NetFile as OpenNet

    if file_format is None or file_format == "nnue":
        if model is not None and arch is not None:
            raise UserError("--model and --arch both give the architecture: pass one of them")
        return read_net(path, arch if model is None else _architecture(model), note), None
    chosen, net = _format(file_format)
    if model is not None:
        net = _architecture(model)
    if net is None:
        raise UserError(f"--format {shown(file_format)}: does not describe the net: give --model FILE")
    with OpenNet(path) as file:
        data = bytes(file.take(0, file.size, "net"))
    quantized, checkpoint = read_format(data, chosen, net, str(path), note)
    try:
        again = exported(net_from_checkpoint(checkpoint, str(path), any_l1=True), checkpoint)
        same = file_bytes(chosen, again, "") == data
    except UserError as error:
        note(f"{path}: cannot be exported again: {error}")
    else:
        if not same:
            note(f"{path}: exporting it again gives another file, because its numbers differ from the net's")
    return quantized, checkpoint


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is the folder of a run, or by its name a checkpoint."""
    return path.is_dir() or path.suffix == ".safetensors"


def _exported(path: Path) -> QuantizedNet:
    """The net of a checkpoint, as `nnue export --any-l1` writes it."""
    from nnue_trainer.export import net_from_checkpoint
    from nnue_trainer.files import checkpoint as checkpoints

    if path.is_dir():
        path = checkpoints.of_run(path)
        note(f"evaluating {path}")
    return net_from_checkpoint(checkpoints.load(path, ("model", "net")), str(path), any_l1=True)


def _architecture(path: Path) -> Net:
    """The architecture of a recipe, a checkpoint, a run or a net."""
    from nnue_trainer import config, nets
    from nnue_trainer.export import read_net
    from nnue_trainer.files import checkpoint as checkpoints

    if path.is_dir():
        path = checkpoints.of_run(path)
    if path.suffix in (".yaml", ".yml"):
        data = config.read_yaml(path)
        model = data.get("model") if isinstance(data, dict) else None
        if not isinstance(model, dict):
            raise UserError(f"{path}: found no section model")
        return nets.parse(model, f"{path}: model")
    if path.suffix == ".safetensors":
        return nets.parse(checkpoints.load(path, ()).architecture, str(path))
    return read_net(path, note=note).net


def _with_option(chosen: NetFormat, option: str, value: bool | str) -> NetFormat:
    from nnue_trainer.export import parse_format
    from nnue_trainer.schema import as_option, to_data

    data = to_data(chosen)
    if option not in data:
        expected = "raw" if option.startswith(("header", "rust")) else "nnue"
        raise UserError(f"{as_option(option)}: expected --format {expected} with it, found format {chosen.kind}")
    return parse_format({"kind": chosen.kind, **data, option: value}, as_option(option))


@with_plugins
def import_command(
    net: ReadNet,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Checkpoint to write (.safetensors).")],
    arch: Arch = None,
    file_format: ReadFormat = None,
    model: OfModel = None,
    overwrite: Overwrite = False,
) -> None:
    """Make a checkpoint from a net, to continue training. Exporting it again gives the same file."""
    from nnue_trainer.export import checkpoint_from_net
    from nnue_trainer.export.bounds import beyond_limits, layer_overflows
    from nnue_trainer.files import checkpoint as checkpoints

    check_no_input([out], [net])
    check_all_new([out], overwrite)
    quantized, checkpoint = _read(net, arch, file_format, model)
    checkpoint = checkpoint or checkpoint_from_net(quantized, str(net))
    check_all_new([out], overwrite)  # it may have appeared in the meantime
    checkpoints.save(out, checkpoint)
    for line in beyond_limits(quantized) + layer_overflows(quantized):
        note(f"{net}: {line}")
    print(f"{shown(out)}: {json.dumps(checkpoint.architecture)}")


@with_plugins
def eval_command(
    net: NetOrCheckpoint,
    fen: Fen = None,
    fens: Fens = None,
    data: Annotated[Path | None, typer.Option(metavar="FILE", help="Data file in any format.")] = None,
    positions: Annotated[int | None, typer.Option(min=1, help="Number of positions to evaluate. Default: all.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per position, raw values included.")
    ] = False,
    threads: Threads = 0,
    arch: Arch = None,
    file_format: ReadFormat = None,
    model: OfModel = None,
) -> None:
    """Evaluate positions with integers, exactly as the engine does."""
    from nnue_trainer.data.books import read_positions
    from nnue_trainer.export import Evaluator

    if not fen and fens is None and data is None:
        raise UserError("nothing to evaluate: give --fen FEN, --fens FILE or --data FILE")
    quantized = _exported(net) if file_format is None and is_checkpoint(net) else None
    if quantized is None:
        quantized, _ = _read(net, arch, file_format, model)
    evaluator = Evaluator(quantized, threads=threads)
    given = chain(fen or [], read_positions(fens) if fens else (), read_positions(data, games=True) if data else ())
    at_hand = islice(given, positions)
    while part := list(islice(at_hand, _CHUNK)):
        evaluation = evaluator.evaluate(part)
        for i, position in enumerate(part):
            print(_json_line(evaluation, i, position) if as_json else _table(quantized, evaluation, i, position))


def verify_command(
    net: NetFile,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Stockfish that reads the net: a path, or a name on PATH. Default: stockfish."
        ),
    ] = None,
    fens: Fens = None,
    positions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10**9,
            help="Number of positions: the first of the file, or else built-in ones followed by random games.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed for the random games.")] = 1,
    arch: Arch = None,
) -> None:
    """Load a net into Stockfish and compare its output for `eval` with ours, position by position.

    Exit with 1 at the first difference.
    """
    from nnue_trainer.base.progress import progress_bar
    from nnue_trainer.data.books import read_positions
    from nnue_trainer.engines.uci import find_engine
    from nnue_trainer.export import read_net
    from nnue_trainer.export.check_positions import CHECK_POSITIONS, random_positions
    from nnue_trainer.export.engine_check import verify

    quantized = read_net(net, arch, note)
    path = find_engine(engine)
    at_hand = list(read_positions(fens) if fens else CHECK_POSITIONS)
    if fens and len(at_hand) < (positions or 1):
        raise UserError(f"--positions {positions or 1}: {fens} has only {len(at_hand)}")
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
