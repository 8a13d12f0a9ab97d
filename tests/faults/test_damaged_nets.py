"""Damaged net files: tools/fuzz_nets.py for a few seconds instead of hours; and pipes, folders and the like."""

import importlib.util
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from nnue_trainer.errors import UserError
from nnue_trainer.export import read_net
from nnue_trainer.export.net import recognise
from nnue_trainer.nnue_file import leb128
from nnue_trainer.nnue_file.reader import MAX_FILE_BYTES, NetFile

TOOL = Path(__file__).resolve().parents[2] / "tools" / "fuzz_nets.py"
spec = importlib.util.spec_from_file_location("fuzz_nets", TOOL)
assert spec is not None
assert spec.loader is not None
fuzz_nets = importlib.util.module_from_spec(spec)
sys.modules["fuzz_nets"] = fuzz_nets
spec.loader.exec_module(fuzz_nets)
CASES = fuzz_nets.cases()
# One of each kind of layout, and those that are distinguished by their bodies alone.
QUICK = [
    "sfnnv1 raw",
    "sfnnv5 raw",
    "small128 leb",
    "sfnnv10 thr0 first hash",
    "sfnnv12 thr1 first hash",
    "sfnnv14 thr1",
    "sfnnv14.1 thr2",
    "sfnnv16 thr2",
    "sfnnv17 thr2",
    "sfnnv16 huffman",
    "sfnnv18 raw",
    "sfnnv18 raw zlib",
    "sfnnv18 huffman",
    "simple own",
    "simple own zlib",
    "sfnnv16 stacks thr2",
    "stacks own zlib",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_damaged_files_are_refused_in_one_line_or_written_back_as_they_are(name: str) -> None:
    refused, accepted = fuzz_nets.fuzz(1000, 5, *CASES[name])
    assert refused > 500
    assert accepted > 0 or name.startswith("simple own"), (
        "a weight that changed is still a weight, but there is a checksum"
    )


@pytest.mark.parametrize("name", [name for name in CASES if " own" not in name])
def test_a_file_is_what_its_whole_shape_says(name: str, tmp_path: Path) -> None:
    known, layout, description = CASES[name]
    (tmp_path / "net.nnue").write_bytes(fuzz_nets.make(layout, description, np.random.default_rng(3)))
    with NetFile(tmp_path / "net.nnue") as file:
        found = recognise(file, known)
    kind = name.split()[0]
    has_own_stacks = name.split()[1] == "stacks"
    twins = ["sfnnv4", "sfnnv5"] if kind in ("sfnnv4", "sfnnv5") and not has_own_stacks else []
    assert found.net.name == ("sfnnv5" if twins else f"{kind}-stacks-4" if has_own_stacks else kind)
    assert found.alike == twins
    assert found.layout is layout or twins


def test_files_of_two_nets_cut_off_before_they_differ_are_called_by_both_names(tmp_path: Path) -> None:
    known, layout, description = CASES["sfnnv16 thr2"]
    file = fuzz_nets.make(layout, description, np.random.default_rng(3))
    first = layout.items[1]
    begin = 12 + len(description) + 4
    (size,) = struct.unpack_from("<I", file, begin + len(leb128.MAGIC))
    threats = begin + len(leb128.MAGIC) + 4 + size
    assert first.coding == "leb128"
    for damaged, words in (
        (
            file[: threats + 3],
            f"offset {threats}: feature_transformer.weight.Full_Threats_v16: file ends after 3 bytes",
        ),
        (file[: begin - 4] + b"\0\0\0\0" + file[begin:], "expected 0xCB685313"),
        (file[: threats - 5], f"offset {begin + len(leb128.MAGIC) + 4}: feature_transformer.bias: file ends after"),
    ):
        (tmp_path / "net.nnue").write_bytes(damaged)
        with NetFile(tmp_path / "net.nnue") as opened, pytest.raises(UserError) as caught:
            recognise(opened, known)
        assert words in str(caught.value)
        assert str(caught.value).endswith(" (sfnnv16 or sfnnv17)")


@pytest.mark.parametrize(
    ("payload", "count"),
    [(b"\x80\x00", 1), (b"\xff\x7f", 1), (b"\x01\xc0\x00\x02", 3), (b"\xbf\x7f\xff\xff\x7f", 2), (b"\xc0\x80\x00", 1)],
)
def test_a_number_that_is_longer_than_it_must_be_is_refused(payload: bytes, count: int) -> None:
    """It would be written back in its shortest form, as another file."""
    if payload == b"\x01\xc0\x00\x02":  # 64 needs its second byte: bit 6 of the first one is a sign
        assert leb128.decode(payload, [(count, np.dtype("<i2"))])[0].tolist() == [1, 64, 2]
        return
    with pytest.raises(leb128.LebError, match="is not the shortest form of its number"):
        leb128.decode(payload, [(count, np.dtype("<i4"))])


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_net(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    assert (
        refusal(Path("/dev/zero"))
        == "/dev/zero: cannot read the net: found a character device, expected a regular file"
    )
    os.mkfifo(tmp_path / "pipe")
    assert "found a pipe, expected a regular file" in refusal(tmp_path / "pipe")
    assert "found a folder, expected a regular file" in refusal(tmp_path)


def test_giants_are_refused_without_being_read(tmp_path: Path) -> None:
    """Sparse files: reading them would take their size in memory."""
    path = tmp_path / "giant.nnue"
    path.touch()
    os.truncate(path, 2**40)
    assert f"found a file of 1,099,511,627,776 bytes, expected a net of at most {MAX_FILE_BYTES:,}" in refusal(path)
    os.truncate(path, MAX_FILE_BYTES)
    assert "offset 0: version: found 0x00000000" in refusal(path)
    with path.open("r+b") as file:
        file.write(struct.pack("<III", 0x6A448AFA, 0xA85B2205, 2**31 - 100))
    assert "offset 8: description length: found 2,147,483,548, expected at most 16,777,216 bytes" in refusal(path)
    with path.open("r+b") as file:
        file.write(struct.pack("<IIII", 0x6A448AFA, 0xA85B2205, 0, 0xCB685313) + leb128.MAGIC + b"\xff\xff\xff\x7f")
    assert "feature_transformer.bias byte count: found 2147483647, expected 1024 to 5120 for 1024 numbers" in refusal(
        path
    )


@pytest.mark.parametrize("name", fuzz_nets.raw_cases())
def test_damaged_raw_files(name: str) -> None:
    refused, accepted = fuzz_nets.fuzz_raw(1500, 3, fuzz_nets.raw_cases()[name])
    assert refused > 200
    assert accepted > 200
