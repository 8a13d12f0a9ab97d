"""nnue::ewm on devices and in the emulator; its values are held against pandas and fractions in test_pandas.py."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from nnue_trainer import stats
from nnue_trainer.stats import _plain

RULES = [(adjust, ignore_na, bias) for adjust in (True, False) for ignore_na in (True, False) for bias in (True, False)]


def code(name: str) -> int:
    return _plain.code("ewm.statistic", name)


def values(seed: int, *shape: int, missing: float = 0.2) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g, dtype=torch.float64) + 2
    x[torch.rand(shape, generator=g) < missing] = math.nan
    return x


def recursion(x: list[float], alpha: float, adjust: bool, ignore_na: bool) -> list[float]:
    """The mean, element by element."""
    mean, weight, out = math.nan, 0.0, []
    for value in x:
        seen = math.isfinite(value)
        if weight > 0 and (seen or not ignore_na):
            weight *= 1 - alpha
        if seen:
            new = 1.0 if adjust or weight == 0 else alpha
            mean = value if weight == 0 else (weight * mean + new * value) / (weight + new)
            weight = weight + new if adjust else 1.0
        out.append(mean)
    return out


@pytest.mark.parametrize(("adjust", "ignore_na"), [(True, True), (True, False), (False, True), (False, False)])
def test_mean(device: torch.device, adjust: bool, ignore_na: bool) -> None:
    for n in (1, 100, 9000):
        x = values(n, 2, n)
        found = stats.ewm(x.to(device), alpha=0.05, adjust=adjust, ignore_na=ignore_na).mean().cpu()
        for row in range(2):
            expected = torch.tensor(recursion(x[row].tolist(), 0.05, adjust, ignore_na), dtype=torch.float64)
            torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=0, equal_nan=True)


def test_several_runs_of_a_row() -> None:
    """A row of 200,000 is scanned in runs by several threads, and at once by one."""
    x = values(1, 200_000, missing=0.5)
    x[60_000:70_000] = math.nan
    results = []
    for threads in (1, 4):
        torch.set_num_threads(threads)
        results.append([torch.ops.nnue.ewm(x, code("var"), 1e-4, *rule, 3) for rule in RULES])
    for one, several in zip(*results, strict=True):
        torch.testing.assert_close(one, several, rtol=1e-9, atol=0, equal_nan=True)


@pytest.mark.parametrize("rule", RULES)
def test_emulated_kernels(emulator: ctypes.CDLL, rule: tuple[bool, bool, bool]) -> None:
    emulator.emulator_configure(3, RULES.index(rule))
    for seed, n in enumerate((1, 40, 3000)):
        x = values(seed, 2, n, missing=(0.0, 0.2, 0.9)[seed])
        for name in ("mean", "var", "std"):
            for given in (x, x.float()):
                found = torch.ops.nnue_emulated.ewm(given, code(name), 0.03, *rule, 2)
                expected = torch.ops.nnue.ewm(given, code(name), 0.03, *rule, 2)
                tolerance = 1e-9 if given is x else 1e-6
                torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


ALPHAS = (1.0, 1 - 2.0**-53, 1 - 1e-12, 1 - 1e-6, 0.9, 0.6, 0.5)


@pytest.mark.parametrize("library", ["nnue", "nnue_emulated"])
def test_large_numbers_with_small_shares(library: str, request: pytest.FixtureRequest) -> None:
    """A large observation with a tiny weight counts in full: the mean is that of exact fractions."""
    if library == "nnue_emulated":
        request.getfixturevalue("emulator").emulator_configure(2, 3)
    for first in (1e16, 1e300, -1e300, 1.7e308):
        x = torch.tensor([first, 3.3, 4.4, -7.25, -first / 3, 2.5], dtype=torch.float64)
        for alpha in ALPHAS:
            for adjust in (True, False):
                found = getattr(torch.ops, library).ewm(x, code("mean"), alpha, adjust).tolist()
                exact = exact_means(x.tolist(), alpha, adjust)
                assert found == pytest.approx(exact, rel=1e-13), (first, alpha, adjust)
        spread = getattr(torch.ops, library).ewm(x, code("var"), 1.0, True, False, True)
        assert spread.tolist() == [0.0] * len(x)
    constant = torch.full((700,), 0.1, dtype=torch.float64)
    for alpha in ALPHAS:
        assert torch.equal(getattr(torch.ops, library).ewm(constant, code("mean"), alpha, True), constant)


def exact_means(x: list[float], alpha: float, adjust: bool) -> list[float]:
    keep, mean, weight, out = 1 - Fraction(alpha), Fraction(x[0]), Fraction(1), [x[0]]
    for value in map(Fraction, x[1:]):
        weight = weight * keep + 1 if adjust else Fraction(1)
        mean += (value - mean) * (1 / weight if adjust else Fraction(alpha))
        out.append(float(mean))
    return out


@pytest.mark.parametrize("library", ["nnue", "nnue_emulated"])
@pytest.mark.parametrize("adjust", [True, False])
def test_spread_of_any_size(library: str, adjust: bool, request: pytest.FixtureRequest) -> None:
    """Deviations whose squares leave the range of float64, and ordinary numbers long after them."""
    if library == "nnue_emulated":
        request.getfixturevalue("emulator").emulator_configure(2, 3)

    def spread(x: torch.Tensor, alpha: float, name: str = "std") -> torch.Tensor:
        return getattr(torch.ops, library).ewm(x, code(name), alpha, adjust)

    ordinary = values(3, 400)
    for alpha in (0.03, 0.5):
        expected = spread(ordinary, alpha)
        for power in (-1000, -560, -500, -450, -400, 390, 450, 512, 600, 1000):
            found = spread(ordinary * 2.0**power, alpha) / 2.0**power
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=0, equal_nan=True)
    late = torch.cat([torch.tensor([1e308, -1e308, 1e-300], dtype=torch.float64), values(4, 5000, missing=0)])
    assert spread(late, 0.5)[1].item() > 1e308
    for name in ("var", "std"):  # their weight is 2^-5000
        torch.testing.assert_close(spread(late, 0.5, name)[-9:], spread(late[-300:], 0.5, name)[-9:])
    constant = torch.full((700,), 0.1, dtype=torch.float64)
    assert spread(constant, 0.1)[1:].eq(0).all()


def test_equal_weights(device: torch.device) -> None:
    """Infinity for com, span or halflife: every observation weighs the same."""
    x = values(7, 60).to(device)
    every = stats.expanding(x)
    for rule in ({"com": math.inf}, {"span": math.inf}, {"halflife": math.inf}):
        for name in ("mean", "var", "std"):
            found = getattr(stats.ewm(x, **rule), name)()  # type: ignore[arg-type]
            torch.testing.assert_close(found, getattr(every, name)(), rtol=1e-12, atol=0, equal_nan=True)
    first = stats.ewm(x, com=math.inf, adjust=False).mean()
    assert first[x.isfinite().nonzero()[0] :].unique().numel() == 1


def test_weights_that_vanish(device: torch.device) -> None:
    """A gap after which the old weights are 0 in float64: the mean stays, then the next observation is the mean."""
    x = torch.full((5000,), math.nan, dtype=torch.float64)
    x[0], x[1], x[-1] = 1.0, 3.0, 7.0
    for adjust in (True, False):
        found = stats.ewm(x.to(device), alpha=0.5, adjust=adjust).mean().cpu()
        assert found[4998] == found[1]
        assert found[4999] == 7


def test_shapes(device: torch.device) -> None:
    x = values(1, 3, 4, 20).to(device)
    whole = stats.ewm(x, span=5).std()
    assert torch.equal(stats.ewm(x[1, 2], span=5).std().nan_to_num(-1), whole[1, 2].nan_to_num(-1))
    view = x.transpose(0, 2)
    expected = stats.ewm(view.contiguous(), span=5).mean()
    assert torch.equal(stats.ewm(view, span=5).mean().nan_to_num(-1), expected.nan_to_num(-1))
    for shape in ((0,), (3, 0), (0, 3)):
        assert stats.ewm(torch.empty(shape, device=device), com=1).var().shape == shape


def test_opcheck_and_no_derivative(device: torch.device) -> None:
    x = values(1, 3, 30, missing=0).to(device)
    torch.library.opcheck(torch.ops.nnue.ewm.default, (x, code("mean"), 0.1))
    torch.library.opcheck(torch.ops.nnue.ewm.default, (x.mT, code("std"), 0.1, False, False, True))
    with pytest.raises(RuntimeError, match=r"nnue::ewm: gradient: .*detach its inputs"):
        stats.ewm(x.requires_grad_(), com=1).mean().sum().backward()


X = torch.ones(5)
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: stats.ewm(X), "found none, expected exactly one of com, span, halflife and alpha"),
    (lambda: stats.ewm(X, com=1, span=2), "found com and span, expected exactly one"),
    (lambda: stats.ewm(X, com=-1), "com: found -1.0, expected a number ≥ 0"),
    (lambda: stats.ewm(X, span=0.5), "span: found 0.5, expected a number ≥ 1"),
    (lambda: stats.ewm(X, halflife=0), "halflife: found 0.0, expected a number > 0"),
    (lambda: stats.ewm(X, alpha=math.nan), "alpha: found nan, expected a number above 0"),
    (lambda: stats.ewm(X, alpha="x"), "alpha: found 'x', expected a number"),  # type: ignore[arg-type]
    (lambda: stats.ewm(X, com=1, min_periods=-1), "min_periods: found -1"),
    (lambda: stats.ewm(X.int(), com=1).mean(), "nnue::ewm: x: found int32"),
    (lambda: torch.ops.nnue.ewm(X, 3, 0.5), "statistic: found 3, expected 0 to 2, for mean, var, std"),
    (lambda: torch.ops.nnue.ewm(X, 0, -1e-9), "alpha: found -1e-09, expected 0 <= alpha <= 1"),
    (lambda: stats.ewm(X, alpha=0), "alpha: found 0.0, expected a number above 0"),
    (lambda: stats.ewm(X, com=1, adjust="false"), "adjust: found .false., expected True or False"),  # type: ignore[arg-type]
    (lambda: stats.ewm(X, com=1, ignore_na=1), "ignore_na: found 1, expected True or False"),  # type: ignore[arg-type]
    (lambda: stats.ewm(X, com=1).var("no"), "bias: found .no., expected True or False"),  # type: ignore[arg-type]
    (lambda: stats.ewm(X.to_sparse(), com=1), "x: found torch.sparse_coo, expected a dense tensor"),
    (lambda: stats.ewm(X, com=-math.inf), "com: found -inf, expected a number ≥ 0"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_errors(number: int) -> None:
    call, message = WRONG[number]
    with pytest.raises((ValueError, RuntimeError), match=message):
        call()
