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


def cut(columns: int, size: int) -> tuple[int, ...]:
    """Divides `columns` among `size` ranks. Returns size + 1 numbers: rank r owns the columns from the r-th to the
    next. All ranks wait for the one that has the most columns, so the shares are as equal as multiples of 16 allow, or
    as equal as possible if there are too few columns for that. ValueError if a rank would have none."""
    if columns < size:
        raise ValueError(f"found {columns} columns, expected at least one for each of {size} processes")
    possible = [unit for unit in _UNITS if columns % unit == 0 and columns // unit >= size]
    wide = [unit for unit in possible if unit >= _NEEDED]
    unit = min(wide or possible, key=lambda unit: (math.ceil(columns // unit / size) * unit, -unit))
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

    def columns(self, rank: int) -> Tensor:
        """The columns that a rank owns, numbers of all groups together: int64 [groups · width]."""
        of_group = torch.arange(self.cuts[rank], self.cuts[rank + 1])
        return torch.cat([of_group + group * self.cuts[-1] for group in range(self.groups)])

    def take(self, whole: Tensor, rank: int) -> Tensor:
        """A copy of the rank's columns, contiguous."""
        return whole.index_select(self.dim, self.columns(rank).to(whole.device))

    def padded(self, part: Tensor) -> Tensor:
        """A rank's part, padded with zeros to the size of the largest part."""
        widest = max(self.width(rank) for rank in range(len(self.cuts) - 1))
        return padded(part, self.groups * widest, self.dim)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole tensor from the padded parts of all ranks."""
        shape = list(parts[0].shape)
        shape[self.dim] = self.groups * self.cuts[-1]
        whole = parts[0].new_empty(shape)
        for rank, part in enumerate(parts):
            own = part.narrow(self.dim, 0, self.groups * self.width(rank))
            whole.index_copy_(self.dim, self.columns(rank).to(part.device), own)
        return whole


def padded(tensor: Tensor, size: int, dim: int = 0) -> Tensor:
    """The tensor with zeros behind it, `size` in all along a dimension: an exchange needs tensors of one size."""
    missing = size - tensor.shape[dim]
    return F.pad(tensor, [0, 0] * (tensor.dim() - dim - 1) + [0, missing]) if missing else tensor
