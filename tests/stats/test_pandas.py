"""Windows and exponential weights against pandas: the cases of its documentation, and 10,046 random ones."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnue_trainer import stats

nan, inf = math.nan, math.inf
B = torch.tensor([0.0, 1.0, 2.0, nan, 4.0], dtype=torch.float64)


def assert_is(found: torch.Tensor, expected: list[float], digits: float = 1e-6) -> None:
    """`digits`: what the documentation prints."""
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=0, atol=digits, equal_nan=True)


def test_rolling_in_pandas_documentation() -> None:
    """The examples of DataFrame.rolling and of its methods, as pandas 3.1 documents them."""
    assert_is(stats.rolling(B, 2).sum(), [nan, 1, 3, nan, nan])
    assert_is(stats.rolling(B, 2, min_periods=1).sum(), [0, 1, 3, 2, 4])
    assert_is(stats.rolling(B, 3, min_periods=1, center=True).sum(), [1, 3, 3, 6, 4])
    assert_is(stats.rolling(B, 3, min_periods=1, center=False).sum(), [0, 1, 3, 3, 6])
    s = torch.tensor([1.0, 2, 3, 4, 5], dtype=torch.float64)
    assert_is(stats.rolling(s, 3).sum(), [nan, nan, 6, 9, 12])
    assert_is(stats.rolling(s, 3, center=True).sum(), [nan, 6, 9, 12, nan])
    s = s[:4]
    assert_is(stats.rolling(s, 2).mean(), [nan, 1.5, 2.5, 3.5])
    assert_is(stats.rolling(s, 3).mean(), [nan, nan, 2, 3])
    s = torch.tensor([4.0, 3, 5, 2, 6], dtype=torch.float64)
    assert_is(stats.rolling(s, 3).min(), [nan, nan, 3, 2, 2])
    s = torch.tensor([0.0, 1, 2, 3, 4], dtype=torch.float64)
    assert_is(stats.rolling(s, 3).median(), [nan, nan, 1, 2, 3])
    s = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    assert_is(stats.rolling(s, 2).quantile(0.4, interpolation="lower"), [nan, 1, 2, 3])
    assert_is(stats.rolling(s, 2).quantile(0.4, interpolation="midpoint"), [nan, 1.5, 2.5, 3.5])
    s = torch.tensor([5.0, 5, 6, 7, 5, 5, 5], dtype=torch.float64)
    assert_is(stats.rolling(s, 3).std(), [nan, nan, 0.577350, 1, 1, 1.154701, 0])
    assert_is(stats.rolling(s, 3).var(), [nan, nan, 0.333333, 1, 1, 1.333333, 0])
    s = torch.tensor([1.0, 5, 2, 7, 15, 6], dtype=torch.float64)
    assert_is(stats.rolling(s, 3).skew(), [nan, nan, 1.293343, -0.585583, 0.670284, 1.652317])
    s = torch.tensor([1.0, 2, 3, 4, 999], dtype=torch.float64)
    assert_is(stats.rolling(s, 4).kurt(), [nan, nan, nan, -1.2, 3.999946])
    s = torch.tensor([2.0, 3, nan, 10], dtype=torch.float64)
    assert_is(stats.rolling(s, 2).count(), [nan, 2, 1, 1])
    assert_is(stats.rolling(s, 3).count(), [nan, nan, 2, 2])
    x, y = torch.tensor([1.0, 2, 3, 4]).double(), torch.tensor([1.0, 4, 5, 8]).double()
    assert_is(stats.rolling(x, 2).cov(y), [nan, 1.5, 0.5, 1.5])
    x, y = torch.tensor([3.0, 3, 3, 5, 8]).double(), torch.tensor([3.0, 4, 4, 4, 8]).double()
    assert_is(stats.rolling(x, 4).corr(y), [nan, nan, nan, 0.333333, 0.916949])
    s = torch.tensor([1.0, 6, 5, 4], dtype=torch.float64)
    assert_is(stats.rolling(s, 2).apply(lambda w: w.sum() - w.min()), [nan, 6, 6, 5])


def test_ewm_in_pandas_documentation() -> None:
    """The examples of DataFrame.ewm, and the weights that its documentation gives for gaps."""
    assert_is(stats.ewm(B, com=0.5).mean(), [0, 0.75, 1.615385, 1.615385, 3.670213])
    assert_is(stats.ewm(B, alpha=2 / 3).mean(), [0, 0.75, 1.615385, 1.615385, 3.670213])
    assert_is(stats.ewm(B, com=0.5, adjust=True).mean(), [0, 0.75, 1.615385, 1.615385, 3.670213])
    assert_is(stats.ewm(B, com=0.5, adjust=False).mean(), [0, 0.666667, 1.555556, 1.555556, 3.650794])
    assert_is(stats.ewm(B, com=0.5, ignore_na=True).mean(), [0, 0.75, 1.615385, 1.615385, 3.225])
    assert_is(stats.ewm(B, com=0.5, ignore_na=False).mean(), [0, 0.75, 1.615385, 1.615385, 3.670213])
    s = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    assert_is(stats.ewm(s, alpha=0.2).mean(), [1, 1.555556, 2.147541, 2.775068])
    assert_is(stats.ewm(s, alpha=0.2).std(), [nan, 0.707107, 0.995893, 1.277320])
    assert_is(stats.ewm(s, alpha=0.2).var(), [nan, 0.5, 0.991803, 1.631547])
    gap = torch.tensor([3.0, nan, 5.0], dtype=torch.float64)
    a = 0.5
    old = {(True, False): (1 - a) ** 2, (False, False): (1 - a) ** 2, (True, True): 1 - a, (False, True): 1 - a}
    for (adjust, ignore_na), w in old.items():
        new = 1 if adjust else a
        found = stats.ewm(gap, alpha=a, adjust=adjust, ignore_na=ignore_na).mean()
        assert found[2].item() == pytest.approx((w * 3 + new * 5) / (w + new), rel=1e-15)


# An example is a row or two, checked by several rules: drawing a row costs more than a pandas call.
THOUSANDTHS = st.integers(-3000, 3000).map(lambda i: i / 1000)
NUMBERS = THOUSANDTHS | st.integers(-3, 3).map(float) | st.just(nan) | st.sampled_from([nan, inf, -inf])


@st.composite
def rows(draw: st.DrawFn, others: int = 0) -> list[np.ndarray]:
    """`others` + 1 rows of one length, of 0 to 40 elements or now and then of thousands, with scales and offsets."""
    n = draw(st.integers(0, 40))
    made = []
    for _ in range(others + 1):
        elements = draw(st.sampled_from([NUMBERS, NUMBERS, THOUSANDTHS]))
        x = np.array(draw(st.lists(elements, min_size=n, max_size=n)), dtype=np.float64)
        made.append(x * 10.0 ** draw(st.integers(-3, 3)) + draw(st.integers(-3, 3)))
    times = draw(st.sampled_from([1] * 15 + [100]))
    return [np.tile(x, times) for x in made]


def largest(x: np.ndarray) -> float:
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max()) if len(finite) else 1.0


# Error bound of pandas' sums, to which values are added and from which they are subtracted again.
def tolerance(name: str, x: np.ndarray, y: np.ndarray, window: int) -> float:
    a, b = largest(x), largest(y)
    return {
        "sum": 1e-12 * a * max(window, 1),
        "mean": 1e-12 * a,
        "var": 1e-9 * a * a,
        "std": 1e-6 * a,
        "skew": 1e-5,
        "kurt": 1e-4,
        "cov": 1e-9 * a * b,
        "corr": 1e-5,
    }.get(name, 0)


WINDOWS = st.integers(0, 20) | st.integers(0, 90)
RULES = st.tuples(
    WINDOWS,
    st.sampled_from([None, None, 0, 0.1, 0.3, 0.5, 0.8, 1]),  # min_periods as a share of the window
    st.booleans(),
    st.sampled_from([None, "right", "left", "both", "neither"]),
    st.integers(0, 2),
    st.sampled_from([0, 0.1, 0.25, 0.5, 0.77, 1]) | st.integers(0, 100).map(lambda q: q / 100),
    st.sampled_from(["linear", "lower", "higher", "midpoint", "nearest"]),
)
PLAIN = ("sum", "mean", "min", "max", "skew", "kurt", "count", "median")
CASES = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@pytest.mark.pandas
@settings(CASES, max_examples=90)
@given(rows(others=1), st.lists(RULES, min_size=7, max_size=7))
def test_rolling_against_pandas(both: list[np.ndarray], rules: list[tuple[Any, ...]]) -> None:
    """13 statistics of 7 windows of each example: 8,190 cases."""
    import pandas as pd

    x, y = both
    n = len(x)
    for window, share, center, closed, ddof, q, method in rules:
        least = None if share is None else round(share * window)
        theirs = pd.Series(x).rolling(window, min_periods=least, center=center, closed=closed)
        ours = stats.rolling(torch.from_numpy(x), window, least, center, closed)
        calls: list[tuple[str, tuple[Any, ...]]] = [(name, ()) for name in PLAIN]
        calls += [("var", (ddof,)), ("std", (ddof,)), ("quantile", (q, method)), ("corr", (y,)), ("cov", (y, ddof))]
        for name, arguments in calls:
            passed = [pd.Series(v) if isinstance(v, np.ndarray) else v for v in arguments]
            named = {"ddof": passed.pop()} if name in ("var", "std", "cov") else {}
            expected = getattr(theirs, name)(*passed, **named).to_numpy()
            found = getattr(ours, name)(*(torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in arguments))
            np.testing.assert_allclose(
                found.numpy(), expected, rtol=1e-9, atol=tolerance(name, x, y, window), equal_nan=True,
                err_msg=f"{name} n={n} window={window} min_periods={least} center={center} closed={closed}",
            )  # fmt: skip


DECAYS = st.one_of(
    st.sampled_from([0.01, 0.3, 0.6, 0.99, 1]).map(lambda alpha: {"alpha": alpha}),
    st.integers(4, 29).map(lambda span: {"span": float(span)}),
    # At com = 1 itself pandas has a separate rule: test_pandas_gaps_at_com_1.
    st.integers(0, 5000).filter(lambda com: com != 1000).map(lambda com: {"com": com / 1000}),
    st.integers(100, 9100).filter(lambda half: half != 1000).map(lambda half: {"halflife": half / 1000}),
)
WEIGHTS = st.tuples(DECAYS, st.booleans(), st.booleans(), st.integers(0, 4))


@pytest.mark.pandas
@settings(CASES, max_examples=58)
@given(rows(), st.lists(WEIGHTS, min_size=8, max_size=8))
def test_ewm_against_pandas(one: list[np.ndarray], weights: list[tuple[Any, ...]]) -> None:
    """mean, var, biased var and std of 8 rules of each example: 1,856 cases."""
    import pandas as pd

    (x,) = one
    scale = largest(x)
    for decay, adjust, ignore_na, least in weights:
        rule: dict[str, Any] = {**decay, "adjust": adjust, "ignore_na": ignore_na, "min_periods": least}
        theirs, ours = pd.Series(x).ewm(**rule), stats.ewm(torch.from_numpy(x), **rule)
        # pandas finds the factor of the unbiased variance as a difference of nearly equal numbers, where one weight
        # stands for nearly all. Ours does not cancel: test_ewm_exactly.
        biased, var, std = ours.var(bias=True).numpy(), ours.var().numpy(), ours.std().numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            sure = ~(var > biased * 1e5) & ~np.isnan(var)
        np.testing.assert_allclose(ours.mean().numpy(), theirs.mean().to_numpy(), rtol=1e-9, atol=1e-12 * scale)
        np.testing.assert_allclose(biased, theirs.var(bias=True).to_numpy(), rtol=1e-9, atol=1e-10 * scale**2)
        np.testing.assert_allclose(var[sure], theirs.var().to_numpy()[sure], rtol=1e-9, atol=1e-9 * scale**2)
        np.testing.assert_allclose(std[sure], theirs.std().to_numpy()[sure], rtol=1e-9, atol=1e-6 * scale)
        unsure = theirs.var().to_numpy()[np.isnan(var)]
        assert np.isnan(unsure[unsure != 0]).all()  # 0 is its rounding of 0 / 0, of one observation and gaps


def test_pandas_gaps_at_com_1() -> None:
    """pandas 3.1 gives the new weight 1 − (1 − alpha)^gap in means, at com = 1 alone and only without `adjust`; that of
    its documentation, alpha, at every other com. We have one rule."""
    x = torch.tensor([1.0, 2, nan, 4], dtype=torch.float64)
    for com in (0.999999999, 1.0, 1.000000001):
        found = stats.ewm(x, com=com, adjust=False).mean()[3].item()
        assert found == pytest.approx((0.25 * 1.5 + 0.5 * 4) / 0.75, rel=1e-8)


@pytest.mark.pandas
def test_pandas_hides_infinity_from_apply() -> None:
    """pandas makes NaN of it before the function is called; ours sees it. Neither counts it as an observation."""
    import pandas as pd

    x = [1.0, inf, 3.0, 4.0]
    theirs = pd.Series(x).rolling(2, min_periods=1).apply(np.max, raw=True)
    assert_is(torch.from_numpy(theirs.to_numpy().copy()), [1, nan, nan, 4])
    assert_is(stats.rolling(torch.tensor(x, dtype=torch.float64), 2, 1).apply(np.max), [1, inf, inf, 4])


def exact_ewm(x: list[float], alpha: Fraction, adjust: bool, ignore_na: bool) -> list[tuple[Fraction, Fraction] | None]:
    """(mean, unbiased variance or -1) after each element, in fractions, from the weights of all observations."""
    weights: list[Fraction] = []
    values: list[Fraction] = []
    out: list[tuple[Fraction, Fraction] | None] = []
    for value in x:
        if not math.isfinite(value):
            if not ignore_na:
                weights = [w * (1 - alpha) for w in weights]
        else:
            weights = [w * (1 - alpha) for w in weights]
            weights.append(Fraction(1) if adjust or not weights else alpha)
            values.append(Fraction(value))
            if not adjust:
                weights = [w / sum(weights) for w in weights]
        if not values:
            out.append(None)
            continue
        total, squares = sum(weights), sum(w * w for w in weights)
        mean = sum((w * v for w, v in zip(weights, values, strict=True)), Fraction(0)) / total
        var = sum((w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True)), Fraction(0)) / total
        rest = total * total - squares
        out.append((mean, Fraction(-1) if rest == 0 else var * total * total / rest))
    return out


@pytest.mark.parametrize("adjust", [True, False])
@pytest.mark.parametrize("ignore_na", [True, False])
def test_ewm_exactly(adjust: bool, ignore_na: bool) -> None:
    r = np.random.default_rng(5)
    for alpha in (Fraction(1, 100), Fraction(1, 2), Fraction(127, 128)):
        x = r.normal(size=25) + 3
        x[r.random(25) < 0.4] = nan
        found = stats.ewm(torch.from_numpy(x), alpha=float(alpha), adjust=adjust, ignore_na=ignore_na)
        mean, var = found.mean().tolist(), found.var().tolist()
        for i, expected in enumerate(exact_ewm(x.tolist(), Fraction(float(alpha)), adjust, ignore_na)):
            if expected is None:
                assert math.isnan(mean[i])
                assert math.isnan(var[i])
                continue
            assert mean[i] == pytest.approx(float(expected[0]), rel=1e-14)
            assert var[i] == pytest.approx(nan if expected[1] < 0 else float(expected[1]), rel=1e-12, nan_ok=True)
