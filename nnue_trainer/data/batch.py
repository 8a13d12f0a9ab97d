"""The batch: the data that the pipeline passes to the net and to the loss."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nnue_trainer import _data


@functools.lru_cache(maxsize=256)
def _layout(batch_size: int, max_active: int) -> tuple[dict[str, tuple[int, torch.dtype, tuple[int, ...]]], int]:
    """Byte offset, dtype and shape of each field in one allocation, and its size in bytes. The table of the fields is
    in data_loader/features/batch_layout.h."""
    fields, size = _data.batch_layout(batch_size, max_active)
    return {name: (offset, getattr(torch, dtype), shape) for name, dtype, offset, shape in fields}, size


class Plan(NamedTuple):
    """A part of the work on a batch that a model has done ahead: a plan of `Batch.plans`."""

    key: Hashable
    """its kind, and everything except the index rows that it was made for"""
    data: Tensor
    white: Tensor
    """white's index rows"""


def plan_of(white: Tensor, plans: Sequence[Any], key: Hashable) -> Any:
    """The plan with this key that was made from these very index rows of a batch; None if there is none."""
    for plan in plans:
        if plan.white is white and plan.key == key:
            return plan
    return None


@dataclass(frozen=True)
class Batch:
    """B positions with the index rows of both perspectives.

    `white` and `black` are int32 [B, max_active]: the active features of each perspective, left-packed, the first −1
    ends a row. The other fields are [B]: `counts` int16 (entries of either row: both have as many), `black_to_move`
    uint8 (0 white to move, 1 black), `score` int16 (engine units, side to move's view), `result` int8 (−1 loss, 0 draw,
    1 win, side to move's view), `piece_count` uint8 (2…32), `material` uint8 (4 · min(3, queens of the side to move) +
    min(3, queens of the other side)). `spare` uint8 [B, bytes] are the bytes that the data format leaves to the author
    of a file; None unless a weight or loss of the recipe uses them, or `Expander(spare=…)` was given their number.

    `records` uint8 [B, 32] are the packed positions themselves, where they were requested (None elsewhere): `field`
    reads what the other fields do not have.

    `storage`, where there is one, is the uint8 allocation that all fields are views of; `to` and `clone` then make a
    single copy. Where batches take turns in a few buffers, `buffer` is the number of the one that holds this batch.
    `plans` are what a model has prepared from these very tensors (`NnueModel.prepare`): each is a `Plan`, or has its
    fields. `is_legal`: the index rows are those of a set of this project, of sound records, so nothing checks them
    again. Copies and parts of a batch have none of the three.
    """

    white: Tensor
    black: Tensor
    counts: Tensor
    black_to_move: Tensor
    score: Tensor
    result: Tensor
    piece_count: Tensor
    material: Tensor
    spare: Tensor | None = None
    storage: Tensor | None = field(default=None, repr=False, compare=False)
    buffer: int | None = field(default=None, repr=False, compare=False)
    plans: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    records: Tensor | None = field(default=None, repr=False)
    is_legal: bool = field(default=False, repr=False, compare=False)

    @classmethod
    def allocate(
        cls,
        batch_size: int,
        max_active: int,
        *,
        pin_memory: bool = False,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """An uninitialised batch in one allocation, page-locked if requested, or on `device`: `batch_size` is B, and
        `max_active` the length of the index rows."""
        _, size = _layout(batch_size, max_active)
        storage = torch.empty(size, dtype=torch.uint8, pin_memory=pin_memory, device=device)
        return cls._view(storage, batch_size, max_active)

    @classmethod
    def _view(cls, storage: Tensor, batch_size: int, max_active: int) -> Batch:
        fields, _ = _layout(batch_size, max_active)
        views = {
            name: storage.narrow(0, offset, math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
            for name, (offset, dtype, shape) in fields.items()
        }
        return cls._of(views, storage)

    @classmethod
    def _of(cls, fields: dict[str, Any], storage: Tensor | None = None) -> Batch:
        return cls(**fields, storage=storage)

    def __len__(self) -> int:
        return self.white.shape[0]

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """white, black and black_to_move, which feature transformers read."""
        return self.white, self.black, self.black_to_move

    @property
    def bucket(self) -> Tensor:
        """int64 [B]: the output bucket of a position (layer stack, PSQT column), one of eight, which follows from its
        number of pieces as in Stockfish: (piece_count − 1) // 4."""
        return (self.piece_count.long() - 1) >> 2

    @property
    def stack_entry(self) -> Tensor:
        """int64 [B]: piece_count · 16 + material, the entry of a position in a table of stacks
        (`nnue_trainer.nets.integer_forward.stack_table`)."""
        return self.piece_count.long() * 16 + self.material

    def field(self, name: str) -> Tensor:
        """int32 [B]: a field of the records, such as ply (plies played before the position), rule50, score, result or
        move (`nnue_trainer.data.fields`). ValueError for a batch without records."""
        if self.records is None:
            raise ValueError(f"Batch.field({name!r}): the batch was made without records; set reads_records = True")
        byte, shift, bits, is_zigzag = _data.record_fields()[name]
        word = self.records[:, byte].int() << 8 | self.records[:, byte + 1].int()
        value = word >> shift & ((1 << bits) - 1)
        return (value >> 1) ^ -(value & 1) if is_zigzag else value

    def fields(self) -> dict[str, Tensor]:
        """The tensors by name; `records` and `spare` only where there are some."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor) and name != "storage"}

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """NumPy views of the fields (CPU only)."""
        return {name: value.numpy() for name, value in self.fields().items()}

    def head(self, size: int) -> Batch:
        """Views of the first `size` positions."""
        return self.part(0, size)

    def part(self, begin: int, end: int) -> Batch:
        """Views of the positions `begin` to `end`."""
        return Batch._of({name: value[begin:end] for name, value in self.fields().items()})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The batch on `device`, or this batch itself if it is there already. A batch in one allocation takes a single
        copy. `non_blocking`: the copy from page-locked memory (`Loader(…, pin_memory=True)`) to a CUDA device is queued
        on the current stream, and the memory on the host must not change until the copy is done."""
        if (whole := self.allocation()) is not None:
            storage = whole.to(device, non_blocking=non_blocking)
            return self if storage is whole else Batch._view(storage, len(self), self.white.shape[1])
        return Batch._of({name: value.to(device, non_blocking=non_blocking) for name, value in self.fields().items()})

    def allocation(self) -> Tensor | None:
        """The allocation of all fields; None if there is none, or if a field was replaced by another tensor."""
        if self.storage is None:
            return None
        place = self.storage.untyped_storage().data_ptr()
        inside = all(value.untyped_storage().data_ptr() == place for value in self.fields().values())
        return self.storage if inside else None

    def allocations(self) -> list[Tensor]:
        """The tensors that own the memory of the fields: the single allocation, or the fields if each has its own."""
        whole = self.allocation()
        return list(self.fields().values()) if whole is None else [whole]

    def memory(self) -> list[Tensor]:
        """All memory that a step reads: fields and plans."""
        return [*self.allocations(), *(plan.data for plan in self.plans)]

    def clone(self) -> Batch:
        """A copy in new memory on the same device; not page-locked."""
        if (whole := self.allocation()) is not None:
            return Batch._view(whole.clone(), len(self), self.white.shape[1])
        return Batch._of({name: value.clone() for name, value in self.fields().items()})


def memory_of(batch: Batch) -> npt.NDArray[np.uint8]:
    """The allocation of a batch on the CPU, in the layout of data_loader/features/batch_layout.h: C++ fills it."""
    assert batch.storage is not None
    array: npt.NDArray[np.uint8] = batch.storage.numpy()
    return array
