"""The columns of a tensor that a rank owns, and how the parts of all ranks become one tensor again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# The kernels of a feature transformer like widths that are multiples of many, and need multiples of 16.
_UNITS = (64, 32, 16, 8, 4, 2, 1)
_NEEDED = 16


def cut(columns: int, size: int) -> tuple[int, ...]:
    """Where the columns of each of `size` ranks begin, and where the last ones end. All ranks wait for the one that has
    most columns, so the shares are as equal as multiples of 16 allow; if there are few columns, as equal as possible.
    ValueError if a rank would have none."""
    if columns < size:
        raise ValueError(f"{columns} columns are too few for {size} ranks")
    possible = [unit for unit in _UNITS if columns % unit == 0 and columns // unit >= size]
    wide = [unit for unit in possible if unit >= _NEEDED]
    unit = min(wide or possible, key=lambda unit: (math.ceil(columns // unit / size) * unit, -unit))
    return tuple(rank * (columns // unit) // size * unit for rank in range(size + 1))


@dataclass(frozen=True)
class Split:
    """Dimension `dim` holds `groups` vectors of `cuts[-1]` columns, one behind the other; a rank owns the same columns
    of each: those from cuts[rank] to cuts[rank + 1]."""

    dim: int
    groups: int
    cuts: tuple[int, ...]

    def is_of(self, tensor: Tensor) -> bool:
        """Whether a whole tensor can be split so. A state also has scalars under the name of a parameter."""
        return tensor.dim() > self.dim and tensor.shape[self.dim] == self.groups * self.cuts[-1]

    def is_part(self, tensor: Tensor, rank: int) -> bool:
        """Whether a tensor has the size of a rank's part."""
        return tensor.dim() > self.dim and tensor.shape[self.dim] == self.groups * self.width(rank)

    def width(self, rank: int) -> int:
        """Columns of a rank, in each group."""
        return self.cuts[rank + 1] - self.cuts[rank]

    @property
    def widest(self) -> int:
        return max(self.width(rank) for rank in range(len(self.cuts) - 1))

    def take(self, whole: Tensor, rank: int) -> Tensor:
        """The columns of a rank, in memory of their own."""
        apart = self._apart(whole)
        own = apart.narrow(self.dim + 1, self.cuts[rank], self.width(rank))
        return own.flatten(self.dim, self.dim + 1).clone(memory_format=torch.contiguous_format)

    def padded(self, part: Tensor, rank: int) -> Tensor:
        """The part of a rank, padded with zeros to the widest part, because ranks exchange tensors of one size."""
        if self.width(rank) == self.widest:
            return part
        apart = self._apart(part)
        shape = list(apart.shape)
        shape[self.dim + 1] = self.widest
        padded = apart.new_zeros(shape)
        padded.narrow(self.dim + 1, 0, self.width(rank)).copy_(apart)
        return padded.flatten(self.dim, self.dim + 1)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole tensor from the padded parts of all ranks."""
        apart = [self._apart(part) for part in parts]
        own = [part.narrow(self.dim + 1, 0, self.width(rank)) for rank, part in enumerate(apart)]
        return torch.cat(own, dim=self.dim + 1).flatten(self.dim, self.dim + 1)

    def _apart(self, tensor: Tensor) -> Tensor:
        """With a dimension for the groups."""
        shape = tensor.shape
        return tensor.reshape(*shape[: self.dim], self.groups, -1, *shape[self.dim + 1 :])
