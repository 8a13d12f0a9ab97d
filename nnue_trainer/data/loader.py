"""Batches from data files: decoded, shuffled and expanded by C++ threads.

The order of positions is a function of (seed, epoch, files, filters, shuffle_buffer, batch_size, shards) alone: not of
threads, processes or timing. A place in that order is a few numbers, so `state_dict` is small and resuming replays at
most one buffer.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from nnue_trainer import _data
from nnue_trainer.base.closing import Closing
from nnue_trainer.base.foreign import close_in_time
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.data.batch import Batch, memory_of
from nnue_trainer.data.features import FeatureSet, feature_set
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.filters.base import UserFilter, identity
from nnue_trainer.data.formats import DataFormat
from nnue_trainer.data.mixing import Mixing, mixing_of
from nnue_trainer.data.opened import Identity, OpenedFile, identities_from, open_files, require_same
from nnue_trainer.data.spare import common_width
from nnue_trainer.errors import UserError, first_line
from nnue_trainer.registry import PluginsFirst

T = TypeVar("T", Batch, Tensor)
_STATE_VERSION = 3
_NOTHING_SEEN: bytes = bytes(1 << 14)  # Sketch::kRegisters
_UNSHUFFLED_WINDOW = 8  # batches
_log = logging.getLogger(__name__)

_Place = tuple[int, int, int, int, list[float]]  # the last: the state of the filter piece_counts, or nothing
_Read = tuple[int, int, int]
_PLACE_NUMBERS = 4


class BadChunks(NamedTuple):
    """The chunks that `skip_bad_chunks` left out: their number, each counted once, and the error of the first one
    found."""

    chunks: int
    first: str


def warn_of_left_out_chunks(first: str) -> None:
    """Logs the error of the first chunk that `skip_bad_chunks` has left out."""
    _log.warning("%s: this chunk is skipped, as are further damaged chunks", first)


def usable_threads() -> int:
    """The most threads that reading data can use on this machine: two per CPU that the process may run on, as some
    wait for the disk, and eight where there are few."""
    return max(8, 2 * usable_cpus())


# Smallest and largest value of each option of `Loader`.
_LIMITS = {
    "batch_size": (1, 2**32 - 1),
    "shuffle_buffer": (1, 2**32 - 1),
    "hold": (1, 1024),
    "seed": (0, 2**64 - 1),
    "epoch": (0, 2**63 - 1),
    "threads": (0, 2**31 - 1),
    "cpus": (0, 2**31 - 1),
    "shards": (1, 2**32 - 1),
}


def _check_limits(options: Mapping[str, Any]) -> None:
    for name, (least, most) in _LIMITS.items():
        value = options[name]
        if value < least:
            raise UserError(f"loader: {name} is {value}, expected at least {least}")
        if value > most:
            raise UserError(f"loader: {name} is {value}, expected at most {most}")


def _check_shares(batch_size: int, rank: int, world_size: int, shards: int) -> None:
    """UserError if the processes, or the shards, cannot share a batch equally."""
    if world_size < 1 or not 0 <= rank < world_size or batch_size % world_size:
        raise UserError(
            f"loader: rank {rank} of {world_size} processes and a batch of {batch_size}: expected rank < processes "
            "and a batch that they can share equally"
        )
    if shards > 1 and (batch_size % shards or shards % world_size):
        raise UserError(
            f"loader: {shards} shards, {world_size} processes and a batch of {batch_size}: expected a multiple of "
            "the processes that divides the batch"
        )


class LoaderOptions(TypedDict, total=False):
    """The keyword arguments of `Loader` and `RecordLoader`."""

    seed: int
    """seed of the order and of all that is drawn at random"""
    epoch: int
    """the epoch to begin with; each has another order"""
    repeat: bool
    """epoch after epoch, without end"""
    shuffle: bool
    """False: file order"""
    shuffle_buffer: int
    """positions that are mixed at a time (memory: 64 bytes each, for two buffers); chunks of about 1 MiB are drawn
    in random order before that"""
    threads: int
    """threads that read, at most what the machine and the files can use; 0: as many as `cpus`"""
    cpus: int
    """CPUs to use; 0: all that the process may use"""
    drop_last: bool
    """leave out an epoch's last batch if it is not full"""
    weights: Sequence[float] | None
    """how often the chunks of each file come in an epoch (2.5: twice, and a random half of them once more); None:
    once. UserError unless there is one for each file, and `shuffle`"""
    skip_bad_chunks: bool
    """leave out and count chunks with an error in them instead of raising it (`bad_chunks`), also a last chunk that
    is cut off by the end of the file"""
    filters: Filters | None
    """the positions that are left out; None: those without a score"""
    user_filter: UserFilter | None
    """a function of records uint8 [n, 32] to bool [n], true where they are kept, called after the other filters
    except piece_counts, for a chunk at a time (it must depend only on the records)"""
    pin_memory: bool
    """page-locked batches, for copies to a CUDA device"""
    reuse: bool
    """batches take turns in memory that is allocated once, which saves time; a batch must be copied (`Batch.clone`)
    to be kept for longer than `hold`"""
    hold: int
    """with `reuse`: how many of the newest batches are valid"""
    rank: int
    """the number of this process among `world_size`, from 0"""
    world_size: int
    """processes that share every batch equally; UserError if `batch_size` is not a multiple of it"""
    shards: int
    """1: every process decodes everything. More, a multiple of the processes that divides `batch_size`: every batch
    has an equal part from each shard, a process decodes only its own shards, and the order is the same for every
    number of processes. Shards reach the ends of their epochs at different times, so they need `repeat`, `shuffle`
    and `drop_last`"""
    formats: Sequence[DataFormat]
    """your own formats that files may have (`data.formats.DataFormat`), tried before the built-in ones; such a file
    is read once, when it is opened, into an unnamed file in `temporary`"""
    temporary: str | os.PathLike[str] | None
    """the folder for unpacked files, which have no name; None: the system's for temporary files"""
    poll: Callable[[], None] | None
    """a function that is called every tenth of a second while a batch is waited for, and per MiB while a file is
    unpacked; what it raises ends the wait"""
    count_unique: bool
    """count different positions (`seen`)"""
    spare: bool
    """records also hold the spare bytes of their files, `Loader.spare` of them (`nnue_trainer.data.spare`), as they
    do for a filter that uses them; index rows do not"""


@dataclass
class _Running(Generic[T]):
    """The threads, and the batches whose memory they fill. They are one object, so that a thread which waits for a
    batch keeps both alive while another thread closes the loader."""

    pipeline: _data.Pipeline
    slots: list[T]
    held: deque[int]  # slots of the batches that are still valid, if memory is reused


class _Stream(Closing, Generic[T]):
    _features: str | None = None
    """the feature set of index rows; None: packed positions"""

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        repeat: bool = False,
        shuffle: bool = True,
        shuffle_buffer: int = 1 << 22,
        threads: int = 0,
        cpus: int = 0,
        drop_last: bool = True,
        weights: Sequence[float] | None = None,
        skip_bad_chunks: bool = False,
        filters: Filters | None = None,
        user_filter: UserFilter | None = None,
        pin_memory: bool = False,
        reuse: bool = False,
        hold: int = 2,
        rank: int = 0,
        world_size: int = 1,
        shards: int = 1,
        formats: Sequence[DataFormat] = (),
        temporary: str | os.PathLike[str] | None = None,
        poll: Callable[[], None] | None = None,
        count_unique: bool = False,
        spare: bool = False,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        paths = [files] if isinstance(files, str | os.PathLike) else list(files)
        self._files = [str(Path(path)) for path in paths]
        if not self._files:
            raise UserError("loader: no data files")
        _check_limits(self._given)
        if weights is not None and len(weights) != len(self._files):
            raise UserError(f"loader: {len(weights)} weights for {len(self._files)} files, expected one for each")
        if weights is not None and not shuffle:
            raise UserError("loader: weights need shuffling: remove weights, or shuffle=False")
        _check_shares(batch_size, rank, world_size, shards)
        if shards > 1 and not (repeat and shuffle and drop_last):
            raise UserError("loader: shards are for endless streams: they need repeat, shuffle and drop_last")
        self.batch_size = batch_size
        self.local_batch_size = batch_size // world_size
        self.repeat = repeat
        self.pin_memory = pin_memory
        self.reuse = reuse
        self.hold = hold
        self._asked_threads, self._cpus = threads, cpus or usable_cpus()
        self._first_epoch = epoch
        self._poll = poll
        filters = filters or Filters()
        spare = spare or filters.uses_spare
        self._given_filters = filters
        self._filters = filters.as_dict()
        self._user_filter = filters.with_extra(user_filter, (lambda: self.spare) if spare else None)
        self._options = _data.PipelineOptions(
            features=self._features,
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            window=min(shuffle_buffer if shuffle else _UNSHUFFLED_WINDOW * batch_size, 2**32 - 1),
            drop_last=drop_last,
            weights=list(weights or []),
            skip_bad_chunks=skip_bad_chunks,
            filters=filters.compiled(),
            rank=rank,
            world_size=world_size,
            shards=shards,
            counts_unique=count_unique,
        )
        self._seen: bytes = _NOTHING_SEEN
        local = max(1, shards // world_size)
        self._shards = range(rank * local, (rank + 1) * local) if shards > 1 else range(1)  # of this process
        self._places: list[_Place] = self._beginning(epoch)
        self._read: list[_Read] = []  # how far the last batch, or its window, reaches in each shard
        self._contents: tuple[list[_Read], Tensor] | None = None
        self._temporary = Path(temporary) if temporary is not None else None
        self._formats = list(formats)
        self._with_spare = spare
        self._opened: list[OpenedFile] = []
        self._order: dict[str, Any] | None = None  # what the order depends on
        self._running: _Running[T] | None = None
        self._told_of_threads = self._told_of_bad_chunks = False
        self._last_filter_counts = _data.FilterCounts()
        self._last_bad_chunks = BadChunks(0, "")

    def __reduce__(self) -> tuple[Callable[..., _Stream[T]], tuple[object, ...]]:
        """Pickles how to make this loader again, at the same place if its files are open: another process opens the
        files itself. UserError names an option that cannot be pickled."""
        for name, value in self._given.items():
            try:
                ForkingPickler.dumps(value)
            except Exception as error:
                raise UserError(
                    f"loader: {name} cannot be pickled for another process ({first_line(error)}): define it at the "
                    "top level of a module, or use num_workers=0"
                ) from None
        state: dict[str, Any] | None = None
        if self._opened:  # as arrays: torch sends tensors by file descriptors, and a process takes each only once
            state = {key: each.numpy() if isinstance(each, Tensor) else each for key, each in self.state_dict().items()}
        return _made_again, (PluginsFirst(), type(self), self._given, state)

    @abstractmethod
    def _allocate(self) -> T: ...

    @abstractmethod
    def _memory(self, slot: T) -> npt.NDArray[np.uint8]: ...

    @abstractmethod
    def _head(self, slot: T, size: int) -> T: ...

    def _beginning(self, epoch: int) -> list[_Place]:
        return [(epoch, 0, 0, 0, [])] * len(self._shards)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to; with shards, that of the first of this process."""
        return self._places[0][0]

    @property
    def identities(self) -> list[Identity]:
        """Name, size and digest of each file as it was when this loader opened it; opens the files if they are not open
        yet."""
        return [file.identity for file in self.opened]

    @property
    def opened(self) -> list[OpenedFile]:
        """The data files, which are opened if they are not open yet."""
        if not self._opened:
            self._opened = open_files(
                self._files,
                formats=self._formats,
                skip_bad=self._options.skip_bad_chunks,
                temporary=self._temporary,
                poll=self._poll,
                spare=self._with_spare,
            )
        return self._opened

    @property
    def spare(self) -> int:
        """How many spare bytes the records hold (`nnue_trainer.data.spare`); opens the files. UserError if files
        have different numbers of them."""
        return common_width({file.path: file.spare for file in self.opened}) if self._with_spare else 0

    @property
    def threads(self) -> int:
        """The number of threads that read: as many as were requested, or as the machine and the files can use if that
        is less."""
        chunks = sum(file.native.num_chunks for file in self.opened)
        # One more than there are chunks: it makes batches while the others decode.
        used = min(self._asked_threads or self._cpus, usable_threads(), chunks + 1)
        if used < self._asked_threads and not self._told_of_threads:
            self._told_of_threads = True
            _log.warning(
                "loader: %d threads requested, %d used: there are %d CPUs and %d chunks of data",
                self._asked_threads,
                used,
                usable_cpus(),
                chunks,
            )
        return used

    def mixing(self) -> Mixing | None:
        """How many chunks the shuffle buffer holds, and the expected share of positions with another one of their game
        in their batch, by a sample of chunks; None without shuffling."""
        options = self._options
        if not options.shuffle:
            return None
        return mixing_of(self.opened, self._given_filters, self.batch_size, options.window, options.shards)

    def open(self) -> None:
        """Opens the files and starts the threads, as iterating does. UserError for a file that is missing or not a data
        file, and where the system gives no threads."""
        self._open()

    def _open(self) -> _Running[T]:
        self._require_one_worker()
        if self._running is None:
            files = self.opened
            for file in files:
                file.require_unchanged()
            self._options.threads = threads = self.threads
            slots = [self._allocate() for _ in range(_data.slots_for(threads, self.hold if self.reuse else 1))]
            pipeline = _data.Pipeline(
                self._options,
                [file.native for file in files],
                [self._memory(slot) for slot in slots],
                self._places,
                self._user_filter,
            )
            if self._options.counts_unique:
                pipeline.restore_seen(self._seen)
            self._running = _Running(pipeline, slots, deque())
        return self._running

    def _require_one_worker(self) -> None:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise UserError(
                f"loader: used in {worker.num_workers} workers of a DataLoader, each of which would yield all of the "
                "data: use num_workers=0 or 1, and threads= for more speed"
            )

    def __iter__(self) -> Iterator[T]:
        """Batches up to the end of the current epoch, or without end if `repeat` is set. A new iteration continues
        after the last batch taken, also after a `break`; `restart` starts over. Raises UserError for corrupt data,
        naming file and offset, and if the loader is closed meanwhile."""
        running = self._open()
        pipeline, slots, held = running.pipeline, running.slots, running.held
        spare: T | None = None
        while True:
            if running is not self._running:
                raise UserError("loader: closed or restarted since this iteration began: start a new iteration")
            # Release lazily, when the next batch is requested: the caller may still use the last one.
            while len(held) > self.hold - 1:
                pipeline.release(held.popleft())
            if not self.reuse and spare is None:
                spare = self._allocate()
            slot, size, self._places, bad_chunks, read = pipeline.next(self._poll)
            self._read = read or self._read
            if bad_chunks and not self._told_of_bad_chunks:
                self._told_of_bad_chunks = True
                warn_of_left_out_chunks(self.bad_chunks().first)
            if slot < 0:
                for file in self._opened:
                    file.require_unchanged()
                if self.repeat:
                    continue
                return
            batch = slots[slot]
            if spare is None:
                held.append(slot)
            else:
                slots[slot] = spare
                pipeline.release(slot, self._memory(spare))
                spare = None
            yield batch if size == self.local_batch_size else self._head(batch, size)

    def filter_counts(self) -> _data.FilterCounts:
        """How many positions were `read`, `kept` and, by the name of a filter, `dropped` since the threads were last
        started, read-ahead included."""
        if self._running is not None:
            self._last_filter_counts = self._running.pipeline.filter_counts()
        return self._last_filter_counts

    def bad_chunks(self) -> BadChunks:
        """The chunks that `skip_bad_chunks` left out since the threads were last started, read-ahead included."""
        if self._running is not None:
            self._last_bad_chunks = BadChunks(*self._running.pipeline.bad_chunks())
        return self._last_bad_chunks

    def seen(self) -> bytes:
        """With `count_unique`, a sketch (HyperLogLog) of the positions in the batches taken so far, in which each board
        counts once: `unique_positions` estimates their number within 0.8 %, `joined_sketch` joins those of several
        processes. It does not depend on threads, and a resumed loader continues with it."""
        if self._running is not None and self._options.counts_unique:
            self._seen = self._running.pipeline.seen()
        return self._seen

    def close(self) -> None:
        """Stops the threads and frees the memory for batches; the files stay open. Iterating again starts the threads
        at the same place. Any thread may call it; one that waits for a batch then gets a UserError."""
        running = self._running
        if running is None:
            return
        with suppress(UserError):  # in a forked process there are no threads to stop
            self.filter_counts()
            self.bad_chunks()
            self.seen()
        self._running = None
        if self._user_filter is None:
            running.pipeline.close()
        else:
            close_in_time(running.pipeline.close, "a filter of data.filters")

    def restart(self, epoch: int | None = None) -> None:
        """Goes back to the beginning of `epoch`, by default the one that the loader was made for, so that its first
        batch comes next. Files stay open, and compressed ones stay unpacked."""
        if epoch is not None and epoch < 0:
            raise UserError(f"loader: epoch is {epoch}, expected at least 0")
        self.contents()
        self.close()
        self._places = self._beginning(self._first_epoch if epoch is None else epoch)
        self._read, self._seen = [], _NOTHING_SEEN

    def contents(self) -> Tensor:
        """Digests of the chunks that the batches taken so far are made of, int64 [chunks of all files]; 0 for other
        chunks. Every later pass is compared with them, and that of a loader which gets them by `restore_contents`: a
        chunk that differs is a UserError."""
        return self._contents_until(self._read)

    def _contents_until(self, read: list[_Read]) -> Tensor:
        if self._contents is None or self._contents[0] != read:
            kept = _data.keep_contents([file.native for file in self.opened], read)
            self._contents = read, torch.from_numpy(kept)
        return self._contents[1]

    def restore_contents(self, contents: Tensor) -> None:
        """Compares the files with the digests that another loader's `contents` returned, chunk by chunk as they are
        read. UserError if they are damaged, or those of other files."""
        files = self.opened
        _check_tensor(contents, "contents", torch.int64, (sum(file.native.num_chunks for file in files),))
        self.close()
        _data.restore_contents([file.native for file in files], contents.numpy())
        self._contents = None

    def order(self) -> dict[str, Any]:
        """All that the order of positions depends on, as plain JSON data. It does not change while the files are
        open."""
        if self._order is None:
            self._order = {
                "files": [list(file) for file in self.identities],
                "user_filter": identity(self._user_filter),
                "filters": self._filters,
            } | {key: getattr(self._options, key) for key in _ORDER_KEYS}
            formats = [file.format_identity for file in self.opened]
            if any(formats):  # by file; null for a built-in one
                self._order["formats"] = formats
        return dict(self._order)

    def place(self) -> Any:
        """The place after the last batch taken, for `state_at`; it costs nothing."""
        return self._places, self._read, self.seen()

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch taken: `state_at(place())`."""
        return self.state_at(self.place())

    def state_at(self, place: Any) -> dict[str, Any]:
        """The state at a place that is not older than that of the last call: plain JSON data about all that the order
        depends on, and tensors (`merge_states` joins those of several processes). `places`: int64 [shards of all
        processes, 4], epoch, chunk, positions of it that are used and batch of the window, -1 for the shards of other
        processes. `contents`: int64 [chunks], as `contents()`. With the filter piece_counts, `piece_counts`: its
        state, float64 [shards, numbers], -inf where it has none. With `count_unique`, `seen`: uint8 [16384]."""
        places, read, seen = place
        numbers = torch.full((self._options.shards, _PLACE_NUMBERS), -1, device="cpu")
        width = max(len(each[-1]) for each in places)
        counts = torch.full((self._options.shards, width), -math.inf, dtype=torch.float64, device="cpu")
        for shard, each in zip(self._shards, places, strict=True):
            numbers[shard] = torch.tensor(each[:_PLACE_NUMBERS], device="cpu")
            if each[-1]:
                counts[shard] = torch.tensor(each[-1], dtype=torch.float64, device="cpu")
        state = {"version": _STATE_VERSION, "order": self.order(), "places": numbers}
        state["contents"] = self._contents_until(read)
        if self._filters["piece_counts"]:
            state["piece_counts"] = counts
        if self._options.counts_unique:
            state["seen"] = torch.frombuffer(bytearray(seen), dtype=torch.uint8)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with the batch after the saved place. UserError if the state is damaged, or if files or options
        that decide the order have changed; files may have other names."""
        version = _part(state, "version")
        if version != _STATE_VERSION:
            raise UserError(
                f"loader state: version {str(version)[:80]}, expected {_STATE_VERSION}: another version of the trainer "
                "wrote it; resume it with that version, or start a new run (training.initial_weights keeps the net)"
            )
        order = _part(state, "order")
        known = {"formats": None} | (order if isinstance(order, dict) else {})
        for key, value in ({"formats": None} | self.order()).items():
            saved = _part(known, key)
            if key == "files":
                require_same(identities_from(saved, "loader state: files"), self.identities, "loader state: files")
                continue
            if key == "filters" and isinstance(saved, dict):  # filters and curves that came later were off
                saved = Filters.none().as_dict() | saved
            if saved != value:
                raise UserError(f"loader state: {key} was {saved!r}, now it is {value!r}")
        places = self._places_in(state)
        self.close()
        self.restore_contents(_part(state, "contents"))
        self._places = places
        self._read, self._seen = [], _seen_in(state)

    def _places_in(self, state: dict[str, Any]) -> list[_Place]:
        """The places of this process's shards in a state."""
        shards = self._options.shards
        numbers = _check_tensor(_part(state, "places"), "places", torch.int64, (shards, _PLACE_NUMBERS))
        counts: Any = None
        if self._filters["piece_counts"]:
            counts = _part(state, "piece_counts")
            _check_tensor(counts, "piece_counts", torch.float64, (shards, None))
        places: list[_Place] = []
        for shard in self._shards:
            epoch, chunk, skip, batch = numbers[shard].tolist()
            if epoch < 0:
                raise UserError(
                    f"loader state: the place of shard {shard} is missing: join the states of all processes with "
                    "merge_states"
                )
            if min(chunk, skip, batch) < 0:
                raise UserError(f"loader state: damaged: the place of shard {shard} is {[epoch, chunk, skip, batch]}")
            own = [] if counts is None else counts[shard].tolist()
            if set(own) <= {-math.inf}:
                own = []
                if counts is not None and chunk + skip + batch:
                    raise UserError(f"loader state: damaged: shard {shard} has no counts of the filter piece_counts")
            else:
                _data.check_piece_counts(own)
            places.append((epoch, chunk, skip, batch, own))
        return places


def _seen_in(state: dict[str, Any]) -> bytes:
    """The sketch in a state; an empty one where it has none, as positions were not counted."""
    if "seen" not in state:
        return _NOTHING_SEEN
    return bytes(_check_tensor(state["seen"], "seen", torch.uint8, (len(_NOTHING_SEEN),)).numpy())


def _check_tensor(value: Any, what: str, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
    """The tensor `value` on the CPU. UserError for anything but this dtype and shape; None stands for any size."""
    if not isinstance(value, Tensor):
        raise UserError(f"loader state: damaged: {what} is {str(value)[:80]!r}, expected a tensor")
    fits = len(value.shape) == len(shape) and all(
        wanted in (None, size) for size, wanted in zip(value.shape, shape, strict=False)
    )
    if value.dtype != dtype or not fits:
        sizes = ["any" if size is None else size for size in shape]
        raise UserError(
            f"loader state: damaged, or of other files: {what} is {value.dtype} {list(value.shape)}, expected {dtype} "
            f"[{', '.join(map(str, sizes))}]"
        )
    return value.cpu().contiguous()


def _made_again(
    _: PluginsFirst, cls: Callable[..., _Stream[T]], given: dict[str, Any], state: dict[str, Any] | None
) -> _Stream[T]:
    loader = cls(**given)
    if state is not None:
        loader.load_state_dict(
            {key: torch.from_numpy(each) if isinstance(each, np.ndarray) else each for key, each in state.items()}
        )
    return loader


_ORDER_KEYS = (
    "batch_size",
    "seed",
    "shuffle",
    "window",
    "drop_last",
    "weights",
    "skip_bad_chunks",
    "shards",
)


def _part(data: Any, key: str) -> Any:
    """An entry of a saved state, which may have come from a damaged file."""
    if not isinstance(data, dict) or key not in data:
        raise UserError(f"loader state: damaged: found {str(data)[:80]!r}, expected an entry {key!r}")
    return data[key]


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Joins the states that the processes of one run saved after the same batch into one that any number of processes
    can load. UserError if they are not of one run, or have read different contents."""
    merged = dict(states[0])
    for key, own in states[0].items():
        if isinstance(own, Tensor):
            if any(state[key].shape != own.shape for state in states):
                raise UserError("loader states of different runs cannot be joined")
            if key == "contents":
                merged[key] = own.clone()
                differs = any(_add_digests(merged[key], state[key]) for state in states[1:])
            else:
                merged[key] = torch.stack([state[key] for state in states]).amax(0)
                differs = any(_differs(key, state[key], merged[key]) for state in states)
            _check_merged(key, differs)
        elif any(state[key] != own for state in states):
            raise UserError("loader states of different runs cannot be joined")
    return merged


def merge_over(
    state: dict[str, Any],
    maximum: Callable[[Tensor], Tensor],
    at_first: Callable[[Tensor], Iterator[Tensor]],
    is_any: Callable[[bool], bool],
) -> dict[str, Any]:
    """`merge_states` for processes that exchange tensors: each calls it with its own state. Only the first process gets
    the digests of all; the other ones keep their own.

    maximum: gives the largest values of all processes, element by element, and may change its argument. at_first: gives
        the first process the tensors of the other ones, int64 [any length], and them nothing. is_any: whether a flag is
        set in any process.
    """
    merged = dict(state)
    for key, tensor in state.items():
        if key == "contents":
            differs = False
            for message in at_first(_digests_to_send(tensor)):  # the other processes need no copy of their own
                merged[key] = tensor.clone() if merged[key] is tensor else merged[key]
                differs |= _add_digests(merged[key], message)
            _check_merged(key, is_any(differs))
        elif isinstance(tensor, Tensor):
            merged[key] = maximum(tensor.clone())
            _check_merged(key, is_any(_differs(key, tensor, merged[key])))
    return merged


def _digests_to_send(contents: Tensor) -> Tensor:
    """The digests of a state, int64 [chunks], or what is shorter: the known ones, after as many indices."""
    values = contents.numpy()  # NumPy takes half of torch's time for millions of chunks
    known = np.flatnonzero(values != 0)  # of booleans: a third of the time
    return contents if 2 * len(known) >= len(values) else torch.from_numpy(np.concatenate((known, values[known])))


def _add_digests(contents: Tensor, message: Tensor) -> bool:
    """Adds the digests of another state, as they are or as `_digests_to_send` gave them. Whether a known one has
    another value."""
    own, sent = contents.numpy(), message.numpy()
    if len(sent) == len(own):
        differs = bool(((own != sent) & (own != 0) & (sent != 0)).any())
        np.copyto(own, sent, where=own == 0)
        return differs
    index, values = np.split(sent, 2)
    before = own[index]
    own[index] = values
    return bool(((before != values) & (before != 0)).any())


def _differs(key: str, own: Tensor, merged: Tensor) -> bool:
    """Whether a state has another value than the merged one where it has one."""
    if key == "seen":  # sketches are joined by their maximum
        return False
    unknown = {"places": -1, "piece_counts": -math.inf}[key]
    return bool(((own != merged) & (own != unknown)).any())


def _check_merged(key: str, differs: bool) -> None:
    if differs and key == "contents":
        raise UserError("loader states: the processes have read different contents of one file")
    if differs:
        raise UserError("loader states of different runs cannot be joined")


def unique_positions(sketch: bytes) -> float:
    """How many different positions a sketch (`Loader.seen`) holds, by Ertl's estimator (arXiv 1702.01284), which has no
    bias for small or middling numbers."""
    registers = np.frombuffer(sketch, np.uint8)
    bits = 64 - int(math.log2(len(registers)))  # of the hash, beside those that choose the register
    share = np.bincount(registers, minlength=bits + 2) / len(registers)
    x, y, total = 1 - float(share[bits + 1]), 1.0, 0.0
    tail = 1 - x
    while x < 1 and (x := math.sqrt(x)) < 1 - 1e-15:
        y /= 2
        tail -= (1 - x) ** 2 * y
    total = tail / 3 if share[bits + 1] else 0.0
    for rank in range(bits, 0, -1):
        total = (total + float(share[rank])) / 2
    x, y, head = float(share[0]), 1.0, float(share[0])
    if x == 1:
        return 0.0
    while x > 1e-300:
        x *= x
        head += x * y
        y += y
    return len(registers) / (2 * math.log(2)) / (total + head)


def joined_sketch(sketches: Sequence[bytes]) -> bytes:
    """The sketch (`Loader.seen`) of all that several have seen."""
    return functools.reduce(_data.join_sketches, sketches)


class Loader(_Stream[Batch]):
    """Iterates over `Batch`es of index rows, each in new memory.

    Its order is a function of files, seed, epoch, filters and sizes, and does not depend on threads or timing.

    Args:
        files: one or several data files in any format, mixed in proportion to their size. They are opened once, at the
            first use, and what is appended later is not read; compressed ones are unpacked then, into an unnamed file.
        features: a feature set, or the name of one (`nnue_trainer.data.feature_set`).
        batch_size: B, the positions of all `world_size` processes together; each gets an equal part of every batch.
        options: `LoaderOptions`.

    Raises:
        UserError: an option is out of range, or options do not fit each other. When the files are opened: a file is
            missing, has no known format or has changed. While iterating: a damaged chunk, with file and offset.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        features: str | FeatureSet,
        batch_size: int,
        **options: Unpack[LoaderOptions],
    ) -> None:
        self.feature_set = feature_set(features)
        self._features = self.feature_set.name
        super().__init__(files, batch_size, **options)
        self._given["features"] = self._features

    def _allocate(self) -> Batch:
        return Batch.allocate(self.local_batch_size, self.feature_set.max_active, pin_memory=self.pin_memory)

    def _memory(self, slot: Batch) -> npt.NDArray[np.uint8]:
        return memory_of(slot)

    def _head(self, slot: Batch, size: int) -> Batch:
        return slot.head(size)


class RecordLoader(_Stream[Tensor]):
    """Iterates over batches of packed positions, uint8 [B, 32]; options, memory, order and errors: see `Loader`."""

    def _allocate(self) -> Tensor:
        return torch.empty(self.local_batch_size, 32, dtype=torch.uint8, pin_memory=self.pin_memory, device="cpu")

    def _memory(self, slot: Tensor) -> npt.NDArray[np.uint8]:
        array: npt.NDArray[np.uint8] = slot.numpy()
        return array

    def _head(self, slot: Tensor, size: int) -> Tensor:
        return slot[:size]
