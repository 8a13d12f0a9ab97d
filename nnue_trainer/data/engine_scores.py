"""Data files with the scores of a UCI engine: `nnue data rescore --engine`.

Work goes by units of 64 positions, each by one engine that forgets everything before it. So the scores are a function
of (engine, limit, positions), for any number of engines, as long as an engine searches on one thread. Units that are
done are kept in a journal beside the output (`nnue_trainer/data/journal.py`), so an interrupted run continues where it
stopped.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data import fields
from nnue_trainer.data.fields import NO_SCORE
from nnue_trainer.data.files import (
    WHOLE,
    Block,
    Part,
    PositionWriter,
    Progress,
    StrPath,
    check_no_pipe,
    format_for,
    read_files,
)
from nnue_trainer.data.generate import ScoreCheck, ScoreCounts, internal_score, score_scale
from nnue_trainer.data.journal import Journal
from nnue_trainer.data.opened import identities
from nnue_trainer.data.reading import MOST_PAWN, Reading, ReadingOptions
from nnue_trainer.data.room import check_rewritten
from nnue_trainer.data.transform import Report, check_outputs
from nnue_trainer.engines.pool import in_order
from nnue_trainer.engines.uci import Engine
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import check_all_new
from nnue_trainer.files.finished import Finished

UNIT = 64
"""Positions that one engine scores in a row."""


@dataclass(frozen=True)
class EngineScoring:
    """How an engine scores a position: exactly one of `nodes` and `depth`. `scale`: internal units per centipawn of its
    "score cp"; None takes it from the engine's name. `part`: only this part of the positions; parts are equal up to one
    unit, and one after the other they are the whole."""

    engine: str
    nodes: int | None = None
    depth: int | None = None
    scale: float | None = None
    hash_mb: int = 4
    options: Mapping[str, str] | None = None
    part: Part = WHOLE

    def __post_init__(self) -> None:
        if (self.nodes is None) == (self.depth is None):
            raise UserError("rescore: give either --nodes or --depth with --engine")
        self.part.range(0)

    @property
    def limit(self) -> str:
        return f"nodes {self.nodes}" if self.nodes is not None else f"depth {self.depth}"


class _ScoreJournal(Journal):
    made_by = "nnue data rescore"


def rescore_by_engine(
    inputs: Sequence[StrPath],
    output: StrPath,
    scoring: EngineScoring,
    *,
    to: str | None = None,
    concurrency: int = 1,
    timeout: float = 600.0,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    **scores: Unpack[ReadingOptions],
) -> Report:
    """All positions of `inputs`, or of a part of them, with the score that the engine gives them, side to move's view.
    Positions in which the game is over keep the score that they have; where the engine gives no exact score, a position
    has none (32002), and a note counts them. The output is complete or absent; after an interruption the same call
    continues. `progress` takes positions done and positions in all. `scores`: how the files are read; without `pawn`, a
    pawn is 100 centipawns of the engine."""
    format = format_for(output, to)
    check_no_pipe(inputs, "rescore --engine")
    path = Path(output).with_name(Path(output).name + ".journal")
    try:
        check_outputs(inputs, [output], overwrite)
    except Finished:
        Journal.remove_left(path)
        raise
    reading = Reading(**scores)
    total = _count(inputs, skip_bad, scores)
    # Parts consist of whole units, so that they have the scores of the whole.
    begin, end = (min(total, unit * UNIT) for unit in scoring.part.range(-(-total // UNIT)))
    check_rewritten(inputs, output, format, part=scoring.part, **scores)
    engines: list[Engine] = []
    try:
        settings = {"Hash": str(scoring.hash_mb)} | dict(scoring.options or {})
        while len(engines) < max(1, min(concurrency, -(-(end - begin) // UNIT))):
            engines.append(Engine(scoring.engine, settings, timeout=timeout))
        scale = scoring.scale if scoring.scale is not None else score_scale(engines[0].name, note)
        if reading.pawn is None:
            scores["pawn"] = min(100 * scale, MOST_PAWN)
        header: dict[str, Any] = {
            "engine": engines[0].name,
            "limit": scoring.limit,
            "score_scale": scale,
            "options": settings,
            "part": list(scoring.part),
            "files": [list(identity[1:]) for identity in identities(inputs)],
            "format": format.kind,
            "skip_bad": skip_bad,
        }
        if replace(reading, pawn=None) != Reading():  # files that were made without these options stay the same
            header["reading"] = asdict(reading)
        with _ScoreJournal(path, header) as journal:
            if journal.cut and note:
                note(
                    f"{path}: its last {journal.cut:,} bytes are incomplete, as after a crash; those positions are "
                    "scored again"
                )
            units = itertools.islice(_units(inputs, begin, end, skip_bad, scores), journal.games, None)

            def work(engine: Engine, unit: Records) -> Records:
                return _score(engine, unit, scoring.limit, scale)

            if journal.positions < end - begin:
                with contextlib.closing(in_order(engines, units, work)) as scored:
                    for unit in scored:
                        journal.append(unit)
                        if progress:
                            progress(journal.positions, end - begin)
            report = Report()
            with PositionWriter(output, format) as writer:
                counts = _write(inputs, begin, end, skip_bad, scores, journal, writer, report)
                report.add_writer(writer, may_be_empty=total > 0 and begin == end)
                check_all_new([output], overwrite)
                journal.check_owned()
            report.notes += counts.notes()
            journal.remove()
    finally:
        for engine in engines:
            engine.close()
    return report


def _count(inputs: Sequence[StrPath], skip_bad: bool, scores: ReadingOptions) -> int:
    return sum(len(block.records) for _, blocks in read_files(inputs, skip_bad=skip_bad, **scores) for block in blocks)


def _blocks(
    inputs: Sequence[StrPath], begin: int, end: int, skip_bad: bool, scores: ReadingOptions, report: Report
) -> Iterator[Block]:
    """The positions from number `begin` to `end`."""
    at = 0
    for reader, blocks in read_files(inputs, skip_bad=skip_bad, **scores):
        for block in blocks:
            number = np.arange(at, at + len(block.records))
            at += len(block.records)
            wanted = (number >= begin) & (number < end)
            if wanted.any():
                yield block.where(wanted)
        report.add_reader(reader, keeps_scores=False)


def _units(
    inputs: Sequence[StrPath], begin: int, end: int, skip_bad: bool, scores: ReadingOptions
) -> Iterator[Records]:
    left = np.zeros((0, 32), np.uint8)
    for block in _blocks(inputs, begin, end, skip_bad, scores, Report()):
        left = np.concatenate([left, block.records])
        whole = len(left) // UNIT * UNIT
        for i in range(0, whole, UNIT):
            yield left[i : i + UNIT]
        left = left[whole:]
    if len(left):
        yield left


def _score(engine: Engine, unit: Records, limit: str, scale: float) -> Records:
    """A copy of a unit with the engine's scores."""
    unit = unit.copy()
    is_chess960 = bool(_data.drop_chess960(unit.copy())[0].any())
    if is_chess960:
        engine.set_option("UCI_Chess960", "true")
    engine.new_game()
    scores, check = [], ScoreCheck(engine, limit)
    for fen, _, score, _, _ in _data.describe(unit):
        moves = _data.Game(fen, is_chess960).legal_moves()
        if moves:
            _, kind, value = engine.search(fen, (), limit)
            check.add(kind, len(moves))
            score = internal_score(kind, value, scale) if kind else NO_SCORE
        scores.append(score)
    if is_chess960:
        engine.set_option("UCI_Chess960", "false")
    fields.set_scores(unit, scores)
    return unit


def _write(
    inputs: Sequence[StrPath],
    begin: int,
    end: int,
    skip_bad: bool,
    scores: ReadingOptions,
    journal: Journal,
    writer: PositionWriter,
    report: Report,
) -> ScoreCounts:
    """Writes the positions with their scores from the journal, and all other bytes as they are in the files."""
    units, scored, counts = journal.read(), np.zeros((0, 32), np.uint8), ScoreCounts()
    for block in _blocks(inputs, begin, end, skip_bad, scores, report):
        parts, found = [scored], len(scored)
        while found < len(block.records) and (unit := next(units, None)) is not None:
            parts.append(unit)
            found += len(unit)
        every = np.concatenate(parts)
        own, scored = every[: len(block.records)], every[len(block.records) :]
        if len(own) < len(block.records) or not np.array_equal(own[:, :26], block.records[:, :26]):
            raise UserError(f"{inputs[0]}: the files were modified while they were being scored")
        block.records[:, 26:28] = own[:, 26:28]
        counts.add(own)
        writer.write_block(block)
    return counts
