"""`nnue check`: the effect of rounding to integers on the evaluation of real positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnue_trainer.base.progress import progress_bar
from nnue_trainer.cli.net import CheckpointOrRun
from nnue_trainer.cli.outputs import AsJson, note
from nnue_trainer.cli.plugins import with_plugins
from nnue_trainer.errors import UserError, shown

if TYPE_CHECKING:
    from nnue_trainer.export.comparison import Comparison


@with_plugins
def check_command(
    checkpoint: CheckpointOrRun,
    data: Annotated[list[str], typer.Option(metavar="FILE", help="Data file with positions; may be repeated.")],
    positions: Annotated[int, typer.Option(min=1, max=2**40, help="Compare the first N positions.")] = 10_000,
    limit: Annotated[
        float | None,
        typer.Option(
            metavar="UNITS",
            min=0.0,
            help="Largest root mean square difference between the evaluations of training and engine, in engine units. "
            "Default: 1 for a net trained with quantisation.qat, else 50.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the float, fake-quantised and integer evaluation of a checkpoint on real positions."""
    from nnue_trainer.data import Filters, LoaderOptions, RecordLoader
    from nnue_trainer.export.comparison import LIMIT_FLOAT, LIMIT_QAT, Comparison
    from nnue_trainer.files import checkpoint as checkpoints
    from nnue_trainer.files.inputs import data_files

    if checkpoint.is_dir():
        checkpoint = checkpoints.of_run(checkpoint)
        note(f"checking {checkpoint}")
    comparison = Comparison(checkpoints.load(checkpoint, ("model", "net")), str(checkpoint))
    if comparison.rounded is None:
        note(comparison.reason)
    files, done = data_files(data, "--data"), 0
    with progress_bar("comparing", "positions") as progress:
        progress(0, positions)
        options: LoaderOptions = {"shuffle": False, "drop_last": False, "filters": Filters.none()}
        with RecordLoader(files, min(positions, 1024), **options) as loader:
            for block in loader:
                records = block.numpy()[: positions - done]
                comparison.add(records)
                done += len(records)
                progress(done, positions)
                if done >= positions:
                    break
    if not done:
        raise UserError(f"{', '.join(data)}: no positions to compare")
    if limit is None:
        limit = LIMIT_QAT if comparison.qat else LIMIT_FLOAT
    found, trained = comparison.trained.rms, "fake-quantised" if comparison.qat else "float"
    ok = found <= limit
    if as_json:
        print(json.dumps(_report(comparison, checkpoint, done, limit, ok)))
    else:
        print("\n".join(_text(comparison, checkpoint, done)))
        print(f"trained as {trained}: {found:.3f} rms from the engine, limit {limit:g}: {'ok' if ok else 'too far'}")
    if not ok:
        raise UserError(
            f"{checkpoint}: the {trained} evaluation that was trained is {found:.3f} engine units (rms) from the "
            f"integers, expected at most {limit:g}"
        )


def _report(comparison: Comparison, checkpoint: Path, positions: int, limit: float, ok: bool) -> dict[str, Any]:
    return {
        "checkpoint": str(checkpoint),
        "net": comparison.quantized.net.name,
        "positions": positions,
        "qat": comparison.qat,
        "limit": limit,
        "rms": round(comparison.trained.rms, 6),
        "ok": ok,
        "differences": [
            {"of": one, "and": other, "rms": round(d.rms, 6), "largest": d.largest, "worst": d.worst}
            for (one, other), d in comparison.differences.items()
        ],
    }


def _text(comparison: Comparison, checkpoint: Path, positions: int) -> list[str]:
    from nnue_trainer.export.comparison import FLOAT, INTEGER, ROUNDED

    exact = comparison.rounded is not None and comparison.differences[ROUNDED, INTEGER].largest < 0.001
    head = f"{shown(checkpoint)}: {comparison.quantized.net.name}, {positions:,} positions, engine units"
    lines = [head, f"  {'difference':<26}{'rms':>10}{'largest':>10}"]
    for (one, other), difference in comparison.differences.items():
        name = f"{_words(one)} - {_words(other)}"
        lines.append(f"  {name:<26}{difference.rms:>10.3f}{difference.largest:>10.3f}")
    for (one, other), difference in comparison.differences.items():
        # Where fake-quantised and integer evaluation agree, their distances from the float one are the same.
        if difference.largest < 0.001 or ((one, other) == (FLOAT, ROUNDED) and exact):
            continue
        lines.append(f"largest {_words(one)} - {_words(other)}:")
        for row in difference.worst:
            values = ", ".join(f"{_words(key)} {row[key]:+.1f}" for key in row if key not in ("fen", "difference"))
            lines.append(f"  {row['difference']:+10.3f}  {row['fen']}  ({values})")
    return lines


def _words(name: str) -> str:
    return name.replace("_", "-")
