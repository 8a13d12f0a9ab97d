"""Units of scores: the same score in every format and by every tool, and data in several units is named."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_commands import SUFFIXES, read_all, run

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.cli.engine_options import units_per_centipawn
from nnue_trainer.config import DataConfig
from nnue_trainer.data import PositionReader, PositionWriter, RecordLoader, fields
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.formats import DATA_FORMATS
from nnue_trainer.data.score_units import MOST_COMPARED, RUN, ComparedFiles, FileUnits, Sample, differences
from nnue_trainer.data.transform import convert, split
from nnue_trainer.data.verdict import LossCurve, comb, judge
from nnue_trainer.errors import UserError
from nnue_trainer.losses import LOSSES
from nnue_trainer.training import plausibility

SEED = 0
CENTIPAWNS = [35, -20, 136, -114]
"""Of the positions before each move of GAME, from the mover's view."""
GAME = """[Event "x"]
[Result "1-0"]

1. e4 {+0.35/12 0.1s} e5 {-0.20/12 0.1s} 2. Nf3 {+1.36/12 0.1s} Nc6 {-1.14/12 0.1s} 1-0

"""
IN_PAWNS = {"pgn": ".pgn", "epd": ".epd"}
ALL = SUFFIXES | IN_PAWNS


def scaled(records: Records, factor: float) -> Records:
    records = records.copy()
    _data.scale_scores(records, factor)
    return records


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a file in a format with the four positions and the scores `CENTIPAWNS`."""

    def make(format: str) -> Path:
        game = tmp_path / "game.pgn"
        game.write_text(GAME)
        path = tmp_path / f"in{ALL[format]}"
        with PositionReader(game, pawn=100) as reader:
            records = np.concatenate(list(reader))
        if format == "pgn":
            path.write_text(GAME)
        elif format == "epd":
            fens = [row[0].rsplit(" ", 2)[0] for row in _data.describe(records)]
            lines = [f'{fen} ce {score}; c9 "1-0";' for fen, score in zip(fens, CENTIPAWNS, strict=True)]
            path.write_text("\n".join(lines) + "\n")
        else:
            with PositionWriter(path) as writer:
                writer.write(records)
        return path

    return make


def from_tools(path: Path, options: list[str], formats: dict[str, float]) -> dict[str, list[int]]:
    """The scores that each tool makes of a file."""
    out, other = path.with_name("out.plain"), path.with_name("other.plain")
    found = {}

    def scores(*paths: Path) -> list[int]:
        return sorted(int(score) for each in paths for score in fields.scores(read_all(each)))

    for tool in ("convert", "filter --max-score 32000", "shuffle", "dedup"):
        run(*tool.split()[:1], path, out, *tool.split()[1:], *options, "--overwrite")
        found[tool] = scores(out)
    copy = path.with_name(f"copy{path.suffix}")
    copy.write_bytes(path.read_bytes())  # with this seed, the game of each file goes to another output
    dealt = ["--train", out, "--validation", other, "--share", 0.5, "--seed", SEED]
    run("split", path, copy, *dealt, *options, "--overwrite")
    found["split"] = scores(out, other)[::2]
    lines = [line for line in run("head", path, "--json", *options).splitlines() if line.startswith("{")]
    found["head"] = sorted(json.loads(line)["score"] for line in lines)
    info = json.loads(next(line for line in run("info", path, "--json", *options).splitlines() if line[:1] == "{"))
    ends = [info["statistics"]["min_score"], info["statistics"]["max_score"]]
    found["info"] = sorted([*ends, *found["head"][1:-1]])
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    run("convert", packed, out, *options, "--overwrite")
    found["convert .gz"] = scores(out)
    with PositionReader(path) as reader:
        kind = reader.format
    listed = [DATA_FORMATS.parse({"kind": kind, **formats}, trusted=False)]
    for name, file in (("train", path), ("train .gz", packed)):
        with RecordLoader([file], 4, formats=listed, shuffle=False, drop_last=False) as loader:
            found[name] = sorted(int(score) for batch in loader for score in fields.scores(batch.numpy()))
    if kind not in IN_PAWNS:
        mixed = path.with_name("mixed" + path.suffix)
        run("interleave", path, mixed, *options, "--overwrite")
        found["interleave"] = scores(mixed)
    return found


@pytest.mark.parametrize("format", ALL)
def test_every_tool_reads_the_same_scores(format: str, written: Callable[[str], Path]) -> None:
    path = written(format)
    for options in ({}, {"pawn": 361.0, "score_scale": 0.5}):
        pawn = options.get("pawn", 208) if format in IN_PAWNS else 100
        factor = options.get("score_scale", 1)
        expected = sorted(_half_away(_half_away(cp * pawn / 100) * factor) for cp in CENTIPAWNS)
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        in_recipe = {name: value for name, value in options.items() if name != "pawn" or format in IN_PAWNS}
        for tool, scores in from_tools(path, words, in_recipe).items():
            assert scores == expected, (tool, options)


def _half_away(value: float) -> int:
    return int(np.sign(value) * np.floor(abs(value) + 0.5))


def test_an_assumed_unit_is_printed(written: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    path = written("pgn")
    out = path.with_name("out.txt")
    assumed = "evaluations are converted with 208 internal units per pawn, the default of --pawn"
    for words in (["info"], ["head"], ["count"], ["validate"]):
        assert assumed in run(*words, path), words
        assert assumed not in run(*words, path, "--pawn", 208), words
    for tool in ("convert", "shuffle", "dedup"):
        assert assumed in run(tool, path, out, "--overwrite"), tool
    assert "--pawn has no effect: text stores numbers" in run("head", out, "--pawn", 100)


def test_inputs_of_which_only_some_state_a_unit_are_named(written: Callable[[str], Path]) -> None:
    pgn, text = written("pgn"), written("text")
    words = ["split", pgn, text, "--train", pgn.with_name("t.bin"), "--validation", pgn.with_name("v.bin")]
    found = run(*words, "--share", 0.5)
    assert "in.pgn (pgn) states pawns, which were converted with 208 internal units each; " in found
    assert "in.txt (text) stores numbers without a unit" in found
    assert "stores numbers without" not in run(*words, "--share", 0.5, "--pawn", 100, "--overwrite")


def test_positions_that_two_files_have_show_their_units(positions: Records, tmp_path: Path) -> None:
    """However few they are."""
    records = positions[:200]
    for name, factor in (("a.bin", 1.0), ("b.bin", 0.5), ("same.bin", 1.0)):
        with PositionWriter(tmp_path / name) as writer:
            writer.write(scaled(records, factor))
    found = run("validate", tmp_path / "a.bin", tmp_path / "b.bin")
    assert "b.bin (bin): scores are 0.50 times as large as in" in found
    assert "in positions that both have" in found
    assert "times as large" not in run("validate", tmp_path / "a.bin", tmp_path / "same.bin")
    found = run("shuffle", tmp_path / "a.bin", tmp_path / "b.bin", tmp_path / "out.bin")
    assert "b.bin (bin): scores are 0.50 times as large as in" in found


def test_pawns_and_centipawns_of_an_engine(tmp_path: Path) -> None:
    assert units_per_centipawn(None, 208) == units_per_centipawn(2.08, None) == 2.08
    assert units_per_centipawn(None, None) is None
    with pytest.raises(UserError, match="--pawn 100 is --score-scale 1, found 2: give one of them"):
        units_per_centipawn(2.0, 100)


def test_a_factor_does_not_make_a_score_none() -> None:
    records = np.zeros((1, 32), np.uint8)
    _data.set_scores(records, np.array([16001]))
    assert fields.scores(scaled(records, 2)).tolist() == [32001]


@pytest.fixture(scope="module")
def positions(project_root: Path) -> Records:
    return read_binpack(project_root / "samples" / "val.binpack")


def judged(
    *parts: Records, loss: LossCurve | None = None, format: str = "binpack", pawn: float | None = None
) -> list[str]:
    """The doubts about the units of a file."""
    sample = Sample()
    sample.add(np.concatenate(parts))
    verdict = judge(sample, format, loss=loss, pawn=pawn)
    return [found.text for found in verdict.doubts if found.name in ("units", "mixed_units")]


def test_parts_in_different_units_are_named_without_one_factor_for_all(positions: Records) -> None:
    centipawns = scaled(positions, 1 / 3.61)
    for other in (centipawns, scaled(positions, 1 / 2.08)):
        assert judged(other) == []
        (text,) = judged(positions, other)
        assert "in different units: in the part from" in text
        assert "no single factor mends the file" in text
    # Shuffled: gaps between the scores of one of the two units show the mixture.
    mixed = centipawns.copy()
    chosen = np.random.default_rng(1).random(len(mixed)) < 0.5
    mixed[chosen] = scaled(centipawns, 2.08)[chosen]
    (text,) = judged(mixed)
    assert "of the scores look multiplied by 2.08" in text
    assert "no single factor mends the file" in text


@pytest.mark.parametrize("factor", [0.9, 0.8, 0.6, 0.5, 1 / 2.08, 1.2])
def test_scores_that_were_rounded_twice_are_no_mixture(positions: Records, factor: float) -> None:
    assert judged(scaled(positions, factor)) == []


def units_of(name: str, records: Records, format: str = "binpack") -> FileUnits:
    sample = Sample()
    sample.add(records)
    return FileUnits(name, format, sample.units())


def test_files_in_different_units_are_named_with_the_factor(positions: Records) -> None:
    internal, centipawns = units_of("a", positions), units_of("b", scaled(positions, 1 / 2.08), "text")
    (line,) = differences([internal, units_of("c", positions[:15_000]), centipawns])
    assert line.startswith("b (text): scores are 0.48 times as large as in a (binpack), which is another unit")
    assert "multiply its scores by 2.0" in line
    (line,) = differences([internal, units_of("p", scaled(positions, 0.5), "pgn")])
    assert "read p with --pawn 41" in line
    assert differences([internal, units_of("c", positions[15_000:])]) == []


@pytest.mark.parametrize("order", [*itertools.permutations("isp")])
def test_small_files_hide_no_other_unit(positions: Records, order: tuple[str, ...]) -> None:
    """A small file has no unit of its own: it may be in the same one as any file without positions in common."""
    centipawns = scaled(positions[20_000:], 1 / 2.08)
    files = {"i": units_of("i", positions[:20_000]), "s": FileUnits("s", "text", None)}
    (line,) = differences([{**files, "p": units_of("p", centipawns)}[name] for name in order])
    assert "in another unit" not in line
    assert {line[0], line.partition(" as large as in ")[2][0]} == {"i", "p"}
    # Two small files with the same positions, one of them in pawns.
    few = positions[25_000:25_200]
    files["s"] = FileUnits("s", "pgn", None, runs=[few])
    files["p"] = FileUnits("p", "text", None, runs=[scaled(few, 1 / 2.08)])
    (line,) = differences([files[name] for name in order])
    assert "read s with --pawn 100" in line


def test_a_pawn_that_is_set_for_one_format_is_none_for_another() -> None:
    files = [FileUnits("a", "pgn", None, 100.0), FileUnits("b", "epd", None), FileUnits("c", "bin", None)]
    (line,) = differences(files)
    assert line.startswith("b (epd) states pawns, which were converted with 208")
    assert differences([files[0], files[2]]) == []


def test_training_knows_the_pawn_that_its_recipe_sets(
    positions: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listed, internal = tmp_path / "listed.epd", tmp_path / "internal.bin"
    few = positions[:200]
    fens = [row[0].rsplit(" ", 2)[0] for row in _data.describe(few)]
    lines = [f'{fen} ce {score}; c9 "1-0";' for fen, score in zip(fens, fields.scores(few), strict=True)]
    listed.write_text("\n".join(lines) + "\n")
    convert([listed], internal, pawn=208)
    set_to_100 = DATA_FORMATS.parse({"kind": "epd", "pawn": 100.0}, trusted=False)
    data = DataConfig(train=[str(listed), str(internal)], formats=[set_to_100])
    found: list[str] = []
    with RecordLoader(data.train, 8, formats=data.formats) as batches:
        assert [file.reading.pawn for file in batches.opened] == [100, None]
        plausibility.check(data, batches, None, "", found.append)
    (line,) = [line for line in found if "another unit" in line]
    assert "--pawn 208 " in line
    assert "the default" not in caplog.text


def test_validate_and_the_joining_tools_compare_files(positions: Records, tmp_path: Path) -> None:
    for name, factor in (("a.binpack", 1.0), ("b.bin", 1 / 2.08)):
        with PositionWriter(tmp_path / name) as writer:
            writer.write(scaled(positions, factor))
    paths = tmp_path / "a.binpack", tmp_path / "b.bin"
    expected = f"{paths[1]} (bin): scores are 0.48 times as large as in {paths[0]} (binpack)"
    assert expected in run("validate", *paths)
    assert expected in json.loads(run("validate", "--json", *paths).splitlines()[-1])["units"][0]
    for words in (["convert", *paths, tmp_path / "o.txt"], ["shuffle", *paths, tmp_path / "o.bin"]):
        assert expected in run(*words), words


def loss_curve(section: dict[str, object]) -> LossCurve:
    curve = plausibility._curve(LOSSES.parse(section, trusted=False))
    assert curve is not None
    return curve


def test_the_loss_and_the_data_are_compared(positions: Records) -> None:
    centipawns = scaled(positions, 1 / 3.61)
    sigmoid, wide = (loss_curve({"kind": "sigmoid", "scale": scale}) for scale in (400.0, 1500.0))
    others = [loss_curve({"kind": kind}) for kind in ("win_rate", "wdl", "cross_entropy")]
    assert judged(centipawns, loss=sigmoid) == []
    assert len(judged(scaled(positions, 4), loss=sigmoid)) == 1
    for curve in (sigmoid, *others):
        assert judged(positions, loss=curve) == []
    (text,) = judged(centipawns, loss=wide)
    assert "loss.scale is 1500, but a pawn is worth 101, and 1/(1 + e^(−score/226)) fits the results" in text
    assert "set loss.scale to 226, or multiply them (`nnue data convert --score-scale 6.6" in text
    # Both remedies mend it.
    assert judged(centipawns, loss=loss_curve({"kind": "sigmoid", "scale": 226.0})) == []
    assert judged(scaled(centipawns, 6.63), loss=wide) == []
    (text,) = judged(centipawns, loss=wide, format="pgn")
    assert "data.formats: [{kind: pgn, pawn: 1380}] instead of 208" in text
    (text,) = judged(centipawns, loss=wide, format="pgn", pawn=100.0)
    assert "data.formats: [{kind: pgn, pawn: 66" in text
    assert text.endswith("}] instead of 100)")


def test_training_compares_its_files_and_its_loss(positions: Records, tmp_path: Path) -> None:
    paths = [tmp_path / "a.binpack", tmp_path / "b.binpack"]
    for path, factor in zip(paths, (1.0, 1 / 3.61), strict=True):
        with PositionWriter(path) as writer:
            writer.write(scaled(positions, factor))
    data = DataConfig(train=[str(path) for path in paths])
    found: list[str] = []
    loss = LOSSES.parse({"kind": "sigmoid"}, trusted=False)
    with RecordLoader(paths[:1], 1024) as train, RecordLoader(paths[1:], 1024) as held_out:
        plausibility.check(data, train, None, "", found.append, loss=loss)
        assert found == []
        plausibility.check(data, train, None, "", found.append, loss=loss, held_out=held_out.opened)
    (line,) = found
    assert line.startswith(f"{paths[1]} (binpack): scores are 0.28 times as large as in {paths[0]} (binpack)")


def test_split_without_plies_says_so_and_offers_blocks(positions: Records, tmp_path: Path) -> None:
    whole, turned = tmp_path / "a.binpack", tmp_path / "a.bullet"
    with PositionWriter(whole) as writer:
        writer.write(positions[:5000])
    convert([whole], turned)
    out = [tmp_path / "t.bullet", tmp_path / "v.bullet"]
    assert split([whole], *out, share=0.2).note == ""
    report = split([turned], *out, share=0.2, overwrite=True)
    assert (report.alone, report.in_short_games) == (5000, 5000)
    words = ["split", turned, "--train", out[0], "--validation", out[1], "--share", 0.2, "--overwrite"]
    assert "5,000 of 5,000 positions were split singly or in groups of at most 3 (5,000 singly)" in run(*words)
    text = run(*words, "--block", 250)
    assert "20 blocks" in text
    assert "singly" not in text
    source, sides = read_all(turned), [read_all(path) for path in out]
    taken = [0, 0]
    for begin in range(0, 5000, 250):  # every block is whole, on one side
        block = source[begin : begin + 250]
        side = next(i for i in (0, 1) if np.array_equal(sides[i][taken[i] : taken[i] + 250], block))
        taken[side] += 250
    assert min(taken) > 0


def test_options_out_of_range(tmp_path: Path, written: Callable[[str], Path]) -> None:
    path = written("pgn")
    for options, message in (
        ({"pawn": 0.0}, "pawn 0, expected 0.01 to 10000"),
        ({"score_scale": 0.0}, "score scale 0"),
    ):
        with pytest.raises(UserError, match=message):
            PositionReader(path, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pawn"):
        DATA_FORMATS.parse({"kind": "binpack", "pawn": 100.0}, trusted=False)


def test_combs_of_mixtures() -> None:
    scores = np.rint(np.random.default_rng(5).normal(0, 300, 60_000)).astype(np.int32)
    mixed = scores.copy()
    mixed[::2] = np.rint(scores[::2] * 2.08)
    found = comb(mixed)
    assert found.factor == pytest.approx(2.08, rel=0.01)
    assert found.share < 1
    assert comb(np.rint(scores * 2.08).astype(np.int32)).share == 1
    assert comb(scores).share == 1


def test_few_positions_are_kept_of_many_files() -> None:
    files, sample = ComparedFiles(), Sample()
    sample.add_runs(np.zeros((40 * RUN, 32), np.uint8))
    for number in range(2 * MOST_COMPARED):
        files.add(FileUnits(f"{number}.bin", "bin", None), sample)
        assert sum(len(file.runs) for file in files.files) <= MOST_COMPARED
        assert (number >= MOST_COMPARED) or all(file.runs for file in files.files)


def test_training_states_what_a_reader_leaves_out_and_the_pawn_that_is_set(tmp_path: Path) -> None:
    def game(comment: str) -> str:
        return f'[Event "x"]\n[Result "1-0"]\n\n1. e4 {{{comment}}} 1-0\n\n'

    kings = "4k3/8/8/8/8/8/8/4K3 w - - 0 1"
    games, listed = tmp_path / "a.pgn", tmp_path / "a.csv"
    games.write_text(game("+0.35/12 0.1s") + game("0.35 / 12"))
    listed.write_text(f"fen,score,id,result\n{kings},35,7,1.0\n{kings},,8,1.0\n")
    data = DataConfig(train=[str(games)])
    for pawn, stated in ((None, 1), (100.0, 0)):
        formats = [DATA_FORMATS.parse({"kind": "pgn", "pawn": pawn}, trusted=False)]
        found: list[str] = []
        with (
            RecordLoader(games, 1, formats=formats) as train,
            RecordLoader(listed, 1) as held_out,
        ):
            plausibility.check(data, train, None, "", found.append, held_out=held_out.opened)
        notes = [line for line in found if ": in the first " in line]
        assert len(notes) == 2
        assert "comments that are not understood as evaluations: 1, such as line 9: '{0.35 / 12}'" in notes[0]
        assert "positions without a score: 1, such as" in notes[1]
        assert "columns that are not read: 'id'" in notes[1]
        assert sum("states pawns" in line for line in found) == stated
