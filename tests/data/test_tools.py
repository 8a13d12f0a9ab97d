"""`nnue data convert, shuffle, interleave, split, info` as a user sees them, with what goes wrong on the way."""

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import Done
from data_commands import read_all, run
from processes import run_on_a_full_disk
from typer.testing import CliRunner
from waiting import SECONDS, wait_for

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.cli.main import app
from nnue_trainer.data import PositionReader, PositionWriter, records_from_fens, room
from nnue_trainer.data.binpack import read_binpack, write_binpack
from nnue_trainer.data.files import FORMATS
from nnue_trainer.data.info import file_info, king_bucket
from nnue_trainer.data.transform import convert, shuffle, split
from nnue_trainer.errors import UserError

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


@pytest.fixture(scope="module")
def val(project_root: Path) -> Path:
    """300,093 positions, although it is the larger sample: more than any buffer here takes."""
    return project_root / "samples" / "train.binpack"


@pytest.fixture(scope="module")
def positions(val: Path) -> Records:
    return read_binpack(val)[:50_000]


def as_rows(records: Records) -> list[bytes]:
    return sorted(row.tobytes() for row in records)


# --- convert ---------------------------------------------------------------------------------------------------------


def test_convert_joins_files_and_formats(tmp_path: Path, positions: Records) -> None:
    with PositionWriter(tmp_path / "a", "plain") as writer:
        writer.write(positions[:1000])
    with PositionWriter(tmp_path / "b", "bin") as writer:
        writer.write(positions[1000:2000])
    (tmp_path / "c").write_bytes(gzip.compress((tmp_path / "b").read_bytes()))
    out = tmp_path / "out.binpack"
    assert "3,000 positions" in run("convert", tmp_path / "a", tmp_path / "b", tmp_path / "c", out)
    np.testing.assert_array_equal(read_binpack(out), np.concatenate([positions[:2000], positions[1000:2000]]))


def test_convert_says_what_is_lost(tmp_path: Path) -> None:
    records = records_from_fens([START, "4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1"])
    write_binpack(tmp_path / "x.binpack", records)
    text = run("convert", tmp_path / "x.binpack", tmp_path / "x.bullet")
    assert "1 positions with Black to move, turned into White's view, 1 positions without castling rights" in text
    assert "1 positions without their en-passant square" in text
    assert "not stored" not in run("convert", tmp_path / "x.binpack", tmp_path / "x.bin")


@pytest.mark.parametrize("scale", [0.0, 1e-320, 1e-5, 1e6, -1.0, float("inf"), float("nan")])
def test_a_score_scale_that_leaves_nothing_of_the_scores_is_refused(tmp_path: Path, scale: float) -> None:
    with pytest.raises(UserError, match=r"^score scale .*, expected 0\.0001 to 100000$"):
        convert([tmp_path / "in.binpack"], tmp_path / "out.binpack", score_scale=scale)
    assert list(tmp_path.iterdir()) == []


def test_score_scale(tmp_path: Path) -> None:
    lines = [f"{START} | {score} | 0.5\n" for score in (0, 208, -208, 3, 20_000, 32_002)]
    (tmp_path / "x.txt").write_text("".join(lines))
    assert "1 scores clamped" in run("convert", tmp_path / "x.txt", tmp_path / "y.txt", "--score-scale", 2.5)
    scores = [int(line.split("|")[1]) for line in (tmp_path / "y.txt").read_text().splitlines()]
    assert scores == [0, 520, -520, 8, 32_767, 32_002]
    for scale in (0, -1, "nan", "inf"):
        with pytest.raises(UserError, match="score scale"):
            run("convert", tmp_path / "x.txt", tmp_path / "y.txt", "--score-scale", scale)


def test_convert_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    write_binpack(tmp_path / "x.binpack", records_from_fens([START]))
    before = (tmp_path / "x.binpack").read_bytes()
    (tmp_path / "link.binpack").symlink_to(tmp_path / "x.binpack")
    for out in ("x.binpack", "link.binpack"):
        with pytest.raises(UserError, match=rf"{out}: the output is also the input .*x\.binpack; name another file"):
            run("convert", tmp_path / "x.binpack", tmp_path / out)
    with pytest.raises(UserError, match="is a folder, expected"):
        run("convert", tmp_path / "x.binpack", tmp_path, "--to", "bin")
    with pytest.raises(UserError, match="no format has this suffix"):
        run("convert", tmp_path / "x.binpack", tmp_path / "y")
    assert (tmp_path / "x.binpack").read_bytes() == before


def test_skip_bad(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(f"{START} | 1 | 1.0\n{START} | x | 1.0\n{START} | 3 | 1.0\n")
    out = tmp_path / "y.binpack"
    with pytest.raises(UserError, match=r"x\.txt: line 2: score 'x'"):
        run("convert", tmp_path / "x.txt", out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.txt"]
    text = run("convert", tmp_path / "x.txt", out, "--skip-bad")
    assert "2 positions" in text
    assert "left out: 1; " in text
    assert "line 2: score 'x'" in text


@pytest.mark.parametrize(
    ("command", "content", "why"),
    [
        ("convert IN OUT.vf", "FEN | 5 | 1.0\n" * 3, "3 left out, as the format needs a legal move for each"),
        ("convert IN OUT.txt --skip-bad", "8/8 w - - | 5 | 1.0\n", "1 left out: IN: line 1: "),
        ("convert IN OUT.txt", '[Event "x"]\n[Result "*"]\n\n1. e4 *\n', "IN: games left out, without a result: 1"),
        ("convert IN OUT.txt", "", "the inputs have none"),
        ("convert IN OUT.bin --from bin", "", "the inputs have none"),
        ("filter IN OUT.txt --min-pieces 30", "FEN | 5 | 1.0\n", "1 dropped by min_pieces"),
        ("shuffle IN OUT.binpack", "", "the inputs have none"),
        ("dedup IN OUT.binpack --memory 16M", "", "the inputs have none"),
        ("split IN --train OUT.txt --validation V.txt", "", "0 games, with a share of 0.01 for validation"),
    ],
)
def test_a_tool_that_leaves_nothing_is_an_error(tmp_path: Path, command: str, content: str, why: str) -> None:
    """No output of an earlier command is replaced, either."""
    source = tmp_path / "in"
    source.write_text(content.replace("FEN", "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"))
    places = {"IN": source, "V.txt": tmp_path / "V.txt"}
    words = [str(places.get(word, tmp_path / word if "OUT" in word else word)) for word in command.split()]
    out = Path(next(word for word in words if "OUT" in word))
    out.write_text("mine")
    with pytest.raises(UserError, match="no position to write: ") as error:
        run(*words, "--overwrite")
    assert why.replace("IN", str(source)) in str(error.value)
    assert out.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in", out.name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["convert", "{val}", "{tmp}/out.bin"],
        ["shuffle", "{val}", "{tmp}/out.binpack"],
        ["shuffle", "{val}", "{tmp}/out.binpack", "--memory", "1M"],
        ["interleave", "{val}", "{val}", "{tmp}/out.binpack"],
        ["split", "{val}", "--train", "{tmp}/t.binpack", "--validation", "{tmp}/v.binpack"],
        ["filter", "{val}", "{tmp}/out.binpack", "--quiet"],
        ["info", "{val}", "--png", "{tmp}/page.png"],
    ],
    ids=lambda command: f"{command[0]}{len(command)}",
)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, val: Path, command: list[str]) -> None:
    arguments = [word.format(val=val, tmp=tmp_path) for word in command]
    command = [sys.executable, "-m", "nnue_trainer", "data", *arguments]
    result = run_on_a_full_disk(command, 100_000)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "File too large" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "command"),
    [
        (signal.SIGINT, "convert {} {out}/x.plain"),
        (signal.SIGTERM, "convert {} {out}/x.plain"),
        (signal.SIGINT, "shuffle {} {out}/x.binpack --memory 20M"),
        (signal.SIGTERM, "shuffle {} {out}/x.binpack --memory 20M"),
        (signal.SIGHUP, "convert {} {out}/x.plain"),
        (signal.SIGUSR1, "filter {} {out}/x.bin --quiet --wdl"),
        (signal.SIGXCPU, "split {} --train {out}/t.txt --validation {out}/v.txt"),
        (signal.SIGINT, "filter {} {out}/x.bin --quiet --wdl"),
        (signal.SIGINT, "split {} --train {out}/t.txt --validation {out}/v.txt"),
        (signal.SIGINT, "interleave {} {out}/x.binpack"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else value.name,
)
def test_interrupted_with_nothing_left(project_root: Path, tmp_path: Path, sent: signal.Signals, command: str) -> None:
    source = str(tmp_path / "train.binpack")
    Path(source).write_bytes((project_root / "samples" / "train.binpack").read_bytes() * 30)
    out = tmp_path / "out"
    out.mkdir()
    words = command.format(" ".join([source] * (100 if command.startswith("interleave") else 10)), out=out).split()
    process = subprocess.Popen(
        [sys.executable, "-m", "nnue_trainer", "data", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    # They have work for many seconds after their first bytes, and two of them before.
    late = words[0] in ("shuffle", "interleave")
    wait_for(lambda: any(late or path.stat().st_size for path in out.iterdir()), process)
    process.send_signal(sent)
    process.communicate(timeout=SECONDS)
    assert process.returncode == (130 if sent in (signal.SIGINT, signal.SIGHUP) else 75)
    assert list(out.iterdir()) == []


# --- shuffle ---------------------------------------------------------------------------------------------------------


def test_shuffle_is_a_permutation_in_34_byte_chains(tmp_path: Path, val: Path, positions: Records) -> None:
    write_binpack(tmp_path / "in.binpack", positions)
    out = tmp_path / "out.binpack"
    run("shuffle", tmp_path / "in.binpack", out, "--seed", 3)
    shuffled = read_binpack(out)
    assert as_rows(shuffled) == as_rows(positions)
    content = out.read_bytes()
    assert content[:4] == b"BINP"
    assert content[8 + 32 : 8 + 34] == content[8 + 34 + 32 : 8 + 34 + 34] == b"\0\0"
    with PositionReader(out) as reader:
        assert sum(len(block) for block in reader) == len(positions)
        assert reader.single_chains > 0.99 * len(positions)  # some follow the position before by chance


def test_shuffle_is_a_function_of_seed_and_input_whatever_the_memory(tmp_path: Path, val: Path) -> None:
    outs = []
    for name, seed, memory in (("a", 1, 1 << 30), ("b", 1, 1 << 20), ("c", 1, 9 << 20), ("d", 2, 1 << 30)):
        shuffle([val], tmp_path / name, to="binpack", seed=seed, memory=memory)
        outs.append((tmp_path / name).read_bytes())
    assert outs[0] == outs[1] == outs[2]
    assert outs[0] != outs[3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c", "d"]


def test_buckets_too_large_for_the_memory_are_spread_again(positions: Records) -> None:
    # 64 KiB hold some 1,200 positions, so each of the 256 buckets of 400,000 is too large.
    little, plenty = (_data.ExternalShuffle(7, memory, ".") for memory in (1 << 16, 1 << 30))
    for shuffler in (little, plenty):
        for _ in range(8):
            shuffler.add(positions)
    while len(block := plenty.read(1000)):
        np.testing.assert_array_equal(block, little.read(1000))
    assert len(little.read(1000)) == 0
    assert little.spilled_bytes == 2 * 40 * 400_000
    assert plenty.spilled_bytes == 0
    with pytest.raises(UserError, match="after the first was read"):
        little.add(positions)


def test_shuffle_is_uniform() -> None:
    # Where does each of 20 positions land, over many seeds? Chi-square with 19 degrees of freedom each.
    fens = [f"8/8/8/8/8/8/8/K1k5 w - - {i} 1" for i in range(20)]
    records = records_from_fens(fens)
    landed = np.zeros((20, 20))
    for seed in range(2000):
        shuffler = _data.ExternalShuffle(seed, 1 << 20, ".")
        shuffler.add(records)
        landed[np.arange(20), shuffler.read(100)[:, 31]] += 1
    chi_square = ((landed - 100) ** 2 / 100).sum(1)
    assert chi_square.max() < 50  # p ≈ 1e-4 each
    assert 19 * 0.7 < chi_square.mean() < 19 * 1.3


def test_shuffle_into_a_folder_that_is_not_there(tmp_path: Path, val: Path) -> None:
    with pytest.raises(UserError, match="nowhere: cannot create a temporary file: No such file or directory"):
        shuffle([val], tmp_path / "x.binpack", memory=1 << 20, temporary=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="--memory: size '12', expected 1M to 1024T"):
        run("shuffle", val, tmp_path / "x.binpack", "--memory", "12")
    with pytest.raises(UserError, match=r"--memory: size '9+T', expected 1M to 1024T"):
        run("shuffle", val, tmp_path / "x.binpack", "--memory", "999999999999T")


# --- interleave ------------------------------------------------------------------------------------------------------


def test_interleave_mixes_whole_chunks_in_order(tmp_path: Path, positions: Records) -> None:
    # Three files of differently many chunks, each position labelled by its file and number.
    paths = []
    for number, count in enumerate((5, 10, 20)):
        records = np.tile(positions[:40_000], (count, 1))[: count * 31_000]
        records[:, 30] = number
        path = tmp_path / f"{number}.binpack"
        write_binpack(path, records, join_chains=False)
        paths.append(path)
    out = tmp_path / "out.binpack"
    run("interleave", *paths, out, "--seed", 1)
    mixed = read_binpack(out)
    assert out.stat().st_size == sum(path.stat().st_size for path in paths)
    for number, path in enumerate(paths):
        np.testing.assert_array_equal(mixed[mixed[:, 30] == number], read_binpack(path))
    # Even: each third has about a third of every file.
    for third in np.array_split(mixed[:, 30], 3):
        shares = np.bincount(third, minlength=3) / len(third)
        assert abs(shares - np.array([5, 10, 20]) / 35).max() < 0.25
    again = tmp_path / "again.binpack"
    run("interleave", *paths, again, "--seed", 1)
    assert again.read_bytes() == out.read_bytes()
    run("interleave", *paths, again, "--seed", 2, "--overwrite")
    assert again.read_bytes() != out.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_interleave_mixes_any_format(tmp_path: Path, positions: Records, format: str) -> None:
    """Every position comes out once, and the positions of each file in their order; the last line may have no end."""
    paths, suffix = [], {name: suffix for name, suffix, _ in _data.formats()}[format]
    for number, count in enumerate((3, 1)):
        path = tmp_path / f"{number}{suffix}"
        with PositionWriter(path, join_chains=False) as writer:
            # Long enough for several chunks of lines, 1 MiB each, and of records, 32,768 each.
            writer.write(np.tile(positions[number * 15_000 : number * 15_000 + 15_000], (3 * count, 1)))
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
        paths.append(path)
    out = tmp_path / f"out{suffix}"
    run("interleave", *paths, out, "--seed", 3)
    mixed, parts = read_all(out), [read_all(path) for path in paths]
    assert len(mixed) == sum(map(len, parts))
    own = {part.tobytes() for part in parts[1]}
    from_second = np.array([record.tobytes() in own for record in mixed])
    np.testing.assert_array_equal(mixed[from_second], parts[1])
    np.testing.assert_array_equal(mixed[~from_second], parts[0])
    assert not from_second[: len(parts[1])].all()
    assert not from_second[-len(parts[1]) :].all()


def test_interleave_wants_one_format(tmp_path: Path, positions: Records) -> None:
    for name in ("x.bin", "y.binpack"):
        with PositionWriter(tmp_path / name) as writer:
            writer.write(positions[:10])
    with pytest.raises(UserError, match=r"y\.binpack: binpack, expected bin as .*x\.bin: only files of one"):
        run("interleave", tmp_path / "x.bin", tmp_path / "y.binpack", tmp_path / "z.bin")


def test_shuffle_writes_any_format(tmp_path: Path, positions: Records) -> None:
    """The name of the output decides, as everywhere."""
    with PositionWriter(tmp_path / "x.binpack") as writer:
        writer.write(positions[:1000])
    run("shuffle", tmp_path / "x.binpack", tmp_path / "y.bin")
    with PositionReader(tmp_path / "y.bin") as reader:
        assert reader.format == "bin"
    run("shuffle", tmp_path / "x.binpack", tmp_path / "z.binpack")
    run("convert", tmp_path / "z.binpack", tmp_path / "z.bin")
    assert (tmp_path / "y.bin").read_bytes() == (tmp_path / "z.bin").read_bytes()


# --- split -----------------------------------------------------------------------------------------------------------


def test_split_keeps_games_whole(tmp_path: Path, val: Path) -> None:
    train, held_out = tmp_path / "t.binpack", tmp_path / "v.binpack"
    text = run("split", val, "--train", train, "--validation", held_out, "--share", 0.2, "--seed", 5)
    everything, parts = read_binpack(val), [read_binpack(train), read_binpack(held_out)]
    assert sum(map(len, parts)) == len(everything)
    assert 0.15 < len(parts[1]) / len(everything) < 0.25
    # The chains of the source are the chains of the parts, byte for byte: none was cut.
    infos = [file_info(path) for path in (val, train, held_out)]
    assert infos[0].chains == infos[1].chains + infos[2].chains
    assert infos[0].single_position_chains == infos[1].single_position_chains + infos[2].single_position_chains
    assert as_rows(everything) == as_rows(np.concatenate(parts))
    assert "games" in text
    again = tmp_path / "t2.binpack", tmp_path / "v2.binpack"
    report = split([val], *again, share=0.2, seed=5)
    assert again[0].read_bytes() == train.read_bytes()
    assert again[1].read_bytes() == held_out.read_bytes()
    assert report.validation.positions == len(parts[1])


def test_split_of_positions_without_plies_is_by_position(tmp_path: Path, positions: Records) -> None:
    source = tmp_path / "x.bullet"
    with PositionWriter(source) as writer:
        writer.write(positions[:10_000])
    report = split([source], tmp_path / "t.bullet", tmp_path / "v.bullet", share=0.5)
    assert report.games == 10_000
    assert 4_700 < report.validation.positions < 5_300
    for share in (0, 1, -0.5, float("nan")):
        with pytest.raises(UserError, match="validation share"):
            split([source], tmp_path / "t.bullet", tmp_path / "v.bullet", share=share)
    with pytest.raises(UserError, match=r"is also the output .*t\.bullet; name another file"):
        split([source], tmp_path / "t.bullet", tmp_path / "t.bullet")


# --- info ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_info_of_every_format(tmp_path: Path, positions: Records, format: str) -> None:
    with PositionWriter(tmp_path / "x", format) as writer:
        writer.write(positions[:1000])
    values = json.loads(run("info", tmp_path / "x", "--json"))
    assert values["format"] == format
    assert values["statistics"]["positions"] == 1000
    assert sum(values["king_buckets"]) == 2000
    assert run("info", tmp_path / "x").startswith(f"{tmp_path / 'x'}: {format}, ")


def test_duplicates(tmp_path: Path, positions: Records) -> None:
    distinct = len({row.tobytes() for row in positions[:, :24]})
    write_binpack(tmp_path / "x.binpack", np.concatenate([positions, positions[:10_000]]))
    info = file_info(tmp_path / "x.binpack")
    assert info.duplicates_exact
    assert info.distinct == distinct
    assert info.duplicate_share == pytest.approx(1 - distinct / 60_000)


def test_duplicates_are_estimated_where_there_are_many(positions: Records) -> None:
    # Two million different boards, a million of them twice.
    estimator = _data.DuplicateEstimator()
    rng = np.random.default_rng(1)
    boards = np.zeros((2_000_000, 32), np.uint8)
    boards[:, :8] = rng.integers(0, 256, (2_000_000, 8), dtype=np.uint8)
    estimator.add(boards)
    estimator.add(boards[:1_000_000])
    assert not estimator.exact
    assert estimator.distinct == pytest.approx(2_000_000, rel=0.005)
    assert estimator.duplicate_share == pytest.approx(1 / 3, abs=0.003)


@pytest.mark.slow
def test_estimated_duplicates_agree_with_each_other(tmp_path: Path) -> None:
    """The share and the number of different boards agree for a file whose boards are only sampled."""
    from nnue_trainer.analysis.data_profile import data_profile

    # Kings in their corners and six pawns in between: boards differ in the occupied squares alone, the first 8 bytes.
    fens = ["7k/PPPPPP2/8/8/8/8/8/K7 w - - 0 1"]
    fens += ["/".join(["7k", *["8"] * rank, f"{'P':>{file + 1}}".replace(" ", "1") + "1" * (7 - file),
             *["8"] * (5 - rank), "K7"]) + " w - - 0 1" for rank in range(6) for file in range(6)]  # fmt: skip
    first, *squares = records_from_fens(fens)
    bits = np.stack(squares)[:, :8]
    boards = np.repeat(first[None], 900_000, axis=0)
    chosen = np.random.default_rng(2).random((len(boards), len(bits)), np.float32).argpartition(6, axis=1)[:, :6]
    boards[:, :8] = np.bitwise_or.reduce(bits[chosen], axis=1)
    with PositionWriter(tmp_path / "x.bin", "bin") as writer:
        writer.write(boards)
    for found in (file_info(tmp_path / "x.bin"), data_profile(tmp_path / "x.bin")):
        assert not found.duplicates_exact
        assert found.distinct / len(boards) == pytest.approx(1 - found.duplicate_share, abs=1e-6)
        assert found.distinct == pytest.approx(len(np.unique(boards[:, :8], axis=0)), rel=0.01)


def test_king_buckets() -> None:
    assert [king_bucket(square) for square in (63, 62, 61, 60, 56, 55, 7, 4, 3, 0)] == [
        0,
        1,
        2,
        3,
        0,
        4,
        28,
        31,
        31,
        28,
    ]


@pytest.mark.slow
def test_page_of_plots(tmp_path: Path, val: Path) -> None:
    run("info", val, "--png", tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "page.png").stat().st_size > 50_000
    write_binpack(tmp_path / "none.binpack", np.empty((0, 32), np.uint8))
    run("info", tmp_path / "none.binpack", "--png", tmp_path / "empty.png")
    with pytest.raises(UserError, match=r"page\.png: cannot be written: "):
        run("info", val, "--png", tmp_path / "none.binpack" / "page.png")


# --- validate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("val", 0),
        pytest.param("small", 46, marks=pytest.mark.shared),
        pytest.param("selfplay-d5-val", 0, marks=pytest.mark.shared),
    ],
)
def test_real_data_is_legal(positions_file: Callable[[str], Path], name: str, changes: int) -> None:
    text = run("validate", positions_file(name))
    assert "all sound" in text
    assert (f"in the same game: {changes}, " in text) == bool(changes)


def test_results_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "x.plain"
    mating = "fen 6k1/5ppp/8/8/8/8/8/R3K3 w Q - 0 30\nmove a1a8\nscore 9\nply 58\nresult {}\ne\n"
    path.write_text(mating.format(1))
    assert "all sound" in run("validate", path)
    path.write_text(mating.format(1) + mating.format(0))
    result = CliRunner().invoke(app, ["data", "validate", str(path)])
    assert result.exit_code == 1
    assert "the move mates, but the game is not won: 1, the first at position 1" in result.output

    first = f"fen {START}\nmove e2e4\nscore 9\nply 0\nresult 1\ne\n"
    second = "fen rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1\nscore 9\nply 1\nresult {}\ne\n"
    path.write_text(first + second.format(-1))
    assert "to note" not in run("validate", path)
    path.write_text(first + second.format(0))
    text = run("validate", path)
    assert "all sound" in text
    assert (
        "to note: a result that differs from the one a ply earlier in the same game: 1, the first at position 1" in text
    )


def test_en_passant_squares_are_checked(tmp_path: Path) -> None:
    # Readers of binpacks take the pushed pawn's nibble (12) at face value.
    record = records_from_fens(["4k3/8/8/8/4P3/8/8/4K3 b - - 0 1"])
    record[0, 8] = 0xC0 | (record[0, 8] & 0x0F)
    write_binpack(tmp_path / "x.binpack", record)
    result = CliRunner().invoke(app, ["data", "validate", str(tmp_path / "x.binpack")])
    assert "an en-passant square that the rule does not keep: 1, the first at position 0" in result.output


@pytest.mark.parametrize(
    ("command", "free", "fits"),
    [
        ("convert {} {out}/x.plain", 20, False),  # plain text has about 100 bytes per position
        ("convert {} {out}/x.plain", 1000, True),
        ("convert {} {out}/x.binpack", 0.7, False),
        ("convert {} {out}/x.binpack", 1.1, True),
        ("shuffle {} {out}/x.binpack", 5, False),
        ("shuffle {} {out}/x.binpack", 100, True),
        ("interleave {} {} {out}/x.binpack", 1.9, False),
        ("interleave {} {} {out}/x.binpack", 2.1, True),
        ("interleave {} {out}/x.binpack --weight 0.5", 0.9, False),  # of one chunk, which is not divided
        ("interleave {} {out}/x.binpack --weight 1.4", 1.1, True),
        ("filter {} {out}/x.plain --min-ply 1", 20, False),
        ("filter {} {out}/x.plain --min-ply 1 --part 1/1", 20, False),
        ("filter {} {out}/x.plain --min-pieces 32", 20, True),
    ],
)
def test_an_output_that_will_not_fit_is_refused(
    tmp_path: Path, val: Path, monkeypatch: pytest.MonkeyPatch, nnue: Callable[..., Done], command: str, free: float,
    fits: bool,
) -> None:  # fmt: skip
    """`free`: in sizes of the input, a binpack of about 3 bytes per position."""
    monkeypatch.setattr(room, "free_space", lambda folder: int(free * val.stat().st_size))
    done = nnue("data", *command.format(*[val] * command.count("{}"), out=tmp_path).split())
    assert done.returncode == (0 if fits else 1), done.stderr
    if not fits:
        assert "needs about" in done.stderr
        assert "but the disk of" in done.stderr
        assert list(tmp_path.iterdir()) == []
