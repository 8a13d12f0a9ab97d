"""Makes data files from data files: convert, filter, shuffle, interleave, split. data_loader/ works on the positions.

Outputs are complete or absent, and one that exists already is an error unless `overwrite`. `progress` takes bytes
done and bytes in all.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Unpack, cast

import numpy as np

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data.compression import ByteReader, unnamed_file
from nnue_trainer.data.files import (
    FORMATS,
    WHOLE,
    Block,
    Chess960,
    FenStyle,
    Part,
    PositionReader,
    PositionWriter,
    Progress,
    StrPath,
    check_no_pipe,
    chunks_of,
    format_for,
    is_pipe,
    original_size,
    read_files,
)
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.formats import DataFormat
from nnue_trainer.data.formats.base import format_named
from nnue_trainer.data.formats.built_in import open_native
from nnue_trainer.data.reading import Reading, ReadingOptions
from nnue_trainer.data.room import check_rewritten, check_room
from nnue_trainer.data.score_units import RUNS_FOR_UNITS, ComparedFiles, FileUnits, Sample, differences
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import check_all_new, replacing

_MEMORY_PER_POSITION = 55  # bytes of a shuffle
_OF_WHOLE_STREAMS = ("random_skip", "soft_ply", "wdl", "wdl_material", "placeholder_zero", "piece_counts")
"""filters whose decisions depend on the place of a position in the input"""


@dataclass
class Report:
    """The result of a tool. `losses` counts, by kind, the positions that the format cannot store fully. `cut_scores`
    counts scores that scaling brought beyond ±32767. `skipped` counts positions or chunks that `skip_bad` left out;
    `first_skipped` has the first error of each file. `notes`: decisions and omissions of readers that are not errors,
    each with its file, and `unit_notes` likewise on the unit of scores. `units`: the unit of each file's scores, if
    there are several files.
    """

    positions: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    cut_scores: int = 0
    skipped: int = 0
    first_skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unit_notes: list[str] = field(default_factory=list)
    units: ComparedFiles = field(default_factory=ComparedFiles)

    def add_reader(self, reader: PositionReader, keeps_scores: bool = True) -> None:
        """Adds what a reader found. `keeps_scores`: whether the output has the scores of the file."""
        self.skipped += reader.skipped
        self.cut_scores += reader.cut_scores
        self.notes += [f"{reader.path}: {note}" for note in reader.notes]
        if keeps_scores:
            self.unit_notes += [f"{reader.path}: {note}" for note in reader.unit_notes]
        if reader.skipped:
            self.first_skipped.append(reader.first_skipped)
        if reader.sample and keeps_scores:
            file = FileUnits(str(reader.path), reader.format, reader.sample.units(), reader.reading.pawn)
            self.units.add(file, reader.sample)
            reader.sample = None

    def add_writer(self, writer: PositionWriter, *why: str, may_be_empty: bool = False) -> None:
        """Ends the work of a writer, before its file has its name. UserError if no position is left for it, unless it
        `may_be_empty`; `why` are reasons beside those that this report has."""
        writer.finish()
        if not writer.positions and not may_be_empty:
            raise self.nothing_left(writer.path, writer.losses, *why)
        self.positions += writer.positions
        self.losses.update({what: count for what, count in writer.losses.items() if count})

    def nothing_left(self, output: Path, losses: Mapping[str, int], *why: str) -> UserError:
        """The error of a tool without a position for its output, with the reasons that are known."""
        words = _data.losses()
        reasons = [f"{count:,} {words[what]}" for what, count in losses.items() if count]
        reasons += [*why, *self.notes]
        reasons += [f"{self.skipped:,} left out: {self.first_skipped[0]}"] if self.skipped else []
        return UserError(f"{output}: no position to write: {'; '.join(reasons) or 'the inputs have none'}")


def check_outputs(inputs: Sequence[StrPath], outputs: Sequence[StrPath], overwrite: bool) -> None:
    """Before the work: UserError if an output is an input, is named twice, or exists and may not be replaced."""
    if not inputs:
        raise UserError("no input files")
    for i, output in enumerate(outputs):
        path = Path(output)
        for other in [*inputs, *outputs[:i]]:
            if path == Path(other) or (path.exists() and Path(other).exists() and path.samefile(other)):
                twice = f"is also the {'input' if other in inputs else 'output'} {other}"
                raise UserError(f"{output}: the output {twice}; name another file")
    check_all_new(outputs, overwrite)


def convert(
    inputs: Sequence[StrPath],
    output: StrPath,
    *,
    to: str | None = None,
    source: str | None = None,
    chess960: Chess960 = "refuse",
    fen: FenStyle = "x-fen",
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    part: Part = WHOLE,
    **scores: Unpack[ReadingOptions],
) -> Report:
    """Writes all positions of `inputs`, or of a part of their chunks, one file after the other, in the format `to`
    (None: the one of `output`'s suffix). All tools join positions that follow each other to chains, so the parts of any
    tool give the bytes of the whole.

    `source`: the format of the inputs, None to find out. `fen`: how castling rights are written where there are FENs.
    `scores`, here and in the other tools: how scores and results are read (`data.reading`).
    """
    reading = Reading(**scores)
    format = format_for(output, to)
    check_outputs(inputs, [output], overwrite)
    if not skip_bad and part.is_whole and original_size(format.kind) and not any(map(is_pipe, inputs)):
        found, changed = [], False
        for path in inputs:
            with PositionReader(path, format=source, **scores) as reader:
                found.append(reader.format)
                changed |= reading.changes(path, reader.format) is not None
        if set(found) == {format.kind} and not changed:
            check_room(output, {Path(output).absolute().parent: sum(Path(path).stat().st_size for path in inputs)})
            return _copy(inputs, output, format, overwrite, progress, scores)

    check_rewritten(inputs, output, format, source=source, part=part, **scores)
    report = Report()
    with PositionWriter(output, format, chess960=chess960, fen=fen) as writer:
        for reader, blocks in read_files(
            inputs, format=source, skip_bad=skip_bad, progress=progress, part=part, **scores
        ):
            for block in blocks:
                writer.write_block(block)
            report.add_reader(reader)
        report.add_writer(writer, may_be_empty=not part.is_whole)
        check_all_new([output], overwrite)
    return report


def _copy(
    inputs: Sequence[StrPath],
    output: StrPath,
    format: DataFormat,
    overwrite: bool,
    progress: Progress | None,
    scores: ReadingOptions,
) -> Report:
    """Files of one format one after the other, checked and byte for byte. A game of viriformat that continues in the
    next file, as between two parts of a tool's output, becomes one."""
    report = Report()
    sizes = [Path(path).stat().st_size for path in inputs]
    seam = _Seam(format)
    with replacing(output) as file:
        for i, path in enumerate(inputs):
            with seam.before(path, file.fd), PositionReader(path, format=format, copy_to=file.fd, **scores) as reader:
                reader.sample = Sample(RUNS_FOR_UNITS) if len(inputs) > 1 else None
                for records in reader:
                    report.positions += len(records)
                    seam.after(records)
                    if reader.sample:
                        reader.sample.add_runs(records)
                    if progress:
                        progress(sum(sizes[:i]) + reader.done, sum(sizes))
                report.add_reader(reader)
        if not report.positions:
            raise report.nothing_left(Path(output), {})
        check_all_new([output], overwrite)
    return report


class _Seam:
    """The place between two files of viriformat, where a game may continue: then its end in the first file (four zero
    bytes) and its head in the second (32 bytes) are left out, as a writer of both would do."""

    _HEAD, _ENTRY = 32, 4

    def __init__(self, format: DataFormat) -> None:
        self._format = format
        self._last: Records | None = None

    def after(self, records: Records) -> None:
        self._last = records[-1:].copy()

    @contextlib.contextmanager
    def before(self, path: StrPath, fd: int) -> Iterator[None]:
        """The block copies the file to `fd`."""
        at = os.lseek(fd, 0, os.SEEK_CUR) - self._HEAD - self._ENTRY
        joins = self._format.kind == "viriformat" and self._last is not None and self._continues(path, self._last)
        if not joins:
            yield
            return
        # The copied head takes the place of bytes that are put back afterwards.
        before = os.pread(fd, self._HEAD, at)
        os.lseek(fd, at, os.SEEK_SET)
        yield
        os.pwrite(fd, before, at)

    def _continues(self, path: StrPath, last: Records) -> bool:
        with Path(path).open("rb") as file:
            head = file.read(self._HEAD)
        with PositionReader(path, format=self._format) as reader:
            first = next((records[:1] for records in reader), None)
        if first is None or reader.compression:
            return False
        both = len(self._written(np.concatenate([last, first])))
        is_one = both == self._HEAD + 3 * self._ENTRY
        # A head with more than the position stays.
        return is_one and self._written(first)[: self._HEAD] == head

    def _written(self, records: Records) -> bytes:
        with tempfile.TemporaryFile() as file:
            writer = self._format.open_writer(Path("seam"), file.fileno())
            writer.write(records)
            writer.finish()
            return os.pread(file.fileno(), 1 << 10, 0)


def filter_positions(
    inputs: Sequence[StrPath],
    output: StrPath,
    filters: Filters,
    *,
    seed: int = 0,
    to: str | None = None,
    chess960: Chess960 = "refuse",
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    part: Part = WHOLE,
    **scores: Unpack[ReadingOptions],
) -> tuple[Report, Counter[str]]:
    """Writes the positions of `inputs`, or of a part of their chunks, that pass, and counts how many each filter
    dropped. The arrays in which files are read take the place of the chunks in docs/data.md: each has the next seed for
    its decisions. So filters that draw at random, or depend on the position before, are refused (UserError)."""
    format = format_for(output, to)
    check_outputs(inputs, [output], overwrite)
    whole_only = [name for name in _OF_WHOLE_STREAMS if filters.as_dict()[name] != Filters.none().as_dict()[name]]
    if whole_only and not part.is_whole:
        raise UserError(
            f"--part: the filter {whole_only[0]} depends on the positions before, so parts would not be those of the "
            "whole: use it without --part, or in the training (data.filters)"
        )
    check_rewritten(inputs, output, format, part=part, filters=filters, **scores)
    report, dropped = Report(), Counter[str]()
    with PositionWriter(output, format, chess960=chess960) as writer:
        for block, counts in filtered(
            inputs,
            filters,
            seed=seed,
            skip_bad=skip_bad,
            progress=progress,
            after=report.add_reader,
            part=part,
            **scores,
        ):
            writer.write_block(block)
            dropped.update(counts.dropped)
        why = (f"{count:,} dropped by {name}" for name, count in dropped.items() if count)
        report.add_writer(writer, *why, may_be_empty=not part.is_whole)
        check_all_new([output], overwrite)
    return report, dropped


def filtered(
    inputs: Sequence[StrPath],
    filters: Filters,
    *,
    seed: int = 0,
    skip_bad: bool = False,
    progress: Progress | None = None,
    after: Callable[[PositionReader], None] = lambda reader: None,
    part: Part = WHOLE,
    **scores: Unpack[ReadingOptions],
) -> Iterator[tuple[Block, _data.FilterCounts]]:
    """The positions of `inputs` that pass, and the counts of `Filters.mask`. `after` is called with the reader of each
    file at its end, or when the iteration ends there."""
    number, carried = 0, list[float]()
    for reader, blocks in read_files(inputs, skip_bad=skip_bad, progress=progress, part=part, **scores):
        try:
            for block in blocks:
                mask, counts = filters.mask(block.records, (seed << 32) + number, carried, block.spare)
                yield block.where(mask), counts
                number += 1
        finally:
            after(reader)


def shuffle(
    inputs: Sequence[StrPath],
    output: StrPath,
    *,
    seed: int = 0,
    memory: int = 2 << 30,
    temporary: StrPath | None = None,
    to: str | None = None,
    chess960: Chess960 = "refuse",
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    write_progress: Progress | None = None,
    by_game: bool = False,
    part: Part = WHOLE,
    **scores: Unpack[ReadingOptions],
) -> Report:
    """Writes all positions of `inputs` in random order, in the format `to` (None: the one of `output`'s suffix). In a
    binpack each is a chain of 34 bytes, except for the few that follow the one before by chance.

    `by_game`: the games are in random order, and the positions of each stay together and in order, so chains remain. A
    game is a run in which the ply rises and the result, seen by white, stays the same. `part`: all inputs are read, and
    only this part of the output is written; all parts together are the whole.

    The order is uniform and a function of (seed, positions in order) alone, whatever the memory. `memory` in bytes
    bounds what the shuffle holds; positions beyond it, about one for 55 bytes, wait in an unnamed file in the folder
    `temporary` (None: the output's), 40 bytes each. `write_progress` takes positions written and positions in all.
    """
    format = format_for(output, to)
    check_outputs(inputs, [output], overwrite)
    folder = Path(temporary) if temporary is not None else Path(output).absolute().parent
    room = memory // _MEMORY_PER_POSITION
    part.range(0)
    waiting = (folder.absolute(), room)
    check_rewritten(inputs, output, format, join_chains=by_game, waiting=waiting, part=part, **scores)
    kept = original_size(format.kind)
    buffer = _data.ExternalShuffle(seed, memory, os.fsencode(folder), kept, by_game, part.number - 1, part.of)
    report = Report()
    # The output is opened first, so that a place that cannot be written to shows before hours of reading.
    with PositionWriter(output, format, chess960=chess960) as writer:
        for reader, blocks in read_files(inputs, skip_bad=skip_bad, progress=progress, **scores):
            buffer.start_stream()
            for block in blocks:
                same = kept and block.format == format.kind
                buffer.add(block.records, block.originals if same else None)
                if not same:
                    writer.count_spare(block)
            report.add_reader(reader)
        while len((block := Block(*buffer.read_originals(1 << 16), format.kind)).records):
            writer.write_block(block)
            if write_progress:
                write_progress(writer.positions, buffer.positions)
        report.add_writer(writer, may_be_empty=not part.is_whole)
        check_all_new([output], overwrite)
    return report


def interleave(
    inputs: Sequence[StrPath],
    output: StrPath,
    *,
    seed: int = 0,
    weights: Sequence[float] = (),
    overwrite: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    **scores: Unpack[ReadingOptions],
) -> tuple[int, int]:
    """Mixes files of one format chunk by chunk in proportion to their sizes, without decoding them, into a file of that
    format; returns chunks and bytes. With `scores` that change records, the mixture is decoded and written again.
    `note` takes lines about the units of the files.

    The order within each file stays. Which file comes next is a function of (seed, files, weights) alone. `weights`:
    how often each file comes, one number for each; none: once. 2.5 is all chunks twice and the first half once more.
    """
    check_no_pipe(inputs, "interleave")
    check_outputs(inputs, [output], overwrite)
    if weights and (len(weights) != len(inputs) or not any(weights)):
        raise UserError(
            f"weights: {len(weights)} numbers for {len(inputs)} files, expected one for each, and one that is not 0"
        )
    changed, units, notes = False, ComparedFiles(), list[str]()
    for path in inputs:
        with PositionReader(path, **scores) as reader:
            if reader.compression or reader.format not in FORMATS:
                found = f"{reader.compression}-compressed" if reader.compression else f"in the format {reader.format}"
                raise UserError(
                    f"{path}: {found}, expected a file that is not compressed in one of {', '.join(FORMATS)}: "
                    "`nnue data convert` makes one from it"
                )
            format = reader.format
            changed |= reader.reading.changes(path, format) is not None
            notes += [f"{path}: {line}" for line in reader.unit_notes]
        beginning = _beginning(path)
        units.add(FileUnits(str(path), format, beginning.units()), beginning)
    for line in [*notes, *differences(units.files)]:
        if note:
            note(line)
    for path, weight in zip(inputs, weights, strict=False):
        every = chunks_of(path)
        if note and weight and every and not math.floor(weight * every.end + 0.5):
            note(f"{path}: a weight of {weight:g} leaves none of its chunks")
    folder = Path(output).absolute().parent
    chunks = 0

    def mix(fd: int) -> None:
        nonlocal chunks
        names = [os.fsencode(path) for path in inputs]
        interleaver = _data.Interleaver(names, os.fsencode(output), fd, seed, list(weights))
        if not interleaver.size:
            raise UserError(f"{output}: no chunk to write: the inputs or their weights leave none; use larger weights")
        check_room(output, {folder: (2 if changed else 1) * interleaver.size})
        done = 0
        while step := interleaver.step():
            done += step
            if progress:
                progress(done, interleaver.size)
        chunks = interleaver.chunks

    with replacing(output) as file:
        if changed:
            with unnamed_file(Path(output), folder, lambda out: mix(out.fileno())) as mixed:
                _rewrite(mixed, file.fd, Path(inputs[0]), format, Reading(**scores))
        else:
            mix(file.fd)
        check_all_new([output], overwrite)
    return chunks, Path(output).stat().st_size


def _beginning(path: StrPath) -> Sample:
    """A sample of the beginning of a file, of one block."""
    sample = Sample()
    with PositionReader(path) as reader:
        for records in reader:
            sample.add_runs(records)
            break
    return sample


def _rewrite(mixed: BinaryIO, fd: int, path: Path, format: str, reading: Reading) -> None:
    """Writes the positions of a mixture as they are read with `reading`."""
    mixed.seek(0)
    reader = open_native(path, cast(ByteReader, mixed), False, format)
    writer = format_named(format).open_writer(path, fd)
    changes = reading.changes(path, format) or _data.ScoreChanges()
    while len((block := Block(*reader.read_originals(1 << 16), format)).records):
        changes.apply(block.records)
        writer.write(block.records, block.originals)
    writer.finish()


def _commit_pair(train: PositionWriter, validation: PositionWriter) -> None:
    """Gives both files their names, or neither. What needs room on the disk is done before the first name is given.

    A kill in between leaves only the training file, which the next command reports. An old validation file is removed
    first: next to a new training file it would look like its other half, although it holds positions that are trained
    on.
    """
    train.finish()
    validation.finish()
    try:
        validation.path.unlink(missing_ok=True)
        train.commit()
        validation.commit()
    except BaseException:
        if not validation.is_file_at(validation.path) and train.is_file_at(train.path):
            train.path.unlink()
        raise


SHORT_SHARE = 0.1
"""Positions in very short games beyond this share are mentioned: a file of games has few, even if it was filtered."""
SUGGESTED_BLOCK = 1000


@dataclass
class SplitReport:
    games: int
    validation_games: int
    train: Report
    validation: Report
    alone: int
    """positions that were split singly, since no position before or after them is of the same game"""
    in_short_games: int
    """positions in games of at most three positions, including these"""

    @property
    def note(self) -> str:
        """A line for users if the inputs do not show games; "" if they do."""
        total = self.train.positions + self.validation.positions
        if self.in_short_games < SHORT_SHARE * total:
            return ""
        return (
            f"{self.in_short_games:,} of {total:,} positions were split singly or in groups of at most "
            f"{_data.GameSplitter.short_game} ({self.alone:,} singly), because the plies do not show games. So "
            "positions of one game may be on both sides, and the validation loss would be too low. If the games follow "
            f"each other, use --block {SUGGESTED_BLOCK}; if they are shuffled, split the file they come from"
        )


def split(
    inputs: Sequence[StrPath],
    train: StrPath,
    validation: StrPath,
    *,
    share: float = 0.01,
    seed: int = 0,
    block: int = 0,
    to: str | None = None,
    chess960: Chess960 = "refuse",
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **scores: Unpack[ReadingOptions],
) -> SplitReport:
    """Deals the games of `inputs` out to two files. (seed, number of the game) draws a `share` of them for validation.

    A game is a run of positions in which the ply rises and the result, seen by white, stays the same. So a chain is
    never divided. Without plies every position counts as a game, unless `block` positions in a row do.
    """
    if not 0 < share < 1:
        raise UserError(f"validation share {share}, expected a number between 0 and 1")
    check_outputs(inputs, [train, validation], overwrite)
    splitter = _data.GameSplitter(seed, share, block)
    reports = Report(), Report()
    with ExitStack() as stack:
        writers = [
            stack.enter_context(PositionWriter(path, format_for(path, to), chess960=chess960))
            for path in (train, validation)
        ]
        for reader, blocks in read_files(inputs, skip_bad=skip_bad, progress=progress, **scores):
            splitter.start_stream()
            for each in blocks:
                held_out = splitter.split(each.records).view(bool)
                writers[0].write_block(each.where(~held_out))
                writers[1].write_block(each.where(held_out))
            reports[0].add_reader(reader)
        for report, writer in zip(reports, writers, strict=True):
            report.add_writer(writer, f"{splitter.games:,} games, with a share of {share:g} for validation")
        check_all_new([train, validation], overwrite)
        _commit_pair(*writers)
    short = (0, 0) if block else (splitter.alone, splitter.in_short_games)
    return SplitReport(splitter.games, splitter.validation_games, *reports, *short)
