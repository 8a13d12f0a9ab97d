"""gzip, bzip2, xz and zstd files as streams of bytes, recognised by content, with one-line errors and bounded memory.

Decompression happens here and not in data_loader/, so that compiling the package takes no system library: gzip, bzip2
and xz are the standard library's, zstd comes as a wheel.
"""

from __future__ import annotations

import bz2
import gzip
import logging
import tempfile
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from nnue_trainer.errors import UserError

_log = logging.getLogger(__name__)

_GZIP, _ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
_BZIP2, _BZIP2_BLOCK = b"BZh", b"1AY&SY"  # the level lies between them
_XZ = b"\xfd7zXZ\0"
_HEAD = 4096
_UNPACK_BLOCK = 1 << 20
_XZ_MEMORY = 1 << 28  # bytes; `xz -9` needs 65 MiB to unpack, files made with larger dictionaries more
_ZSTD_WINDOW = 1 << 27  # what `zstd` decompresses without a request for more; files made with --long=28… need more


class ByteReader(Protocol):
    """A source that data_loader/ reads: it fills `buffer` with up to len(buffer) bytes and returns their number, 0 at
    the end."""

    def readinto(self, buffer: memoryview, /) -> int: ...


class _GzipReader:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._stream = gzip.GzipFile(fileobj=file, mode="rb")

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            # `readinto` would drop what it has decompressed of a truncated file.
            found = self._stream.read1(len(buffer))
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(f"{self._path}: not a valid gzip file: {error}") from None
        buffer[: len(found)] = found
        return len(found)


class _StreamsReader:
    """Decompresses one stream after the other; zeros may lie between them. Python's BZ2File and LZMAFile take a damaged
    stream that is not the first one for the end of the file."""

    def __init__(self, path: Path, file: BinaryIO, kind: str, begin: Callable[[], Any], error: type[Exception]) -> None:
        self._path, self._file, self._kind, self._begin, self._error = path, file, kind, begin, error
        self._stream = begin()

    def readinto(self, buffer: memoryview, /) -> int:
        found = b""
        try:
            while not found:
                data = b""
                if self._stream.eof:
                    data = self._stream.unused_data.lstrip(b"\0")
                    while not data:
                        if not (read := self._file.read(_HEAD)):
                            return 0
                        data = read.lstrip(b"\0")
                    self._stream = self._begin()
                elif self._stream.needs_input and not (data := self._file.read(_HEAD)):
                    raise EOFError("it ends inside a stream: it is truncated")
                found = self._stream.decompress(data, len(buffer))
        except (EOFError, self._error) as error:
            large = "; unpack it with `xz -d`" if "limit" in str(error) else ""
            raise UserError(f"{self._path}: not a valid {self._kind} file: {error}{large}") from None
        buffer[: len(found)] = found
        return len(found)


def _xz_reader(path: Path, file: BinaryIO) -> ByteReader:
    try:
        import lzma
    except ImportError:  # Python may be built without it
        raise UserError(f"{path}: compressed with xz, which this Python cannot read: run `xz -d {path}`") from None

    def begin() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    return _StreamsReader(path, file, "xz", begin, lzma.LZMAError)


class _ZstdReader:
    """Decompresses one frame after the other, zstd block by zstd block. Such a block holds at most 128 KiB, however
    well it was compressed, so the window bounds the memory. The frames are parsed here because only that shows a file
    that ends too early, and a window that is too large, before memory is allocated for it."""

    _MAX_BLOCK = 1 << 17
    _SKIP = 1 << 20  # bytes of a skippable frame that are read at a time

    def __init__(self, path: Path, file: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise UserError(f"{path}: compressed with zstd: run `pip install zstandard` to read it") from None
        self._path, self._file = path, file
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._error = zstandard.ZstdError
        self._frame: Any = None  # None: between frames
        self._has_checksum = False
        self._ready: deque[memoryview] = deque()

    def _unsound(self, why: object) -> UserError:
        return UserError(f"{self._path}: not a valid zstd file: {why}")

    def _take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise self._unsound("it ends inside a frame: it is truncated")
        return data

    def _decompress(self, data: bytes) -> None:
        try:
            data = self._frame.decompress(data)
        except self._error as error:
            raise self._unsound(error) from None
        if data:
            self._ready.append(memoryview(data))

    def _begin_frame(self) -> bool:
        """Takes the header of the next frame, or a whole skippable one; False at the end of the file."""
        magic = self._file.read(4)
        if not magic:
            return False
        if _is_skippable(magic):
            left = int.from_bytes(self._take(4), "little")
            while left > 0:
                left -= len(self._take(min(left, self._SKIP)))
            return True
        if magic != _ZSTD:
            raise self._unsound("there are bytes after its last frame, or it is truncated")
        descriptor = self._take(1)
        flags = descriptor[0]
        is_single_segment = bool(flags & 0x20)
        window_byte = b"" if is_single_segment else self._take(1)
        dictionary = self._take((0, 1, 2, 4)[flags & 3])
        content_size = self._take((int(is_single_segment), 2, 4, 8)[flags >> 6])
        if is_single_segment:  # the window is the content; sizes in two bytes start at 256
            window = int.from_bytes(content_size, "little") + (256 if len(content_size) == 2 else 0)
        else:
            window = (8 + (window_byte[0] & 7)) << (7 + (window_byte[0] >> 3))
        if window > _ZSTD_WINDOW:
            raise UserError(
                f"{self._path}: zstd with a window of {window / 2**20:,.0f} MiB, expected at most "
                f"{_ZSTD_WINDOW >> 20} MiB: unpack it with `zstd -d --long=31`"
            )
        self._has_checksum = bool(flags & 4)
        self._frame = self._context.decompressobj()
        self._decompress(magic + descriptor + window_byte + dictionary + content_size)
        return True

    def _take_block(self) -> None:
        header = self._take(3)
        word = int.from_bytes(header, "little")
        is_last, kind, size = word & 1, word >> 1 & 3, word >> 3
        if size > self._MAX_BLOCK:
            raise self._unsound(f"a block of {size:,} bytes, expected at most {self._MAX_BLOCK:,}")
        self._decompress(header + self._take(1 if kind == 1 else size))  # kind 1: one byte, repeated
        if is_last:
            if self._has_checksum:
                self._decompress(self._take(4))
            self._frame = None

    def readinto(self, buffer: memoryview, /) -> int:
        filled = 0
        while filled < len(buffer):
            if not self._ready:
                if self._frame is not None:
                    self._take_block()
                elif not self._begin_frame():
                    break
                continue
            data = self._ready.popleft()
            count = min(len(data), len(buffer) - filled)
            buffer[filled : filled + count] = data[:count]
            filled += count
            if count < len(data):
                self._ready.appendleft(data[count:])
        return filled


def _is_skippable(head: bytes) -> bool:
    return len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5


def compression_of(head: bytes) -> str | None:
    """The compression by a file's first bytes: "gzip", "bzip2", "xz", "zstd" or None. Positions may start so by
    chance."""
    if head.startswith(_GZIP):
        return "gzip"
    if head.startswith(_BZIP2) and head[4:10] == _BZIP2_BLOCK:
        return "bzip2"
    if head.startswith(_XZ):
        return "xz"
    # Frames to be skipped may come first.
    if head.startswith(_ZSTD) or _is_skippable(head):
        return "zstd"
    return None


def is_sound(path: Path, kind: str, file: BinaryIO) -> bool:
    """Whether the beginning of the file can be decompressed. It reads until that is known, as a block of zstd may have
    128 KiB. Before and after, the file is at its beginning."""
    try:
        decompress(path, kind, file).readinto(memoryview(bytearray(1)))
        return True
    except UserError:
        return False
    finally:
        file.seek(0)


def decompress(path: Path, kind: str, file: BinaryIO) -> ByteReader:
    """The decompressed bytes of `file`. UserError, naming `path`, for what is corrupt or ends too early."""
    reader: ByteReader
    if kind == "gzip":
        reader = _GzipReader(path, file)
    elif kind == "bzip2":
        reader = _StreamsReader(path, file, kind, bz2.BZ2Decompressor, OSError)
    elif kind == "xz":
        reader = _xz_reader(path, file)
    else:
        reader = _ZstdReader(path, file)
    return _Counted(reader)


class _Counted:
    """A reader whose errors contain the offset that it reached."""

    def __init__(self, source: ByteReader) -> None:
        self._source, self._given = source, 0

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            count = self._source.readinto(buffer)
        except UserError as error:
            raise UserError(f"{error}; offset of the decompressed bytes: {self._given:,} or later") from None
        self._given += count
        return count


class UntilBroken:
    """The decompressed bytes of a file up to where it is corrupt or ends too early; `error` is then the reason."""

    def __init__(self, source: ByteReader) -> None:
        self._source = source
        self.error = ""

    def readinto(self, buffer: memoryview, /) -> int:
        if self.error:
            return 0
        try:
            return self._source.readinto(buffer)
        except UserError as error:
            self.error = str(error)
            return 0


def head_of(file: BinaryIO) -> bytes:
    """The first bytes of a file, which is back at its beginning afterwards."""
    head = file.read(_HEAD)
    file.seek(0)
    return head


def unpack(
    path: Path,
    kind: str,
    file: BinaryIO,
    folder: Path | None = None,
    poll: Callable[[], None] | None = None,
    *,
    skip_bad: bool = False,
) -> BinaryIO:
    """A file without a name in `folder` (None: the system's for temporary files) with the decompressed bytes of `file`,
    which can be read in any order; it disappears with the object. `poll` is called per MiB; what it raises ends the
    unpacking. UserError, naming `path`, for a file that is not sound and a full disk. `skip_bad`: of a file that is
    corrupt or cut off, what comes before that, with a warning; UserError if nothing does."""
    source = UntilBroken(decompress(path, kind, file))

    def fill(out: BinaryIO) -> None:
        block = memoryview(bytearray(_UNPACK_BLOCK))
        while count := source.readinto(block):
            try:
                written = 0
                while written < count:
                    written += out.write(block[written:count])
            except OSError as error:
                raise _no_room(path, folder, "unpacked", error) from None
            if poll:
                poll()
        if source.error and not (skip_bad and out.tell()):
            raise UserError(source.error)

    out = unnamed_file(path, folder, fill, "unpacked")
    if source.error:
        _log.warning("%s; the %s bytes before it are read", source.error, f"{out.tell():,}")
    return out


def unnamed_file(path: Path, folder: Path | None, fill: Callable[[BinaryIO], None], what: str = "copied") -> BinaryIO:
    """A file without a name in `folder` (None: the system's), written by `fill`; it disappears when it is closed.
    UserError, naming `path`, for a folder that cannot be written to; what `fill` raises passes through."""
    try:
        out = cast(BinaryIO, tempfile.TemporaryFile(dir=folder, buffering=0))  # noqa: SIM115
    except OSError as error:
        raise _no_room(path, folder, what, error) from None
    try:
        fill(out)
    except BaseException:
        out.close()
        raise
    return out


def _no_room(path: Path, folder: Path | None, what: str, error: OSError) -> UserError:
    once = f", or unpack it once: `nnue data convert {path} OUT.binpack`" if what == "unpacked" else ""
    return UserError(
        f"{path}: cannot be {what} into {folder or tempfile.gettempdir()}: {error.strerror}; set TMPDIR to a folder "
        f"with room{once}"
    )
