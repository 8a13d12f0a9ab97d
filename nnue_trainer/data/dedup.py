"""Drops repeated positions, or whole repeated games, across files of any size: `nnue data dedup`.

Two passes. The first one takes a key of 64 bits of each position or game, and finds the keys that came before. Keys
that do not fit into memory are spread by their high bits over 256 unnamed files, which are then sorted one by one. The
second pass writes what is new. Of equal ones the first stays.

Two different boards have the same key with a probability of 2⁻⁶⁴: of 10⁹ positions, 0.03 are dropped by mistake on
average.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Unpack

import numpy as np
import numpy.typing as npt

from nnue_trainer.base.arrays import Records
from nnue_trainer.data import fields
from nnue_trainer.data.files import Chess960, PositionWriter, Progress, StrPath, check_no_pipe, format_for, read_files
from nnue_trainer.data.reading import ReadingOptions
from nnue_trainer.data.transform import Report, check_outputs
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import check_all_new, refusing

Keys = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_PARTS = 256
_BYTES_PER_KEY = 64
"""The memory of each key while keys are sorted: the key, its number, their order and the result."""


def board_keys(records: Records) -> Keys:
    """uint64 [n]: a hash of each board with side to move, castling rights and en-passant square."""
    words = np.ascontiguousarray(records[:, :24]).view("<u8")
    key = np.zeros(len(records), np.uint64)
    for column in range(3):
        key = _mix(key ^ words[:, column])
    return key


def _mix(key: Keys) -> Keys:
    """A bijection of 64-bit words (the finaliser of SplitMix64)."""
    key = key + np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ key >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ key >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return key ^ key >> np.uint64(31)


class Games:
    """Cuts a stream of positions into games (`fields.game_begins`)."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None  # ply and white's result
        self.number = -1
        """of the game that the last position belongs to"""
        self._length = 0

    def start_file(self) -> None:
        self._last = None

    def numbers(self, records: Records) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """int64 [n], int64 [n]: the number of each position's game, and its place in it."""
        begins = fields.game_begins(records, self._last)
        game = self.number + np.cumsum(begins)
        at = np.arange(len(records))
        start = np.maximum.accumulate(np.where(begins, at, -self._length))
        place = at - start
        end = records[-1:]
        self._last = int(fields.plies(end)[0]), int(fields.white_results(end)[0])
        self.number, self._length = int(game[-1]), int(place[-1]) + 1
        return game, place


class KeyTable:
    """Which keys of a stream came before, for more keys than memory holds. `memory` in bytes; what does not fit waits
    in unnamed files in `folder`."""

    def __init__(self, memory: int, folder: Path) -> None:
        self._most, self._memory, self._folder = max(memory // _BYTES_PER_KEY, 1), memory, folder
        self._keys: list[Keys] = []
        self._held = self.count = 0
        self._files: list[IO[bytes]] = []

    def add(self, keys: Keys) -> None:
        self._keys.append(keys)
        self._held += len(keys)
        self.count += len(keys)
        if self._held > self._most:
            self._spill()

    def _spill(self) -> None:
        """Moves the keys in memory to the files, with their numbers."""
        with refusing(self._folder):
            while len(self._files) < _PARTS:
                self._files.append(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115
            keys = np.concatenate([np.zeros(0, np.uint64), *self._keys])
            rows = np.stack([keys, np.arange(self.count - len(keys), self.count, dtype=np.uint64)], axis=1)
            rows = rows[np.argsort(keys, kind="stable")]
            ends = np.searchsorted(rows[:, 0] >> np.uint64(56), np.arange(_PARTS + 1, dtype=np.uint64))
            for part, file in enumerate(self._files):
                file.write(rows[ends[part] : ends[part + 1]].tobytes())
        self._keys, self._held = [], 0

    def repeated(self) -> Bools:
        """bool [count]: whether each key had been added before. Above the memory, backed by a file."""
        if not self._files:
            keys = np.concatenate([np.zeros(0, np.uint64), *self._keys])
            found = np.zeros(len(keys), bool)
            found[_later(keys)] = True
            return found
        self._spill()
        with refusing(self._folder):
            backing = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            backing.truncate(max(self.count, 1))
            found = np.memmap(backing, np.bool_, "r+", shape=(self.count,))
            for file in self._files:
                if file.tell() * 4 > max(self._memory, 1 << 26):
                    raise UserError(
                        f"dedup: {self.count:,} keys do not fit into {self._memory:,} bytes of memory even in "
                        f"{_PARTS} parts; pass a larger --memory"
                    )
                file.seek(0)
                rows = np.frombuffer(file.read(), np.uint64).reshape(-1, 2)
                found[np.sort(rows[_later(rows[:, 0]), 1])] = True
                file.close()
        return found

    def close(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # bytes that are still buffered for a full disk
                file.close()


def _later(keys: Keys) -> npt.NDArray[np.int64]:
    """The indices of keys that occur at a smaller index, too. Equal keys keep their order in a stable sort."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return np.asarray(order[1:][ordered[1:] == ordered[:-1]], np.int64)


def _game_keys(records: Records, games: Games, sums: dict[str, int]) -> Iterator[Keys]:
    """The keys of the games that end in front of these positions or within them. The open one is in `sums`."""
    before = games.number
    number, place = games.numbers(records)
    terms = _mix(board_keys(records) + place.astype(np.uint64))
    first = np.flatnonzero(np.diff(number, prepend=before))
    starts = first if len(first) and first[0] == 0 else np.concatenate([[0], first])
    totals = np.add.reduceat(terms, starts)
    if number[0] == before:  # the open game goes on
        totals[0] = (int(totals[0]) + sums["open"]) & 0xFFFF_FFFF_FFFF_FFFF
    elif before >= 0:
        totals = np.concatenate([np.array([sums["open"]], np.uint64), totals])
    sums["open"] = int(totals[-1])
    if len(totals) > 1:
        yield totals[:-1]


def dedup(
    inputs: Sequence[StrPath],
    output: StrPath,
    *,
    games: bool = False,
    memory: int = 1 << 30,
    temporary: StrPath | None = None,
    to: str | None = None,
    chess960: Chess960 = "refuse",
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    write_progress: Progress | None = None,
    **scores: Unpack[ReadingOptions],
) -> tuple[Report, int, int]:
    """Writes the positions of `inputs` whose board did not come before, in order; with `games`, the games of which not
    all positions came before in a game. Returns also how many positions or games there were, and how many were
    dropped.

    `memory` in bytes bounds the keys that are held; further ones wait in the folder `temporary` (None: the output's),
    16 bytes each. UserError for files that change between the two passes.
    """
    format = format_for(output, to)
    check_no_pipe(inputs, "dedup")
    check_outputs(inputs, [output], overwrite)
    folder = Path(temporary) if temporary is not None else Path(output).absolute().parent
    table, cutter, sums = KeyTable(memory, folder), Games(), {"open": 0}
    report = Report()
    try:
        with PositionWriter(output, format, chess960=chess960) as writer:
            positions = 0
            for _, blocks in read_files(inputs, skip_bad=skip_bad, progress=progress, **scores):
                cutter.start_file()
                for block in blocks:
                    positions += len(block.records)
                    if games:
                        for keys in _game_keys(block.records, cutter, sums):
                            table.add(keys)
                    else:
                        table.add(board_keys(block.records))
            if games and positions:
                table.add(np.array([sums["open"]], np.uint64))
            repeated = table.repeated()
            cutter, at = Games(), 0
            for reader, blocks in read_files(inputs, skip_bad=skip_bad, progress=write_progress, **scores):
                cutter.start_file()
                for block in blocks:
                    count = len(block.records)
                    number = cutter.numbers(block.records)[0] if games else np.arange(at, at + count)
                    at += count
                    if at > positions or (len(number) and number[-1] >= len(repeated)):
                        raise _modified(reader.path)
                    writer.write_block(block.where(~repeated[number]))
                report.add_reader(reader)
            if at != positions:
                raise _modified(inputs[0])
            report.add_writer(writer)
            check_all_new([output], overwrite)
    finally:
        table.close()
    return report, table.count, int(np.count_nonzero(repeated))


def _modified(path: StrPath) -> UserError:
    return UserError(f"{path}: was modified while it was being read: the two passes found different positions")
