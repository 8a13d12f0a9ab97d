"""Statistics of matches against the published figures of real tests."""

import json
import math
from pathlib import Path

import pytest

from nnue_trainer.match.statistics import (
    MODELS,
    Sprt,
    elo,
    llr,
    plan,
    regularised,
    statistics,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/training_match.json").read_text())


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_vectors(case):
    counts, test = case["counts"], (case["elo0"], case["elo1"])
    for model in MODELS:
        assert llr(counts, *test, model) == pytest.approx(case[f"llr_{model}"], abs=2e-11)
    for key, given in (("statistics", counts), ("statistics_with_regularised_counts", regularised(counts))):
        found = statistics(given)
        for name, value in case[key].items():
            of = getattr(found, "variance" if name == "variance_of_pair" else name)
            assert of == pytest.approx(value, rel=1e-12, abs=1e-12), name


def test_bounds_and_planning():
    for row in VECTORS["bounds"]:
        test = Sprt(0, 1, row["alpha"], row["beta"])
        assert (test.lower, test.upper) == pytest.approx((row["lower"], row["upper"]), rel=1e-15)
    for row in VECTORS["sprt_planning"]:
        test = Sprt(row["elo0"], row["elo1"], model=row["model"])
        found = plan(test, row["true_logistic_elo"], draw_ratio=row["draw_ratio"], rms_bias=row["rms_bias"])
        assert found.pass_probability == pytest.approx(row["pass_probability"], rel=1e-9)
        assert found.games == pytest.approx(row["expected_games"], rel=1e-8)


def test_degenerate_counts():
    won = statistics([0, 0, 0, 0, 7])
    assert won.elo == math.inf
    assert (won.nelo, won.los, won.elo_error) == (None, None, 0.0)
    assert elo(0) == -math.inf
    assert statistics([0, 0, 0, 1, 60]).elo_error == math.inf  # the interval reaches beyond the score of 1
    assert llr([0, 0, 0, 0, 0], 0, 2) == 0
    assert Sprt(0, 5).verdict([0, 0, 0, 0, 500]) == "accepted"
    assert Sprt(0, 5).verdict([500, 0, 0, 0, 0]) == "rejected"
    assert Sprt(0, 5).verdict([1, 2, 3, 2, 1]) is None


@pytest.mark.parametrize(
    ("test", "wrong"), [((2, 0), "elo0 < elo1"), ((0, 1, 0.5, 0.5), "sum below 1"), ((0, math.inf), "elo0 < elo1")]
)
def test_bounds_that_make_no_test(test, wrong):
    with pytest.raises(ValueError, match=wrong):
        Sprt(*test)


def test_every_test_has_a_finite_ratio_for_any_counts():
    few = [
        [9, 0, 0, 0, 0],
        [0, 0, 0, 0, 9],
        [0, 0, 5, 0, 0],
        [3, 0, 0, 0, 3],
        [0, 0, 0, 1, 40_000],
        [0, 0, 7],
        [1, 0, 0],
    ]
    for model, most in zip(MODELS, (200, 1000), strict=True):
        for counts in few:
            for bounds in ((0, most), (-most, 0), (-most, most)):
                assert math.isfinite(Sprt(*bounds, model=model).llr(counts))
        with pytest.raises(ValueError, match=f"expected {model} Elo within ±{most}"):
            Sprt(0, most + 1, model=model)
