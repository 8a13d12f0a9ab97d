"""The layout of a net file as data: hashes that must be found, and tensors, raw or compressed, one after another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

OWN_VERSION = 0x4E545301
"""The version of this project's container. Its file hash is the CRC-32 of everything after the description."""


@dataclass(frozen=True)
class Word:
    """A u32 that must have this value."""

    label: str
    value: int


@dataclass(frozen=True)
class Piece:
    """Elements of a tensor of the net, little-endian and row-major: the whole tensor, or its part `index` where it is a
    stack of parts. `shape` is the shape of the part."""

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
    """Pieces next to each other. `compressed`: all their elements are one LEB128 block; otherwise each piece is raw."""

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
