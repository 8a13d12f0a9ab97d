"""Signed LEB128 blocks, as Stockfish nets have used them since June 2023.

A block is 17 bytes `COMPRESSED_LEB128`, a u32 count of payload bytes, then every element in order: 7 bits per byte, low
bits first. Bit 7 is set in all bytes but the last, bit 6 of the last byte is the sign, and a value takes as few bytes
as possible. The loops over bytes are in data_loader/formats/leb128.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnue_trainer import _data

MAGIC = b"COMPRESSED_LEB128"
MAX_BYTES = 5
"""The most bytes of a number: numbers of this project have 32 bits at most."""


class LebError(ValueError):
    """An error in a payload; `offset` counts from its first byte, `element` from its first number."""

    def __init__(self, offset: int, element: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.element = element


def encode(values: np.ndarray) -> bytes:
    """The payload of integers of 8, 16 or 32 bits, of any shape, in row-major order."""
    return _data.leb128_encode(np.ascontiguousarray(values).reshape(-1))


def decode(payload: bytes | bytearray, ranges: Sequence[tuple[int, np.dtype[Any]]]) -> list[np.ndarray]:
    """The integers of each (count, dtype) in `ranges`, one after the other. LebError unless the payload holds exactly
    all of them, each fits its dtype, and each is written with as few bytes as hold it."""
    count = sum(n for n, _ in ranges)
    # Every number has one byte below 0x80, its last. Counted first, so that a wrong count costs no memory.
    held = int(np.count_nonzero(np.frombuffer(payload, np.int8) >= 0))
    if held < count:
        size = len(payload)
        raise LebError(size, count, f"payload of {size} bytes holds {held} numbers, expected {count}")
    arrays: list[np.ndarray] = []
    first = offset = 0
    for n, dtype in ranges:
        out = np.empty(n, dtype)
        offset, element, reason = _data.leb128_decode(payload, offset, out)
        if reason:
            raise LebError(offset, first + element, reason)
        arrays.append(out)
        first += n
    if offset != len(payload):
        raise LebError(offset, count, f"{count} numbers end after {offset} bytes, but the byte count is {len(payload)}")
    return arrays
