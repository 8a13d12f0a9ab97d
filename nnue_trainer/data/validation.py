"""Findings of `nnue data validate` in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data.files import ChunkRange, Progress, StrPath
from nnue_trainer.data.many_files import FileBlocks, read_blocks
from nnue_trainer.data.reading import ReadingOptions
from nnue_trainer.data.score_units import FileUnits, Sample
from nnue_trainer.data.verdict import Verdict, judge


@dataclass(frozen=True)
class Validation:
    """`problems`: (what, positions that have it, number of the first) of what no game of chess contains. `changes`: the
    same of results that change within a game. `notes`: decisions of the reader."""

    path: str
    positions: int
    problems: list[tuple[str, int, int]]
    changes: tuple[str, int, int]
    notes: list[str]
    verdict: Verdict
    units: FileUnits
    sample: Sample

    def as_dict(self) -> dict[str, Any]:
        """Returns plain JSON data."""
        problems = [{"problem": name, "count": count, "first": first} for name, count, first in self.problems]
        values = {"path": self.path, "positions": self.positions, "problems": problems}
        return values | {"result_changes": self.changes[1], "notes": self.notes} | self.verdict.as_dict()

    def lines(self) -> list[str]:
        """Returns lines of text."""
        sound = f", {'NOT' if self.problems else 'all'} sound" if self.positions else ""
        lines = [f"{self.path}: {self.positions:,} positions{sound}"]
        lines += [f"  {name}: {count:,}, the first at position {first:,}" for name, count, first in self.problems]
        what, count, first = self.changes
        if count:
            lines.append(f"  to note: {what}: {count:,}, the first at position {first:,}")
        return lines + [f"  to note: {text}" for text in self.notes] + [f"  {line}" for line in self.verdict.lines()]


def validated(
    path: StrPath, chunks: ChunkRange | None, progress: Progress, threads: int = 1, **scores: Unpack[ReadingOptions]
) -> Validation:
    """Checks every position of a file, or of some of its chunks. `threads` do not change the result."""
    return read_blocks(path, lambda blocks: _validation(path, blocks, progress), threads, chunks, **scores)


def _checked(records: Records) -> _data.Validator:
    validator = _data.Validator()
    validator.add(records)
    return validator


def _validation(path: StrPath, blocks: FileBlocks, progress: Progress) -> Validation:
    validator, sample, reader = _data.Validator(), Sample(), blocks.reader
    for records, part in blocks.each(_checked):
        validator.join(part)
        sample.add(records)
        progress(reader.done, reader.size)
    verdict = judge(sample, reader.format)
    problems = [problem for problem in validator.problems if problem[1]]
    units = FileUnits(str(path), reader.format, verdict.units, reader.reading.pawn)
    notes = reader.notes + reader.unit_notes
    return Validation(str(path), validator.positions, problems, validator.result_changes, notes, verdict, units, sample)
