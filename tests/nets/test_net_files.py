"""The `.nnue` reader and writer: golden checksums, byte-identical rewriting, and one clear line for every bad file."""

import re
import struct
from dataclasses import replace

import numpy as np
import pytest
from golden import golden_net
from net_support import random_checkpoint
from typed import instance

from nnue_trainer.errors import UserError
from nnue_trainer.export import net_from_checkpoint, read_net, to_bytes, write_net
from nnue_trainer.nets import NETS
from nnue_trainer.nets.simple import Simple
from nnue_trainer.nnue_file import leb128
from nnue_trainer.nnue_file.layout import Block, Word

# By layout: version, file hash, feature transformer hash, stack hash.
HASHES = {
    "sfnnv1": [(0x7AF32F16, 0x3E5AA6EE, 0x5D69D7B8, 0x63337156)],
    "sfnnv2": [(0x7AF32F20, 0x3C103E72, 0x5F2348B8, 0x633376CA)],
    "sfnnv3": [(0x7AF32F20, 0x1C102EEC, 0x7F2344B8, 0x63336A54)],
    "sfnnv4": [(0x7AF32F20, 0x1C102EF2, 0x7F2344B8, 0x63336A4A)],
    "sfnnv5": [(0x7AF32F20, 0x1C102EF2, 0x7F2344B8, 0x63336A4A)],
    "sfnnv6": [(0x7AF32F20, 0x1C102B72, 0x7F2340B8, 0x63336BCA)],
    "sfnnv7": [(0x7AF32F20, 0x1C1037F2, 0x7F235CB8, 0x63336B4A)],
    "sfnnv8": [(0x7AF32F20, 0x1C103072, 0x7F2358B8, 0x633368CA)],
    "sfnnv9": [(0x7AF32F20, 0x1C1020F2, 0x7F2354B8, 0x6333744A)],
    "small128": [(0x7AF32F20, 0x1C103C92, 0x7F234DB8, 0x6333712A)],
    "sfnnv10": [(0x7AF32F20, 0xEC102EF2, 0x8F2344B8, 0x63336A4A)] * 2,
    "sfnnv11": [(0x7AF32F20, 0xEC102EF2, 0x8F2344B8, 0x63336A4A)],
    "sfnnv12": [(0x7AF32F20, 0xEC102EF2, 0x8F2344B8, 0x63336A4A)],
    "sfnnv13": [(0x7AF32F20, 0x0256ACDF, 0x6165DDC9, 0x63337116), (0x7AF32F20, 0xEC1035AE, 0x8F2344B8, 0x63337116)],
    "sfnnv14": [(0x7AF32F20, 0x0256ACDF, 0x6165DDC9, 0x63337116)],
    "sfnnv14.1": [(0x6A448AFA, 0x0256ACDF, 0x6165DDC9, 0x63337116)],
    "sfnnv15": [(0x6A448AFA, 0x0256ACDF, 0x6165DDC9, 0x63337116)],
    "sfnnv16": [(0x6A448AFA, 0xA85B2205, 0xCB685313, 0x63337116)],
    "sfnnv17": [(0x6A448AFA, 0xA85B2205, 0xCB685313, 0x63337116)],
    "sfnnv18": [(0x6A448AFA, 0xE5CD8C39, 0x86FEFD2F, 0x63337116)],
}


def test_a_raw_file_of_v18_is_as_long_as_public_sources_say() -> None:
    (net,) = NETS.find("sfnnv18").known()
    layout = net.layouts()[0]
    assert layout.name == "raw"
    items = [4 if isinstance(item, Word) else item.size for item in layout.items]
    assert 12 + sum(items) == 113_178_896
    sizes = [item.size for item in layout.items if isinstance(item, Block)]
    assert sizes[:4] == [2 * 1024, 59_808 * 1024, 4_560 * 1024, 45_056 * 1024]
    assert {sum(items[-7 * (n + 1) : len(items) - 7 * n]) for n in range(32)} == {35_208}


@pytest.mark.parametrize("name", HASHES)
def test_hashes_follow_from_the_sizes(name: str) -> None:
    (net,) = NETS.find(name).known()
    for layout, expected in zip(net.layouts(), HASHES[name], strict=False):
        words = {item.value for item in layout.items[1:] if isinstance(item, Word)}
        assert isinstance(layout.items[0], Word)
        assert (layout.version, layout.file_hash, layout.items[0].value, *words) == expected


@pytest.mark.parametrize(("dtype", "bits"), [("<i1", 8), ("<i2", 16), ("<i4", 32)])
def test_leb128_holds_every_length(dtype: str, bits: int) -> None:
    edges = {sign * (1 << n) + d for n in range(bits - 1) for sign in (1, -1) for d in (-1, 0, 1)}
    edges |= {-(1 << bits - 1), (1 << bits - 1) - 1}
    values = np.array(sorted(edges), np.int64).astype(dtype)
    payload = leb128.encode(values)
    np.testing.assert_array_equal(leb128.decode(payload, [(values.size, values.dtype)])[0], values)
    lengths = [len(leb128.encode(values[i : i + 1])) for i in range(values.size)]
    assert sum(lengths) == len(payload)
    for value, length in zip(values.tolist(), lengths, strict=True):
        assert -(1 << 7 * length - 1) <= value < 1 << 7 * length - 1, "as many bytes as needed"
        assert length == 1 or not -(1 << 7 * length - 8) <= value < 1 << 7 * length - 8, "and no more"


def test_leb128_known_bytes_and_refusals() -> None:
    assert leb128.encode(np.array([0, -1, 63, 64, -64, -65, 128, -32768], "<i2")).hex() == "007f3fc00040bf7f800180807e"
    two = np.dtype("<i2")
    assert leb128.decode(b"", [(0, two)])[0].size == 0
    for payload, count, offset, words in (
        (b"\x80\x80", 1, 2, "0 numbers, expected 1"),
        (b"\x01\x02\x03", 2, 2, "end after 2 bytes"),
        (b"\x01\xff\xff\x03", 2, 1, "65535 does not fit int16"),
        (b"\x80\x80\x80\x80\x80\x00", 1, 0, "6 bytes"),
        (b"\x80" * 100 + b"\x00", 1, 0, "101 bytes"),
        (b"\x05\x80\x80\x80\x80\x10", 2, 1, "4294967296 does not fit int16"),
    ):
        with pytest.raises(leb128.LebError, match=words) as caught:
            leb128.decode(payload, [(count, two)])
        assert caught.value.offset == offset


def test_leb128_ranges_follow_each_other() -> None:
    """One payload, several tensors: a refusal counts its place from the first byte and its element from the first
    number of all."""
    parts = [
        np.array([5, -100], "<i1"),
        np.array([], "<i2"),
        np.array([300, -30000], "<i2"),
        np.array([1 << 30], "<i4"),
    ]
    payload = b"".join(leb128.encode(part) for part in parts)
    ranges = [(part.size, part.dtype) for part in parts]
    for found, part in zip(leb128.decode(bytearray(payload), ranges), parts, strict=True):
        assert found.dtype == part.dtype
        np.testing.assert_array_equal(found, part)
    with pytest.raises(leb128.LebError, match="300 does not fit int8") as caught:
        leb128.decode(payload, [(2, np.dtype("<i1")), (1, np.dtype("<i1")), (2, np.dtype("<i4"))])
    assert (caught.value.offset, caught.value.element) == (3, 2)
    transposed = np.arange(-500, 500, dtype="<i4").reshape(20, 50).T
    assert leb128.encode(transposed) == leb128.encode(np.ascontiguousarray(transposed)), "row-major order"


def section_ends(file: bytes, net) -> dict[str, int]:
    """Offset just before the last byte of every part of a raw file, by the words its error must contain."""
    at = 4
    ends = {"version": at - 1}
    for what, size in (("file hash", 4), ("description length", 4), ("description", len(net.description))):
        at += size
        ends[what] = at - 1
    for item in net.file_layout.items:
        at += 4 if isinstance(item, Word) else item.size
        ends[item.label] = at - 1
    assert at == len(file)
    return ends


def refusal(path, content: bytes, arch: str | None = None) -> str:
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_net(path, arch)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_a_file_cut_anywhere_is_refused_by_section(tmp_path) -> None:
    net = golden_net("sfnnv3")
    file = to_bytes(net)
    ends = section_ends(file, net)
    assert len(ends) == 5 + 3 + 8 * 7
    names = [name for name in ends if not name.startswith("stack") or name.startswith(("stack 0", "stack 7"))]
    for name in names:
        message = refusal(tmp_path / "cut.nnue", file[: ends[name]])
        assert re.search(rf": offset \d+: {name}: file ends after \d+ bytes, expected \d+", message), message
    assert "file ends after 0 bytes, expected 4" in refusal(tmp_path / "empty.nnue", b"")


def test_a_compressed_file_cut_or_damaged_is_refused(tmp_path) -> None:
    net = golden_net("small128")
    file = to_bytes(net)
    path = tmp_path / "bad.nnue"
    bias = 12 + len(net.description) + 4
    (size,) = struct.unpack_from("<I", file, bias + 17)
    weight = bias + 21 + size
    for cut, words in (
        (bias + 5, "feature_transformer.bias: file ends after 5 bytes, expected 17"),
        (bias + 19, "feature_transformer.bias byte count: file ends"),
        (bias + 21 + 7, f"feature_transformer.bias: file ends after 7 bytes, expected {size}"),
        (weight + 3, "feature_transformer.weight: file ends"),
        (len(file) - 1, "stack 7 fc2.weight: file ends after 31 bytes, expected 32"),
    ):
        assert words in refusal(path, file[:cut])
    short = file[: bias + 17] + struct.pack("<I", size - 1) + file[bias + 21 :]
    assert f"offset {weight - 1}: feature_transformer.weight: found b'\\x04COMPRESSED_LEB12'" in refusal(path, short)
    magic = file[:weight] + b"x" + file[weight + 1 :]
    assert f"offset {weight}: feature_transformer.weight: found b'xOMPRESSED_LEB128'" in refusal(path, magic)


def test_wrong_header_fields_are_named_with_found_and_expected(tmp_path) -> None:
    net = golden_net("sfnnv3")
    file = to_bytes(net)
    path = tmp_path / "bad.nnue"
    begin = 12 + len(net.description)
    assert "offset 0: version: found 0x00000000, expected one of" in refusal(path, bytes(4) + file[4:])
    other = file[:4] + b"\1\0\0\0" + file[8:]
    assert "offset 4: file hash: 0x00000001 is of a net without a record, with other sizes" in refusal(path, other)
    unlike_any = other[:begin] + b"\1\0\0\0" + other[begin + 4 :]
    assert "offset 4: file hash: 0x00000001 is not a known architecture" in refusal(path, unlike_any)
    assert f"offset {begin}: feature transformer hash: found 0x7F2344B9, expected 0x7F2344B8 (sfnnv3)" in refusal(
        path, file[:begin] + b"\xb9" + file[begin + 1 :]
    )
    stack = begin + 4 + 2 * 1024 + 22528 * (2 * 1024 + 32)
    assert f"offset {stack}: stack 0 hash: found 0x63336A55, expected 0x63336A54" in refusal(
        path, file[:stack] + b"\x55" + file[stack + 1 :]
    )
    assert f"offset {len(file)}: end of net: 1 bytes more than expected" in refusal(path, file + b"\0")
    assert "offset 4: file hash: found 0x1C102EEC, expected 0x1C102EF2 (sfnnv5)" in refusal(path, file, "sfnnv5")
    assert "offset 0: version: found 0x7AF32F20, expected 0x7AF32F16 (sfnnv1)" in refusal(path, file, "sfnnv1")
    huge = file[:8] + b"\xff\xff\xff\xff" + file[12:]
    assert "description: file ends after" in refusal(path, huge)
    path.write_bytes(file)
    with pytest.raises(UserError, match="unknown architecture 'sfnnv99', expected one of sfnnv1"):
        read_net(path, "sfnnv99")


def test_missing_file_is_one_line(tmp_path) -> None:
    with pytest.raises(UserError, match=r"none\.nnue: cannot read the net: No such file"):
        read_net(tmp_path / "none.nnue")


def test_twins_are_told_apart_by_the_user_or_by_our_description(tmp_path) -> None:
    net = golden_net("sfnnv4")
    path = tmp_path / "twin.nnue"
    write_net(net, path)
    notes: list[str] = []
    assert read_net(path, note=notes.append).net.name == "sfnnv5"
    assert len(notes) == 1
    assert "sfnnv4 and sfnnv5 have the same file layout" in notes[0]
    assert read_net(path, "sfnnv4", notes.append).net.name == "sfnnv4"
    assert len(notes) == 1
    ours = replace(net, description=b'x {"nnue_trainer":"0","net":"sfnnv4","architecture":{"kind":"sfnnv4","l1":1024}}')
    write_net(ours, path)
    assert read_net(path, note=notes.append).net.name == "sfnnv4"
    assert len(notes) == 1


def test_padding_columns_survive(tmp_path) -> None:
    net = golden_net("sfnnv5")
    net.tensors["fc1.weight"][3, 7, 31] = 99
    path = tmp_path / "padded.nnue"
    write_net(net, path)
    assert to_bytes(read_net(path)) == to_bytes(net)


def test_both_layouts_of_one_architecture_are_read(tmp_path) -> None:
    net = replace(golden_net("small128"), layout="raw")
    path = tmp_path / "raw.nnue"
    write_net(net, path)
    again = read_net(path)
    assert again.layout == "raw"
    assert to_bytes(again) == to_bytes(net)


def test_our_nets_carry_their_architecture(tmp_path) -> None:
    checkpoint = random_checkpoint({"kind": "sfnnv5", "l1": 96})
    path = tmp_path / "wide.nnue"
    write_net(net_from_checkpoint(checkpoint, "c", any_l1=True), path)
    net = read_net(path)
    assert net.net.name == "sfnnv5-l1-96"
    assert net.net.architecture == checkpoint.architecture
    damaged = path.read_bytes().replace(b'"l1":96', b'"l1":97')
    assert "description: architecture.l1: found 97, expected a multiple of 32" in refusal(path, damaged)


@pytest.fixture
def simple_file() -> bytes:
    checkpoint = random_checkpoint({"kind": "simple", "hidden": 16})
    return to_bytes(net_from_checkpoint(checkpoint, "c"))


def test_simple_net_is_read_and_written_unchanged(simple_file: bytes, tmp_path) -> None:
    path = tmp_path / "simple.nnue"
    path.write_bytes(simple_file)
    net = read_net(path)
    assert instance(Simple, net.net).hidden == 16
    assert to_bytes(net) == simple_file
    (length,) = struct.unpack_from("<I", simple_file, 8)
    assert len(simple_file) == 12 + length + 2 * (768 * 16 + 16 + 32 + 1)


def test_bad_simple_nets_are_refused(simple_file: bytes, tmp_path) -> None:
    path = tmp_path / "simple.nnue"
    (length,) = struct.unpack_from("<I", simple_file, 8)
    flipped = bytearray(simple_file)
    flipped[-9] ^= 1
    assert "offset 4: checksum: tensors give" in refusal(path, bytes(flipped))
    assert "output.bias: file ends after 1 bytes, expected 2" in refusal(path, simple_file[:-1])
    assert "feature_transformer.weight: file ends" in refusal(path, simple_file[: 12 + length + 5])
    assert "end of net: 2 bytes more" in refusal(path, simple_file + b"\0\0")
    assert "offset 0: version: found 0x4E545301, expected 0x7AF32F20 (sfnnv5)" in refusal(path, simple_file, "sfnnv5")
    assert "no architecture record" in refusal(path, simple_file[:8] + bytes(4) + simple_file[12 + length :])


def test_a_description_that_is_no_json_is_refused(tmp_path) -> None:
    for record in (
        b'{"nnue_trainer":' + b"[" * 100000,
        b'{"nnue_trainer":"\xff',
        b'{"nnue_trainer":1',
    ):
        header = struct.pack("<III", 0x7AF32F20, 0x1C102EF2, len(record)) + record
        assert "description: damaged architecture record" in refusal(tmp_path / "bad.nnue", header)
    for rest, found in ((b"", "null"), (b',"net":"sfnnv5","architecture":7', "7")):
        record = b'{"nnue_trainer":"1"' + rest + b"}"
        header = struct.pack("<III", 0x7AF32F20, 0x1C102EF2, len(record)) + record
        assert f"description: architecture is {found}, expected a mapping" in refusal(tmp_path / "bad.nnue", header)


@pytest.mark.parametrize("kind", ["sfnnv5", "simple"])
def test_damaged_files_are_read_or_refused_but_never_crash(kind: str, tmp_path) -> None:
    source = random_checkpoint({"kind": "sfnnv5", "l1": 32} if kind == "sfnnv5" else {"kind": "simple", "hidden": 8})
    file = to_bytes(net_from_checkpoint(source, "c", any_l1=True))
    path = tmp_path / "damaged.nnue"
    generator = np.random.default_rng(11)
    messages = []
    for trial in range(60):
        damaged = np.frombuffer(file, np.uint8).copy()
        where = generator.integers(0, 260 if trial % 2 else len(file), 1 + trial % 3)
        damaged[where] = generator.integers(0, 256, where.size)
        path.write_bytes(damaged[: generator.integers(0, len(file)) if trial % 5 == 0 else None].tobytes())
        try:
            read_net(path)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 20
    assert all(message.startswith(f"{path}: ") and "\n" not in message for message in messages)
