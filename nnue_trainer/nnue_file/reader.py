"""Reads a net file: the open file and a place in it, the walk along a layout, and the decoding of its blocks.

The size that a file claims is never trusted. The walk looks only at hashes, magics and byte counts, so that a wrong,
cut or absurdly large file is refused before any tensor is read. Then each block is read by itself.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnue_trainer.base.closing import Closing
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import kind_of
from nnue_trainer.nnue_file import envelope, huffman, leb128
from nnue_trainer.nnue_file.layout import Block, FileLayout, Piece, Word

PathLike = str | os.PathLike[str]

MAX_FILE_BYTES = 2**31
"""No net is larger: SFNNv17 has 0.1 · 10⁹ bytes."""
MAX_DESCRIPTION_BYTES = 2**24
_BINPACK = int.from_bytes(b"BINP", "little")


class LayoutError(UserError):
    """A file does not have the layout that was tried. `evidence` counts the hashes and magics that were as expected;
    `offset` is the place of the first difference."""

    def __init__(self, message: str, evidence: int, offset: int) -> None:
        super().__init__(message)
        self.evidence = evidence
        self.offset = offset


@dataclass(frozen=True)
class Header:
    """The first bytes of every net file. `end` is the offset after the description."""

    version: int
    file_hash: int
    description: bytes
    end: int


@dataclass(frozen=True)
class Place:
    """The place of a block's bytes; of a LEB128 block, its payload's."""

    block: Block
    offset: int
    size: int


class NetFile(Closing):
    """A net file that is open for reading; every error names file, offset and what was being read."""

    def __init__(self, path: PathLike) -> None:
        """UserError if it cannot be opened, is not a regular file, or is larger than any net."""
        self.path = path
        try:
            # Without O_NONBLOCK the opening of a pipe would wait for a writer.
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise UserError(f"{path}: cannot read the net: {reason}") from None
        try:
            status = os.fstat(self._file)
            if not stat.S_ISREG(status.st_mode):
                found = kind_of(status.st_mode)
                raise UserError(f"{path}: cannot read the net: found {found}, expected a regular file")
            self.size = status.st_size
            if self.size > MAX_FILE_BYTES:
                raise UserError(
                    f"{path}: found a file of {self.size:,} bytes, expected a net of at most {MAX_FILE_BYTES:,}"
                )
        except UserError:
            os.close(self._file)
            raise

    def close(self) -> None:
        os.close(self._file)

    def error(self, offset: int, what: str, found: str) -> UserError:
        return UserError(f"{self.path}: offset {offset}: {what}: {found}")

    def check(self, offset: int, size: int, what: str) -> None:
        """UserError unless the file has `size` more bytes from `offset` on."""
        if size > self.size - offset:
            raise self.error(offset, what, f"file ends after {self.size - offset} bytes, expected {size}")

    def take(self, offset: int, size: int, what: str) -> bytearray:
        """The bytes there."""
        self.check(offset, size, what)
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            try:
                read = os.preadv(self._file, [view[done:]], offset + done)
            except OSError as error:
                raise self.error(offset + done, what, f"cannot be read: {error.strerror}") from None
            if not read:
                raise self.error(offset, what, f"file ends after {done} bytes, expected {size}")
            done += read
        return data

    def u32(self, offset: int, what: str) -> int:
        (value,) = struct.unpack("<I", self.take(offset, 4, what))
        return int(value)

    def header(self, versions: Sequence[int]) -> Header:
        """Version, file hash and description. UserError for a version that is none of `versions`."""
        version = self.u32(0, "version")
        if version not in versions:
            if self.size > 8 and self.take(8, 1, "") == b"{":
                raise UserError(f"{self.path}: found a checkpoint, expected a net; `nnue export` makes one from it")
            if version == _BINPACK:
                raise UserError(f"{self.path}: found a binpack of positions, expected a net; `nnue data info` reads it")
            expected = ", ".join(f"0x{known:08X}" for known in versions)
            raise self.error(
                0,
                "version",
                f"found 0x{version:08X}, expected one of {expected}; a raw net, which has no version, is read with "
                "--format raw --model FILE",
            )
        file_hash = self.u32(4, "file hash")
        length = self.u32(8, "description length")
        self.check(12, length, "description")
        if length > MAX_DESCRIPTION_BYTES:
            expected = f"expected at most {MAX_DESCRIPTION_BYTES:,} bytes"
            raise self.error(8, "description length", f"found {length:,}, {expected}")
        return Header(version, file_hash, bytes(self.take(12, length, "description")), 12 + length)

    def body(self, header: Header) -> NetFile | None:
        """The file with the content of its zlib envelope instead of the envelope; None if it has no envelope.
        UserError for a damaged one."""
        at = header.end
        if self.size - at < envelope.HEAD or self.take(at, len(envelope.MAGIC), "body") != envelope.MAGIC:
            return None
        try:
            inflated, stream = envelope.sizes(self.take(at, envelope.HEAD, "body"), self.size - at - envelope.HEAD)
            if inflated > MAX_FILE_BYTES:
                raise ValueError(f"{inflated:,} inflated bytes, expected a net of at most {MAX_FILE_BYTES:,}")
            content = envelope.inflate(self.take(at + envelope.HEAD, stream, "body"), inflated)
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise self.error(at, "body", str(error)) from None
        return _Inflated(self.path, at, content)

    def walk(self, layout: FileLayout, header: Header, whose: str) -> list[Place]:
        """The places of the blocks in a file of this layout; reads little more than hashes and byte counts.

        LayoutError at the first place that differs; its message names `whose` layout this is.
        """
        evidence, offset, places = 0, header.end, []
        try:
            for what, at, found, wanted in (
                ("version", 0, header.version, layout.version),
                ("file hash", 4, header.file_hash, layout.file_hash),
            ):
                if wanted is not None and found != wanted:
                    offset = at
                    raise self.error(at, what, f"found 0x{found:08X}, expected 0x{wanted:08X}")
            for item in layout.items:
                if isinstance(item, Word):
                    found = self.u32(offset, item.label)
                    if found != item.value:
                        raise self.error(offset, item.label, f"found 0x{found:08X}, expected 0x{item.value:08X}")
                    evidence += 1
                    offset += 4
                    continue
                begin, size = offset, item.size
                if item.coding == "huffman":
                    size = self._huffman_size(item, offset)
                    evidence += 1
                elif item.coding == "leb128":
                    self._expect_magic(item, offset)
                    evidence += 1
                    size = self._byte_count(item, offset + len(leb128.MAGIC))
                    begin = offset + len(leb128.MAGIC) + 4
                    self.check(begin, size, item.label)
                else:
                    for piece in item.pieces:
                        self.check(offset, piece.size, piece.label)
                        offset += piece.size
                places.append(Place(item, begin, size))
                offset = begin + size
            if offset != self.size:
                raise self.error(offset, "end of net", f"{self.size - offset} bytes more than expected")
        except UserError as error:
            raise LayoutError(f"{error} ({whose})", evidence, offset) from None
        return places

    def _expect_magic(self, block: Block, offset: int) -> None:
        magic = self.take(offset, len(leb128.MAGIC), block.label)
        if magic != leb128.MAGIC:
            raise self.error(offset, block.label, f"found {bytes(magic)!r}, expected {leb128.MAGIC!r}")

    def _huffman_size(self, block: Block, offset: int) -> int:
        try:
            size = huffman.size(lambda at, n: self.take(offset + at, n, block.label), block.count)
        except huffman.HuffmanError as error:
            raise self.error(offset + error.offset, block.label, str(error)) from None
        self.check(offset, size, block.label)
        return size

    def _byte_count(self, block: Block, offset: int) -> int:
        size = self.u32(offset, f"{block.label} byte count")
        if not block.count <= size <= leb128.MAX_BYTES * block.count:
            raise self.error(
                offset,
                f"{block.label} byte count",
                f"found {size}, expected {block.count} to {leb128.MAX_BYTES * block.count} for {block.count} numbers",
            )
        return size

    def tensors(self, places: Sequence[Place], header: Header, layout: FileLayout) -> dict[str, np.ndarray]:
        """The tensors in the blocks. UserError for numbers that do not fit and for a wrong checksum."""
        parts: dict[str, list[np.ndarray]] = {}
        stacked = set()
        checksum = 0
        for place in places:
            data = self.take(place.offset, place.size, place.block.label)
            checksum = zlib.crc32(data, checksum) if layout.file_hash is None else 0
            for piece, values in zip(place.block.pieces, self._decode(place, data), strict=True):
                parts.setdefault(piece.tensor, []).append(values.reshape(piece.shape))
                if piece.index is not None:
                    stacked.add(piece.tensor)
        if layout.file_hash is None and checksum != header.file_hash:
            raise self.error(
                4, "checksum", f"tensors give 0x{checksum:08X}, expected 0x{header.file_hash:08X} as in the header"
            )
        return {name: np.stack(values) if name in stacked else values[0] for name, values in parts.items()}

    def _decode(self, place: Place, data: bytearray) -> list[np.ndarray]:
        pieces = place.block.pieces
        if place.block.coding == "huffman":
            (piece,) = pieces
            try:
                return [huffman.decode(data, piece.count, np.dtype(piece.dtype))]
            except huffman.HuffmanError as error:
                raise self.error(place.offset + error.offset, piece.label, str(error)) from None
        if place.block.coding == "raw":
            values, begin = [], 0
            for piece in pieces:
                values.append(np.frombuffer(data, piece.dtype, piece.count, begin))
                if values[-1].dtype.kind == "f" and not np.isfinite(values[-1]).all():
                    at = int((~np.isfinite(values[-1])).argmax())
                    where = place.offset + begin + at * values[-1].itemsize
                    raise self.error(where, piece.label, f"found {values[-1][at]}, expected a finite number")
                begin += piece.size
            return values
        ranges = [(piece.count, np.dtype(piece.dtype)) for piece in pieces]
        try:
            return leb128.decode(data, ranges)
        except leb128.LebError as error:
            piece = _piece_of(pieces, error.element)
            raise self.error(place.offset + error.offset, piece.label, str(error)) from None


class _Inflated(NetFile):
    """A net file whose body was inflated: offsets count in the file without compression."""

    def __init__(self, path: PathLike, begin: int, body: bytes) -> None:
        self.path, self.size = path, begin + len(body)
        self._begin, self._body = begin, body

    def error(self, offset: int, what: str, found: str) -> UserError:
        return UserError(f"{self.path}: offset {offset} of the inflated file: {what}: {found}")

    def close(self) -> None:
        """Holds no file."""

    def take(self, offset: int, size: int, what: str) -> bytearray:
        self.check(offset, size, what)
        return bytearray(self._body[offset - self._begin : offset - self._begin + size])


def _piece_of(pieces: Sequence[Piece], element: int) -> Piece:
    for piece in pieces:
        if element < piece.count:
            return piece
        element -= piece.count
    return pieces[-1]
