"""Does a real engine compute what we compute? Compares the table that Stockfish 15.1 prints for a net with ours.

The table has two decimals of a pawn of 361 units, so one cell resolves about 3.6 units: eight buckets, two parts and
their total, on a hundred positions, leave no room for an error to hide.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnue_trainer.errors import UserError, shown
from nnue_trainer.export.evaluate import Evaluation
from nnue_trainer.nets.base import tdiv
from nnue_trainer.uci import Engine, EngineEnded

ENGINE_NAME = "Stockfish 15.1"
ARCHITECTURE = "sfnnv5"
PAWN = 361
_REFUSAL = "info string ERROR: "
_ROW = re.compile(r"^\|\s+(\d)\s+\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)$")


@dataclass(frozen=True)
class Table:
    """What the engine prints for one position: `cells` [bucket][material, positional, total], the bucket marked as
    used, and the evaluation from white's side; all as printed, blanks removed."""

    cells: list[list[str]]
    used: int
    evaluation: str


def engine_tables(engine: str, net: Path, fens: Sequence[str]) -> list[Table | None]:
    """The engine's table for every position; None for positions in check, which it does not evaluate.

    Starts one process for this net: an engine that failed to load a file may keep part of it in memory.
    """
    net = net.resolve()
    with Engine(engine, timeout=60.0) as running:
        if running.name != ENGINE_NAME:
            raise UserError(
                f"{engine}: found {running.name or 'no id name'!r}, expected {ENGINE_NAME!r} (other versions print "
                "other tables)"
            )
        tables = []
        try:
            running.set_option("EvalFile", str(net))
            running.wait_until_ready()
            for fen in fens:
                running.send(f"position fen {fen}")
                running.send("eval")
                tables.append(_parse("\n".join(running.ask("isready", "readyok")), engine, net, fen))
        except EngineEnded as error:
            refusals = [line for line in error.lines if line.startswith(_REFUSAL)]
            if refusals:
                reason = refusals[0].removeprefix(_REFUSAL)
                raise UserError(f"{engine}: does not take {shown(str(net))}: {reason}") from None
            raise
    return tables


def _parse(answer: str, engine: str, net: Path, fen: str) -> Table | None:
    if "none (in check)" in answer:
        return None
    name = os.fsencode(net).decode(errors="replace")  # as the client decodes what the engine prints
    if f"NNUE evaluation using {name} enabled" not in answer:
        raise UserError(f"{engine}: evaluates with another net than {shown(str(net))}")
    cells: list[list[str]] = []
    used = -1
    for line in answer.splitlines():
        row = _ROW.match(line)
        if row and int(row.group(1)) == len(cells):
            cells.append([cell.replace(" ", "") for cell in row.group(2, 3, 4)])
            if "this bucket is used" in row.group(5):
                used = int(row.group(1))
    evaluation = re.search(r"^NNUE evaluation +(\S+) \(white side\)$", answer, re.MULTILINE)
    if len(cells) != 8 or used < 0 or evaluation is None:
        raise UserError(f"{engine}: no table of eight buckets for {fen}")
    return Table(cells, used, evaluation.group(1))


def expected_tables(evaluation: Evaluation, black_to_move: np.ndarray) -> list[Table]:
    """The tables that Stockfish 15.1 has to print for `evaluation`; `black_to_move` bool [B]."""
    material, positional = tdiv(evaluation.psqt_raw, 16), tdiv(evaluation.positional_raw, 16)
    parts = np.stack([material, positional, material + positional], axis=2)
    tables = []
    for i, values in enumerate(parts):
        # The evaluation line divides the sum, the table each part: they may differ by one unit.
        white = -evaluation.score[i] if black_to_move[i] else evaluation.score[i]
        cells = [[_cell(int(value)) for value in row] for row in values]
        tables.append(Table(cells, int(evaluation.bucket[i]), f"{int(white) / PAWN:+.2f}"))
    return tables


def _cell(value: int) -> str:
    sign = "-" if value < 0 else "+" if value > 0 else ""
    return f"{sign}{abs(value) / PAWN:.2f}"


def differences(expected: Sequence[Table], found: Sequence[Table | None], fens: Sequence[str]) -> list[str]:
    """One line for each thing that the engine prints otherwise than expected."""
    lines = []
    for ours, theirs, fen in zip(expected, found, fens, strict=True):
        if theirs is None:
            continue
        for bucket, (own_row, their_row) in enumerate(zip(ours.cells, theirs.cells, strict=True)):
            for part, own, their in zip(("material", "positional", "total"), own_row, their_row, strict=True):
                if own != their:
                    lines.append(f"{fen}: bucket {bucket} {part}: engine prints {their}, expected {own}")
        if ours.used != theirs.used:
            lines.append(f"{fen}: engine uses bucket {theirs.used}, expected {ours.used}")
        if ours.evaluation != theirs.evaluation:
            lines.append(f"{fen}: engine evaluates {theirs.evaluation}, expected {ours.evaluation}")
    return lines
