"""The zlib stream that may hold everything after the description of a net file.

It is 15 bytes `COMPRESSED_ZLIB`, a u32 count of inflated bytes, a u32 count of bytes of the stream, and the stream,
which ends the file. Zlib libraries differ in what they write, so files are compared by what they hold.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

MAGIC = b"COMPRESSED_ZLIB"
HEAD = len(MAGIC) + 8
_LEVEL = 6
_MOST_GAIN = 1032
"""Deflate cannot make more bytes of one."""


def wrap(parts: Sequence[bytes]) -> list[bytes]:
    """The envelope with the parts one after another."""
    body = b"".join(parts)
    stream = zlib.compress(body, _LEVEL)
    return [MAGIC, struct.pack("<II", len(body), len(stream)), stream]


def sizes(head: bytes | bytearray, left: int) -> tuple[int, int]:
    """(inflated bytes, bytes of the stream) of an envelope that begins with `head`, HEAD bytes, and has `left` bytes
    after it. ValueError if it cannot be."""
    inflated, stream = struct.unpack_from("<II", head, len(MAGIC))
    if stream != left:
        raise ValueError(f"zlib stream of {stream:,} bytes, but {left:,} follow")
    if inflated > _MOST_GAIN * stream:
        raise ValueError(f"{inflated:,} inflated bytes, which a stream of {stream:,} cannot hold")
    return inflated, stream


def inflate(stream: bytes | bytearray, size: int) -> bytes:
    """The `size` bytes in a stream. ValueError if it is damaged, holds more or less, or ends early."""
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(stream, size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged zlib stream ({error})") from None
    if len(body) > size or (
        len(body) == size and not inflater.eof and inflater.decompress(inflater.unconsumed_tail, 1)
    ):
        raise ValueError(f"zlib stream holds more than {size:,} bytes")
    if len(body) < size:
        raise ValueError(f"zlib stream holds {len(body):,} bytes, expected {size:,}")
    if not inflater.eof:
        raise ValueError("truncated zlib stream")
    if inflater.unused_data:
        raise ValueError(f"{len(inflater.unused_data):,} bytes after the end of the zlib stream")
    return body
