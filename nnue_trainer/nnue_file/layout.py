"""What a net file looks like, as data: hashes that must be found, and tensors, raw or compressed, one after another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

OWN_VERSION = 0x4E545301
"""Of the container of this project; the file hash there is the CRC-32 of everything behind the description."""


@dataclass(frozen=True)
class Word:
    """A u32 that must have this value."""

    label: str
    value: int


@dataclass(frozen=True)
class Piece:
    """Elements of a tensor of the net, little-endian and row-major: all of it, or its part `index` where it is the
    stack of several parts. `shape` is that of the part."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    index: int | None = None

    @cached_property
    def label(self) -> str:
        return self.tensor if self.index is None else f"stack {self.index} {self.tensor}"

    @cached_property
    def count(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def size(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Block:
    """Pieces that lie together. `compressed`: all their elements are one LEB128 block; else each lies as it is."""

    pieces: tuple[Piece, ...]
    compressed: bool = False

    @cached_property
    def label(self) -> str:
        return " and ".join(piece.label for piece in self.pieces)

    @cached_property
    def count(self) -> int:
        return sum(piece.count for piece in self.pieces)

    @cached_property
    def size(self) -> int:
        """Bytes of an uncompressed block."""
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True)
class FileLayout:
    """A whole file: version, file hash, description, then `items`. `file_hash` None: the CRC-32 of the items' bytes."""

    name: str
    version: int
    file_hash: int | None
    items: tuple[Word | Block, ...]

    def pieces(self) -> Iterator[Piece]:
        for item in self.items:
            if isinstance(item, Block):
                yield from item.pieces


def own_layout(pieces: Sequence[Piece]) -> FileLayout:
    """The container of this project with these pieces, uncompressed."""
    return FileLayout("own", OWN_VERSION, None, tuple(Block((piece,)) for piece in pieces))
