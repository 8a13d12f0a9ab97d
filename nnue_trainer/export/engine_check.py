"""Compares our evaluations with a real engine's: everything that Stockfish prints about a net, for many
positions.

A cell of the table has two decimals of a pawn of some 350 units, so one cell resolves about 3.5 units: eight buckets,
two parts and their total, on a hundred positions, leave no room for an error to hide. Releases since April 2026 also
print the exact integer of the bucket in use.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from nnue_trainer import data
from nnue_trainer.base import process_groups
from nnue_trainer.base.closing import Closing
from nnue_trainer.engines.stockfish_eval import Counts, EvalOutput, Unit, parse_eval, unit_of
from nnue_trainer.engines.uci import Engine, EngineEnded
from nnue_trainer.errors import UserError, shown
from nnue_trainer.export.evaluate import evaluate
from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.nets.base import tdiv

_USING = "NNUE evaluation using "
_CHUNK = 512
_LONGEST_BENCH = 600  # seconds
_STEPS = 16  # of an internal unit in raw values
_COLUMNS = ("material", "positional", "total")


class EngineWithNet(Closing):
    """A process of an engine that has loaded one net. Use it as a context.

    It is started only for this net: an engine that failed to load a file may keep part of it in memory. UserError
    names the engine and the reason why it does not take the net, and then has `readers`, which names those that do.
    """

    def __init__(self, engine: str, net: Path, readers: str = ""):
        self._net, self._readers = net.resolve(), f"; {readers}" if readers else ""
        self._path = shown(engine)
        self._uses_net = False
        self._engine = Engine(engine, timeout=60.0)
        self.name = self._engine.name
        try:
            self._engine.set_option("EvalFile", str(self._net))
            self._ask()
        except BaseException:
            self._engine.close()
            raise

    def close(self) -> None:
        """Ends the process."""
        self._engine.close()

    def evaluate(self, fen: str) -> EvalOutput:
        """Its output for a position."""
        self._engine.send(f"position fen {fen}")
        self._engine.send("eval")
        lines = self._ask()
        try:
            found = parse_eval(lines)
        except UserError as error:
            raise UserError(f"engine {self._path}: printed {error}, for {shown(fen)}") from None
        if not (self._uses_net or found.in_check):
            raise UserError(f"engine {self._path}: does not evaluate with {shown(str(self._net))}")
        return found

    def _ask(self) -> list[str]:
        try:
            lines = self._engine.ask("isready", "readyok")
        except EngineEnded as error:
            if error.reason:
                why = f"{error.reason.rstrip('.')}{self._readers}"
                raise UserError(f"engine {self._path}: does not load {shown(str(self._net))}: {why}") from None
            raise
        name = os.fsencode(self._net).decode(errors="replace")  # as the client decodes what the engine prints
        # Behind the name stands "enabled", or sizes in brackets. Stockfish 16.1 to 18 name their small net as well.
        using = [line.partition(_USING)[2] for line in lines if _USING in line]
        if using:
            self._uses_net = any(said == name or said.startswith(f"{name} ") for said in using)
        return lines


@dataclass(frozen=True)
class Bench:
    """The result of an engine's `bench`: the number of nodes that it searched, and the nodes per second."""

    nodes: int
    nodes_per_second: float


def bench(engine: str, net: Path) -> Bench:
    """Runs the `bench` of Stockfish with a net, in a separate process. UserError if the engine does not print its
    speed, or takes longer than ten minutes."""
    commands = f"setoption name EvalFile value {net.resolve()}\nbench 16 1 13 default depth NNUE\nquit\n"
    try:
        run = process_groups.run(
            [engine],
            input=os.fsencode(commands),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LONGEST_BENCH,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"engine {shown(engine)}: bench takes longer than {_LONGEST_BENCH} seconds") from None
    said = run.stdout.decode(errors="replace")
    nodes, speed = (
        re.findall(rf"^{name}\s*: (\d+)", said, re.MULTILINE) for name in ("Nodes searched", "Nodes/second")
    )
    if not nodes or not speed or int(speed[-1]) == 0:
        raise UserError(f"engine {shown(engine)}: its bench printed no speed")
    return Bench(int(nodes[-1]), float(speed[-1]))


@dataclass(frozen=True)
class Expected:
    """The expected output of an engine for one position. `rows` are by bucket; `score` is from the side to move."""

    fen: str
    bucket: int
    rows: dict[int, tuple[int, ...]]
    score: int

    def differences(self, found: EvalOutput, unit: Unit | None) -> Iterator[str]:
        """One line per value that the engine prints differently. Without the unit of its table only the exact value
        and the bucket are compared."""
        counts = Counts.of_fen(self.fen)
        if found.used not in (None, self.bucket):
            yield f"{self.fen}: engine uses bucket {found.used}, expected {self.bucket}"
        if unit is not None and found.cells and len(found.cells) <= max(self.rows):
            yield f"{self.fen}: engine prints {len(found.cells)} buckets, expected {max(self.rows) + 1}"
        elif unit is not None and found.cells:
            for bucket, (psqt, positional, total) in self.rows.items():
                printed = found.cells[bucket]
                # A net without PSQT columns has one column in the table.
                names, own = (_COLUMNS, (psqt, positional, total)) if len(printed) > 1 else (("evaluation",), (total,))
                for name, text, value in zip(names, printed, own, strict=True):
                    texts = unit.cells(value, counts)
                    if text not in texts:
                        expected = " or ".join(dict.fromkeys(texts))
                        yield f"{self.fen}: bucket {bucket} {name}: engine prints {text}, expected {expected} ({value})"
        if found.value is None:
            return
        if found.is_exact:
            if int(found.value) != self.score:
                where = f"{self.fen}: bucket {self.bucket}"
                yield f"{where}: engine evaluates {int(found.value)}, expected {self.score}"
        elif unit is not None:
            white = -self.score if self.fen.split()[1:2] == ["b"] else self.score
            texts = unit.values(white, counts)
            if found.value not in texts:
                where = f"{self.fen}: bucket {self.bucket}"
                yield f"{where}: engine evaluates {found.value}, expected {' or '.join(texts)} ({white}, white side)"


def expected(quantized: QuantizedNet, fens: Iterable[str]) -> Iterator[Expected]:
    """The expected output of an engine for each position."""
    positions = iter(fens)
    while chunk := list(islice(positions, _CHUNK)):
        batch = data.expand(data.records_from_fens(chunk), quantized.net.integer_feature_set)
        evaluation = evaluate(quantized, batch)
        psqt, positional = tdiv(evaluation.psqt_raw, _STEPS), tdiv(evaluation.positional_raw, _STEPS)
        cells = np.stack([psqt, positional, psqt + positional], axis=2)
        for i, fen in enumerate(chunk):
            used = int(evaluation.bucket[i])
            buckets = range(cells.shape[1]) if cells.shape[1] == quantized.net.num_stacks else [used]
            rows = {bucket: tuple(map(int, row)) for bucket, row in zip(buckets, cells[i], strict=True)}
            yield Expected(fen, used, rows, int(evaluation.score[i]))


@dataclass
class Verified:
    """The extent of a comparison: positions; those of them in check, which no engine evaluates; buckets and columns of
    a table; whether there were exact values."""

    engine: str
    positions: int = 0
    in_check: int = 0
    buckets: int = 0
    columns: int = 0
    exact: bool = False


def verify(
    engine: str,
    net: Path,
    quantized: QuantizedNet,
    fens: Iterable[str],
    progress: Callable[[int], None] = lambda _: None,
) -> Verified:
    """Compares an engine that loads `net` with `quantized`, our reading of `net`. UserError at the first difference
    names position, bucket and both values. UserError also if nothing could be compared."""
    with EngineWithNet(engine, net, quantized.net.engines) as running:
        result = Verified(running.name)
        unit, unknown = None, None
        try:
            unit = unit_of(running.name)
        except UserError as error:
            unknown = error
        for ours in expected(quantized, fens):
            found = running.evaluate(ours.fen)
            result.positions += 1
            result.in_check += found.in_check
            if not found.in_check:
                if unknown is not None and not found.is_exact:
                    raise unknown
                for line in ours.differences(found, unit):
                    raise UserError(f"{shown(str(net))}: {shown(line)} (position {result.positions:,})")
                result.exact |= found.is_exact
                if unit is not None and found.cells:
                    result.buckets, result.columns = len(ours.rows), len(found.cells[0])
            progress(result.positions)
    if result.positions == result.in_check:
        raise UserError(f"{shown(str(net))}: no position could be compared: {result.in_check} are in check")
    return result
