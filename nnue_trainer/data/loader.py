"""Batches from data files: decoded, shuffled and expanded by C++ threads into memory that is allocated once.

The order of positions is a function of (seed, epoch, files, filters, shuffle_buffer, batch_size, shards) alone: not of
threads, processes or timing. A place in it is a few numbers, so `state_dict` is small and resuming replays at most one
buffer.
"""

from __future__ import annotations

import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nnue_trainer import _data
from nnue_trainer.data.batch import Batch
from nnue_trainer.data.compression import unpack
from nnue_trainer.data.features import FeatureSet, feature_set
from nnue_trainer.data.files import compression
from nnue_trainer.data.filters import Filters, UserFilter
from nnue_trainer.errors import UserError

T = TypeVar("T", Batch, Tensor)
_STATE_VERSION = 2
_UNSHUFFLED_WINDOW = 8  # batches
_TOLD = 1 << 28  # bytes of a compressed file: unpacking a larger one takes so long that it is said
_log = logging.getLogger(__name__)

_Place = tuple[int, int, int, int]
_PLACE_KEYS = ("epoch", "chunk", "skip", "batch")


class _Stream(ABC, Generic[T]):
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
        drop_last: bool = True,
        weights: Sequence[float] | None = None,
        skip_bad_chunks: bool = False,
        filters: Filters | None = None,
        user_filter: UserFilter | None = None,
        pin_memory: bool = False,
        hold: int = 2,
        rank: int = 0,
        world_size: int = 1,
        shards: int = 1,
        temporary: str | os.PathLike[str] | None = None,
    ) -> None:
        paths = [files] if isinstance(files, str | os.PathLike) else list(files)
        self._files = [str(Path(path)) for path in paths]
        if not self._files:
            raise UserError("loader: no data files")
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("shuffle_buffer", shuffle_buffer, 1),
            ("hold", hold, 1),
            ("seed", seed, 0),
            ("epoch", epoch, 0),
            ("threads", threads, 0),
            ("shards", shards, 1),
        ):
            if value < least:
                raise UserError(f"loader: {name} is {value}, expected at least {least}")
        if weights is not None and (len(weights) != len(self._files) or not shuffle):
            raise UserError(
                f"loader: {len(weights)} weights for {len(self._files)} files, expected one for each, and shuffling"
            )
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
        if shards > 1 and not (repeat and shuffle and drop_last):
            raise UserError("loader: shards are for endless streams: they need repeat, shuffle and drop_last")
        self.batch_size = batch_size
        self.local_batch_size = batch_size // world_size
        self.repeat = repeat
        self.pin_memory = pin_memory
        self.hold = hold
        self._threads = threads or os.cpu_count() or 1
        self._options: dict[str, Any] = {
            "features": self._features_name(),
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "window": shuffle_buffer if shuffle else _UNSHUFFLED_WINDOW * batch_size,
            "drop_last": drop_last,
            "weights": list(weights or []),
            "skip_bad_chunks": skip_bad_chunks,
            "filters": filters.as_dict() if filters else None,
            "user_filter": user_filter,
            "threads": self._threads,
            "rank": rank,
            "world_size": world_size,
            "shards": shards,
        }
        local = max(1, shards // world_size)
        self._shards = range(rank * local, (rank + 1) * local) if shards > 1 else range(1)  # of this process
        self._places: list[_Place] = [(epoch, 0, 0, 0)] * len(self._shards)
        self._temporary = Path(temporary) if temporary is not None else None
        self._unpacked: dict[str, BinaryIO | None] = {}
        self._pipeline: _data.Pipeline | None = None
        self._slots: list[T] = []
        self._held: deque[int] = deque()

    @abstractmethod
    def _features_name(self) -> str | None: ...

    @abstractmethod
    def _allocate(self) -> T: ...

    @abstractmethod
    def _arrays(self, slot: T) -> Any: ...

    @abstractmethod
    def _head(self, slot: T, size: int) -> T: ...

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to; with shards, that of the first of this process."""
        return self._places[0][0]

    def open(self) -> None:
        """Starts the threads, as iterating does. UserError for a file that is missing or not data."""
        self._open()

    def _open(self) -> _data.Pipeline:
        if self._pipeline is None:
            if not self._slots:
                self._slots = [self._allocate() for _ in range(self._threads + self.hold + 1)]
            options = self._options | {"files": [(path, self._descriptor(path)) for path in self._files]}
            self._pipeline = _data.Pipeline(options, [self._arrays(slot) for slot in self._slots], self._places)
        return self._pipeline

    def _descriptor(self, path: str) -> int:
        """Of an unnamed file with the decompressed bytes of a compressed one; −1 for others."""
        if path not in self._unpacked:
            kind = compression(path)
            if kind and Path(path).stat().st_size > _TOLD:
                _log.warning("%s: %s-compressed: unpacking it before the first batch", path, kind)
            self._unpacked[path] = unpack(Path(path), kind, self._temporary) if kind else None
        file = self._unpacked[path]
        return -1 if file is None else file.fileno()

    def __iter__(self) -> Iterator[T]:
        """Batches up to the end of the current epoch, or without end if `repeat`. A batch's memory is used again once
        `hold` more batches have been taken. Raises UserError naming file and offset for corrupt data."""
        pipeline = self._open()
        while True:
            # Before the next batch, not after the last: whoever took that one may never have come back for more.
            while len(self._held) > self.hold - 1:
                pipeline.release(self._held.popleft())
            slot, size, self._places = pipeline.next()
            if slot < 0:
                if self.repeat:
                    continue
                return
            self._held.append(slot)
            batch = self._slots[slot]
            yield batch if size == self.local_batch_size else self._head(batch, size)

    def filter_counts(self) -> dict[str, Any]:
        """{"read", "kept", "dropped": {filter: positions}} since the threads were started, read-ahead included."""
        return self._open().filter_counts()

    def bad_chunks(self) -> tuple[int, str]:
        """How many chunks `skip_bad_chunks` left out since the threads were started, and what was wrong first."""
        return self._open().bad_chunks()

    def close(self) -> None:
        """Stops the threads. Iterating again starts them at the same place."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
            self._held.clear()

    @cached_property
    def _identities(self) -> list[list[str | int]]:
        """[name, bytes, digest of samples] of each file. Asked once: `state_dict` is called every step."""
        try:
            return [_identity(Path(path)) for path in self._files]
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}") from None

    def _fingerprint(self) -> dict[str, Any]:
        chosen = self._options["user_filter"]
        name = chosen and f"{chosen.__module__}.{getattr(chosen, '__qualname__', type(chosen).__qualname__)}"
        own = {"files": self._identities, "user_filter": name}
        return own | {key: self._options[key] for key in _ORDER_KEYS}

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch taken, of each shard of this process (`merge_states` joins those of several),
        and what the order depends on; plain JSON data."""
        places = {
            str(shard): dict(zip(_PLACE_KEYS, place, strict=True))
            for shard, place in zip(self._shards, self._places, strict=True)
        }
        return {"version": _STATE_VERSION, "places": places, "order": self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with the very next batch. UserError if files or options that decide the order have changed."""
        if state.get("version") != _STATE_VERSION:
            raise UserError(f"loader state: version {state.get('version')!r}, expected {_STATE_VERSION}")
        own = self._fingerprint()
        for key, value in own.items():
            if state["order"].get(key) != value:
                raise UserError(f"loader state: {key} was {state['order'].get(key)!r}, now it is {value!r}")
        missing = [shard for shard in self._shards if str(shard) not in state["places"]]
        if missing:
            raise UserError(
                f"loader state: without the place of shard {missing[0]}: join the states of all processes with "
                "merge_states"
            )
        self.close()
        places = [state["places"][str(shard)] for shard in self._shards]
        self._places = [(place["epoch"], place["chunk"], place["skip"], place["batch"]) for place in places]


_ORDER_KEYS = (
    "batch_size",
    "seed",
    "shuffle",
    "window",
    "drop_last",
    "weights",
    "skip_bad_chunks",
    "filters",
    "shards",
)


def _identity(path: Path) -> list[str | int]:
    """[name, bytes, digest of sixteen pieces of 4 KiB]: two shuffles of one file have equal names and sizes."""
    with path.open("rb") as file:
        size = path.stat().st_size
        digest = hashlib.blake2b(digest_size=8)
        for i in range(16):
            file.seek(max(size - 4096, 0) * i // 15)
            digest.update(file.read(4096))
    return [path.name, size, digest.hexdigest()]


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The states that the processes of one run have taken behind the same batch, as one that any number of processes
    can load. UserError if they are not of one run."""
    first = states[0]
    places: dict[str, Any] = {}
    for state in states:
        if (state["version"], state["order"]) != (first["version"], first["order"]):
            raise UserError("loader states of different runs cannot be joined")
        places |= state["places"]
    return first | {"places": places}


class Loader(_Stream[Batch]):
    """Iterates over `Batch`es of index rows.

    `files`: one or several data files in any format, mixed in proportion to their size; compressed ones are unpacked
    first, into an unnamed file in the folder `temporary` (None: the system's for temporary files). `batch_size` counts
    the positions of all `world_size` processes together; each gets an equal part of every batch. `shuffle_buffer`:
    positions that are mixed at a time (memory: 64 bytes each, for two buffers); chunks of about 1 MiB are drawn in
    random order before that.
    `weights`: how often the chunks of each file come in an epoch (2.5: twice, and a random half of them once more).
    `skip_bad_chunks`: leave out and count chunks with anything wrong in them, instead of an error. A file that ends
    inside its last chunk is an error all the same.
    `shuffle=False`: file order. `drop_last`: leave out an epoch's last batch if it is not full. `threads` 0: one a CPU.
    `filters`: which positions are left out. `user_filter`: a function of records uint8 [n, 32] to bool [n], true where
    they are kept, called after the other filters for a chunk at a time (it must depend on the records alone).
    `shards`: 1, every process decodes everything; more, a multiple of the processes: every batch has an equal part from
    each shard, a process decodes its own shards only, and the order is the same for every number of processes. Shards
    come to their epochs' ends at different times, so they are for endless streams (`repeat`).
    `pin_memory`: page-locked batches, for copies to a CUDA device. `hold`: how many batches stay valid at a time, the
    newest included. `repeat`: epoch after epoch, without end.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        features: str | FeatureSet,
        batch_size: int,
        **options: Any,
    ) -> None:
        self.feature_set = feature_set(features)
        super().__init__(files, batch_size, **options)

    def _features_name(self) -> str | None:
        return self.feature_set.name

    def _allocate(self) -> Batch:
        return Batch.allocate(self.local_batch_size, self.feature_set.max_active, pin_memory=self.pin_memory)

    def _arrays(self, slot: Batch) -> dict[str, npt.NDArray[np.generic]]:
        return slot.arrays()

    def _head(self, slot: Batch, size: int) -> Batch:
        return slot.head(size)


class RecordLoader(_Stream[Tensor]):
    """Iterates over batches of packed positions, uint8 [B, 32]; options and order are those of `Loader`."""

    def _features_name(self) -> str | None:
        return None

    def _allocate(self) -> Tensor:
        return torch.empty(self.local_batch_size, 32, dtype=torch.uint8, pin_memory=self.pin_memory)

    def _arrays(self, slot: Tensor) -> npt.NDArray[np.generic]:
        array: npt.NDArray[np.generic] = slot.numpy()
        return array

    def _head(self, slot: Tensor, size: int) -> Tensor:
        return slot[:size]
