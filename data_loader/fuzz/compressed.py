"""Fuzzes the decompressors of nnue_trainer.data: files with mutated bytes give bytes or one UserError.

    python data_loader/fuzz/compressed.py gzip|bzip2|xz|zstd [runs] [seed]

Mutations of small files of one and several members, streams or frames, with and without checksums; blind to
coverage. What comes out is held against the decompressor of one member, except for zstd. An input that fails is written
to compressed-found. About 30,000 inputs a second for gzip and zstd, 5,000 for bzip2.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnue_trainer.data.compression import decompress
from nnue_trainer.errors import UserError

PATH = Path("input")
MOST = 1 << 16  # decompressed bytes of an input: what a bomb would have is not waited for


def contents(rng: random.Random) -> list[bytes]:
    """Small files of different kinds."""
    line = b"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1 | 12 | 0.5\n"
    return [b"", b"BINP\x22\0\0\0" + bytes(34), line * 3, rng.randbytes(90), bytes(300), line * 40 + rng.randbytes(20)]


def corpus(kind: str) -> list[bytes]:
    rng = random.Random(0)
    files: list[bytes] = []
    for content in contents(rng):
        if kind == "gzip":
            files += [gzip.compress(content, level, mtime=0) for level in (0, 1, 9)]
            named = io.BytesIO()
            with gzip.GzipFile("a name.bin", "wb", fileobj=named, mtime=1) as file:
                file.write(content)
            files.append(named.getvalue())
        elif kind == "bzip2":
            files += [bz2.compress(content, level) for level in (1, 9)]
        elif kind == "xz":
            for check in (lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_SHA256):
                files.append(lzma.compress(content, check=check, preset=0))
        else:
            import zstandard

            for level, checksum, size in ((1, False, True), (3, True, True), (19, True, False)):
                compressor = zstandard.ZstdCompressor(level=level, write_checksum=checksum, write_content_size=size)
                files.append(compressor.compress(content))
            files.append(b"\x5a\x2a\x4d\x18\x05\0\0\0hello" + files[-1])  # after a frame to be skipped
    files += [a + b for a, b in zip(files, files[5:], strict=False)] + [files[4] + bytes(40)]
    return files if kind != "zstd" else files[:-1]  # zeros may not follow a frame


def mutate(rng: random.Random, files: list[bytes]) -> bytes:
    data = bytearray(rng.choice(files))
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = int(rng.random() * (len(data) or 1))
        kind = int(rng.random() * 7)
        if kind <= 1 and data:
            data[at] ^= 1 << int(rng.random() * 8)
        elif kind == 2 and data:
            data[at] = int(rng.random() * 256)
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del data[at : at + int(rng.random() * 10)]
        elif kind == 5:
            data[at:at] = data[at : at + 1 + int(rng.random() * 10)]
        else:
            data[at:] = rng.choice(files)[at // 2 :]
    return bytes(data)


def read(kind: str, data: bytes, room: memoryview) -> bytes | None:
    """The decompressed data; None if `data` is corrupt."""
    size = 0
    message = ""
    try:
        source = decompress(PATH, kind, io.BytesIO(data))
        while size < MOST and (count := source.readinto(room[size:])):
            size += count
    except UserError as error:
        message = str(error)
    assert size <= len(room)
    if message:
        assert message.startswith((f"input: not a valid {kind} file: ", "input: zstd with a window of ")), message
        assert "\n" not in message, message
        return None
    return bytes(room[:size])


def unpacked(kind: str, data: bytes) -> bytes | None:
    """All members, one after the other; None if there is none, or one is not sound. Zeros may follow."""
    begin: dict[str, Callable[[], Any]] = {
        "gzip": lambda: zlib.decompressobj(31),
        "bzip2": bz2.BZ2Decompressor,
        "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 28),
    }
    if not data:
        return None
    out = b""
    try:
        while data:
            member = begin[kind]()
            out += member.decompress(data)
            if not member.eof:
                return None
            data = member.unused_data.lstrip(b"\0")
    except (zlib.error, OSError, lzma.LZMAError):
        return None
    return out


def main() -> None:
    kind = sys.argv[1]
    runs, seed = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000, int(sys.argv[3]) if len(sys.argv) > 3 else 1
    files = corpus(kind)
    room = memoryview(bytearray(2 * MOST))
    rng = random.Random(seed)
    start = time.monotonic()
    sound = 0
    assert all(read(kind, data, room) is not None for data in files)
    for run in range(runs):
        if run and run % 1_000_000 == 0:
            print(f"{kind}: {run:,} mutations: nothing found", flush=True)
        data = mutate(rng, files)
        try:
            got = read(kind, data, room)
            sound += got is not None
            if kind != "zstd" and (got is None or len(got) < MOST):
                expected = unpacked(kind, data)
                # Python's gzip lets pass flags of the header that zlib does not support.
                is_other = kind == "gzip" and (got is None or expected is None)
                assert is_other or got == expected, "not what the decompressor of one member makes of it"
        except BaseException:
            Path("compressed-found").write_bytes(data)
            raise
    print(
        f"{kind}: {len(files)} files, {runs:,} mutations of seed {seed} in {time.monotonic() - start:.0f} s, "
        f"{sound:,} still sound: nothing found"
    )


if __name__ == "__main__":
    main()
