"""Signed LEB128 blocks, as Stockfish nets have used them since June 2023.

A block is 17 bytes `COMPRESSED_LEB128`, a u32 count of payload bytes, then every element in order: 7 bits per byte, low
bits first, bit 7 set on all bytes but the last, bit 6 of the last byte the sign, as few bytes as hold the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

MAGIC = b"COMPRESSED_LEB128"
MAX_BYTES = 5
"""Of one number: those of this project have 32 bits at most."""
# Elements at a time: keeps the 64-bit scratch arrays in the cache's reach instead of at gigabytes.
_CHUNK = 1 << 18


class LebError(ValueError):
    """What is wrong with a payload; `offset` counts from its first byte, `element` from its first number."""

    def __init__(self, offset: int, element: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.element = element


def encode(values: np.ndarray) -> bytes:
    """The payload of integers of any shape, in row-major order."""
    flat = values.reshape(-1)
    parts = []
    for begin in range(0, flat.size, _CHUNK):
        chunk = flat[begin : begin + _CHUNK]
        encoded, length = _of_16_bits(chunk) if chunk.itemsize <= 2 else _of_32_bits(chunk)
        parts.append(encoded[np.arange(encoded.shape[1]) < length[:, np.newaxis]].tobytes())
    return b"".join(parts)


def _of_32_bits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, 5], the bytes of each number, and how many of them are used."""
    chunk = values.astype(np.int64)
    # n bytes hold −2^(7n−1) … 2^(7n−1) − 1.
    magnitude = np.where(chunk < 0, ~chunk, chunk)
    length = np.ones(chunk.size, np.int64)
    for n in range(1, MAX_BYTES):
        length += magnitude >> (7 * n - 1) > 0
    encoded = np.empty((chunk.size, MAX_BYTES), np.uint8)
    for k in range(MAX_BYTES):
        encoded[:, k] = (chunk >> 7 * k & 0x7F) | (length > k + 1) * 0x80
    return encoded, length


def _of_16_bits(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for small integers, by a table of all of them: uint8 [n, 3]."""
    encoded, length = _table()
    index = values.astype(np.int16).view(np.uint16)
    return encoded[index], length[index]


@cache
def _table() -> tuple[np.ndarray, np.ndarray]:
    encoded, length = _of_32_bits(np.arange(1 << 16, dtype=np.uint16).view(np.int16))
    return np.ascontiguousarray(encoded[:, :3]), length.astype(np.uint8)


def decode(payload: bytes | bytearray, ranges: Sequence[tuple[int, np.dtype[Any]]]) -> list[np.ndarray]:
    """For each (count, dtype) the next so many integers. LebError unless the payload holds exactly all of them, each
    fits its dtype, and each is written with as few bytes as hold it."""
    data = np.frombuffer(payload, np.uint8)
    count = sum(n for n, _ in ranges)
    ends = np.flatnonzero(data < 0x80)
    if ends.size < count:
        raise LebError(data.size, count, f"payload of {data.size} bytes holds {ends.size} numbers, expected {count}")
    used = int(ends[count - 1]) + 1 if count else 0
    if used != data.size:
        raise LebError(used, count, f"{count} numbers end after {used} bytes, but the byte count says {data.size}")
    arrays, first = [], 0
    for n, dtype in ranges:
        arrays.append(_decode(data, ends, first, n, dtype))
        first += n
    return arrays


def _decode(data: np.ndarray, ends: np.ndarray, first: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Numbers `first` … `first + count - 1`, of which `ends` holds the places of the last bytes."""
    limits = np.iinfo(dtype)
    out = np.empty(count, dtype)
    for begin in range(0, count, _CHUNK):
        element = first + begin
        last = ends[element : first + min(begin + _CHUNK, count)]
        start = np.empty_like(last)
        start[0] = ends[element - 1] + 1 if element else 0
        start[1:] = last[:-1] + 1
        length = last - start + 1
        longest = int(length.max())
        if longest > MAX_BYTES:
            at = int(length.argmax())
            raise LebError(int(start[at]), element + at, f"a number of {longest} bytes, expected at most {MAX_BYTES}")
        value = (data[start] & 0x7F).astype(np.int64)
        # Nearly all numbers are one or two bytes long: look on only where there is more.
        longer = np.flatnonzero(length > 1)
        if longer.size:
            # The last byte is not needed if it repeats the sign, which bit 6 of the byte before it states already.
            top, sign = data[last[longer]], data[last[longer] - 1] & 0x40
            needless = ((top == 0) & (sign == 0)) | ((top == 0x7F) & (sign != 0))
            if needless.any():
                at = int(longer[needless.argmax()])
                text = data[start[at] : last[at] + 1].tobytes().hex()
                raise LebError(int(start[at]), element + at, f"{text} is not the shortest form of its number")
        for k in range(1, longest):
            value[longer] |= (data[start[longer] + k] & 0x7F).astype(np.int64) << 7 * k
            longer = longer[length[longer] > k + 1]
        value -= (data[last] & 0x40 != 0) * (np.int64(1) << 7 * length)
        wrong = (value < limits.min) | (value > limits.max)
        if wrong.any():
            at = int(wrong.argmax())
            raise LebError(int(start[at]), element + at, f"value {value[at]} does not fit {dtype.name}")
        out[begin : begin + last.size] = value
    return out
