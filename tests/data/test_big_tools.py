"""`nnue data dedup`, `rescore --engine`, filters of `head` and `count`, weights of `interleave`, and pipes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_commands import read_all, run
from processes import run_on_a_full_disk

from nnue_trainer.base.arrays import Records
from nnue_trainer.data import PositionWriter, fields
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.dedup import Games, KeyTable, board_keys, dedup
from nnue_trainer.data.engine_scores import UNIT, EngineScoring, rescore_by_engine
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.transform import convert, interleave
from nnue_trainer.errors import UserError


@pytest.fixture(scope="module")
def val(project_root: Path) -> Path:
    return project_root / "samples" / "val.binpack"


@pytest.fixture(scope="module")
def positions(val: Path) -> Records:
    return read_binpack(val)


def save(path: Path, records: Records) -> Path:
    with PositionWriter(path) as writer:
        writer.write(records)
    return path


# --- dedup -----------------------------------------------------------------------------------------------------------


def first_of_each(records: Records) -> Records:
    seen, kept = set(), []
    for record in records:
        board = record[:24].tobytes()
        kept.append(board not in seen)
        seen.add(board)
    return records[np.array(kept)]


@pytest.mark.parametrize("memory", [1 << 20, 1 << 30])
def test_dedup_keeps_the_first_of_each_board(positions: Records, memory: int, tmp_path: Path) -> None:
    parts = positions[:20_000], positions[10_000:], positions[:5000]
    files = [save(tmp_path / f"{i}.bin", part) for i, part in enumerate(parts)]
    out = tmp_path / "out.bin"
    report, count, dropped = dedup(files, out, memory=memory)
    expected = first_of_each(np.concatenate(parts))
    assert np.array_equal(read_all(out), expected)
    assert (count, dropped) == (45_109, 45_109 - len(expected))
    assert report.positions == len(expected)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_dedup_on_a_full_disk_is_one_line(tmp_path: Path, val: Path) -> None:
    """Also where bytes of keys are still buffered when the command ends."""
    words = ["data", "dedup", str(val), str(tmp_path / "out.binpack"), "--memory", "1M"]
    done = run_on_a_full_disk([sys.executable, "-m", "nnue_trainer", *words], 1024)
    assert (done.returncode, done.stderr) == (1, f"nnue: error: {tmp_path}: cannot be written: File too large\n")
    assert list(tmp_path.iterdir()) == []


def test_dedup_of_games(positions: Records, tmp_path: Path) -> None:
    cutter = Games()
    number, place = cutter.numbers(positions)
    game = [positions[number == i] for i in range(40)]
    assert all((place[number == i] == np.arange((number == i).sum())).all() for i in range(40))
    first, second = np.concatenate(game[:30]), np.concatenate([game[3], game[35], game[35][:5], game[29], game[36]])
    files = [save(tmp_path / "a.binpack", first), save(tmp_path / "b.binpack", second)]
    report, count, dropped = dedup(files, tmp_path / "c.binpack", games=True)
    expected = np.concatenate([first, game[35], game[35][:5], game[36]])  # half a game is another game
    assert np.array_equal(read_all(tmp_path / "c.binpack"), expected)
    assert (count, dropped, report.positions) == (35, 2, len(expected))


def test_games_are_cut_the_same_way_in_blocks_of_any_size(positions: Records) -> None:
    whole = Games().numbers(positions[:3000])
    cutter = Games()
    parts = [cutter.numbers(part) for part in np.split(positions[:3000], [1, 2, 700, 701, 2500])]
    assert np.array_equal(np.concatenate([part[0] for part in parts]), whole[0])
    assert np.array_equal(np.concatenate([part[1] for part in parts]), whole[1])


def test_keys_beyond_memory(tmp_path: Path) -> None:
    keys = np.random.default_rng(3).integers(0, 2**63, 5000, np.uint64) * np.uint64(2)
    keys[2000:4000] = keys[:2000]
    found = []
    for memory in (1, 64 * 1700, 1 << 30):
        table = KeyTable(memory, tmp_path)
        for part in np.split(keys, 10):
            table.add(part)
        found.append(np.array(table.repeated()))
        table.close()
    assert [np.flatnonzero(each).tolist() for each in found] == [list(range(2000, 4000))] * 3


def test_keys_tell_boards_apart(positions: Records) -> None:
    boards = {record[:24].tobytes() for record in positions}
    assert len(np.unique(board_keys(positions))) == len(boards)


def test_dedup_keeps_an_output_and_needs_files(val: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.binpack"
    out.write_bytes(b"mine")
    with pytest.raises(UserError, match="exists already"):
        dedup([val], out)
    with pytest.raises(UserError, match="reads its input more than once"):
        dedup(["-"], tmp_path / "other.binpack")
    assert out.read_bytes() == b"mine"
    assert "of them repeated and dropped" in run("dedup", val, val, out, "--overwrite", "--memory", "16M")


# --- rescore --engine ------------------------------------------------------------------------------------------------


def test_scores_of_an_engine_do_not_depend_on_processes_and_parts(
    positions: Records, fake_engine: Callable[..., str], tmp_path: Path
) -> None:
    source = save(tmp_path / "in.bin", positions[: 3 * UNIT + 7])
    engine = fake_engine()
    scoring = EngineScoring(engine, nodes=1, scale=2.0)
    rescore_by_engine([source], tmp_path / "one.bin", scoring)
    rescore_by_engine([source], tmp_path / "three.bin", scoring, concurrency=3)
    one = read_all(tmp_path / "one.bin")
    assert (tmp_path / "one.bin").read_bytes() == (tmp_path / "three.bin").read_bytes()
    same = np.ones(32, bool)
    same[26:28] = False
    assert np.array_equal(one[:, same], positions[: len(one), same])
    scores = fields.scores(one)
    assert np.abs(scores).max() <= 2000
    assert (scores % 2 == 0).all()
    assert not np.array_equal(scores, fields.scores(positions[: len(one)]))
    parts = []
    for i in (1, 2):
        part = tmp_path / f"part{i}.bin"
        run("rescore", source, part, "--engine", engine, "--nodes", 1, "--score-scale", 2, "--part", f"{i}/2")
        parts.append(read_all(part))
    assert np.array_equal(np.concatenate(parts), one)
    assert len(parts[0]) % UNIT == 0, "an engine would begin a unit elsewhere, and score it otherwise"
    assert list(tmp_path.glob("*.journal")) == []


def test_an_interrupted_rescoring_continues(
    positions: Records, fake_engine: Callable[..., str], tmp_path: Path
) -> None:
    source = save(tmp_path / "in.bin", positions[: 4 * UNIT])
    whole, out = tmp_path / "whole.bin", tmp_path / "out.bin"
    rescore_by_engine([source], whole, EngineScoring(fake_engine(), depth=1, scale=1.0))
    with pytest.raises(UserError, match="ended at"):
        rescore_by_engine([source], out, EngineScoring(fake_engine("dies", 2 * UNIT + 5), depth=1, scale=1.0))
    assert not out.exists()
    with pytest.raises(UserError, match="belongs to a run with other options"):
        rescore_by_engine([source], out, EngineScoring(fake_engine(), depth=2, scale=1.0))
    # This one would die if it began anew.
    rescore_by_engine([source], out, EngineScoring(fake_engine("dies", 2 * UNIT + 5), depth=1, scale=1.0))
    assert out.read_bytes() == whole.read_bytes()
    with pytest.raises(UserError, match="exists already"):
        rescore_by_engine([source], out, EngineScoring(fake_engine(), depth=1, scale=1.0))


def test_positions_that_are_over_keep_their_score(fake_engine: Callable[..., str], tmp_path: Path) -> None:
    mate = "R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1"
    (tmp_path / "in.txt").write_text(f"{mate} | 77 | 1.0\n4k3/8/8/8/8/8/8/R3K3 w Q - 0 1 | 5 | 1.0\n")
    rescore_by_engine([tmp_path / "in.txt"], tmp_path / "out.txt", EngineScoring(fake_engine(), nodes=1, scale=1.0))
    first, second = (tmp_path / "out.txt").read_text().splitlines()
    assert first == f"{mate} | 77 | 1.0"
    assert "| 5 |" not in second


def test_positions_without_a_score_of_the_engine(
    positions: Records, fake_engine: Callable[..., str], tmp_path: Path
) -> None:
    source, out = save(tmp_path / "in.bin", positions[: 2 * UNIT]), tmp_path / "out.bin"
    report = rescore_by_engine([source], out, EngineScoring(fake_engine("some-silent"), nodes=1, scale=1.0))
    count = int((fields.scores(read_all(out)) == fields.NO_SCORE).sum())
    assert UNIT / 2 < count < 2 * UNIT
    assert report.notes == [f"{count} positions have no score (32002): the engine gave a move only, or a bound"]
    large = EngineScoring(fake_engine("score=cp_31000"), nodes=1, scale=1.0)
    (note,) = rescore_by_engine([source], tmp_path / "large.bin", large).notes
    assert note == (
        f"{2 * UNIT:,} scores of 31,000 internal units or more, such as wins in a table base, are written as 31,000"
    )
    with pytest.raises(UserError, match="a move but no exact score 8 times in a row"):
        rescore_by_engine([source], tmp_path / "no.bin", EngineScoring(fake_engine("silent"), nodes=1, scale=1.0))
    assert not (tmp_path / "no.bin").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "x", "--net", "y"], "either --net or --engine"),
        ([], "either --net or --engine"),
        (["--net", "y", "--depth", "3"], "are for --engine"),
        (["--engine", "/bin/true"], "either --nodes or --depth"),
        (["--engine", "/bin/true", "--depth", "1", "--part", "3/2"], "expected I/N with"),
        (["--engine", "/bin/true", "--depth", "1", "--part", "a"], "expected I/N, such as"),
    ],
)
def test_options_of_rescore(options: list[str], message: str, val: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run("rescore", val, tmp_path / "out.binpack", *options)


# --- head, count, interleave -----------------------------------------------------------------------------------------

FILTER = """
import numpy as np
from nnue_trainer.data import fields
from nnue_trainer.data.filters import Filter
from nnue_trainer.schema import section

@section
class Endgames(Filter):
    def keep(self, records):
        return fields.piece_counts(records) <= 6
"""


def test_head_and_count_take_filters(positions: Records, val: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILTER)
    extra = f"{tmp_path / 'mine.py'}:Endgames"
    kept = positions[fields.piece_counts(positions) <= 6]
    row = json.loads(run("count", val, "--extra", extra, "--json"))
    assert (row["positions"], row["kept"], row["dropped"]) == (
        len(positions),
        len(kept),
        {"user_filter": len(positions) - len(kept)},
    )
    lines = run("head", val, "-n", 3, "--extra", extra, "--json").splitlines()
    assert [json.loads(line)["score"] for line in lines] == fields.scores(kept[:3]).tolist()
    quiet, _ = Filters(**(Filters.none().as_dict() | {"quiet": True})).apply(positions)
    assert f"{len(positions):,} positions, {len(quiet):,} pass the filters" in run("count", val, "--quiet")
    assert run("count", val).strip() == f"{val}: {len(positions):,} positions"


def test_interleave_by_weights(positions: Records, tmp_path: Path) -> None:
    many = [save(tmp_path / f"{name}.vf", np.tile(positions, (8, 1))) for name in "ab"]
    sizes = [path.stat().st_size for path in many]
    out = tmp_path / "out.vf"
    chunks, size = interleave(many, out, weights=[2, 1])
    assert size == sizes[0] * 3 == out.stat().st_size
    assert len(read_all(out)) == 24 * len(positions)
    assert chunks >= 3
    interleave(many, tmp_path / "again.vf", weights=[2, 1])
    assert out.read_bytes() == (tmp_path / "again.vf").read_bytes()
    assert interleave(many, tmp_path / "only.vf", weights=[0, 1])[1] == sizes[1]
    with pytest.raises(UserError, match="1 numbers for 2 files"):
        interleave(many, tmp_path / "no.vf", weights=[1])


# --- pipes -----------------------------------------------------------------------------------------------------------


def piped(data: bytes, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from nnue_trainer.cli.main import main; main()", "data", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, check=False)


def test_pipes(positions: Records, val: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.bin"
    done = piped(gzip.compress(val.read_bytes(), 1), "convert", "-", out)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(read_all(out), positions)
    convert([val], tmp_path / "text.txt")
    done = piped((tmp_path / "text.txt").read_bytes(), "count", "-")
    assert done.stdout == b"-: 30,109 positions\n"
    done = piped(val.read_bytes(), "count", "-", "-")
    assert done.returncode == 1
    assert b"standard input is given twice" in done.stderr
