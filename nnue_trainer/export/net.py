"""Quantised nets: the exact integers of a `.nnue` file, and the reader and writer.

A net that is read and written again is the same file, byte for byte: description, padding columns and all.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnue_trainer.architectures.config import SimpleConfig
from nnue_trainer.atomic import replacing
from nnue_trainer.errors import UserError
from nnue_trainer.export import leb128
from nnue_trainer.export.spec import (
    SIMPLE_VERSION,
    STOCKFISH,
    UNSUPPORTED,
    VERSIONS,
    Layout,
    Section,
    SimpleSpec,
    Spec,
    StockfishSpec,
    described,
    spec_of,
)

PathLike = str | os.PathLike[str]


@dataclass
class QuantizedNet:
    """Integers of a net, by the names of the float model's parameters.

    Stockfish nets: feature_transformer.{bias i16 [l1], weight i16 [F, l1], psqt i32 [F, 8]}, fcN.{bias i32 [S, out],
    weight i8 [S, out, in padded to 32]}; padding columns are part of the tensor. Simple nets: see docs/nets.md.
    `layout` says how the feature transformer is stored.
    """

    spec: Spec
    description: bytes
    tensors: dict[str, np.ndarray]
    layout: Layout

    def __post_init__(self) -> None:
        expected = self.spec.tensor_shapes()
        if self.tensors.keys() != expected.keys():
            raise ValueError(f"{self.spec.name} has tensors {sorted(expected)}, found {sorted(self.tensors)}")
        for name, (dtype, shape) in expected.items():
            tensor = self.tensors[name]
            if tensor.dtype != dtype or tensor.shape != shape:
                raise ValueError(f"{name}: {tensor.dtype} {tensor.shape}, expected {dtype} {shape}")


class _Reader:
    """The bytes of a file with a place in them; every error names file, offset and what was being read."""

    def __init__(self, path: PathLike) -> None:
        self.path = path
        try:
            self.data = memoryview(Path(path).read_bytes())
        except OSError as error:
            raise UserError(f"{path}: cannot read the net: {error.strerror}") from None
        self.offset = 0

    def error(self, what: str, found: str, offset: int | None = None) -> UserError:
        return UserError(f"{self.path}: offset {self.offset if offset is None else offset}: {what}: {found}")

    def take(self, size: int, what: str) -> memoryview:
        left = len(self.data) - self.offset
        if size > left:
            raise self.error(what, f"file ends after {left} bytes, expected {size}")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def u32(self, what: str) -> int:
        (value,) = struct.unpack("<I", self.take(4, what))
        return int(value)

    def expect(self, expected: int, what: str, whose: str) -> None:
        found = self.u32(what)
        if found != expected:
            raise self.error(what, f"found 0x{found:08X}, expected 0x{expected:08X} ({whose})", self.offset - 4)

    def raw(self, section: Section) -> np.ndarray:
        raw = self.take(section.count * section.dtype.itemsize, section.label)
        return np.frombuffer(raw, section.dtype).reshape(section.shape)

    def leb(self, section: Section) -> np.ndarray:
        magic = self.take(len(leb128.MAGIC), section.label)
        if magic != leb128.MAGIC:
            found = f"found {bytes(magic)!r}, expected {leb128.MAGIC!r}"
            raise self.error(section.label, found, self.offset - len(leb128.MAGIC))
        payload = self.take(self.u32(f"{section.label} byte count"), section.label)
        try:
            return leb128.decode(payload, section.count, section.dtype).reshape(section.shape)
        except leb128.LebError as error:
            raise self.error(section.label, str(error), self.offset - len(payload) + error.offset) from None

    def end(self) -> None:
        if self.offset != len(self.data):
            raise self.error("end of net", f"{len(self.data) - self.offset} bytes more than expected")


def _recognise(reader: _Reader, version: int, file_hash: int, description: bytes, arch: str | None) -> StockfishSpec:
    """The architecture: what the user says, else what the description says, else what the hashes say."""
    if arch is not None:
        if arch not in STOCKFISH:
            raise UserError(f"unknown architecture {arch!r}, expected one of {', '.join(STOCKFISH)}")
        return STOCKFISH[arch]
    own = described(description, str(reader.path))
    if own is not None:
        name, config = own
        spec = STOCKFISH[name] if name in STOCKFISH else spec_of(config)
        if isinstance(spec, StockfishSpec):
            return spec
        raise reader.error("description", f"says {name}, but the version is that of a Stockfish net", 8)
    for spec in STOCKFISH.values():
        if (spec.version, spec.file_hash) == (version, file_hash):
            return spec
    if (version, file_hash) in UNSUPPORTED:
        known = UNSUPPORTED[version, file_hash]
        raise reader.error("file hash", f"0x{file_hash:08X} is {known}, which is not supported yet", 4)
    raise reader.error("file hash", f"0x{file_hash:08X} is no known architecture ({', '.join(STOCKFISH)})", 4)


def read_net(path: PathLike, arch: str | None = None, note: Callable[[str], None] = lambda _: None) -> QuantizedNet:
    """Reads a Stockfish net (SFNNv1 … SFNNv9, the small net) or a simple net of ours.

    `arch` overrules recognition where hashes are shared (SFNNv4 and SFNNv5); `note` is told when a choice was made.
    UserError, one line, names file, offset, section, what was found and what was expected.
    """
    reader = _Reader(path)
    version = reader.u32("version")
    if version not in VERSIONS and version not in {known for known, _ in UNSUPPORTED}:
        expected = ", ".join(f"0x{known:08X}" for known in VERSIONS)
        raise reader.error("version", f"found 0x{version:08X}, expected one of {expected}", 0)
    file_hash = reader.u32("file hash")
    description = bytes(reader.take(reader.u32("description length"), "description"))
    if version == SIMPLE_VERSION:
        return _read_simple(reader, file_hash, description, arch)
    spec = _recognise(reader, version, file_hash, description, arch)
    whose = spec.name
    header = (("version", 0, version, spec.version), ("file hash", 4, file_hash, spec.file_hash))
    for what, offset, found, wanted in header:
        if found != wanted:
            raise reader.error(what, f"found 0x{found:08X}, expected 0x{wanted:08X} ({whose})", offset)
    twins = [s.name for s in STOCKFISH.values() if s.file_hash == spec.file_hash and s.version == spec.version]
    if len(twins) > 1 and arch is None and described(description, str(path)) is None:
        note(f"{path}: {' and '.join(sorted(twins))} look alike in a file; taken for {spec.name} (--arch overrules)")

    reader.expect(spec.feature_transformer_hash, "feature transformer hash", whose)
    # The engines of one architecture came in two layouts (SFNNv6 did), so the file decides.
    leb = reader.data[reader.offset : reader.offset + len(leb128.MAGIC)] == leb128.MAGIC
    tensors = {s.tensor: reader.leb(s) if leb else reader.raw(s) for s in spec.feature_transformer_sections()}
    stacked: dict[str, list[np.ndarray]] = {}
    for stack in range(spec.stacks):
        reader.expect(spec.stack_hash, f"stack {stack} hash", whose)
        for section in spec.stack_sections(stack):
            stacked.setdefault(section.tensor, []).append(reader.raw(section))
    reader.end()
    tensors |= {name: np.stack(parts) for name, parts in stacked.items()}
    return QuantizedNet(spec, description, tensors, "leb" if leb else "raw")


def _read_simple(reader: _Reader, checksum: int, description: bytes, arch: str | None) -> QuantizedNet:
    own = described(description, str(reader.path))
    if own is None or not isinstance(own[1], SimpleConfig):
        raise reader.error("description", "no architecture record of a simple net", 12)
    if arch not in (None, "simple"):
        raise reader.error("version", f"this is a simple net, expected {arch}", 0)
    begin = reader.offset
    spec = SimpleSpec(own[1])
    tensors = {section.tensor: reader.raw(section) for section in spec.sections()}
    reader.end()
    found = zlib.crc32(reader.data[begin:])
    if found != checksum:
        raise reader.error("checksum", f"tensors give 0x{found:08X}, expected 0x{checksum:08X}", 4)
    return QuantizedNet(spec, description, tensors, "raw")


def to_bytes(net: QuantizedNet) -> bytes:
    """The file that `net` is."""

    def store(section: Section) -> bytes:
        tensor = net.tensors[section.tensor]
        return (tensor if section.stack is None else tensor[section.stack]).tobytes()

    def compress(section: Section) -> bytes:
        payload = leb128.encode(net.tensors[section.tensor])
        return leb128.MAGIC + struct.pack("<I", len(payload)) + payload

    spec = net.spec
    parts: list[bytes] = []
    if isinstance(spec, SimpleSpec):
        parts = [store(section) for section in spec.sections()]
        file_hash = zlib.crc32(b"".join(parts))
    else:
        parts.append(struct.pack("<I", spec.feature_transformer_hash))
        parts += [(compress if net.layout == "leb" else store)(s) for s in spec.feature_transformer_sections()]
        for stack in range(spec.stacks):
            parts.append(struct.pack("<I", spec.stack_hash))
            parts += [store(section) for section in spec.stack_sections(stack)]
        file_hash = spec.file_hash
    header = struct.pack("<III", spec.version, file_hash, len(net.description)) + net.description
    return b"".join([header, *parts])


def write_net(net: QuantizedNet, path: PathLike) -> None:
    """Writes `path` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(to_bytes(net))
