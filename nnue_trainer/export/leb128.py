"""Signed LEB128 blocks, as Stockfish nets have used them since June 2023.

A block is 17 bytes `COMPRESSED_LEB128`, a u32 count of payload bytes, then every element in order: 7 bits a byte, low
bits first, bit 7 set on all bytes but the last, bit 6 of the last byte the sign, as few bytes as hold the value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MAGIC = b"COMPRESSED_LEB128"
# Elements at a time: keeps the 64-bit scratch arrays in the cache's reach instead of at gigabytes.
_CHUNK = 1 << 18


class LebError(ValueError):
    """What is wrong with a payload; `offset` counts from its first byte."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


def encode(values: np.ndarray) -> bytes:
    """The payload of integers of any shape, in row-major order."""
    flat = values.reshape(-1)
    parts = []
    for begin in range(0, flat.size, _CHUNK):
        chunk = flat[begin : begin + _CHUNK].astype(np.int64)
        # n bytes hold −2^(7n−1) … 2^(7n−1) − 1.
        magnitude = np.where(chunk < 0, ~chunk, chunk)
        length = np.ones(chunk.size, np.int64)
        for n in range(1, 5):
            length += magnitude >> (7 * n - 1) > 0
        start = np.cumsum(length) - length
        out = np.empty(int(start[-1] + length[-1]), np.uint8)
        longer = np.arange(chunk.size)
        for k in range(int(length.max())):
            more = length[longer] > k + 1
            out[start[longer] + k] = (chunk[longer] >> 7 * k & 0x7F) | more * 0x80
            longer = longer[more]
        parts.append(out.tobytes())
    return b"".join(parts)


def decode(payload: bytes | memoryview, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """`count` integers of `dtype`. LebError unless the payload holds exactly so many and each fits."""
    data = np.frombuffer(payload, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if ends.size < count:
        raise LebError(data.size, f"payload of {data.size} bytes holds {ends.size} numbers, expected {count}")
    used = int(ends[count - 1]) + 1 if count else 0
    if used != data.size:
        raise LebError(used, f"{count} numbers end after {used} bytes, but the byte count says {data.size}")
    limits = np.iinfo(dtype)
    out = np.empty(count, dtype)
    begin_byte = 0
    for begin in range(0, count, _CHUNK):
        last = ends[begin : begin + _CHUNK]
        first = np.empty_like(last)
        first[0] = begin_byte
        first[1:] = last[:-1] + 1
        begin_byte = int(last[-1]) + 1
        length = last - first + 1
        if int(length.max()) > 5:
            raise LebError(int(first[length.argmax()]), f"a number of {int(length.max())} bytes, expected at most 5")
        value = (data[first] & 0x7F).astype(np.int64)
        # Nearly all numbers are one or two bytes long: look on only where there is more.
        longer = np.flatnonzero(length > 1)
        for k in range(1, int(length.max())):
            value[longer] |= (data[first[longer] + k] & 0x7F).astype(np.int64) << 7 * k
            longer = longer[length[longer] > k + 1]
        value -= (data[last] & 0x40 != 0) * (np.int64(1) << 7 * length)
        wrong = (value < limits.min) | (value > limits.max)
        if wrong.any():
            at = int(wrong.argmax())
            raise LebError(int(first[at]), f"value {value[at]} does not fit {dtype.name}")
        out[begin : begin + last.size] = value
    return out
