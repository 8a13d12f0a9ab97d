"""Damages net files of every layout and reads them: each is refused with one line, or written back byte for byte.

    python tools/fuzz_nets.py [--count 1000000] [--seed 1] [LAYOUT ...]

The files have the layouts of real nets with tensors of a few rows and columns, so that a million per layout takes 2 to
4 minutes of CPU time: the reader follows the layout and does not depend on the length of a tensor.
tests/faults/test_damaged_nets.py does the same for a few seconds.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import struct
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nnue_trainer.data import records_from_fens
from nnue_trainer.errors import UserError
from nnue_trainer.export import net as export_net
from nnue_trainer.export import parse_format
from nnue_trainer.export.evaluate import Evaluator
from nnue_trainer.export.net import Candidate, QuantizedNet, Recognised, known_layouts, recognise
from nnue_trainer.nets import Net, parse
from nnue_trainer.nnue_file import envelope, leb128, writer
from nnue_trainer.nnue_file.description import describe
from nnue_trainer.nnue_file.formats import TensorKind
from nnue_trainer.nnue_file.layout import Block, FileLayout, Piece, Word
from nnue_trainer.nnue_file.reader import NetFile

STACKS = 2
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def small(piece: Piece) -> Piece:
    """The piece with far fewer elements. The numbers of rows of different feature sets stay different."""
    if piece.index is None:
        rows, *columns = piece.shape
        shape = (max(1, rows // 300), *(max(1, c // 256) for c in columns)) if columns else (max(1, rows // 128),)
    else:
        shape = tuple(size if size <= 128 else 8 for size in piece.shape)
    return replace(piece, shape=shape)


def small_layout(layout: FileLayout) -> FileLayout:
    items: list[Word | Block] = []
    for item in layout.items:
        if isinstance(item, Word):
            if not item.label.startswith("stack") or int(item.label.split()[1]) < STACKS:
                items.append(item)
        elif item.pieces[0].index is None or item.pieces[0].index < STACKS:
            items.append(replace(item, pieces=tuple(small(piece) for piece in item.pieces)))
    return replace(layout, items=tuple(items))


def small_layouts() -> list[Candidate]:
    """All layouts that files without a record may have, small."""
    return [(net, small_layout(layout)) for net, layout in known_layouts()]


def make(layout: FileLayout, description: bytes, generator: np.random.Generator) -> bytes:
    """A sound file of this layout."""
    is_wide = generator.random() < 0.05
    parts: dict[str, list[np.ndarray]] = {}
    for piece in layout.pieces():
        limits = np.iinfo(piece.dtype)
        if layout.compression == "huffman" and limits.max > 127:
            # Huffman codes cannot cover all 32-bit numbers; a table of all 16-bit numbers would fill most of a file.
            limits = np.iinfo(np.int16 if is_wide else np.int8)
        # Small numbers mostly, as in nets, and the largest ones.
        values = (generator.standard_normal(piece.count) * 50).clip(limits.min, limits.max).astype(piece.dtype)
        values[generator.random(piece.count) < 0.1] = limits.min
        values[generator.random(piece.count) < 0.1] = limits.max
        if layout.zlib:  # zeros are compressed faster
            values[: piece.count * 9 // 10] = 0
        parts.setdefault(piece.tensor, []).append(values.reshape(piece.shape))
    stacked = {piece.tensor for piece in layout.pieces() if piece.index is not None}
    tensors = {name: np.stack(values) if name in stacked else values[0] for name, values in parts.items()}
    return writer.to_bytes(layout, description, tensors)


def damage(file: bytes, chance: random.Random) -> bytes:
    """The file with one to three defects."""

    def below(end: int) -> int:  # `randrange` takes five times as long
        return int(chance.random() * end)

    data = bytearray(file)
    for _ in range(1 + below(3)):
        at = below(len(data) + 1)
        if chance.random() < 0.3:  # the header and the first block, where most that matters stands
            at = min(len(data), below(120))
        match below(9):
            case 0:
                del data[at:]
            case 1:
                data += chance.randbytes(1 + below(39))
            case 2:
                data[at : at + 1] = bytes([data[at] ^ 1 << below(8)]) if at < len(data) else b""
            case 3:
                data[at : at + 1] = chance.randbytes(1)
            case 4:
                data[at : at + 4] = struct.pack("<I", chance.choice(EXTREMES))
            case 5:
                length, other = 1 + below(63), below(len(data) + 1)
                data[at:at] = data[other : other + length]
            case 6:
                del data[at : at + 1 + below(63)]
            case 7:  # a longer form of a number
                if at < len(data) and data[at] < 0x80:
                    data[at : at + 1] = bytes([data[at] | 0x80, 0x7F if data[at] & 0x40 else 0])
            case 8:
                found = data.find(leb128.MAGIC, at)
                if found >= 0:
                    place = found + len(leb128.MAGIC)
                    count = int.from_bytes(data[place : place + 4], "little") + below(5) - 2
                    data[place : place + 4] = struct.pack("<I", count & 0xFFFFFFFF)
    return bytes(data)


class MemoryFile(NetFile):
    """A file that was never on a disk: three in four system calls of the tool were for opening and filling files."""

    def __init__(self, data: bytes) -> None:
        self.path = "net.nnue"
        self.size = len(data)
        self._data = data

    def __exit__(self, *_: object) -> None:
        pass

    def take(self, offset: int, size: int, what: str) -> bytearray:
        self.check(offset, size, what)
        return bytearray(self._data[offset : offset + size])


def damage_inside(file: bytes, description: bytes, chance: random.Random) -> bytes:
    """The file with defects in what its zlib stream holds; the stream is sound."""
    begin = 12 + len(description)
    body = damage(zlib.decompress(file[begin + envelope.HEAD :]), chance)
    return b"".join([file[:begin], *envelope.wrap([body])])


def read_and_write(file: bytes, known: Sequence[Candidate]) -> tuple[bytes, bool]:
    """The file written back, and whether it is the same: byte for byte, or where it is a zlib stream or has Huffman
    codes, which can be written in several ways, by what it holds. UserError if it is refused."""
    found, tensors = _read(file, known)
    written = writer.to_bytes(found.layout, found.header.description, tensors)
    if written == file or found.layout.compression not in ("zlib", "huffman"):
        return written, written == file
    again, others = _read(written, known)
    same = all(np.array_equal(tensors[name], others[name]) for name in tensors)
    return written, same and again.header == found.header and again.layout == found.layout


def _read(file: bytes, known: Sequence[Candidate]) -> tuple[Recognised, dict[str, np.ndarray]]:
    with MemoryFile(file) as opened:
        found = recognise(opened, known)
        return found, found.file.tensors(found.places, found.header, found.layout)


@functools.lru_cache(maxsize=64)
def _parsed(architecture: str, where: str) -> Net:
    return parse(json.loads(architecture), where)


def remember_architectures() -> None:
    """Makes the reader parse equal records of an architecture only once, since nearly all files have the same one."""

    def parse_once(data: Mapping[str, Any], where: str) -> Net:
        return _parsed(json.dumps(data), where)

    export_net.parse = parse_once  # type: ignore[attr-defined]


def alike(known: Sequence[Candidate], layout: FileLayout) -> list[Candidate]:
    """The candidates that the header of this layout allows, and a few others. The reader goes through all candidates
    for each file, which takes a third of its time."""
    headers = (layout.version, layout.file_hash)
    return [one for i, one in enumerate(known) if i % 16 == 0 or (one[1].version, one[1].file_hash) == headers]


def fuzz(count: int, seed: int, known: Sequence[Candidate], layout: FileLayout, description: bytes) -> tuple[int, int]:
    """Damages and reads `count` files. Returns how many were refused and how many accepted; AssertionError with the
    file in hexadecimal for one that is neither refused in one line nor written back as it was."""
    generator, chance = np.random.default_rng(seed), random.Random(seed)
    few = alike(known, layout)
    refused = 0
    for number in range(count):
        if number % 1024 == 0:
            sound = make(layout, description, generator)
            assert read_and_write(sound, known)[0] == sound
        is_inside = layout.zlib and chance.random() < 0.5
        damaged = damage_inside(sound, description, chance) if is_inside else damage(sound, chance)
        try:
            _, same = read_and_write(damaged, few if number % 16 else known)  # all of them take longer
        except UserError as error:
            refused += 1
            if len(str(error)) > 2000 or not str(error).isprintable():
                raise AssertionError(f"seed {seed}, file {number}: {error!r}: {damaged.hex()}") from error
        except Exception as error:
            raise AssertionError(f"seed {seed}, file {number}: {error!r}: {damaged.hex()}") from error
        else:
            assert same, f"seed {seed}, file {number}: written differently: {damaged.hex()}"
    return refused, count - refused


def raw_cases() -> dict[str, Net]:
    """Nets whose raw files are damaged: in a layered net of integers and in one of floats."""
    small: dict[str, dict[str, Any]] = {
        "raw integers": {"hidden": 8, "inputs": {"planes": 10}, "perspectives": "white"},
        "raw floats": {
            "hidden": 8,
            "inputs": {"order": "enemy-first"},
            "activation": "crelu",
            "layers": [{"outputs": 4, "type": "i8", "bias_type": "f32"}, {"outputs": 4, "type": "f32"}],
            "quantisation": {"output": {"type": "f32"}},
        },
    }
    return {name: parse({"kind": "layered", **net}, "fuzz_nets") for name, net in small.items()}


def fuzz_raw(count: int, seed: int, net: Net) -> tuple[int, int]:
    """Fuzzes raw files, which have nothing but numbers: those of the wrong size are refused, and floats that are
    not finite. What is read evaluates without an error."""
    generator, chance = np.random.default_rng(seed), random.Random(seed)
    raw, tensors = parse_format({"kind": "raw"}, "fuzz_nets"), net.tensors()
    kinds = [TensorKind(tensor.name, tensor.dtype, tensor.shape, tensor.scale) for tensor in tensors]
    positions = records_from_fens(["4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"])
    forward, refused, file = net.integer_forward(), 0, b""
    assert forward is not None
    for number in range(count):
        if number % 1024 == 0:
            parts = []
            for tensor in tensors:
                values = generator.standard_normal(tensor.shape) * (1 if tensor.is_float else 50)
                parts.append(values.astype(tensor.dtype).tobytes())
            file = b"".join(parts)
            file += bytes(-len(file) % 64)
        damaged = bytearray(file if chance.random() < 0.5 else damage(file, chance))
        at = chance.randrange(0, max(1, len(damaged) - 4))
        damaged[at : at + 4] = struct.pack("<I", chance.choice((*EXTREMES, 0x7F800000, 0x7FC00000, 0x7F7FFFFF)))
        try:
            read = raw.from_bytes(bytes(damaged), kinds, "net.bin", lambda _: None)
        except UserError as error:
            refused += 1
            if len(str(error)) > 2000 or not str(error).isprintable():
                raise AssertionError(f"seed {seed}, file {number}: {error!r}") from error
            continue
        integers = {name: found.integers for name, found in read.items() if found.integers is not None}
        written = b"".join(integers[tensor.name].tobytes() for tensor in tensors)
        assert written == damaged[: len(written)], f"seed {seed}, file {number}: read differently"
        if number % 64 == 0:
            Evaluator(QuantizedNet(net, b"", integers, net.layouts()[0].name), threads=1).evaluate(positions)
    return refused, count - refused


def cases() -> dict[str, tuple[list[Candidate], FileLayout, bytes]]:
    """By name: the known layouts, the layout to damage, and its description."""
    known = small_layouts()
    found = {f"{net.name} {layout.name}": (known, layout, b"description") for net, layout in known}
    by_queens = {"output_buckets": {"count": 4, "rule": "queens"}}
    # Stacks that are not those of the version change the hashes of a file: it is given as one more known net.
    for kind in ("sfnnv5", "sfnnv16", "sfnnv18"):
        net = parse({"kind": kind, **by_queens}, "fuzz_nets")
        for layout in map(small_layout, net.layouts()):
            found[f"{kind} stacks {layout.name}"] = ([*known, (net, layout)], layout, b"description")
    # Small nets with a record, at their full size.
    stacks = {"hidden": 8, "layers": [{"outputs": 4, "type": "i8"}], **by_queens}
    for name, architecture in {
        "simple": {"kind": "simple", "hidden": 8},
        "stacks": {"kind": "layered", **stacks},
    }.items():
        net = parse(architecture, "fuzz_nets")
        for layout in net.layouts():
            found[f"{name} {layout.name}"] = (known, layout, describe(net.name, net.architecture))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help="by default all: 'sfnnv16 thr2'")
    parser.add_argument("--count", type=int, default=1_000_000, help="files per layout")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_intermixed_args()
    raw = {name: net for name, net in raw_cases().items() if not options.layouts or name in options.layouts}
    chosen = {name: case for name, case in cases().items() if not options.layouts or name in options.layouts}
    if not chosen and not raw:
        sys.exit(f"no such layout; expected some of {', '.join(map(repr, [*cases(), *raw_cases()]))}")
    remember_architectures()
    for name in [*raw, *chosen]:
        started = time.monotonic()
        if name in raw:
            refused, accepted = fuzz_raw(options.count, options.seed, raw[name])
        else:
            refused, accepted = fuzz(options.count, options.seed, *chosen[name])
        seconds = time.monotonic() - started
        print(f"{name}: {refused:,} refused, {accepted:,} written back as they were, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
