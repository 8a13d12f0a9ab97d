"""Inputs of `stats`: tensors, NumPy arrays, pandas Series and DataFrames; each gives results of its kind."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from nnue_trainer import stats

NAMES = ("sum", "mean", "var", "std", "sem", "min", "max", "median", "skew", "kurt", "count")


def numbers(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(seed).normal(5, 3, shape)
    x[np.random.default_rng(seed + 1).random(shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", [None, 1, 3])
def test_series_and_frames(name: str, step: int | None) -> None:
    index = pd.date_range("2026-01-01", periods=50)
    series = pd.Series(numbers(1, 50), index, name="loss")
    frame = pd.DataFrame(numbers(2, 50, 3), index, ["a", "b", "a"])
    for x in (series, frame, series.round().fillna(0).astype(int), series > 5, series.astype("Float64")):
        for least, center in ((2, False), (1, True)):
            found = getattr(stats.rolling(x, 7, least, center, step=step), name)()
            expected = getattr(x.astype(float).rolling(7, least, center, step=step), name)()
            assert type(found) is type(x)
            (pd.testing.assert_series_equal if isinstance(x, pd.Series) else pd.testing.assert_frame_equal)(
                found, expected, rtol=1e-9
            )


@pytest.mark.parametrize("name", NAMES)
def test_expanding(name: str) -> None:
    for least in (1, 4):
        for x in (pd.Series(numbers(3, 40)), pd.DataFrame(numbers(4, 40, 2)), pd.Series([], dtype=float)):
            found, expected = (getattr(of(x, min_periods=least), name)() for of in (stats.expanding, type(x).expanding))
            (pd.testing.assert_series_equal if isinstance(x, pd.Series) else pd.testing.assert_frame_equal)(
                found, expected, rtol=1e-9
            )


@pytest.mark.parametrize("kind", ["f4", "f8", "i4"])
def test_masked_numbers_are_no_observations(kind: str) -> None:
    x = np.ma.MaskedArray(np.arange(6).astype(kind), np.array([False, True, False, False, False, True]))
    expected = np.array([0, 0, 1, 2.5, 3, 3.5])
    np.testing.assert_array_equal(stats.rolling(x, 3, min_periods=1).mean(), expected)
    assert type(stats.ewm(x, com=1).mean()) is np.ndarray


def test_numbers_of_arguments() -> None:
    x = np.arange(5.0)
    least: Any = np.int8(1)
    windows: list[Any] = [5, 2**60, 2**64, np.uint64(2**63)]
    for window in windows:
        found = stats.rolling(x, window, min_periods=least).sum()
        np.testing.assert_array_equal(found, np.cumsum(x))
    for bad in ("1", True, np.True_, [1, 2], None):
        with pytest.raises(ValueError, match=r"rolling: q: found .*, expected a number"):
            stats.rolling(x, 2).quantile(bad)  # type: ignore[arg-type]
        if bad is not None:
            with pytest.raises(ValueError, match=r"ewm: com: found .*, expected a number"):
                stats.ewm(x, com=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["f8", "f4", "f2", ">f8", "i8", "i4", "u1", "?"])
def test_arrays(kind: str) -> None:
    x = np.nan_to_num(numbers(5, 2, 60)).astype(kind)[:, ::-2]
    before = x.copy()
    x.flags.writeable = False
    found = stats.rolling(x, 5, step=2).mean()
    assert isinstance(found, np.ndarray)
    assert found.dtype == (np.float32 if kind == "f4" else np.float64)
    expected = stats.rolling(torch.from_numpy(before.astype("f8")), 5).mean().numpy()[:, ::2]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(
        stats.ewm(x, com=2).std(), stats.ewm(torch.from_numpy(before.astype("f8")), com=2).std(), rtol=1e-6
    )
    assert np.array_equal(x, before)


def test_pairs_and_functions() -> None:
    a, b = pd.Series(numbers(6, 40), name="a"), pd.Series(numbers(7, 40))
    for name in ("cov", "corr"):
        found = getattr(stats.rolling(a, 6, 3), name)(b)
        np.testing.assert_allclose(found, getattr(a.rolling(6, 3), name)(b), rtol=1e-9)
        np.testing.assert_allclose(getattr(stats.rolling(a, 6, 3), name)(b.to_numpy()), found)
    found = stats.rolling(a, 6, 3, step=2).apply(lambda w: float(w[-1] - w[0]))
    pd.testing.assert_series_equal(found, a.rolling(6, 3, step=2).apply(lambda w: w[-1] - w[0], raw=True))


@pytest.mark.parametrize("adjust", [True, False])
@pytest.mark.parametrize("com", [0.5, 20, math.inf])
def test_weights(com: float, adjust: bool) -> None:
    series, frame = pd.Series(numbers(8, 50), name="loss"), pd.DataFrame(numbers(9, 50, 2), columns=["a", "b"])
    for name in ("mean", "var", "std"):
        found, expected = (of(com=com, adjust=adjust) for of in (functools.partial(stats.ewm, series), series.ewm))
        pd.testing.assert_series_equal(getattr(found, name)(), getattr(expected, name)(), rtol=1e-9)
        found, expected = (of(com=com, adjust=adjust) for of in (functools.partial(stats.ewm, frame), frame.ewm))
        pd.testing.assert_frame_equal(getattr(found, name)(), getattr(expected, name)(), rtol=1e-9)


def test_extreme_range_as_pandas_tests_it() -> None:
    """The only one of pandas' window tests that failed."""
    x = pd.Series([1e308, 1.0, 2.0, 3.0, -1e308, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    y = pd.Series([0.2, 0.1, 0.5, 0.3, 0.8, 0.4, 0.9, 0.6, 0.7, 0.2, 0.5])
    for name, of in (("cov", np.cov), ("corr", np.corrcoef)):
        result = getattr(stats.rolling(x, 5), name)(y)
        assert not result[4:].isna().any()
        for stop in (10, 11):
            assert result[stop - 1] == pytest.approx(of(x[stop - 5 : stop], y[stop - 5 : stop])[0, 1], rel=1e-12)


SERIES = pd.Series([1.0, 2, 3])
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: stats.rolling(Fraction(1), 1), "rolling: x: found fractions.Fraction, expected a tensor"),
    (lambda: stats.rolling([1, 2], 1), "rolling: x: found list, expected a tensor, a NumPy array, or a pandas Series"),
    (lambda: stats.ewm("x", com=1), "ewm: x: found str, expected a tensor"),
    (lambda: stats.expanding(None), "expanding: x: found NoneType, expected a tensor"),
    (lambda: stats.rolling(np.array(["a"]), 1), "rolling: x: found <U1, expected integers or floats of up to 64 bits"),
    (lambda: stats.rolling(np.ones(3, complex), 1), "rolling: x: found complex128, expected integers or floats"),
    (lambda: stats.rolling(pd.Series(["a", "b"]), 1), "rolling: x: found .*, expected numbers"),
    (lambda: stats.rolling(pd.Series(pd.date_range("2026", periods=3)), 1), "rolling: x: found datetime64.*, expected"),
    (lambda: stats.rolling(pd.DataFrame({"a": [1], "b": ["x"]}), 1), r"rolling: x\['b'\]: found .*, expected numbers"),
    (lambda: stats.rolling(SERIES, 2).corr(SERIES[1:]), "rolling: other: found other labels than those of x; align"),
    (lambda: stats.rolling(SERIES, 2).cov(np.ones(2)), r"y: found shape \[2\], expected that of x, \[3\]"),
    (lambda: stats.rolling(SERIES, 2, step=0), "rolling: step: found 0, expected at least 1"),
    (lambda: stats.rolling(SERIES, 2, step=1.5), "rolling: step: found 1.5, expected a whole number"),  # type: ignore[arg-type]
    (lambda: stats.rolling(torch.eye(3).to_sparse(), 2), "rolling: x: found torch.sparse_coo, expected a dense tensor"),
    (lambda: stats.rolling(torch.ones(1), np.array([2])), r"window: found array\(\[2\]\), expected a whole number"),  # type: ignore[arg-type]
    (lambda: stats.rolling(SERIES, torch.tensor(True)), r"window: found tensor\(True\), expected a whole number"),  # type: ignore[arg-type]
    (lambda: stats.rolling(SERIES, 2).var(math.nan), "ddof: found nan, expected a number"),
    (lambda: stats.expanding(SERIES, -1), "rolling: min_periods: found -1, expected a whole number"),
    (lambda: stats.matrix.norm(torch.ones(2, 3), out=[1]), "norm: out: found list, expected a tensor"),  # type: ignore[arg-type]
    (lambda: stats.matrix.norms(torch.ones(2, 3), out=[1]), "norms: out: found list, expected a tuple of three"),  # type: ignore[arg-type]
    (lambda: stats.random.Philox(1).bernoulli("a", 3), "random: bernoulli: found 'a', expected a number"),  # type: ignore[arg-type]
    (lambda: stats.random.Philox(1).normal(3, std=None), "random: normal: found None, expected a number"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals_are_one_line(number: int) -> None:
    call, message = REFUSED[number]
    with pytest.raises((ValueError, RuntimeError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split("\nException raised from")[0]
