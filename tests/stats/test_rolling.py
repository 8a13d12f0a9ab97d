"""nnue::rolling and nnue::rolling_quantile against a plain loop in float64; test_pandas.py compares with pandas."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
import torch
from cases import some
from torch import Tensor

from nnue_trainer import stats
from nnue_trainer.stats import _plain

STATISTICS = ("sum", "mean", "var", "std", "min", "max", "skew", "kurt", "cov", "corr")
PAIRS = ("cov", "corr")


def of_window(name: str, x: np.ndarray, y: np.ndarray, min_periods: int, ddof: float) -> float:
    """A statistic of one window by its definition."""
    keep = np.isfinite(x) & np.isfinite(y) if name in PAIRS else np.isfinite(x)
    x, y = x[keep], y[keep]
    n = len(x)
    if n < min_periods:
        return math.nan
    if name == "sum":
        return math.fsum(x)
    if n == 0:
        return math.nan
    if name in ("min", "max"):
        return float(x.min() if name == "min" else x.max())
    mean = math.fsum(x) / n
    d = x - mean
    if name == "mean":
        return mean
    if name in ("var", "std"):
        var = math.fsum(d * d) / (n - ddof) if n > ddof else math.nan
        return var if name == "var" else math.sqrt(var)
    if name in PAIRS:
        e = y - math.fsum(y) / n
        if name == "cov":
            return math.fsum(d * e) / (n - ddof) if n > ddof else math.nan
        if (x == x[0]).all() or (y == y[0]).all():
            return math.nan
        return math.fsum(d * e) / math.sqrt(math.fsum(d * d) * math.fsum(e * e))
    if n < (3 if name == "skew" else 4) or (x == x[0]).all():
        return math.nan
    m2, m3, m4 = (math.fsum(d**k) / n for k in (2, 3, 4))
    if name == "skew":
        return math.sqrt(n * (n - 1)) / (n - 2) * m3 / m2**1.5
    return (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * m4 / m2**2 - 3 * (n - 1))


def reference(name: str, x: Tensor, y: Tensor, first: int, length: int, min_periods: int, ddof: float) -> Tensor:
    n = x.shape[-1]
    rows, others = x.double().cpu().reshape(-1, n).numpy(), y.double().cpu().reshape(-1, n).numpy()
    out = np.empty(rows.shape)
    for a, b, to in zip(rows, others, out, strict=True):
        for i in range(n):
            begin, end = max(i + first, 0), max(min(i + first + length, n), 0)
            to[i] = of_window(name, a[begin:end], b[begin:end], min_periods, ddof)
    return torch.from_numpy(out).view(x.shape)


def values(seed: int, *shape: int, dtype: torch.dtype = torch.float64, missing: float = 0.1) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g, dtype=torch.float64) * 3 + 5
    x[torch.rand(shape, generator=g) < missing] = math.nan
    x[torch.rand(shape, generator=g) < missing / 10] = math.inf
    return x.to(dtype)


def code(name: str) -> int:
    return _plain.code("rolling.statistic", name)


def kind(interpolation: str) -> int:
    return _plain.code("rolling_quantile.interpolation", interpolation)


def rolling(x: Tensor, y: Tensor, name: str, *rule: float, library: str = "nnue") -> Tensor:
    return getattr(torch.ops, library).rolling(x, y if name in PAIRS else None, code(name), *rule)


def assert_same(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.double().cpu(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_against_the_definition(device: torch.device, name: str, dtype: torch.dtype) -> None:
    """Windows of every length up to that of the row and beyond, before, around and behind their output."""
    for seed, n in enumerate((1, 7, 50)):
        x, y = values(seed, 2, n, dtype=dtype), values(seed + 9, 2, n, dtype=dtype)
        for length in (0, 1, 2, 3, 8, 9, n - 1, n, 2 * n + 3):
            for first in (1 - length, -length // 2, 0, 2, -length - 2, n, -2 * n):
                rule = first, max(length, 0), seed, 1.0
                found = rolling(x.to(device), y.to(device), name, *rule)
                assert found.dtype == dtype
                assert_same(found, reference(name, x, y, *rule), 1e-10 if dtype == torch.float64 else 2e-5)


@pytest.mark.parametrize("name", STATISTICS)
def test_windows_of_many_tiles(device: torch.device, name: str) -> None:
    """Windows longer than a tile: suffix, whole tiles and prefix, merged by doubling."""
    n = 9000
    x, y = values(3, n, missing=0.01), values(4, n, missing=0.01)
    for length, first in ((1024, -1023), (3000, -2999), (4097, -2000), (8191, -8190), (20000, -10000)):
        found = rolling(x.to(device), y.to(device), name, first, length, 1, 1.0).cpu()
        for i in (0, 1, 1023, 1024, 4000, 4096, 5119, 8999):
            begin, end = max(i + first, 0), min(i + first + length, n)
            expected = of_window(name, x[begin:end].numpy(), y[begin:end].numpy(), 1, 1.0)
            assert found[i].item() == pytest.approx(expected, rel=1e-10, nan_ok=True), (length, first, i)


@pytest.mark.parametrize("seed", range(30))
def test_emulated_kernels(emulator: ctypes.CDLL, seed: int) -> None:
    """The CUDA kernels without a GPU: short windows, and long ones of up to 30 tiles."""
    emulator.emulator_configure(2 + seed % 3, seed)
    r = np.random.default_rng(seed)
    n, rows = int(r.integers(1, 3000)), int(r.integers(1, 3))
    dtype = torch.float64 if seed % 2 else torch.float32
    length = int((r.integers(1, 9), r.integers(1, 97), r.integers(97, n + 200))[seed % 3])
    first = int(r.integers(-length - 3, 4))
    x, y = values(seed, rows, n, dtype=dtype), values(seed + 50, rows, n, dtype=dtype)
    for name in STATISTICS:
        found = rolling(x, y, name, first, length, 2, 1.0, library="nnue_emulated")
        expected = rolling(x, y, name, first, length, 2, 1.0)
        assert_same(found, expected, 1e-9 if dtype == torch.float64 else 1e-5)


def switching(seed: int, n: int, gap: float) -> Tensor:
    """Rows without gaps, except for one element of the first row, at another place for each seed."""
    x = values(seed, 2, n, missing=0)
    x[0, int(np.random.default_rng(seed).integers(0, n))] = gap
    return x


# Around the tiles of 320 and 576 elements, and of 640 and 1152, that a thread block has in the emulator and on a GPU.
LENGTHS = (577, 700, 961, 1152, 1153, 1301, 2000, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("length", some(LENGTHS, every=3))
@pytest.mark.parametrize("gap", [0.0, math.nan, math.inf, -math.inf, 1e200])
def test_emulated_turns_with_and_without_gaps(emulator: ctypes.CDLL, length: int, gap: float) -> None:
    """Thread blocks that change between the dense and the counted way; at 1e200 squares overflow."""
    emulator.emulator_configure(3, length)
    x, y = switching(length, 4001, gap), values(length + 1, 2, 4001, missing=0)
    for dtype in (torch.float64, torch.float32):
        for name in STATISTICS:
            rule = name, 1 - length, length, length if gap == 0 else 2, 1.0
            found = rolling(x.to(dtype), y.to(dtype), *rule, library="nnue_emulated")
            assert_same_or_huge(found, rolling(x.to(dtype), y.to(dtype), *rule), dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("length", [*LENGTHS, 6144, 7000])
@pytest.mark.parametrize("gap", [0.0, math.nan, math.inf, -math.inf, 1e200])
def test_turns_with_and_without_gaps(cuda: torch.device, length: int, gap: float) -> None:
    """A GPU, where a row has many thread blocks, gives the CPU's results, and the same bits each time."""
    x, y = switching(length, 200_001, gap), values(length + 1, 2, 200_001, missing=0)
    for dtype in (torch.float64, torch.float32):
        for name in STATISTICS:
            rule = name, 1 - length, length, length if gap == 0 else 2, 1.0
            found = rolling(x.to(cuda, dtype), y.to(cuda, dtype), *rule)
            again = rolling(x.to(cuda, dtype), y.to(cuda, dtype), *rule)
            assert torch.equal(found.nan_to_num(-77), again.nan_to_num(-77))
            assert_same_or_huge(found, rolling(x.to(dtype), y.to(dtype), *rule), dtype)


def assert_same_or_huge(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Checks equality, except for values that overflow: these may be infinite or NaN."""
    finite = expected.isfinite()
    assert torch.equal(found.cpu().isfinite(), finite)
    zero = torch.zeros((), dtype=dtype)
    assert_same(found.cpu().where(finite, zero), expected.where(finite, zero), 1e-9 if dtype == torch.float64 else 1e-5)


Method = Literal["linear", "lower", "higher", "midpoint", "nearest"]


def quantile_of_window(x: np.ndarray, min_periods: int, q: float, method: Method) -> float:
    x = x[np.isfinite(x)]
    return math.nan if len(x) < max(min_periods, 1) else float(np.quantile(x, q, method=method))


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles(device: torch.device, method: Method) -> None:
    for seed, n in enumerate((1, 7, 40, 300)):
        for round_to in (0, 1):
            x = values(seed, 2, n)
            x = (x * (1 - round_to)).nan_to_num(0, 0) + x if round_to else x
            x = x.round() if round_to else x
            for length, first in ((0, 0), (1, 0), (5, -4), (n, -(n // 2)), (3 * n, -n), (n, n), (4, 2)):
                for q in (0.0, 0.25, 0.5, 0.9, 1.0):
                    rule = first, length, 2, q, kind(method)
                    found = torch.ops.nnue.rolling_quantile(x.to(device), *rule).cpu()
                    for row in range(2):
                        for i in range(0, n, max(n // 7, 1)):
                            window = x[row, max(i + first, 0) : max(min(i + first + length, n), 0)].numpy()
                            expected = quantile_of_window(window, 2, q, method)
                            assert found[row, i].item() == pytest.approx(expected, rel=1e-14, nan_ok=True)


def test_quantiles_of_several_segments() -> None:
    """A segment that is sorted at once has 8192 outputs; every one of them has the right neighbours."""
    x = values(1, 20001)
    found = torch.ops.nnue.rolling_quantile(x, -99, 100, 1, 0.5, kind("linear"))
    each = torch.nn.functional.pad(x.where(x.isfinite(), torch.nan), (99, 0), value=math.nan).unfold(0, 100, 1)
    torch.testing.assert_close(found, each.nanquantile(0.5, dim=1), rtol=1e-14, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_emulated_quantiles(emulator: ctypes.CDLL, seed: int) -> None:
    """The CUDA kernels without a GPU, the same bits: matrices of 512 elements in shared memory, and of 1024 or more."""
    emulator.emulator_configure(2 + seed % 3, seed)
    r = np.random.default_rng(seed)
    n, rows = int(r.integers(1, (60, 700, 2000)[seed % 3])), int(r.integers(1, 4))
    length = int(r.integers(0, 400) if seed % 2 else r.integers(0, n + 200))
    first = int(r.integers(-length - 3, 4)) if seed % 5 else int(r.integers(-2 * n, 2 * n))
    x = values(seed, rows, n)
    for given in (x, x.float(), x.round()):
        rule = first, length, 2, float(r.choice([0, 0.3, 0.5, 1])), kind(str(r.choice(["linear", "lower", "nearest"])))
        found = torch.ops.nnue_emulated.rolling_quantile(given, *rule)
        assert torch.equal(found.nan_to_num(-77), torch.ops.nnue.rolling_quantile(given, *rule).nan_to_num(-77))


@pytest.mark.cuda
def test_quantiles_of_windows_of_all_lengths() -> None:
    """Matrices in shared and in device memory, the bits of the CPU."""
    x = values(5, 3, 20_000)
    for window in (1, 10, 1000, 7000, 7200, 15_000):
        for dtype in (torch.float64, torch.float32):
            found = stats.rolling(x.to("cuda", dtype), window, 1).quantile(0.4)
            assert torch.equal(
                found.cpu().nan_to_num(-77), stats.rolling(x.to(dtype), window, 1).quantile(0.4).nan_to_num(-77)
            )


def test_a_huge_offset_costs_sum_and_mean_nothing(device: torch.device) -> None:
    """Values of about 1 on top of 1e9: relative errors of sum and mean below 1e-9, absolute ones of the deviation."""
    keeps_accuracy(1 << 17, 3000, device)


@pytest.mark.cuda
def test_a_huge_offset_over_a_hundred_million_values() -> None:
    keeps_accuracy(10**8, 10**8, torch.device("cuda"))


def keeps_accuracy(n: int, window: int, device: torch.device) -> None:
    g = torch.Generator().manual_seed(7)
    x = torch.randn(n, generator=g, dtype=torch.float64) + 1e9
    found = stats.rolling(x.to(device), window, min_periods=1)
    at = torch.tensor([0, 1, n // 3, n - 2, n - 1])
    total, mean, std = (t.cpu()[at] for t in (found.sum(), found.mean(), found.std()))
    for k, i in enumerate(at.tolist()):
        inside = x[max(i + 1 - window, 0) : i + 1].numpy()
        small = inside - 1e9  # exact
        exact = math.fsum(small)
        assert abs(total[k].item() - (1e9 * len(inside) + exact)) <= 1e-9 * 1e9 * len(inside)
        assert abs(mean[k].item() - 1e9 - exact / len(inside)) <= 1e-6
        if len(inside) > 1:
            assert std[k].item() == pytest.approx(small.std(ddof=1), rel=1e-6)


SHORT = torch.tensor([[1, 2, 4, 7, 3, 5, 9, 2, 6, 8], [2, 1, 5, 3, 8, 4, 7, 9, 1, 6]], dtype=torch.float64)


def assert_offsets_cost_nothing(rolled: Callable[..., Tensor], device: torch.device) -> None:
    """An offset that all elements have in common takes nothing from what depends on deviations: the differences to it
    are exact here, so the bits are the same. `rolled`: as `rolling`."""
    g = torch.Generator().manual_seed(8)
    long = torch.randint(-1000, 1000, (2, 9000), generator=g).double()
    gaps = long.clone()
    gaps[:, ::7] = math.nan
    for rows, lengths in ((SHORT, (5,)), (long, (5, 300, 2500)), (gaps, (40, 2500))):
        for offset in (1e10, -1e10, 1e14):
            for length in lengths:
                for name in ("var", "std", "skew", "kurt", "cov", "corr"):
                    rule = 1 - length, length, 5, 1.0
                    (x, y), (there_x, there_y) = rows.to(device), (rows + offset).to(device)
                    found, exact = rolled(there_x, there_y, name, *rule), rolled(x, y, name, *rule)
                    assert_same(found, exact.cpu(), 0)
    rising = (torch.arange(9000).double().square() * 1e7 + long[0]).to(device)  # no one offset fits all windows
    near = rolled(rising, rising, "var", -4, 5, 5, 1.0)[4000:].cpu()
    assert_same(near / near, reference("var", rising[None], rising[None], -4, 5, 5, 1.0)[0, 4000:] / near, 1e-11)


def test_offsets_cost_nothing(device: torch.device) -> None:
    assert_offsets_cost_nothing(rolling, device)


@pytest.mark.slow
def test_emulated_offsets_cost_nothing(emulator: ctypes.CDLL) -> None:
    emulator.emulator_configure(2, 3)
    assert_offsets_cost_nothing(functools.partial(rolling, library="nnue_emulated"), torch.device("cpu"))


@pytest.fixture(params=["nnue", "nnue_emulated"])
def library(request: pytest.FixtureRequest) -> str:
    if request.param == "nnue_emulated":
        request.getfixturevalue("emulator").emulator_configure(2, 3)
    return str(request.param)


POWER = {"sum": 1, "mean": 1, "std": 1, "var": 2, "cov": 2}  # of the scale of x, that a statistic has


def test_deviations_of_any_size(library: str) -> None:
    """A statistic of tiny or huge deviations is that of ordinary ones, scaled."""
    x, y = SHORT
    for name in ("mean", "std", "skew", "kurt", "corr"):
        ordinary = rolling(x, y, name, -4, 5, 5, 1.0, library=library)[4:]
        for power in range(-290, 305, 7):
            scale = 10.0**power
            found = rolling(x * scale, y * scale, name, -4, 5, 5, 1.0, library=library)[4:]
            assert_same(found / scale ** POWER.get(name, 0), ordinary, 1e-9)
    for constant in (1e160, -1e300, 1e-160, 1e-310, 0.0):
        same = torch.full((50,), constant, dtype=torch.float64)
        for name in ("var", "std", "cov"):
            assert rolling(same, same, name, -9, 10, 1, 0.0, library=library).eq(0).all()
        for name in ("skew", "kurt", "corr"):
            assert rolling(same, same, name, -9, 10, 1, 0.0, library=library).isnan().all()


def exact_of_window(name: str, x: list[float], y: list[float]) -> float:
    """A statistic in exact fractions, whose roots have 60 digits."""

    def decimal_of(value: Fraction) -> Decimal:
        return Decimal(value.numerator) / Decimal(value.denominator)

    with localcontext(Context(prec=60, Emin=-99999, Emax=99999)):
        n, xs, ys = len(x), list(map(Fraction, x)), list(map(Fraction, y))
        zero = Fraction(0)
        d, e = ([v - sum(of, zero) / n for v in of] for of in (xs, ys))
        xx, yy, xy = (sum((a * b for a, b in zip(f, g, strict=True)), zero) for f, g in ((d, d), (e, e), (d, e)))
        if name in ("sum", "mean"):
            return float(decimal_of(sum(xs, zero) / (1 if name == "sum" else n)))
        if name in ("var", "std"):
            var = decimal_of(xx / (n - 1))
            return float(var if name == "var" else var.sqrt())
        if name == "cov":
            return float(decimal_of(xy / (n - 1)))
        if xx == 0 or (name == "corr" and yy == 0):
            return math.nan
        if name == "corr":
            return float(decimal_of(xy) / decimal_of(xx * yy).sqrt())
        m2, m3, m4 = (decimal_of(sum((Fraction(v**k) for v in d), zero) / n) for k in (2, 3, 4))
        if name == "skew":
            return float(Decimal(n * (n - 1)).sqrt() / (n - 2) * m3 / (m2 * m2.sqrt()))
        return float(Decimal(n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * m4 / m2**2 - 3 * (n - 1)))


def of_all_sizes(kind: str) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(len(kind))
    x, y = torch.randn(2, 40, generator=g, dtype=torch.float64)
    powers = torch.randint(-150, 150, (40,), generator=g).double()
    if kind == "ends":  # as in one of pandas' tests
        x[3], x[7], x[20:25] = 1e308, -1e308, torch.tensor([1.7e308, -1.7e308, 1e-308, 0, 5e-324], dtype=torch.float64)
    elif kind == "all powers":
        x, y = x * 10.0 ** (2 * powers), y * 10.0 ** (-powers)
    elif kind == "tiny":
        x, y = x * 1e-170, y * 1e-300
    elif kind == "tiny among zeros":  # in pairs, whose mean is 0
        x[::2], y[::2] = -x[1::2], -y[1::2]
        x, y = x * 10.0 ** (powers.abs() - 320), y * 1e-170
        x[1::2], y[1::2] = -x[::2], -y[::2]
        for first in range(4, 40, 9):
            x[first : first + 5], y[first : first + 5] = 0, 0
        x[30:32] = torch.tensor([5e-324, -5e-324], dtype=torch.float64)
    else:
        x, y = 1e300 + x * 1e285, y * 1e200
    return x, y


@pytest.mark.parametrize("kind", ["ends", "all powers", "tiny", "tiny among zeros", "huge offset"])
def test_extreme_ranges_against_fractions(library: str, kind: str) -> None:
    """Windows with any numbers of float64, and those after them, are right: nothing stays."""
    if kind == "tiny among zeros" and library != "nnue":
        pytest.skip("the kernels for CUDA take such a window for one of zeros")
    x, y = of_all_sizes(kind)
    for window in (5, 13):
        for name in (*POWER, "skew", "kurt", "corr"):
            found = rolling(x, y, name, 1 - window, window, window, 1.0, library=library)[window - 1 :].tolist()
            parts = [(x[i : i + window].tolist(), y[i : i + window].tolist()) for i in range(len(x) - window + 1)]
            # The error of a sum is that of its largest terms.
            size = [max(map(abs, a)) * 1e-14 if name in ("sum", "mean") else 0 for a, _ in parts]
            exact = [exact_of_window(name, *part) for part in parts]
            for own, right, error in zip(found, exact, size, strict=True):
                near = 1e-12 if name in ("skew", "kurt", "corr", "cov") else 0
                near = near * max(1.0, abs(right)) if name != "cov" else 0
                assert own == pytest.approx(right, rel=1e-9, abs=max(error, near), nan_ok=True), (name, window)


def test_long_windows_of_huge_numbers(library: str) -> None:
    """Windows of many tiles, in the dense and in the counted way."""
    x, y = values(5, 2, 1500, missing=0), values(6, 2, 1500, missing=0)
    for name in ("std", "corr", "kurt"):
        for missing in (False, True):
            if missing:
                x[:, 700] = math.nan
            ordinary = rolling(x, y, name, -699, 700, 600, 1.0, library=library)
            found = rolling(x * 2.0**800, y * 2.0**-600, name, -699, 700, 600, 1.0, library=library)
            assert_same(found / 2.0 ** (800 * POWER.get(name, 0)), ordinary, 1e-9)


@pytest.mark.parametrize("interpolation", ["linear", "midpoint"])
def test_quantiles_between_the_ends_of_the_range(library: str, interpolation: str) -> None:
    x = torch.tensor([-1.5e308, 1.5e308, -1e308, 1e308], dtype=torch.float64)
    found = getattr(torch.ops, library).rolling_quantile(x, -1, 2, 2, 0.5, kind(interpolation))
    assert found[1:].tolist() == pytest.approx([0, 2.5e307, 0], abs=1e293)


def test_no_drift_behind_an_outlier(device: torch.device) -> None:
    """A value that left the window leaves no trace: sums of differences would keep an error of 1e284 here."""
    x = torch.ones(5000, dtype=torch.float64)
    x[100] = 1e300
    found = stats.rolling(x.to(device), 30)
    assert found.sum()[131:].eq(30).all()
    assert found.std()[131:].eq(0).all()
    assert found.sum()[100:130].ge(1e300).all()


@pytest.mark.parametrize("name", ["var", "skew", "kurt"])
def test_constants_have_no_spread(device: torch.device, name: str) -> None:
    found = getattr(stats.rolling(torch.full((4000,), 0.1, device=device), 100), name)()[99:]
    assert found.eq(0).all() if name == "var" else found.isnan().all()


def test_same_bits_for_any_number_of_threads() -> None:
    x = values(2, 3, 20000)
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        results.append([rolling(x, x, name, -2499, 2500, 1, 1.0).nan_to_num(7) for name in STATISTICS])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_shapes(device: torch.device) -> None:
    """Any dimensions, views, no elements."""
    x = values(1, 4, 3, 20).to(device)
    whole = stats.rolling(x, 5, 1).mean()
    assert whole.shape == x.shape
    assert torch.equal(stats.rolling(x[1, 2], 5, 1).mean().nan_to_num(9), whole[1, 2].nan_to_num(9))
    view = x.transpose(0, 2)[::2]
    expected = stats.rolling(view.contiguous(), 3, 1).max()
    assert torch.equal(stats.rolling(view, 3, 1).max().nan_to_num(9), expected.nan_to_num(9))
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 4)):
        empty = torch.empty(shape, device=device)
        assert stats.rolling(empty, 3).std().shape == shape
        assert stats.rolling(empty, 3).median().shape == shape


def samples(device: torch.device) -> list[tuple[torch._ops.OpOverload, tuple[object, ...]]]:
    """The outputs have no NaN, which opcheck would report as differences."""
    x, y = values(1, 3, 40).to(device), values(2, 3, 40).to(device)
    return [
        (torch.ops.nnue.rolling.default, (x, None, code("sum"), -4, 5, 0)),
        (torch.ops.nnue.rolling.default, (x, None, code("kurt"), -40, 80, 1, 1.0)),
        (torch.ops.nnue.rolling.default, (x[..., ::2], y[..., 1::2], code("corr"), -40, 80, 1, 1.0)),
        (torch.ops.nnue.rolling_quantile.default, (x, -40, 80, 1, 0.3, kind("linear"))),
    ]


def test_opcheck(device: torch.device) -> None:
    for op, arguments in samples(device):
        torch.library.opcheck(op, arguments)


@pytest.mark.slow
def test_compiled(device: torch.device) -> None:
    def smooth(x: Tensor) -> Tensor:
        return stats.rolling(x, 4, 1).mean() * 2

    x = values(1, 3, 40, missing=0).to(device)
    assert_same(torch.compile(smooth, fullgraph=True)(x), smooth(x).cpu(), 1e-12)


def test_no_derivative(device: torch.device) -> None:
    x = torch.ones(9, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"nnue::rolling: gradient: .*; it has no derivative: detach its inputs"):
        stats.rolling(x, 3).mean().sum().backward()
    assert torch.equal(stats.rolling(x.detach(), 3).mean()[2:], torch.ones(7, device=device))
    with pytest.raises(RuntimeError, match=r"nnue::rolling: forward mode"):
        torch.func.jvp(lambda v: stats.rolling(v, 3).mean(), (x.detach(),), (x.detach(),))
    rows = torch.arange(12.0, device=device).view(3, 4)
    each = torch.vmap(lambda row: stats.rolling(row, 2).sum())(rows)
    assert torch.equal(each.nan_to_num(-1), stats.rolling(rows, 2).sum().nan_to_num(-1))


X = torch.ones(5)
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: stats.rolling(X, -1), "window: found -1, expected a whole number, at least 0"),
    (lambda: stats.rolling(X, 2.5), "window: found 2.5, expected a whole number"),  # type: ignore[arg-type]
    (lambda: stats.rolling(X, True), "window: found True, expected a whole number"),
    (lambda: stats.rolling(X, 2, 3), "min_periods: found 3, expected at most the window, 2"),
    (lambda: stats.rolling(X, 2, -1), "min_periods: found -1, expected a whole number"),
    (lambda: stats.rolling(X, 2, center=1), "center: found 1, expected True or False"),  # type: ignore[arg-type]
    (lambda: stats.rolling(X, 2, closed="x"), "closed: found 'x', expected one of right, left"),  # type: ignore[arg-type]
    (lambda: stats.rolling(X.int(), 2).sum(), "nnue::rolling: x: found int32, expected float32 or float64"),
    (lambda: stats.rolling(X + 0j, 2).sum(), "nnue::rolling: x: found complex64, expected float32 or float64"),
    (lambda: stats.rolling(X.sum(), 2).sum(), "nnue::rolling: x: found no dimension"),
    (lambda: stats.rolling(X, 2).cov(X[:4]), r"y: found shape \[4\], expected that of x, \[5\]"),
    (lambda: stats.rolling(X, 2).corr(X.int()), "y: found int32, expected float32"),
    (lambda: stats.rolling(X, 2).corr([1]), "other: found list, expected a tensor"),
    (lambda: stats.rolling(X, 2).quantile(1.5), "q: found 1.5, expected a number from 0 to 1"),
    (lambda: stats.rolling(X, 2).quantile(math.nan), "q: found nan, expected a number from 0 to 1"),
    (lambda: stats.rolling(X, 2).quantile(0.5, "odd"), "interpolation: found 'odd', expected linear"),  # type: ignore[arg-type]
    (lambda: torch.ops.nnue.rolling(X, None, 10, 0, 1, 0), "statistic: found 10, expected 0 to 9, for sum, mean"),
    (lambda: torch.ops.nnue.rolling(X, X, 0, 0, 1, 0), "y: found a tensor, expected none for this statistic"),
    (lambda: torch.ops.nnue.rolling(X, None, code("cov"), 0, 1, 0), "y: found none, expected a tensor"),
    (lambda: torch.ops.nnue.rolling(X, None, 0, 0, -1, 0), "length: found -1, expected 0 or more"),
    (lambda: torch.ops.nnue.rolling(X, None, 0, 1 << 62, 1, 0), "first: found .*, expected an offset within"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_errors_are_one_line(number: int) -> None:
    call, message = WRONG[number]
    with pytest.raises((ValueError, RuntimeError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split("\nException raised from")[0]


@pytest.mark.cuda
def test_more_than_two_to_the_31_elements(cuda: torch.device) -> None:
    n = (1 << 31) + 5000
    x = torch.zeros(n, device=cuda)
    x[-10:] = 1
    found = stats.rolling(x, 5000).sum()
    assert found[-1].item() == 10
    assert found[4998].isnan()
    assert found[1 << 31].item() == 0


@pytest.mark.cuda
def test_on_a_stream_of_its_own(cuda: torch.device) -> None:
    stream = torch.cuda.Stream()
    x = torch.zeros(1 << 22, device=cuda)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.fill_(1)
        found = stats.rolling(x, 10_000).sum()
    stream.synchronize()
    assert found[-1].item() == 10_000
