"""`nnue data profile`: every count against NumPy, drift that is there and drift that is not, calibration."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typed import present

from nnue_trainer import _data, data
from nnue_trainer.analysis import data_profile
from nnue_trainer.analysis.data_profile import bin_values, drift_of, score_values
from nnue_trainer.base.arrays import Records
from nnue_trainer.data import PositionReader, PositionWriter, fields
from nnue_trainer.data.calibration import fit_curve
from nnue_trainer.errors import UserError
from nnue_trainer.files.pages.page import render

PROVEN = 30_000


def records_of(path: Path, most: int | None = None) -> Records:
    with PositionReader(path) as reader:
        return np.concatenate(list(reader))[:most]


@pytest.fixture(scope="module")
def sample(project_root) -> Records:
    return records_of(project_root / "samples" / "val.binpack")


def with_fields(records: Records, score=None, result=None) -> Records:
    """A copy with other scores and results."""
    records = records.copy()
    if score is not None:
        zigzag = (np.asarray(score) << 1 ^ np.asarray(score) >> 31).astype(np.int64)
        records[:, 26], records[:, 27] = zigzag >> 8 & 255, zigzag & 255
    if result is not None:
        code = np.where(np.asarray(result) == 0, 0, np.where(np.asarray(result) < 0, 1, 2))
        records[:, 28] = records[:, 28] & 0x3F | code << 6
    return records


def profiled(*parts: Records) -> _data.Profile:
    native = _data.Profile()
    for part in parts:
        native.add(part)
    return native


def save(path: Path, records: Records) -> Path:
    with PositionWriter(path, "bin" if path.suffix == ".bin" else "binpack", join_chains=False) as writer:
        writer.write(records)
    return path


def test_bins_hold_what_they_say():
    values = bin_values(128 + 8 * 64)
    assert values[:128].tolist() == list(range(128))
    assert (values[128], values[129]) == (128.5, 130.5)
    assert values[-1] == pytest.approx(32640, abs=128)
    assert (np.diff(values) > 0).all()
    assert np.diff(values)[128:].max() / values[-1] < 1 / 64
    scores = score_values(2 * len(values) - 1)
    assert np.array_equal(scores, -scores[::-1])
    every = np.arange(-30_000, 30_001, 7)
    fen = "4k3/8/8/8/8/8/8/4K3 w - - 0 1"
    records = with_fields(np.repeat(data.records_from_fens([fen]), len(every), axis=0), every)
    assert fields.scores(records).tolist() == every.tolist()
    histogram = profiled(records).blocks["scores"].sum(0).astype(np.int64)
    width = np.maximum(np.abs(scores) / 64, 1.0)
    found = np.repeat(scores, histogram)
    assert (np.abs(found - every) <= np.repeat(width, histogram)).all()


def test_counts_are_those_of_numpy(sample):
    records = with_fields(
        sample[:1000], np.concatenate([[32002, 30_001, -31_000, 30_000], fields.scores(sample)[4:1000]])
    )
    profile = profiled(records[:300], records[300:])
    raw = profile.blocks
    assert profile.block_size == 256
    assert raw["positions"].tolist() == [256, 256, 256, 232]
    scores, plies = fields.scores(records).astype(np.int64), fields.plies(records)
    pieces, results = fields.piece_counts(records), fields.results(records)
    usable = (np.abs(scores) <= PROVEN) & (scores != 32002)
    proven = (np.abs(scores) > PROVEN) & (scores != 32002)
    begins = np.arange(0, 1000, 256)
    for name, values in (
        ("scored", usable), ("proven", proven),
        ("sum_score", np.where(usable, scores, 0)), ("sum_magnitude", np.where(usable, np.abs(scores), 0)),
        ("sum_score_squared", np.where(usable, scores**2, 0)),
        ("sum_ply", plies), ("sum_ply_squared", plies.astype(np.int64) ** 2),
        ("sum_pieces", pieces), ("sum_pieces_squared", pieces**2),
    ):  # fmt: skip
        assert raw[name].tolist() == np.add.reduceat(values.astype(np.int64), begins).tolist(), name
    for column, result in enumerate((-1, 0, 1)):
        assert raw["results"][:, column].tolist() == np.add.reduceat((results == result).astype(int), begins).tolist()
    assert raw["pieces"].sum(0).tolist() == np.bincount(pieces, minlength=33).tolist()
    assert raw["plies"].sum() == 1000
    phase = np.where(pieces >= 25, 0, np.where(pieces >= 13, 1, 2))
    for number in range(3):
        for column, result in enumerate((-1, 0, 1)):
            expected = int((usable & (phase == number) & (results == result)).sum())
            assert profile.calibration[number, :, column].sum() == expected
    assert raw["looked_at"].sum() == 1000
    boards = [record[:24].tobytes() for record in records]
    assert raw["repeated"].sum() == 1000 - len(set(boards))
    assert profile.distinct == len(set(boards))


def test_long_files_are_counted_in_larger_blocks(sample):
    records = np.tile(sample, (20, 1))[:300_000]
    whole, parts = profiled(records), profiled(*np.array_split(records, 13))
    assert whole.block_size == parts.block_size == 512
    assert len(whole.blocks) == 586
    assert (whole.blocks == parts.blocks).all()
    assert (whole.calibration == parts.calibration).all()
    assert (whole.distinct, whole.duplicate_share) == (parts.distinct, parts.duplicate_share)
    assert whole.duplicates_exact == parts.duplicates_exact
    first = profiled(records[:512]).blocks
    for name in ("sum_score", "sum_ply", "scored", "repeated"):
        assert whole.blocks[name][0] == first[name].sum()
    for name in ("scores", "plies", "pieces", "results"):
        assert np.array_equal(whole.blocks[name][0], first[name].sum(0))


def test_what_cannot_be_is_an_error(sample):
    wrong = sample[:10].copy()
    wrong[7, 28] |= 0xC0  # a fourth result
    with pytest.raises(UserError, match="position 7: a result that is none of loss, draw, win"):
        profiled(wrong)
    wrong = sample[:3].copy()
    wrong[2, :8] = 255
    with pytest.raises(UserError, match="position 2: more than 32 pieces"):
        profiled(wrong)


def test_quantiles_are_within_a_bin(sample, tmp_path):
    found = data_profile.data_profile(save(tmp_path / "a.binpack", sample))
    scores = fields.scores(sample)
    scores = scores[np.abs(scores) <= PROVEN]
    for q in data_profile.QUANTILES:
        exact = float(np.quantile(scores, q, method="inverted_cdf"))
        assert found.totals["score"][f"{q:.0%}"] == pytest.approx(exact, abs=max(1, abs(exact) / 64))
        plies = float(np.quantile(fields.plies(sample), q, method="inverted_cdf"))
        assert found.totals["ply"][f"{q:.0%}"] == pytest.approx(plies, abs=max(0.5, plies / 64))
    assert found.totals["score"]["mean"] == pytest.approx(scores.mean())
    assert found.totals["score"]["deviation"] == pytest.approx(scores.std())
    assert found.totals["result"]["deviation"] == pytest.approx(fields.results(sample).std())
    assert found.totals["draws"]["mean"] == pytest.approx((fields.results(sample) == 0).mean())


def drift_by_hand(means):
    n = len(means)
    eta = sum((b - a) ** 2 for a, b in itertools.pairwise(means)) / (2 * (n - 1))
    eta /= sum((m - np.mean(means)) ** 2 for m in means) / (n - 1)
    return (1 - eta) / np.sqrt((n - 2) / (n**2 - 1))


def test_the_rule_of_drift_is_the_one_that_is_stated():
    random = np.random.default_rng(5)
    ends = (np.arange(1, 101) * 1000.0).astype(np.float64)
    still = random.normal(10, 1, 100)
    found = present(drift_of("x", still, ends, 10.0))
    assert found.z == pytest.approx(drift_by_hand(still.tolist()))
    assert not found.flagged
    jump = still + np.where(np.arange(100) >= 60, 3.0, 0.0)
    found = present(drift_of("x", jump, ends, 10.0))
    assert found.flagged
    assert abs(found.at - 60_000) <= 2000
    assert found.behind - found.before == pytest.approx(3, abs=0.6)
    # Beyond doubt, but too small to matter: a hundredth of what single positions differ by.
    small = present(drift_of("x", jump, ends, 300.0))
    assert small.z > 4
    assert not small.flagged
    assert drift_of("x", np.ones(100), ends, 1.0) is None


def test_noise_is_rarely_called_drift():
    random = np.random.default_rng(7)
    ends = np.arange(1.0, 101).astype(np.float64)
    found = (present(drift_of("x", random.normal(0, 1, 100), ends, 1.0)) for _ in range(3000))
    flagged = sum(drift.z > data_profile.DRIFT_Z for drift in found)
    assert flagged <= 2


def test_a_file_of_two_halves_drifts_and_a_shuffled_one_does_not(sample, tmp_path):
    random = np.random.default_rng(1)
    records = np.tile(sample, (3, 1))
    order = random.permutation(len(records))
    shuffled = data_profile.data_profile(save(tmp_path / "s.binpack", records[order]))
    assert not shuffled.too_short
    assert not any(drift.flagged for drift in shuffled.drifts)
    by_pieces = np.argsort(fields.piece_counts(records), kind="stable")
    sorted_file = data_profile.data_profile(save(tmp_path / "t.binpack", records[by_pieces]))
    drifts = {drift.name: drift for drift in sorted_file.drifts}
    assert drifts["piece count"].flagged
    assert any("piece count drifts" in line for line in sorted_file.warnings())
    short = data_profile.data_profile(save(tmp_path / "u.binpack", records[:5000]))
    assert short.too_short
    assert short.drifts == []


def test_duplicates_are_found_and_placed(sample, tmp_path):
    records = np.concatenate([sample[:20_000], sample[4_000:9_000]])
    found = data_profile.data_profile(save(tmp_path / "d.binpack", records))
    boards = [record[:24].tobytes() for record in records]
    assert found.duplicates_exact
    assert found.duplicate_share == pytest.approx(1 - len(set(boards)) / len(boards))
    assert any(line.startswith("duplicates: ") for line in found.warnings())
    assert found.repeated_blocks
    assert min(found.ends[block] for block in found.repeated_blocks) > 20_000
    once = data_profile.data_profile(save(tmp_path / "e.binpack", sample[:20_000]))
    assert once.repeated_blocks == []


def test_calibration_finds_the_scale(sample, tmp_path):
    random = np.random.default_rng(3)
    records = np.tile(sample, (4, 1))
    scores = np.clip(random.normal(0, 500, len(records)), -3000, 3000).astype(np.int64)
    won = random.random(len(records)) < 1 / (1 + np.exp(-scores / 320))
    records = with_fields(records, scores, np.where(won, 1, -1))
    found = data_profile.data_profile(save(tmp_path / "c.binpack", records)).calibrations
    assert found[0].name == "all positions"
    assert present(found[0].curve).scale == pytest.approx(320, rel=0.03)
    assert found[0].count.sum() == len(records)
    expected = 1 / (1 + np.exp(-found[0].score / 320))
    inside = (found[0].low <= expected) & (expected <= found[0].high)
    assert inside.mean() > 0.85
    assert (np.diff(found[0].score) > 0).all()


def test_a_scale_is_not_invented():
    score, count = np.array([-100.0, 100.0]), np.array([50.0, 50.0])

    def scale(score, points):
        curve = fit_curve(score, points, count, with_offset=False)
        return curve and curve.scale

    assert scale(score, np.array([0.0, 1.0])) is None  # perfectly separated
    assert scale(score, np.array([0.9, 0.1])) is None  # the wrong way round
    assert scale(np.zeros(2), np.array([0.5, 0.5])) is None
    assert scale(score, 1 / (1 + np.exp(-score / 250))) == pytest.approx(250)


def test_the_command_prints_text_json_and_a_page(sample, tmp_path, nnue):
    name = "$x$ <b>.binpack"
    sample = np.tile(sample, (2, 1))
    file = save(tmp_path / name, sample)
    status, out, err = nnue("data", "profile", file, "--html", tmp_path / "p.html", "--png", tmp_path / "p.png")
    assert (status, err) == (0, "")
    assert f"{len(sample):,} positions" in out
    page = (tmp_path / "p.html").read_text()
    assert "<b>.bin" not in page
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    status, out, _ = nnue("data", "profile", file, "--json")
    found = json.loads(out)
    assert found["positions"] == len(sample)
    assert found["series"][0]["name"] == "score"
    assert len(found["series"][0]["mean"]) == len(found["ends"])
    assert {"z", "moved", "flagged"} <= found["drifts"][0].keys()
    status, _, err = nnue("data", "profile", file, "--png", tmp_path / "p.png")
    assert status == 1
    assert "exists already" in err


@pytest.mark.slow
def test_files_without_enough_in_them(sample, tmp_path, nnue):
    empty = tmp_path / "empty.binpack"
    empty.write_bytes(b"")
    status, _, err = nnue("data", "profile", empty)
    assert (status, err.count("\n")) == (1, 1)
    for count in (1, 2, 300):
        found = data_profile.data_profile(save(tmp_path / f"{count}.binpack", sample[:count]))
        assert found.positions == count
        render(data_profile.page(found))
        json.dumps(data_profile.as_dict(found), allow_nan=False)
    unscored = with_fields(sample[:500], np.full(500, 32002))
    found = data_profile.data_profile(save(tmp_path / "n.binpack", unscored))
    assert any("500 positions (100.0%) have no score" in line for line in found.warnings())
    assert found.calibrations == []
    render(data_profile.page(found))
    json.dumps(data_profile.as_dict(found), allow_nan=False)
