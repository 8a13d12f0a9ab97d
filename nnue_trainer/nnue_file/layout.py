"""The layout of a net file as data: the required words, and tensors, raw or compressed, in order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

OWN_VERSION = 0x4E545301
"""The version of this project's container. Its file hash is the CRC-32 of everything after the description."""


Coding = Literal["raw", "leb128", "huffman"]
Compression = Literal["raw", "leb128", "huffman", "zlib"]


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
    """Pieces next to each other: each of them raw, all their elements as one LEB128 block, or one piece as a
    Huffman-coded array."""

    pieces: tuple[Piece, ...]
    coding: Coding = "raw"

    @cached_property
    def label(self) -> str:
        return " and ".join(piece.label for piece in self.pieces)

    @cached_property
    def count(self) -> int:
        return sum(piece.count for piece in self.pieces)

    @cached_property
    def size(self) -> int:
        """Bytes of a raw block."""
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True)
class FileLayout:
    """A whole file: version, file hash, description, then `items`. `file_hash` None: the CRC-32 of the items' bytes.
    `zlib`: the items are one zlib stream (`envelope`)."""

    name: str
    version: int
    file_hash: int | None
    items: tuple[Word | Block, ...]
    zlib: bool = False

    @cached_property
    def compression(self) -> Compression:
        """Its name in `nnue export --compression`."""
        codings = {item.coding for item in self.items if isinstance(item, Block)} - {"raw"}
        return "zlib" if self.zlib else next(iter(codings), "raw")

    def in_zlib(self) -> FileLayout:
        """This layout with its items in a zlib stream."""
        return replace(self, name=f"{self.name} zlib", zlib=True)

    def pieces(self) -> Iterator[Piece]:
        for item in self.items:
            if isinstance(item, Block):
                yield from item.pieces


def own_layout(pieces: Sequence[Piece]) -> FileLayout:
    """The container of this project with these pieces, uncompressed."""
    return FileLayout("own", OWN_VERSION, None, tuple(Block((piece,)) for piece in pieces))
