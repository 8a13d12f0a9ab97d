"""viriformat and montyformat: the vectors, what other formats get of them, what is refused, and the tools."""

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data import PositionReader, PositionWriter, RecordLoader, records_from_fens
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.transform import convert, filter_positions, interleave, shuffle, split
from nnue_trainer.errors import UserError

VECTORS = Path(__file__).parents[1] / "vectors" / "data2"
EXPECTED: dict[str, Any] = json.loads((VECTORS / "vectors.json").read_text())
FILES = [name for name, vector in EXPECTED["viriformat"].items() if "game_list" in vector]
# The rules that the viriformat crate filters by unless its options differ.
DEFAULT_FILTERS: dict[str, Any] = {
    "min_ply": 15,
    "max_score": 31338,
    "min_pieces": 4,
    "tactical": True,
    "in_check": True,
}


def read(path: Path, **options: Any) -> Records:
    with PositionReader(path, **options) as reader:
        return np.concatenate([np.empty((0, 32), np.uint8), *reader])


def expected_positions(name: str) -> list[tuple[str, str, int, int]]:
    """FEN, move, score and result, both side to move's, of every position."""
    rows = []
    for game in EXPECTED["viriformat"][name]["game_list"]:
        for fen, move, white in game["positions"]:
            sign = 1 if fen.split()[1] == "w" else -1
            rows.append((fen, move, sign * max(white, -32767), sign * (game["result"] - 1)))
    return rows


def described(records: Records) -> list[tuple[str, str, int, int]]:
    rows = _data.describe(records, shredder=True)
    return [(fen, move, score, result) for fen, move, score, _, result in rows]


@pytest.mark.parametrize("name", FILES)
def test_vectors(name: str, tmp_path: Path) -> None:
    path, vector = VECTORS / f"{name}.vf", EXPECTED["viriformat"][name]
    records = read(path)
    assert described(records) == expected_positions(name)
    with PositionReader(path) as reader:
        assert reader.format == "viriformat"
    convert([path], tmp_path / "x.vf")
    assert (tmp_path / "x.vf").read_bytes() == path.read_bytes()
    for suffix, format in ((".bullet", "bulletformat"), (".marlin", "marlinformat")):
        report = convert([path], tmp_path / f"x{suffix}")
        content = bytearray((tmp_path / f"x{suffix}").read_bytes())
        if name == "vf-rules":
            assert f"{path}: scores of -32768, read as -32767: 1" in report.notes
            if format == "marlinformat":
                content[3 * 32 + 28] = 0  # of that score
        digest = hashlib.sha256(content).hexdigest()
        assert digest == vector[f"{format}_sha256"], format
    kept, _ = Filters(no_score=False, **DEFAULT_FILTERS).mask(records)
    assert np.flatnonzero(kept).tolist() == vector["default_filter_kept_indices"]


@pytest.mark.parametrize("name", EXPECTED["viriformat_refuse"])
def test_bad_files_are_refused_by_name_and_offset(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"{name}: .*offset \d+"):
        read(VECTORS / name)
    with pytest.raises(UserError, match=rf"{name}: "):
        RecordLoader(VECTORS / name, 1).open()
    if name == "bad-truncated.vf":
        with PositionReader(VECTORS / name, skip_bad=True) as reader:
            assert sum(map(len, reader)) == 5
            assert reader.skipped == 1
            assert "game 1" in reader.first_skipped
            assert "truncated" in reader.first_skipped


def test_montyformat_has_the_same_games() -> None:
    path = VECTORS / EXPECTED["montyformat_value"]["file"]
    with PositionReader(path) as reader:
        assert reader.format == "montyformat"
        records = np.concatenate(list(reader))
    assert described(records) == expected_positions("vf-rules") + expected_positions("vf-dfrc")
    loader = RecordLoader(path, 58, shuffle=False, filters=Filters.none())
    np.testing.assert_array_equal(np.concatenate([batch.numpy() for batch in loader]), records)


def test_a_corrupt_game_is_named_and_left_out(tmp_path: Path) -> None:
    good = (VECTORS / "vf-dfrc.vf").read_bytes()
    bad = bytearray(good)
    bad[32 + 12 * 4 + 4 + 32] ^= 0x3F  # the first move of the second game
    path = tmp_path / "x"
    path.write_bytes(bad)
    with pytest.raises(UserError, match=r"x: offset 116: game 1: ply 1: "):
        read(path)
    with PositionReader(path, skip_bad=True) as reader:
        assert sum(map(len, reader)) == 28 - 3
        assert reader.skipped == 1


@pytest.fixture(scope="module")
def positions(project_root: Path) -> Records:
    return read_binpack(project_root / "samples" / "val.binpack")


def test_chains_there_and_back(tmp_path: Path, project_root: Path, positions: Records) -> None:
    source, games, back = project_root / "samples" / "val.binpack", tmp_path / "x.vf", tmp_path / "back.binpack"
    report = convert([source], games)
    assert not report.losses or set(report.losses) <= {"ply", "scores"}
    convert([games], back)
    np.testing.assert_array_equal(read_binpack(back)[:, :28], positions[:, :28])
    # Split by games, each whole; interleaved; shuffled: the same positions.
    split([games], tmp_path / "t.vf", tmp_path / "v.vf", share=0.3)
    parts = [read(tmp_path / name) for name in ("t.vf", "v.vf")]
    interleave([tmp_path / "t.vf", tmp_path / "v.vf"], tmp_path / "mixed.vf")
    shuffle([games], tmp_path / "shuffled.vf", seed=1)
    rows = sorted(map(bytes, read(games)))
    assert sorted(map(bytes, np.concatenate(parts))) == rows
    assert sorted(map(bytes, read(tmp_path / "mixed.vf"))) == rows
    assert sorted(map(bytes, read(tmp_path / "shuffled.vf"))) == rows
    assert (tmp_path / "shuffled.vf").stat().st_size == 40 * len(rows)


@pytest.mark.parametrize("threads", [1, 3])
def test_trains_on_games_whatever_the_threads(tmp_path: Path, positions: Records, threads: int) -> None:
    path = tmp_path / "x.vf"
    with PositionWriter(path) as writer:
        for _ in range(8):  # several chunks
            writer.write(positions)
    loader = RecordLoader(path, 1000, seed=5, threads=threads, filters=Filters.none(), drop_last=False)
    digest = hashlib.sha256()
    count = 0
    for batch in loader:
        digest.update(batch.numpy().tobytes())
        count += len(batch)
    assert count == 8 * len(positions)
    first = RecordLoader(path, 1000, seed=5, threads=2, filters=Filters.none(), drop_last=False)
    assert digest.hexdigest() == hashlib.sha256(b"".join(batch.numpy().tobytes() for batch in first)).hexdigest()


def test_spare_bytes_of_a_game_stay_with_its_positions(tmp_path: Path) -> None:
    path = VECTORS / "vf-rules.vf"  # its second game has 7 in the spare byte, its third a score of the start position
    split([path], tmp_path / "t.vf", tmp_path / "v.vf", share=0.5, seed=2)
    parts = [(tmp_path / name).read_bytes() for name in ("t.vf", "v.vf")]
    content = path.read_bytes()
    ends = [0, 124, 180, 228]
    for begin, end in pairwise(ends):
        assert sum(content[begin:end] in part for part in parts) == 1
    filter_positions([path], tmp_path / "f.vf", Filters(min_ply=64, no_score=False))
    with PositionReader(tmp_path / "f.vf") as reader:
        (block,) = reader.blocks()
    assert block.spare[:, 0].tolist() == [7] * 4 + [0] * 3
    assert convert([path], tmp_path / "x.plain").losses["spare"] == 5


def test_positions_without_a_legal_move_are_left_out_and_counted(tmp_path: Path) -> None:
    start = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    with PositionWriter(tmp_path / "x.vf") as writer:
        writer.write(records_from_fens([start]))
    assert writer.losses["left_out"] == 1
    assert writer.positions == 0
