"""gzip and zstd files as streams of bytes, told by content, with errors of one line and bounded memory.

Decompression happens here and not in data_loader/, so that compiling the package takes no system library: gzip is the
standard library's, zstd comes as a wheel.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections import deque
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from nnue_trainer.errors import UserError

_GZIP, _ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
_HEAD = 4096
_UNPACK_BLOCK = 1 << 20
_ZSTD_WINDOW = 1 << 27  # what `zstd` decompresses without being asked for more; files made with --long=28… need more


class ByteReader(Protocol):
    """What data_loader/ reads from: fills `buffer` with up to len(buffer) bytes, returns how many, 0 at the end."""

    def readinto(self, buffer: memoryview, /) -> int: ...


class _GzipReader:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._stream = gzip.GzipFile(fileobj=file, mode="rb")

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            return self._stream.readinto(buffer)
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(f"{self._path}: not a sound gzip file: {error}") from None


class _ZstdReader:
    """One frame after the other. A decompressor of its own for each, as only that tells a file that ends too early."""

    _FILE_BLOCK = 1 << 20
    _STEP = 4096  # compressed bytes at a time: what they can expand to bounds the memory

    def __init__(self, path: Path, file: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise UserError(f"{path}: compressed with zstd: run `pip install zstandard` to read it") from None
        self._path, self._file = path, file
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._error = zstandard.ZstdError
        self._frame = self._context.decompressobj()
        self._inside = False
        self._block = memoryview(b"")
        self._ready: deque[memoryview] = deque()

    def _feed(self) -> bool:
        """Decompresses the next step of the file into _ready; False at its end."""
        if not self._block:
            self._block = memoryview(self._file.read(self._FILE_BLOCK))
            if not self._block:
                if self._inside:
                    raise UserError(f"{self._path}: not a sound zstd file: it ends inside a frame: it is truncated")
                return False
        step, self._block = self._block[: self._STEP], self._block[self._STEP :]
        while step:
            self._inside = True
            try:
                data = self._frame.decompress(step)
            except self._error as error:
                raise UserError(f"{self._path}: not a sound zstd file: {error}") from None
            if data:
                self._ready.append(memoryview(data))
            if not self._frame.eof:
                break
            step = memoryview(self._frame.unused_data)
            self._frame = self._context.decompressobj()
            self._inside = False
        return True

    def readinto(self, buffer: memoryview, /) -> int:
        filled = 0
        while filled < len(buffer) and (self._ready or self._feed()):
            while self._ready and filled < len(buffer):
                data = self._ready.popleft()
                count = min(len(data), len(buffer) - filled)
                buffer[filled : filled + count] = data[:count]
                filled += count
                if count < len(data):
                    self._ready.appendleft(data[count:])
        return filled


def compression_of(head: bytes) -> str | None:
    """What a file that starts with these bytes claims to be, "gzip", "zstd" or neither. Positions can by chance."""
    if head.startswith(_GZIP):
        return "gzip"
    # Frames to be skipped may come first.
    if head.startswith(_ZSTD) or (len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return "zstd"
    return None


def is_sound(path: Path, kind: str) -> bool:
    """Does the beginning of the file decompress? As far as it takes: a block of zstd may be 128 KiB long."""
    try:
        with path.open("rb") as file:
            decompress(path, kind, file).readinto(memoryview(bytearray(1)))
        return True
    except UserError:
        return False


def decompress(path: Path, kind: str, file: BinaryIO) -> ByteReader:
    """The decompressed bytes of `file`. UserError, naming `path`, for what is corrupt or ends too early."""
    return _GzipReader(path, file) if kind == "gzip" else _ZstdReader(path, file)


def head_of(file: BinaryIO) -> bytes:
    """The first bytes of a file that is then back at its beginning."""
    head = file.read(_HEAD)
    file.seek(0)
    return head


def unpack(path: Path, kind: str, folder: Path | None = None) -> BinaryIO:
    """A file without a name in `folder` (None: the system's for temporary files) with the decompressed bytes of `path`,
    to be read in any order; it goes with the object. UserError for a file that is not sound and a full disk."""
    where = folder or Path(tempfile.gettempdir())
    block = memoryview(bytearray(_UNPACK_BLOCK))
    try:
        out = cast(BinaryIO, tempfile.TemporaryFile(dir=where, buffering=0))  # noqa: SIM115
    except OSError as error:
        raise _no_room(path, kind, where, error) from None
    try:
        with path.open("rb") as file:
            source = decompress(path, kind, file)
            while count := source.readinto(block):
                try:
                    written = 0
                    while written < count:
                        written += out.write(block[written:count])
                except OSError as error:
                    raise _no_room(path, kind, where, error) from None
    except BaseException:
        out.close()
        raise
    return out


def _no_room(path: Path, kind: str, folder: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: {kind}-compressed, to be unpacked into {folder}: {error.strerror}; set TMPDIR to a folder with room, "
        f"or unpack it once: `nnue data convert {path} OUT.binpack`"
    )
