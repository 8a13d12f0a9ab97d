"""How curves are smoothed on the pages. The windows themselves are tested in tests/ops."""

import pytest

from nnue_trainer.analysis import smoothing

NAN = float("nan")


def test_what_is_missing_does_not_break_a_curve():
    curve = smoothing.trend([1.0, float("inf"), NAN, 1.0], span=3)
    assert curve.tolist() == [1.0, 1.0, 1.0, 1.0]
    mean, deviation = smoothing.band([1.0, 3.0, 1.0, 3.0], 2)
    assert mean[1:].tolist() == [2.0, 2.0, 2.0]
    assert deviation[1] == pytest.approx(2**0.5)
    assert smoothing.middle([5.0, 5.0, 1000.0, 5.0, 5.0], 5)[2] == 5.0
