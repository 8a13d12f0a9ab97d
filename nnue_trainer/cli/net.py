"""`nnue export`, `import`, `eval`, `verify`: between checkpoints and nets, and what a net says of a position."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnue_trainer.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from nnue_trainer.export import Evaluation, QuantizedNet

Arch = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Architecture of a net that does not tell (SFNNv4 looks like SFNNv5)."),
]
Fen = Annotated[list[str] | None, typer.Option("--fen", metavar="FEN", help="A position; may be repeated.")]
Fens = Annotated[Path | None, typer.Option("--fens", metavar="FILE", help="Positions, one FEN a line.")]
NetFile = Annotated[Path, typer.Argument(metavar="NET", help="A .nnue file.")]

_CHUNK = 4096


def register(app: typer.Typer) -> None:
    app.command("export")(export_command)
    app.command("import")(import_command)
    app.command("eval")(eval_command)
    app.command("verify")(verify_command)


def _note(text: str) -> None:
    print(f"nnue: note: {text}", file=sys.stderr)


def export_command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint of the trainer.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The net to write; in a folder, nn-<sha256>.nnue.")],
    any_l1: Annotated[bool, typer.Option("--any-l1", help="Also widths that no Stockfish reads.")] = False,
) -> None:
    """Writes the net of a checkpoint. Weights that do not fit the integers are refused by name."""
    from nnue_trainer import checkpoint as checkpoints
    from nnue_trainer.export import net_from_checkpoint, to_bytes, write_net
    from nnue_trainer.export.convert import accumulator_bound

    net = net_from_checkpoint(checkpoints.load(checkpoint, ("model", "net")), str(checkpoint), any_l1=any_l1)
    data = to_bytes(net)
    sha256 = hashlib.sha256(data).hexdigest()
    if out.is_dir():
        out = out / f"nn-{sha256[:12]}.nnue"
    write_net(net, out)
    bound, limit = accumulator_bound(net), net.spec.accumulator_limit
    if bound > limit:
        _note(f"{out}: accumulators may reach {bound}; the engine holds {limit} and wraps around beyond")
    print(f"{out}: {net.spec.name}, {len(data):,} bytes, sha256 {sha256}")


def import_command(
    net: NetFile,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The checkpoint to write (.safetensors).")],
    arch: Arch = None,
) -> None:
    """Makes a checkpoint of a net, to train on from it. Exported again, it is the same file."""
    from nnue_trainer import checkpoint as checkpoints
    from nnue_trainer.export import checkpoint_from_net, read_net

    checkpoint = checkpoint_from_net(read_net(net, arch, _note), str(net))
    checkpoints.save(out, checkpoint)
    print(f"{out}: {json.dumps(checkpoint.architecture)}")


def eval_command(
    net: NetFile,
    fen: Fen = None,
    fens: Fens = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a position, raw values included.")] = False,
    arch: Arch = None,
) -> None:
    """Evaluates positions with integers, exactly as the engine does."""
    from nnue_trainer.export import read_net

    if not fen and fens is None:
        raise UserError("nothing to evaluate: give --fen FEN or --fens FILE")
    quantized = read_net(net, arch, _note)
    positions = iter([*(fen or []), *(_read_fens(fens) if fens else [])])
    while chunk := list(islice(positions, _CHUNK)):
        evaluation, _ = _evaluate(quantized, chunk)
        for i, position in enumerate(chunk):
            print(_json_line(evaluation, i, position) if as_json else _table(quantized, evaluation, i, position))


def verify_command(
    net: NetFile,
    engine: Annotated[
        str | None, typer.Option(metavar="PATH", help="Stockfish 15.1; default: the one on PATH.")
    ] = None,
    fens: Fens = None,
    positions: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N positions.")] = None,
) -> None:
    """Loads an SFNNv5 net into Stockfish 15.1 and compares the table it prints with ours, position by position."""
    from nnue_trainer.export import read_net
    from nnue_trainer.export.check_positions import CHECK_POSITIONS
    from nnue_trainer.export.engine_check import (
        ARCHITECTURE,
        ENGINE_NAME,
        differences,
        engine_tables,
        expected_tables,
        find_engine,
    )

    quantized = read_net(net)
    if quantized.spec.name != ARCHITECTURE:
        raise UserError(f"{net}: is {quantized.spec.name}; {ENGINE_NAME} reads {ARCHITECTURE} only")
    path = find_engine(engine)
    at_hand = list(_read_fens(fens) if fens else CHECK_POSITIONS)
    if not at_hand or len(at_hand) < (positions or 0):
        raise UserError(f"--positions {positions or 1}: there are {len(at_hand)} in {fens or 'the built-in list'}")
    chosen = at_hand[:positions]
    evaluation, black_to_move = _evaluate(quantized, chosen)
    found = engine_tables(path, net, chosen)
    compared = sum(table is not None for table in found)
    wrong = differences(expected_tables(evaluation, black_to_move), found, chosen)
    for line in wrong[:10]:
        print(line)
    skipped = f", {len(found) - compared} in check and skipped" if compared < len(found) else ""
    print(
        f"{path} ({ENGINE_NAME}): {compared} positions x 8 buckets x 3 columns compared{skipped}, "
        f"{len(wrong) or 'no'} differences"
    )
    if wrong or not compared:
        raise UserError(f"{net}: {'the engine prints other values' if wrong else 'no position could be compared'}")


def _read_fens(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read positions: {error}") from None
    return (line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))


def _evaluate(net: QuantizedNet, fens: Iterable[str]) -> tuple[Evaluation, np.ndarray]:
    from nnue_trainer import data
    from nnue_trainer.export import evaluate

    batch = data.expand(data.records_from_fens(list(fens)), net.spec.feature_set)
    return evaluate(net, batch), batch.black_to_move.numpy().astype(bool)


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


def _table(net: QuantizedNet, evaluation: Evaluation, i: int, fen: str) -> str:
    """Engine units, side to move's view."""
    import numpy as np

    used = int(evaluation.bucket[i])
    lines = [fen, "  bucket      PSQT    layers     total"]
    for bucket in range(net.spec.stacks):
        psqt, positional = evaluation.psqt_raw[i, [bucket]], evaluation.positional_raw[i, [bucket]]
        nothing = np.zeros_like(psqt)
        score = net.spec.score
        cells = [int(part[0]) for part in (score(psqt, nothing), score(nothing, positional), score(psqt, positional))]
        mark = "  <-- used" if bucket == used else ""
        lines.append(f"  {bucket:6}{cells[0]:+10}{cells[1]:+10}{cells[2]:+10}{mark}")
    lines.append(f"  evaluation {int(evaluation.score[i]):+} (engine units, side to move)\n")
    return "\n".join(lines)
