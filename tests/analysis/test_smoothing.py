"""The windows of the pages: pandas' rules, on pandas' own cases and against the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnue_trainer.analysis import smoothing
from nnue_trainer.analysis._windows_reference import ewm, rolling

NAN = float("nan")
values = st.lists(st.one_of(st.just(NAN), st.floats(-1e3, 1e3)), max_size=30)


def test_cases_of_pandas_documentation():
    x = [0, 1, 2, NAN, 4]
    assert np.array_equal(rolling(x, 2).mean(), [NAN, 0.5, 1.5, NAN, NAN], equal_nan=True)
    assert np.array_equal(rolling(x, 2, min_periods=1).mean(), [0, 0.5, 1.5, 2, 4], equal_nan=True)
    assert np.array_equal(rolling(x, 3, min_periods=1, center=True).mean(), [0.5, 1, 1.5, 3, 4])
    found = ewm(x, com=0.5).mean()
    assert found == pytest.approx([0, 0.75, 1.615385, 1.615385, 3.670213], abs=1e-6)
    assert ewm(x, com=0.5, ignore_na=True).mean()[-1] == pytest.approx(3.225, abs=1e-6)
    assert ewm(x, alpha=2 / 3, adjust=False).mean()[:3] == pytest.approx([0, 0.666667, 1.555556], abs=1e-6)
    assert ewm([1.0, 2.0], span=3).mean() == pytest.approx(ewm([1.0, 2.0], com=1).mean())
    assert ewm([1.0, 2.0], halflife=1).mean() == pytest.approx(ewm([1.0, 2.0], alpha=0.5).mean())


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="found com and span"):
        ewm([1.0], com=1, span=2)
    with pytest.raises(ValueError, match="window is 0"):
        rolling([1.0], 0)


@given(values, st.integers(1, 8), st.integers(1, 3), st.booleans())
def test_windows_are_what_they_say(x, window, least, center):
    ahead = (window - 1) // 2 if center else 0
    windows = rolling(x, window, min_periods=min(least, window), center=center)
    mean, median, deviation = windows.mean(), windows.median(), windows.std()
    for i in range(len(x)):
        inside = [v for v in x[max(0, i + ahead - window + 1) : i + ahead + 1] if v == v]
        if len(inside) < min(least, window):
            assert np.isnan(mean[i])
            continue
        assert mean[i] == pytest.approx(np.mean(inside), abs=1e-9)
        assert median[i] == pytest.approx(np.median(inside), abs=1e-9)
        if len(inside) > 1:
            assert deviation[i] == pytest.approx(np.std(inside, ddof=1), abs=1e-6)
        else:
            assert np.isnan(deviation[i])


@given(values, st.floats(0.05, 1.0), st.booleans())
def test_weighted_means_are_what_they_say(x, alpha, ignore_na):
    found = ewm(x, alpha=alpha, ignore_na=ignore_na).mean()
    for i in range(len(x)):
        known = [(j, v) for j, v in enumerate(x[: i + 1]) if v == v]
        if not known:
            assert np.isnan(found[i])
            continue
        last = known[-1][0]
        ages = [len(known) - 1 - n if ignore_na else last - j for n, (j, _) in enumerate(known)]
        weights = np.array([(1 - alpha) ** age for age in ages])
        expected = float(weights @ [v for _, v in known] / weights.sum())
        assert found[i] == pytest.approx(expected, abs=1e-8)


def test_what_is_missing_does_not_break_a_curve():
    curve = smoothing.trend([1.0, float("inf"), NAN, 1.0], span=3)
    assert curve.tolist() == [1.0, 1.0, 1.0, 1.0]
    mean, deviation = smoothing.band([1.0, 3.0, 1.0, 3.0], 2)
    assert mean[1:].tolist() == [2.0, 2.0, 2.0]
    assert deviation[1] == pytest.approx(2**0.5)
    assert smoothing.middle([5.0, 5.0, 1000.0, 5.0, 5.0], 5)[2] == 5.0
