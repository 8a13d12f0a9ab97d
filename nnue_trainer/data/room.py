"""Refuses an output that will not fit on its disk, before the work is begun."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from nnue_trainer.base.progress import size as in_words
from nnue_trainer.data.files import WHOLE, Part, PositionReader, PositionWriter, is_pipe
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.formats import DataFormat
from nnue_trainer.data.reading import ReadingOptions
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import StrPath, free_space

_LARGEST = 80  # bytes of output for a byte of input: with more room than that, nothing is estimated
_SHARE = 0.9  # of an estimate: only what surely does not fit is refused
# positions: many more than the two blocks by which the reader may be ahead of its caller, or the rest of a chunk
_SAMPLE = 2_000_000
_FILTERED = 4  # times as many are read, at most, where filters let few pass
_HEADER = 4096  # bytes: more than those before the first chunk of a file, which is read as a whole
_WAITING = 40  # bytes of a position of a shuffle that waits on disk


def check_room(output: StrPath, needs: dict[Path, float]) -> None:
    """UserError if a folder lacks the room for this many bytes. Needs of folders on one disk are added up."""
    disks: dict[int, tuple[Path, float]] = {}
    for folder, need in needs.items():
        device = folder.stat().st_dev if folder.exists() else -1
        first, before = disks.get(device, (folder, 0.0))
        disks[device] = first, before + need
    for folder, need in disks.values():
        if need > (free := free_space(folder)):
            raise UserError(
                f"{output}: needs about {in_words(need)}, but the disk of {folder} has {in_words(free)} free; "
                "free some space or write to another disk"
            )


def check_rewritten(
    inputs: Sequence[StrPath],
    output: StrPath,
    format: DataFormat,
    *,
    source: str | None = None,
    join_chains: bool = True,
    waiting: tuple[Path, int] | None = None,
    part: Part = WHOLE,
    filters: Filters | None = None,
    **scores: Unpack[ReadingOptions],
) -> None:
    """`check_room` for all positions of `inputs`, or of a part of them, in a format, estimated from the first ones of
    the largest input. `waiting`: the folder where positions of a shuffle wait, and how many have room in memory.
    `filters`: only positions that pass; with filters in Python nothing is estimated."""
    if any(map(is_pipe, inputs)) or not all(Path(path).exists() for path in inputs) or (filters and filters.extra):
        return
    total = sum(Path(path).stat().st_size for path in inputs) // part.of
    folder = Path(output).absolute().parent
    if min(map(free_space, [folder, *([waiting[0]] if waiting else [])])) > _LARGEST * total:
        return
    needs = dict[Path, float]()
    with contextlib.suppress(
        UserError, OSError, ZeroDivisionError
    ):  # the work itself reports what is wrong with the inputs
        bytes_of_all, positions = _estimate(
            max(inputs, key=lambda path: Path(path).stat().st_size), total, format, source, join_chains, filters, scores
        )
        needs[folder] = _SHARE * bytes_of_all
        if waiting is not None:
            on_disk = _SHARE * _WAITING * max(positions - waiting[1], 0.0)
            needs[waiting[0]] = needs.get(waiting[0], 0.0) + on_disk
    check_room(output, needs)


def _estimate(
    path: StrPath,
    total: int,
    format: DataFormat,
    source: str | None,
    join_chains: bool,
    filters: Filters | None,
    scores: ReadingOptions,
) -> tuple[float, float]:
    """Bytes and positions of an output made of `total` bytes like those of `path`."""
    carried = list[float]()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "sample"
        with (
            PositionReader(path, format=source, **scores) as reader,
            PositionWriter(copy, format, join_chains=join_chains, chess960="drop-rights") as writer,
        ):
            done = count = read = 0
            for number, block in enumerate(reader.blocks()):
                records = block.records
                read += len(records)
                if filters:
                    records = records[filters.mask(records, number, carried, block.spare)[0]]
                writer.write(records)
                if reader.done > max(done, _HEADER):  # the positions so far come from these bytes
                    done, count = reader.done, writer.positions
                    if max(count, read / _FILTERED) >= _SAMPLE:
                        break
            else:  # the last bytes may have been read before the blocks that came after
                done, count = reader.done, writer.positions
            share = total / done
            writer.finish()
        return share * copy.stat().st_size * count / writer.positions, share * count
