"""Writes a net file."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import numpy as np

from nnue_trainer.nnue_file import leb128
from nnue_trainer.nnue_file.layout import Block, FileLayout, Piece, Word


def to_bytes(layout: FileLayout, description: bytes, tensors: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a file with these tensors."""
    parts: list[bytes] = []
    for item in layout.items:
        parts += [struct.pack("<I", item.value)] if isinstance(item, Word) else _block(item, tensors)
    file_hash = layout.file_hash
    if file_hash is None:
        file_hash = 0
        for part in parts:
            file_hash = zlib.crc32(part, file_hash)
    header = struct.pack("<III", layout.version, file_hash, len(description))
    return b"".join([header, description, *parts])


def _block(block: Block, tensors: Mapping[str, np.ndarray]) -> list[bytes]:
    values = [_values(piece, tensors) for piece in block.pieces]
    if not block.compressed:
        return [part.tobytes() for part in values]
    payload = [leb128.encode(part) for part in values]
    return [leb128.MAGIC, struct.pack("<I", sum(map(len, payload))), *payload]


def _values(piece: Piece, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    tensor = tensors[piece.tensor]
    return tensor if piece.index is None else np.asarray(tensor[piece.index])
