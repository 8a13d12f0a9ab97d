"""Work on whole files, on all CPUs: several files at a time, and the blocks of one file in several threads. The data
library computes without the interpreter's lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import TypeVar, Unpack

import numpy as np

from nnue_trainer.base.arrays import Records
from nnue_trainer.base.closing import Closing
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.data.files import (
    BLOCK,
    ChunkRange,
    PositionReader,
    Progress,
    StrPath,
    chunks_of,
    is_pipe,
    original_size,
)
from nnue_trainer.data.reading import Reading, ReadingOptions
from nnue_trainer.errors import UserError

S = TypeVar("S")
T = TypeVar("T")

_RANGE = 1 << 20  # bytes of a file that one thread decodes: 0.4 million positions of chains, 13 MB of records
_LARGEST_RANGE = 1 << 23  # a file of larger chunks is decoded by one thread
_MOST_READERS = 8  # threads that decode; counting takes longer


def cpus_per_file(files: int) -> int:
    """The CPUs for each of this many files, of which `in_order` reads as many at a time as there are CPUs."""
    return max(1, usable_cpus() // max(files, 1))


def in_order(work: Callable[[S, Progress], T], items: Sequence[S], progress: Progress) -> Iterator[T]:
    """The results of `work` for each item, in their order. `work` calls its second argument now and then with the bytes
    done and in all of its item. `progress` takes the sums. What is left ends when the iteration does."""
    sums: dict[int, tuple[int, int]] = {}
    ending = threading.Event()

    def one(number: int) -> T:
        def show(done: int, total: int) -> None:
            if ending.is_set():
                raise UserError("stopped")
            sums[number] = (done, total)

        return work(items[number], show)

    def show_all() -> None:
        known = list(sums.values())
        if known:
            done, total = (sum(column) for column in zip(*known, strict=True))
            progress(done, total * len(items) // len(known))

    if len(items) == 1:
        yield work(items[0], progress)
        return
    pool = ThreadPoolExecutor(max(1, usable_cpus()))
    futures: deque[Future[T]] = deque()
    try:
        for number in range(len(items)):
            futures.append(pool.submit(one, number))
            while len(futures) > 2 * usable_cpus() or (futures and number + 1 == len(items)):
                while wait([futures[0]], 0.1).not_done:
                    show_all()
                yield futures.popleft().result()
    finally:
        ending.set()
        pool.shutdown(cancel_futures=True)


# ---- one file --------------------------------------------------------------------------------------------------------


class FileBlocks:
    """The blocks of a file, and the threads that work on them."""

    def __init__(self, reader: PositionReader | _RangesReader, threads: int) -> None:
        self.reader, self._threads = reader, threads

    def each(self, work: Callable[[Records], T]) -> Iterator[tuple[Records, T]]:
        """Each block with the result of `work`, in the order of the file. All blocks but the last have `files.BLOCK`
        positions."""

        def with_block(block: Records) -> tuple[Records, T]:
            return block, work(block)

        if self._threads == 1:
            yield from map(with_block, _full(self.reader))
            return
        pool = ThreadPoolExecutor(self._threads, "blocks")
        try:
            yield from _ahead(pool, with_block, _full(self.reader), self._threads + 2)
        finally:
            pool.shutdown(cancel_futures=True)


def read_blocks(
    path: StrPath,
    compute: Callable[[FileBlocks], T],
    threads: int = 1,
    chunks: ChunkRange | None = None,
    **scores: Unpack[ReadingOptions],
) -> T:
    """Returns what `compute` makes of the blocks of a file, or of some of its chunks, which must not depend on the
    number of threads. With several `threads`, `compute` is called again, with one thread, if there is an error: places
    in messages count from the beginning of the file."""
    if threads > 1 and not is_pipe(path):
        try:
            with _opened(path, chunks, min(threads, _MOST_READERS), scores) as reader:
                return compute(FileBlocks(reader, threads))
        except UserError:
            pass
    with PositionReader(path, chunks=chunks, **scores) as reader:
        return compute(FileBlocks(reader, 1))


def _opened(
    path: StrPath, chunks: ChunkRange | None, threads: int, scores: ReadingOptions
) -> PositionReader | _RangesReader:
    every = chunks or chunks_of(path)
    # Records of one size are decoded by all CPUs in any case.
    if every is not None and not original_size(every.file.format):
        number = every.end - every.begin
        if number > 1 and every.size // number <= _LARGEST_RANGE:
            return _RangesReader(path, every, threads, scores)
    return PositionReader(path, chunks=chunks, **scores)


class _RangesReader(Closing):
    """The positions of chunks, decoded by several threads, a range each. UserError for a file with notes: their numbers
    count over the whole file."""

    def __init__(self, path: StrPath, chunks: ChunkRange, threads: int, scores: ReadingOptions) -> None:
        self._path, self._chunks, self._threads, self._scores = path, chunks, threads, scores
        self.reading = Reading(**scores)
        self.compression: str | None = None
        self.format, self.size = chunks.file.format, chunks.size
        self.done = self.chunks = self.chains = self.single_chains = 0
        self.notes: list[str] = []
        self.unit_notes: list[str] = []
        self._pool = ThreadPoolExecutor(threads, "decode")

    def __iter__(self) -> Iterator[Records]:
        for reader, blocks in _ahead(self._pool, self._read, self._ranges(), self._threads + 2):
            self.done = min(self.done + reader.size, self.size)
            self.chunks += reader.chunks
            self.chains += reader.chains
            self.single_chains += reader.single_chains
            self.unit_notes = self.unit_notes or reader.unit_notes
            yield from blocks

    def _ranges(self) -> Iterator[ChunkRange]:
        file, begin, end = self._chunks
        step = max(1, _RANGE * (end - begin) // max(self._chunks.size, 1))
        for first in range(begin, end, step):
            yield ChunkRange(file, first, min(first + step, end))

    def _read(self, chunks: ChunkRange) -> tuple[PositionReader, list[Records]]:
        with PositionReader(self._path, chunks=chunks, **self._scores) as reader:
            blocks = list(reader)
        if reader.notes:
            raise UserError(f"{self._path}: has notes")
        return reader, blocks

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _full(blocks: Iterable[Records]) -> Iterator[Records]:
    """Blocks of BLOCK of the same records; only the last one is shorter."""
    left: list[Records] = []
    count = 0
    for block in blocks:
        if not left and len(block) == BLOCK:
            yield block
            continue
        left.append(block)
        count += len(block)
        if count >= BLOCK:
            every = np.concatenate(left)
            full = count // BLOCK
            yield from np.split(every[: full * BLOCK], full)
            count -= full * BLOCK
            left = [every[full * BLOCK :].copy()] if count else []
    if left:
        yield np.concatenate(left)


def _ahead(pool: Executor, work: Callable[[S], T], items: Iterable[S], most: int) -> Iterator[T]:
    """The results of `work` in order, which the pool computes for up to `most` items in advance."""
    futures: deque[Callable[[], T]] = deque()
    for item in items:
        futures.append(_started(pool, work, item))
        if len(futures) >= most:
            yield futures.popleft()()
    while futures:
        yield futures.popleft()()


def _started(pool: Executor, work: Callable[[S], T], item: S) -> Callable[[], T]:
    try:
        return pool.submit(work, item).result
    except RuntimeError:  # the system gives no more threads
        found = work(item)
        return lambda: found
