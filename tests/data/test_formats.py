"""Every format, plain and compressed: golden bytes, round trips of real data, what is lost, what is wrong."""

import bz2
import gzip
import hashlib
import lzma
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data import PositionReader, PositionWriter, records_from_fens
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.files import FORMATS, read_files
from nnue_trainer.data.transform import convert
from nnue_trainer.errors import UserError

LOSSLESS = ("binpack", "bin", "plain", "viriformat")
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


def read(path: Path, **options: object) -> Records:
    with PositionReader(path, **options) as reader:  # type: ignore[arg-type]
        return np.concatenate([np.empty((0, 32), np.uint8), *reader])


def write(path: Path, records: Records, format: str) -> bytes:
    with PositionWriter(path, format) as writer:
        writer.write(records)
    return path.read_bytes()


@pytest.fixture(scope="module")
def positions(project_root: Path) -> Records:
    """Some thousand real positions."""
    return read_binpack(project_root / "samples" / "val.binpack")[:5000]


def test_golden_bytes(tmp_path: Path) -> None:
    stem = "8c0ea9e9803046864a080006001042113511f397000000002574051d40210000"
    first = np.frombuffer(bytes.fromhex(stem), np.uint8)[None]
    assert (
        write(tmp_path / "bin", first, "bin").hex()
        == "039d8b2cc60991a89a81208e020870024240a04002400400000000000000000071fd5d092100ffff"
    )
    assert (
        write(tmp_path / "bullet", first, "bulletformat").hex()
        == "8c0ea9e980304686350410001288908a8b88d8ca0000000071fd000201000000"
    )
    assert write(tmp_path / "text", first, "text").decode() == (
        "2kr3q/1ppn4/p2p1b1n/P2P1pNB/7P/4RP2/1PP3P1/1KB4Q b - - 0 17 | 655 | 1.0\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", pytest.param("small", marks=pytest.mark.shared)])
@pytest.mark.parametrize("format", FORMATS)
def test_binpack_there_and_back(positions_file: Callable[[str], Path], tmp_path: Path, name: str, format: str) -> None:
    source = positions_file(name)
    between, back = tmp_path / "between", tmp_path / "back.binpack"
    report = convert([source], between, to=format)
    convert([between], back)
    with PositionReader(between) as reader:
        assert reader.format == format
    if format in LOSSLESS:
        assert not report.losses
        assert back.read_bytes() == source.read_bytes()
        return
    before, after = read_binpack(source), read_binpack(back)
    assert len(before) == len(after)
    changed = np.zeros(len(before), bool)
    if format != "bulletformat":
        # All but the move, and the ply where its parity is not the side to move's.
        columns = np.r_[0:24, 26:28, 30:32]
        np.testing.assert_array_equal(before[:, columns], after[:, columns])
        changed = (before[:, 28:30] != after[:, 28:30]).any(1)
        assert changed.sum() == report.losses["ply"]
        assert report.losses["moves"] == (before[:, 24:26] != 0).any(1).sum()
        assert not {"castling", "en_passant", "rule50", "black_to_move", "scores"} & set(report.losses)
        return
    # Boards as white sees them; score and result stay the side to move's.
    for (fen, *old), (new_fen, *new) in zip(_data.describe(before[::97]), _data.describe(after[::97]), strict=True):
        board, side = fen.split()[:2]
        if side == "b":
            board = "/".join(reversed(board.split("/"))).swapcase()
        assert new_fen == f"{board} w - - 0 1"
        assert (old[1], old[3]) == (new[1], new[3])
    statistics = _data.Statistics()
    statistics.add(before)
    assert report.losses["black_to_move"] == statistics.black_to_move
    assert report.losses["en_passant"] == statistics.ep_squares


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("format", FORMATS)
def test_compressed_whatever_the_name(tmp_path: Path, positions: Records, format: str, kind: str) -> None:
    content = write(tmp_path / "plain", positions, format)
    packed = gzip.compress(content) if kind == "gzip" else zstandard.compress(content)
    path = tmp_path / "something.txt"
    path.write_bytes(packed)
    with PositionReader(path) as reader:
        assert (reader.format, reader.compression) == (format, kind)
        records = np.concatenate(list(reader))
        assert reader.done == reader.size == len(packed)
    np.testing.assert_array_equal(records, read(tmp_path / "plain"))


def test_several_members_and_frames(tmp_path: Path, positions: Records) -> None:
    content = write(tmp_path / "plain", positions, "bin")
    half = len(content) // 3
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(content[:half]) + gzip.compress(content[half:]))
    np.testing.assert_array_equal(read(path), positions)
    skippable = b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello"
    path.write_bytes(
        skippable + zstandard.compress(content[:half]) + zstandard.compress(b"") + zstandard.compress(content[half:])
    )
    np.testing.assert_array_equal(read(path), positions)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_corrupt_compression_is_one_line(tmp_path: Path, positions: Records, kind: str) -> None:
    content = write(tmp_path / "plain", positions, "bin")
    checked = zstandard.ZstdCompressor(write_checksum=True)
    packed = gzip.compress(content) if kind == "gzip" else checked.compress(content)
    path = tmp_path / "x"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    with pytest.raises(UserError, match=f"^{path}: not a valid {kind} file: [^\n]*$"):
        read(path)
    for position in (10, len(packed) // 2, len(packed) - 2):
        damaged = bytearray(packed)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"^{path}: [^\n]*$"):
            read(path)


def test_positions_that_look_compressed(tmp_path: Path) -> None:
    # In bulletformat the board comes first: these squares spell the magic number of gzip.
    occupied = int.from_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x80", "little")
    board = ["."] * 64
    for square in range(64):
        if occupied >> square & 1:
            board[square] = "N"
    board[0], board[63] = "K", "k"
    rows = ["".join(board[8 * rank : 8 * rank + 8]) for rank in range(7, -1, -1)]
    fen = "/".join(rows).replace(".", "1") + " w - - 0 1"
    path = tmp_path / "x"
    assert write(path, records_from_fens([fen]), "bulletformat")[:3] == b"\x1f\x8b\x08"
    with PositionReader(path) as reader:
        assert (reader.format, reader.compression) == ("bulletformat", None)
        assert sum(len(block) for block in reader) == 1


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lambda content: lzma.compress(content, preset=0),
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("kind", PACKED)
def test_a_bomb_needs_little_memory(kind: str, tmp_path: Path) -> None:
    """GB of zeros in KB, read by a separate process: what ran before in this one decides where its peak is."""
    path = tmp_path / "x"
    path.write_bytes(PACKED[kind](bytes(1 << 26)) * 40)
    code = """
import resource, sys
from nnue_trainer.data import PositionReader
from nnue_trainer.errors import UserError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for options in ({}, {"format": "bin"}):
    try:
        with PositionReader(sys.argv[1], **options) as reader:
            list(reader)
    except UserError as error:
        print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", code, str(path)]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    unknown, bad, kibibytes = run.stdout.splitlines()
    assert "in no known format" in unknown
    assert "offset 0: position 0: both kings on a1" in bad
    assert int(kibibytes) < 300 << 10


def test_a_damaged_file_is_read_as_the_error_says(tmp_path: Path) -> None:
    """Without a magic number, one damaged record near the beginning hides the format."""
    path, out = tmp_path / "x.bullet", tmp_path / "y.bin"
    with PositionWriter(path) as writer:
        writer.write(records_from_fens([START] * 3))
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"for a damaged file: `nnue data convert --from FORMAT --skip-bad`$"):
        convert([path], out)
    done = convert([path], out, source="bulletformat", skip_bad=True)
    assert (done.positions, done.skipped) == (2, 1)


def test_bad_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(f"{START} | 12 | 1.0\n{START} | twelve | 1.0\n\n{START} | 13 | 2.0\n{START} | 14 | [0.5]\r\n")
    with pytest.raises(UserError, match=r"x\.txt: line 2: score 'twelve', expected a whole number from -32768"):
        read(path)
    with PositionReader(path, skip_bad=True) as reader:
        assert [d[2] for block in reader for d in _data.describe(block)] == [12, 14]
        assert reader.skipped == 2
        assert reader.first_skipped == f"{path}: line 2: score 'twelve', expected a whole number from -32768 to 32767"


def test_missing_files_are_known_before_any_is_read(tmp_path: Path, positions: Records) -> None:
    write(tmp_path / "a.bin", positions, "bin")
    with pytest.raises(UserError, match=r"b\.bin: No such file or directory"):
        next(read_files([tmp_path / "a.bin", tmp_path / "b.bin"]))
    with pytest.raises(UserError, match="not a regular file"):
        read(tmp_path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, positions: Records) -> None:
    path = tmp_path / "x.bin"
    content = write(path, np.tile(positions, (40, 1)), "bin")
    with PositionReader(path) as reader:
        blocks = iter(reader)
        next(blocks)
        with path.open("r+b") as file:
            file.truncate(len(content) // 2)
        with pytest.raises(UserError, match=r"x\.bin: offset \d+: the file ends here"):
            list(blocks)


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_a_damaged_member_is_not_the_end_of_the_file(kind: str, tmp_path: Path) -> None:
    whole = PACKED[kind](f"{START} | 12 | 1.0\n".encode())
    path = tmp_path / "x.txt"
    path.write_bytes(whole + bytes(3) + whole)
    assert len(read(path)) == 2
    for damaged in (b"BZh?" + whole[4:], b"?" + whole[1:], whole[:-6] + bytes(6), whole[:-1], whole + b"?"):
        path.write_bytes(whole + damaged)
        with pytest.raises(UserError, match=rf"x\.txt: not a valid {kind} file: "):
            read(path)


@pytest.mark.parametrize("kind", PACKED)
def test_compressed_files_with_mutated_bytes(project_root: Path, kind: str) -> None:
    script = project_root / "data_loader" / "fuzz" / "compressed.py"
    run = subprocess.run([sys.executable, script, kind, "3000", "7"], cwd=project_root, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "3,000 mutations of seed 7" in run.stdout


def test_inputs_join_the_corpus_of_the_fuzz_targets(project_root: Path, tmp_path: Path) -> None:
    for name in ("corpus.py", "corpus.tar.xz"):
        shutil.copy(project_root / "data_loader" / "fuzz" / name, tmp_path)
    archive = tmp_path / "corpus.tar.xz"
    before = archive.read_bytes()

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "corpus.py", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    assert call("unpack", "inputs").returncode == 0
    # A folder for each target that is built.
    text = (project_root / "data_loader" / "CMakeLists.txt").read_text()
    formats = re.search(r"foreach\(format (.*)\)", text)
    assert formats
    built = {*re.findall(r"add_fuzz_target\((\w+) ", text), *formats[1].split()}
    assert {path.name for path in (tmp_path / "inputs").iterdir()} == built
    there = next((tmp_path / "inputs" / "pgn").iterdir())
    assert call("add", "pgn", str(there)).stdout == "0 of 1 inputs are new to pgn\n"
    assert archive.read_bytes() == before
    (tmp_path / "new").write_bytes(b"1. e4 {?")
    assert call("add", "pgn", "new", "new", str(there)).stdout == "1 of 3 inputs are new to pgn\n"
    assert call("unpack", "again").returncode == 0
    names = {str(path.relative_to(tmp_path / "again")) for path in (tmp_path / "again").rglob("*") if path.is_file()}
    added = f"pgn/{hashlib.sha1(b'1. e4 {?').hexdigest()}"
    assert names == {str(p.relative_to(tmp_path / "inputs")) for p in (tmp_path / "inputs").glob("*/*")} | {added}
    unknown = call("add", "pgm", "new")
    assert unknown.returncode == 1
    assert "target 'pgm': expected one of any, bin, binpack" in unknown.stderr


def test_unknown_format_names(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown format 'pgm', expected one of bin, binpack, bulletformat"):
        PositionWriter(tmp_path / "x", "pgm")
    with pytest.raises(UserError, match="no format has this suffix"):
        PositionWriter(tmp_path / "x.xyz")
    (tmp_path / "x").write_bytes(b"BINP")
    with pytest.raises(UserError, match="unknown format 'pgm'"):
        PositionReader(tmp_path / "x", format="pgm")


@pytest.mark.parametrize("format", ["bin", "plain"])
def test_a_named_format_in_zstd(tmp_path: Path, positions: Records, format: str) -> None:
    """A zstd block yields nothing before its end, which may lie far behind the file's first bytes."""
    g = np.random.default_rng(0)
    noisy = np.tile(positions, (3000 // len(positions) + 1, 1))
    noisy[:, 26:28] = g.integers(0, 100, (len(noisy), 2))  # scores, so that it does not compress to nothing
    write(tmp_path / "x", noisy, format)
    content = (tmp_path / "x").read_bytes()
    (tmp_path / "x.zst").write_bytes(zstandard.ZstdCompressor(level=19).compress(content))
    assert (tmp_path / "x.zst").stat().st_size > 4096
    for name in (format, None):
        with PositionReader(tmp_path / "x.zst", format=name) as reader:
            assert reader.compression == "zstd"
            assert sum(len(block) for block in reader) == len(noisy)
