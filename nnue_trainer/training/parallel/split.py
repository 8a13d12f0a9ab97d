"""Splits a tensor into the columns that each rank owns, and joins the parts of all ranks again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

# The fused kernels of the feature transformer need a multiple of 16 columns; a larger power of two suits them better.
_UNITS = (64, 32, 16, 8, 4, 2, 1)
_NEEDED = 16
_NEEDED_ON_CPU = 2


def cut(columns: int, size: int) -> tuple[int, ...]:
    """Divides `columns` among `size` ranks. Returns size + 1 numbers: rank r owns the columns from the r-th to the
    next. All ranks wait for the one that has the most columns, so the shares are as equal as multiples of 16 allow, or
    multiples of 2, or as equal as possible if there are too few columns for that. ValueError if a rank would have
    none."""
    if columns < size:
        raise ValueError(f"found {columns} columns, expected at least one for each of {size} processes")
    possible = [unit for unit in _UNITS if columns % unit == 0 and columns // unit >= size]
    wide = [unit for unit in possible if unit >= _NEEDED]
    even = [unit for unit in possible if unit >= _NEEDED_ON_CPU]
    unit = min(wide or even or possible, key=lambda unit: (math.ceil(columns // unit / size) * unit, -unit))
    return tuple(rank * (columns // unit) // size * unit for rank in range(size + 1))


@dataclass(frozen=True)
class Split:
    """How a tensor is split. Dimension `dim` consists of `groups` vectors of `cuts[-1]` columns, one after the other. A
    rank owns the same columns of each group: those from cuts[rank] to cuts[rank + 1]."""

    dim: int
    groups: int
    cuts: tuple[int, ...]

    def is_of(self, tensor: Tensor, rank: int | None = None) -> bool:
        """Whether `tensor` has the shape of a whole tensor, or of this rank's part. The optimiser's state also has
        scalars under the name of a parameter, which are not split."""
        columns = self.cuts[-1] if rank is None else self.width(rank)
        return tensor.dim() > self.dim and tensor.shape[self.dim] == self.groups * columns

    def width(self, rank: int) -> int:
        """The number of columns that a rank owns in each group."""
        return self.cuts[rank + 1] - self.cuts[rank]

    @property
    def widest(self) -> int:
        return max(self.width(rank) for rank in range(len(self.cuts) - 1))

    def take(self, whole: Tensor, rank: int) -> Tensor:
        """A copy of the rank's columns, contiguous."""
        apart = self._apart(whole)
        own = apart.narrow(self.dim + 1, self.cuts[rank], self.width(rank))
        return own.flatten(self.dim, self.dim + 1).clone(memory_format=torch.contiguous_format)

    def padded(self, part: Tensor, rank: int) -> Tensor:
        """The rank's part, padded with zeros to the width of the widest part, because an exchange needs tensors of one
        size."""
        if self.width(rank) == self.widest:
            return part
        apart = self._apart(part)
        behind = [0, 0] * (apart.dim() - self.dim - 2)
        padded = F.pad(apart, [*behind, 0, self.widest - self.width(rank)])
        return padded.flatten(self.dim, self.dim + 1)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole tensor from the padded parts of all ranks."""
        apart = [self._apart(part) for part in parts]
        own = [part.narrow(self.dim + 1, 0, self.width(rank)) for rank, part in enumerate(apart)]
        return torch.cat(own, dim=self.dim + 1).flatten(self.dim, self.dim + 1)

    def _apart(self, tensor: Tensor) -> Tensor:
        """The tensor with a separate dimension for the groups: [..., groups, columns, ...]."""
        shape = tensor.shape
        return tensor.reshape(*shape[: self.dim], self.groups, -1, *shape[self.dim + 1 :])


def padded(rows: Tensor, size: int) -> Tensor:
    """`rows` with rows of zeros behind them, `size` in all: an exchange needs tensors of one size."""
    return rows if len(rows) == size else F.pad(rows, [0, 0] * (rows.dim() - 1) + [0, size - len(rows)])
