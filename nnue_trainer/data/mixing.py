"""How well a shuffle buffer mixes: positions of one game resemble each other, so they should not meet in a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.base.progress import counted, size
from nnue_trainer.data import fields
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.opened import OpenedFile
from nnue_trainer.errors import UserError

_SAMPLED = 16  # chunks
_MOST_MATES = 0.25
"""the expected share of positions with a game mate from which on a larger buffer is recommended"""
_FEW_MATES = 0.1
"""the share that the recommended buffer reaches"""


class Mixing(NamedTuple):
    """`chunks`: how many chunks one shuffle buffer holds. `mates`: the expected share of positions that have another
    position of their game in their batch. `enough`: the smallest buffer, a power of two, with few of them, or the one
    that holds all data; None: the buffer is large enough."""

    chunks: float
    mates: float
    enough: int | None

    def __str__(self) -> str:
        return (
            f"the shuffle buffer mixes {_chunks(self.chunks)} at a time; {self.mates:.1%} of the positions have "
            "another one of their game in their batch"
        )

    @property
    def warning(self) -> str:
        """A line that recommends a larger buffer; "" if it is large enough."""
        if self.enough is None:
            return ""
        return (
            f"data.shuffle_buffer is small: it mixes {_chunks(self.chunks)} at a time, and {self.mates:.0%} of the "
            "positions have another one of their game in their batch, from which a net learns less; "
            f"data.shuffle_buffer={self.enough} mixes well ({size(64 * self.enough)} of memory)"
        )


def _chunks(number: float) -> str:
    if number < 1:
        return "less than a chunk"
    return counted(round(number), "chunk")


def mixing_of(
    files: Sequence[OpenedFile], filters: Filters, batch_size: int, buffer: int, shards: int = 1
) -> Mixing | None:
    """The mixing of a loader over `files`, by a sample of their chunks; None without positions. Shards have a part of
    the buffer and of each batch each. Filters in Python do not count."""
    lengths, chunks = [np.zeros(0, np.int64)], 0
    options = filters.compiled()
    for file in files[:: -(-len(files) // _SAMPLED)]:
        count = min(max(_SAMPLED // len(files), 1), file.native.num_chunks)
        for i in range(count):
            with contextlib.suppress(UserError):  # of a damaged chunk, which the loader reports
                records = file.native.decode(file.native.num_chunks * i // count)
                kept = _data.filter_records(records, options, 0)[2]
                lengths.append(game_lengths(records, kept))
                chunks += 1
    games = np.concatenate(lengths)
    positions = int(games.sum())
    if not positions:
        return None
    per_chunk = positions / chunks
    total = per_chunk * sum(file.native.num_chunks for file in files)

    def mates(window: float) -> float:
        batch, window = batch_size / shards, min(max(window, batch_size), total) / shards
        apart = max(0.0, 1 - max(batch - 1, 0) / max(window - 1, 1))
        return float((games * (1 - apart ** (games - 1.0))).sum() / positions)

    enough = None
    if mates(buffer) > _MOST_MATES and buffer < total:
        enough = 1 << max(buffer, 1).bit_length()
        while mates(enough) > _FEW_MATES and enough < min(total, 2**31):
            enough *= 2
    return Mixing(min(max(buffer, batch_size), total) / per_chunk, mates(buffer), enough)


def game_lengths(records: Records, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """How many positions of each game in a chunk are kept; games of which none are, are left out."""
    if not len(records):
        return np.zeros(0, np.int64)
    found = np.bincount(np.cumsum(fields.game_begins(records)) - 1, weights=kept).astype(np.int64)
    return found[found > 0]
