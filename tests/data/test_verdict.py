"""The verdict on a file: what is right is plausible, what is wrong is named, in every format that can hold it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_commands import SUFFIXES
from typer.testing import CliRunner

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.base.status import CONTRADICTORY
from nnue_trainer.cli.main import app
from nnue_trainer.config import DataConfig
from nnue_trainer.data import PositionReader, PositionWriter, RecordLoader, fields
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.calibration import fit_curve
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.score_units import Sample
from nnue_trainer.data.transform import convert
from nnue_trainer.data.verdict import Verdict, comb, judge
from nnue_trainer.errors import UserError
from nnue_trainer.training import plausibility


def turned(records: Records, what: str, white: bool, black: bool) -> Records:
    records = records.copy()
    _data.turn_view(records, what == "results", white, black)
    return records


def scaled(records: Records, factor: float) -> Records:
    records = records.copy()
    _data.scale_scores(records, factor)
    return records


WRONG: dict[str, tuple[Callable[[Records], Records], str, str]] = {
    # How it is made wrong, the finding, and the finding in a format without sides; "": none.
    "right": (lambda r: r, "", ""),
    "black's scores negated": (lambda r: turned(r, "scores", False, True), "scores_white", "scores_mixed"),
    "white's scores negated": (lambda r: turned(r, "scores", True, False), "scores_black", "scores_mixed"),
    "all scores negated": (lambda r: turned(r, "scores", True, True), "scores_opponent", "scores_opponent"),
    "black's results negated": (lambda r: turned(r, "results", False, True), "results_white", "results_mixed"),
    "all results negated": (lambda r: turned(r, "results", True, True), "results_opponent", "results_opponent"),
    "scores times 4": (lambda r: scaled(r, 4), "units", "units"),
    "scores in pawns of 100, not 256": (lambda r: scaled(r, 100 / 256), "", ""),
    "centipawns": (lambda r: scaled(r, 1 / 3.61), "", ""),
    "scores in pawns of 256, not 100": (lambda r: scaled(r, 2.56), "units", "units"),
    "constant scores": (lambda r: scaled(r, 1e-5), "constant_scores", "constant_scores"),
    "no black to move": (lambda r: r[~fields.black_to_move(r)], "side", ""),
    "ten times": (lambda r: np.tile(r[:4000], (10, 1)), "duplicates", "duplicates"),
}


@pytest.fixture(scope="module")
def positions(project_root: Path) -> Records:
    return read_binpack(project_root / "samples" / "val.binpack")


def verdict_of(path: Path) -> Verdict:
    sample = Sample()
    with PositionReader(path) as reader:
        for records in reader:
            sample.add(records)
        return judge(sample, reader.format)


@pytest.mark.slow
@pytest.mark.parametrize("format", SUFFIXES)
def test_what_is_wrong_is_named_in_every_format(format: str, positions: Records, tmp_path: Path) -> None:
    # That scores were rounded twice takes many of them to see.
    records = positions if format == "binpack" else positions[:10_000]
    for number, (case, (spoil, found, found_without_sides)) in enumerate(WRONG.items()):
        path = tmp_path / f"{number}{SUFFIXES[format]}"
        with PositionWriter(path) as writer:
            writer.write(spoil(records))
        verdict = verdict_of(path)
        expected = found_without_sides if format == "bulletformat" else found
        names = [each.name for each in (*verdict.contradictions, *verdict.doubts)]
        if expected:
            assert expected in names, (case, names)
            assert ("negated" in case) == bool(verdict.contradictions), (case, names)
        else:
            assert names == [], (case, verdict.lines())


def test_the_shuffled_and_the_rightly_scaled_are_plausible(positions: Records) -> None:
    sample = Sample()
    sample.add(positions[np.random.default_rng(1).permutation(len(positions))])
    verdict = judge(sample)
    assert verdict.word == "plausible"
    assert any(found.text.startswith("shuffled") for found in verdict.findings)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["small", "selfplay-d5-val"])
def test_real_files_are_plausible(name: str, positions_file: Callable[[str], Path]) -> None:
    verdict = verdict_of(positions_file(name))
    assert verdict.word == "plausible", verdict.lines()


def test_the_mending_command_mends(positions: Records, tmp_path: Path) -> None:
    for option, what, white, black in (
        ("--score-view white", "scores", False, True),
        ("--score-view black", "scores", True, False),
        ("--score-view opponent", "scores", True, True),
        ("--result-view white", "results", False, True),
        ("--result-view opponent", "results", True, True),
    ):
        wrong, right = tmp_path / "wrong.bin", tmp_path / "right.bin"
        with PositionWriter(wrong) as writer:
            writer.write(turned(positions, what, white, black))
        assert any(option in found.text for found in verdict_of(wrong).contradictions), option
        result = CliRunner().invoke(
            app, ["data", "convert", str(wrong), str(right), *option.split(), "--overwrite"], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        with PositionReader(right) as reader:
            assert np.array_equal(np.concatenate(list(reader)), positions)


def test_a_view_needs_sides(positions: Records, tmp_path: Path) -> None:
    path = tmp_path / "a.bullet"
    with PositionWriter(path) as writer:
        writer.write(positions[:100])
    with pytest.raises(UserError, match="bulletformat has no side to move"):
        convert([path], tmp_path / "b.bullet", score_view="white")
    convert([path], tmp_path / "b.bullet", score_view="opponent")


def test_scores_of_none_and_the_lowest_score(positions: Records) -> None:
    records = positions[:3].copy()
    for i, score in enumerate((32002, -32768, 5)):
        records[i, 26:28] = np.array([(score << 1 ^ score >> 31) & 0xFFFF], ">u2").view(np.uint8)
    assert _data.turn_view(records, False, True, True) == 1
    assert fields.scores(records).tolist() == [32002, 32767, -5]


def test_filters_that_leave_nothing(positions: Records) -> None:
    sample = Sample()
    records = positions.copy()
    records[:, 28] &= 0xC0
    records[:, 29] = 0
    sample.add(records)
    verdict = judge(sample, filters=Filters(min_ply=16))
    assert [found.name for found in verdict.doubts] == ["filters"]
    assert "every ply is 0" in verdict.doubts[0].text
    sample = Sample()
    sample.add(positions)
    assert judge(sample, filters=Filters(min_pieces=13)).doubts == []


def test_commands_have_a_status_for_it(positions: Records, tmp_path: Path) -> None:
    wrong, right = tmp_path / "wrong.binpack", tmp_path / "right.binpack"
    for path, records in ((wrong, turned(positions, "scores", False, True)), (right, positions)):
        with PositionWriter(path) as writer:
            writer.write(records)
    for command in ("validate", "profile"):
        result = CliRunner().invoke(app, ["data", command, str(wrong)])
        assert result.exit_code == CONTRADICTORY, result.output
        assert "negate black's with `nnue data convert --score-view white`" in result.output
        result = CliRunner().invoke(app, ["data", command, str(right)])
        assert result.exit_code == 0, result.output
        assert re.search("verdict:? +plausible", result.output)
    result = CliRunner().invoke(app, ["data", "validate", str(wrong), "--json"])
    assert json.loads(result.output)["verdict"] == "contradicts itself"


def test_training_warns_or_stops(
    positions: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("nnue_trainer"), "propagate", True)
    wrong = tmp_path / "wrong.binpack"
    with PositionWriter(wrong) as writer:
        writer.write(turned(positions, "scores", False, True))
    with RecordLoader([wrong], 1024) as loader:
        plausibility.check(DataConfig(train=[str(wrong)], implausible="ignore"), loader)
        assert caplog.messages == []
        plausibility.check(DataConfig(train=[str(wrong)]), loader)
        (line,) = caplog.messages
        assert "contradicts itself: black's scores contradict the material" in line
        with pytest.raises(UserError, match=r"data\.implausible=warn trains on it anyway"):
            plausibility.check(DataConfig(train=[str(wrong)], implausible="stop"), loader)


def test_curve_with_an_offset() -> None:
    score = np.arange(-1000.0, 1001, 10)
    count = np.full(len(score), 50.0)
    points = 1 / (1 + np.exp(-(score - 120) / 300))
    curve, centred = fit_curve(score, points, count), fit_curve(score, points, count, with_offset=False)
    assert curve is not None
    assert centred is not None
    assert (curve.scale, curve.offset) == pytest.approx((300, 120), rel=1e-6)
    assert curve.likelihood > centred.likelihood + 10
    assert fit_curve(np.array([-1.0, 1.0]), np.array([0.9, 0.1]), np.ones(2)) is None


def test_comb() -> None:
    random = np.random.default_rng(5)
    scores = np.rint(random.normal(0, 300, 60_000)).astype(np.int32)
    assert comb(scores)[1] < 60
    for factor in (0.39, 2.08, 4.0):
        found, ratio, _ = comb(np.rint(scores * factor).astype(np.int32))
        assert ratio > 60
        assert found == pytest.approx(factor, rel=0.01)
