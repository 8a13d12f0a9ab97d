"""Writes a net file."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import numpy as np

from nnue_trainer.errors import UserError
from nnue_trainer.nnue_file import envelope, huffman, leb128
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
    return b"".join([header, description, *(envelope.wrap(parts) if layout.zlib else parts)])


def _block(block: Block, tensors: Mapping[str, np.ndarray]) -> list[bytes]:
    values = [_values(piece, tensors) for piece in block.pieces]
    if block.coding == "raw":
        return [part.tobytes() for part in values]
    if block.coding == "huffman":
        return [_huffman(piece, part) for piece, part in zip(block.pieces, values, strict=True)]
    payload = [leb128.encode(part) for part in values]
    return [leb128.MAGIC, struct.pack("<I", sum(map(len, payload))), *payload]


def _huffman(piece: Piece, values: np.ndarray) -> bytes:
    try:
        return huffman.encode(values)
    except ValueError as error:
        raise UserError(f"{piece.label}: cannot be Huffman-coded: {error}") from None


def _values(piece: Piece, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    tensor = tensors[piece.tensor]
    return tensor if piece.index is None else np.asarray(tensor[piece.index])
