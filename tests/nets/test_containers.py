"""Huffman-coded arrays and zlib streams: against the bytes of the reference writer, and what is refused."""

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import nnue
from net_support import VECTORS, random_checkpoint, within_limits

from nnue_trainer import _data
from nnue_trainer.errors import UserError
from nnue_trainer.export import QuantizedNet, net_from_checkpoint, read_net, to_bytes, write_net
from nnue_trainer.files import checkpoint
from nnue_trainer.nnue_file import envelope, huffman

DTYPES: dict[str, np.dtype[Any]] = {"i8": np.dtype("<i1"), "i16": np.dtype("<i2"), "i32": np.dtype("<i4")}
CODED = json.loads((VECTORS / "huffman.json").read_text())
V18: dict[str, Any] = {"kind": "sfnnv18", "l1": 32}


def values_of(case: dict[str, Any]) -> np.ndarray:
    if "values" in case:
        return np.array(case["values"], DTYPES[case["dtype"]])
    values, counts = np.array(case["runs"]).T
    return np.repeat(values, counts).astype(DTYPES[case["dtype"]])


@pytest.mark.parametrize("case", CODED["arrays"], ids=lambda case: case["name"][:20])
def test_arrays_are_coded_as_the_reference_codes_them(case: dict[str, Any]) -> None:
    values = values_of(case)
    coded = huffman.encode(values)
    assert coded.hex() == case["hex"]
    np.testing.assert_array_equal(huffman.decode(coded, len(values), values.dtype), values)
    assert huffman.size(lambda at, n: bytearray(coded[at : at + n]), len(values)) == len(coded)


@pytest.mark.parametrize("case", CODED["blocks"], ids=lambda case: str(case["n"]))
def test_arrays_are_cut_as_the_reference_cuts_them(case: dict[str, Any]) -> None:
    values = ((np.arange(case["n"], dtype=np.int64) * 2654435761 >> 13) % 7 - 3).astype(np.int8)
    coded = huffman.encode(values)
    assert (len(coded), hashlib.sha256(coded).hexdigest()) == (case["bytes"], case["sha256"])
    assert [at for at in range(len(coded)) if coded.startswith(huffman.MAGIC, at)] == case["block_starts"]
    np.testing.assert_array_equal(huffman.decode(coded, len(values), values.dtype), values)
    assert _data.huffman_blocks(400_000) == [133_333, 133_333, 133_334]


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (0, b"X", "expected COMPRESSED_HUFFMAN"),
        (18, struct.pack("<ii", 3, 0), "values from 3 to 0"),
        (18, struct.pack("<ii", -200, 3), "do not fit int8"),
        (18, struct.pack("<ii", 0, 2**24), r"expected a range of 1 to 16777216"),
        (30, b"\x02\x02\x02\x11", "a code of 17 bits"),
        (30, b"\x02\x02\x02\x03", "code lengths that make no complete code"),
        (30, b"\x00\x02\x02\x02", "the smallest or the largest value does not occur"),
        (26, struct.pack("<I", 1) + b"\x02\x02\x02\x02\x1b", "the payload ends within a code"),
        (26, struct.pack("<I", 4) + b"\x02\x02\x02\x02\x1b\x1b\x00\x00", "codes end after 16 bits"),
        (36, b"\x00", "1 bytes too many"),
    ],
)
def test_damaged_arrays_are_refused(at: int, new: bytes, message: str) -> None:
    values = np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int8)
    coded = huffman.encode(values)
    damaged = coded[:at] + new if at in (26, 36) else coded[:at] + new + coded[at + len(new) :]
    with pytest.raises(huffman.HuffmanError, match=message):
        huffman.decode(damaged, len(values), values.dtype)


def test_filler_bits_are_zeros() -> None:
    coded = bytearray(huffman.encode(np.array([0, 0, 0, 1, 1], np.int16)))
    coded[-1] |= 1
    with pytest.raises(huffman.HuffmanError, match="bits after the last code"):
        huffman.decode(coded, 5, np.dtype("<i2"))


def test_what_has_no_codes_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"2\^24 or more"):
        huffman.encode(np.array([0, 2**24], np.int32))


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def net() -> QuantizedNet:
    return net_from_checkpoint(within_limits(V18), "v18", any_l1=True)


def in_layout(net: QuantizedNet, layout: str) -> QuantizedNet:
    return QuantizedNet(net.net, net.description, net.tensors, layout)


def same(one: QuantizedNet, other: QuantizedNet) -> bool:
    return all(np.array_equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


@pytest.mark.parametrize("layout", ["raw", "raw zlib", "thr2", "huffman"])
def test_every_container_is_told_by_its_content(layout: str, net: QuantizedNet, tmp_path: Path) -> None:
    written = in_layout(net, layout)
    write_net(written, tmp_path / "net.nnue")
    found = read_net(tmp_path / "net.nnue")
    assert found.layout == layout
    assert same(found, net)
    assert to_bytes(found) == (tmp_path / "net.nnue").read_bytes()


def test_a_zlib_file_holds_the_raw_file(net: QuantizedNet) -> None:
    raw, packed = to_bytes(net), to_bytes(in_layout(net, "raw zlib"))
    begin = 12 + len(net.description)
    assert packed[:begin] == raw[:begin]
    assert packed[begin:].startswith(envelope.MAGIC)
    inflated, stream = struct.unpack_from("<II", packed, begin + len(envelope.MAGIC))
    assert (inflated, stream) == (len(raw) - begin, len(packed) - begin - envelope.HEAD)
    assert zlib.decompress(packed[begin + envelope.HEAD :]) == raw[begin:]


def test_damaged_streams_are_refused_in_one_line(net: QuantizedNet, tmp_path: Path) -> None:
    raw, begin = to_bytes(net), 12 + len(net.description)
    head, body = raw[:begin], raw[begin:]
    packed = zlib.compress(body)

    def stream(inflated: int, size: int, content: bytes) -> bytes:
        return head + envelope.MAGIC + struct.pack("<II", inflated, size) + content

    for file, message in (
        (stream(len(body), len(packed), packed[:-1]), "but [0-9,]+ follow"),
        (stream(len(body), len(packed) + 1, packed), "but [0-9,]+ follow"),
        (stream(len(body) + 1, len(packed), packed), "zlib stream holds"),
        (stream(len(body) - 1, len(packed), packed), "zlib stream holds more"),
        (stream(2**32 - 1, len(packed), packed), "inflated bytes, which a stream"),
        (stream(len(body), len(packed) - 1, packed[:-1]), "truncated zlib stream|zlib stream holds"),
        (stream(len(body), len(packed) + 3, packed + b"abc"), "3 bytes after the end of the zlib stream"),
        (stream(len(body), len(packed), packed[:100] + b"\xff" * 9 + packed[109:]), "damaged zlib stream|holds"),
        (head + b"".join(envelope.wrap([body + b"\0"])), "of the inflated file: end of net: 1 bytes more"),
        (
            head[:4] + bytes(4) + head[8:] + b"".join(envelope.wrap([body])),
            "offset 4 .*: file hash: found 0x0+, expected",
        ),
        (head + b"".join(envelope.wrap([body[:-1]])), "of the inflated file: stack 31 fc2.weight: file ends after"),
    ):
        (tmp_path / "damaged.nnue").write_bytes(file)
        with pytest.raises(UserError, match=message) as caught:
            read_net(tmp_path / "damaged.nnue")
        assert "\n" not in str(caught.value)


def test_compression_and_description_are_the_users_choice(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "v18.safetensors", within_limits(V18))
    sizes = {}
    for name in ("raw", "leb128", "huffman", "zlib"):
        out = tmp_path / f"{name}.nnue"
        nnue(
            "export",
            tmp_path / "v18.safetensors",
            out,
            "--any-l1",
            "--compression",
            name,
            "--description",
            "Ünser Netz",
        )
        sizes[name] = out.stat().st_size
        assert out.read_bytes()[12:23] == "Ünser Netz".encode()
    assert sizes["huffman"] < sizes["raw"]
    assert sizes["zlib"] < sizes["raw"]
    checkpoint.save(tmp_path / "v9.safetensors", random_checkpoint({"kind": "sfnnv9", "l1": 32}))
    for name, options, words in (
        ("v18", ["--compression", "lzma"], "--compression: found \"lzma\", expected 'default', 'raw'"),
        ("v9", ["--compression", "zlib"], "compression is zlib, expected one that the net supports: leb128, raw"),
        (
            "v9",
            ["--format", "raw", "--description", "x"],
            "--description: expected --format nnue with it, found format raw",
        ),
    ):
        with pytest.raises(UserError) as caught:
            nnue("export", tmp_path / f"{name}.safetensors", tmp_path / "x.nnue", "--any-l1", *options)
        assert words in str(caught.value)
        assert not (tmp_path / "x.nnue").exists()


def test_a_net_of_our_own_container_keeps_its_record(tmp_path: Path) -> None:
    """It is read by that record."""
    checkpoint.save(tmp_path / "simple.safetensors", random_checkpoint({"kind": "simple", "hidden": 16}))
    out = tmp_path / "simple.nnue"
    nnue("export", tmp_path / "simple.safetensors", out, "--compression", "zlib", "--description", "mine")
    found = read_net(out)
    assert found.description.startswith(b'mine {"nnue_trainer"')
    nnue("import", out, tmp_path / "again.safetensors")
    nnue("export", tmp_path / "again.safetensors", tmp_path / "again.nnue")
    assert (tmp_path / "again.nnue").read_bytes() == out.read_bytes()
