"""Huffman-coded arrays, as in a proposal for Stockfish's nets. The loops are in data_loader/formats/huffman.cpp.

An array is cut into blocks. A block is 18 bytes `COMPRESSED_HUFFMAN`, i32 lo, i32 hi, u32 payload bytes, the code
length of each value from lo to hi (u8, 0 where it does not occur), and the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from nnue_trainer import _data

MAGIC = b"COMPRESSED_HUFFMAN"
_HEAD = len(MAGIC) + 12
_MAX_CODE_BITS = 16


class HuffmanError(ValueError):
    """An error in an array; `offset` counts from its first byte."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


def encode(values: np.ndarray) -> bytes:
    """The bytes of an array of integers of 8, 16 or 32 bits. ValueError for values that the format has no codes for."""
    coded = _data.huffman_encode(np.ascontiguousarray(values).reshape(-1))
    if not coded and values.size:
        raise ValueError("values differ by 2^24 or more, or there are more than 65,536 different ones")
    return coded


def size(take: Callable[[int, int], bytearray], count: int) -> int:
    """How many bytes an array of `count` elements takes: `take(offset, size)` reads of it. HuffmanError at the first
    head of a block that cannot be. Reads no codes."""
    at = 0
    for elements in _data.huffman_blocks(count):
        head = bytes(take(at, _HEAD))
        if head[: len(MAGIC)] != MAGIC:
            raise HuffmanError(at, f"found {head[: len(MAGIC)]!r}, expected {MAGIC!r}")
        low, high, payload = struct.unpack_from("<iiI", head, len(MAGIC))
        if not low <= high < low + 2**24:
            raise HuffmanError(at + len(MAGIC), f"values from {low} to {high}, expected a range of 1 to {2**24}")
        least, most = -(-elements // 8), -(-elements * _MAX_CODE_BITS // 8)
        if not least <= payload <= most:
            where = at + len(MAGIC) + 8
            raise HuffmanError(where, f"payload of {payload} bytes, expected {least} to {most} for {elements} numbers")
        at += _HEAD + high - low + 1 + payload
    return at


def decode(coded: bytes | bytearray, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """The integers of an array that takes exactly these bytes. HuffmanError for anything else."""
    out = np.empty(count, dtype)
    offset, _, reason = _data.huffman_decode(coded, out)
    if reason:
        raise HuffmanError(offset, reason)
    return out
