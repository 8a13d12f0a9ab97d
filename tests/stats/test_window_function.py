"""Functions of the user's own of windows: C++ compiled at its first use."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any, cast

import emulated_library
import numpy as np
import pytest
import torch
from needs import require

from nnue_trainer import stats
from nnue_trainer.errors import UserError
from nnue_trainer.files import compile_once
from nnue_trainer.stats import RowFunction, WindowFunction, WindowState, window_function

SPREAD = WindowFunction(
    """
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < w.size(); ++i) {
        if (std::isfinite(w[i])) low = fmin(low, w[i]), high = fmax(high, w[i]);
    }
    return high - low;
    """,
    "spread",
)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("CXX", raising=False)


def values(*shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=g, dtype=torch.float64)
    x[torch.rand(shape, generator=g) < 0.2] = math.nan
    return x


def spread(x: torch.Tensor, window: int, least: int) -> torch.Tensor:
    found = stats.rolling(x, window, least)
    return found.max() - found.min()


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled(dtype: torch.dtype) -> None:
    x = values(2, 3, 5000).to(dtype)
    torch.testing.assert_close(stats.rolling(x, 30, 2).apply(SPREAD), spread(x, 30, 2), equal_nan=True)
    view = x.transpose(0, 2)
    torch.testing.assert_close(stats.rolling(view, 2, 1).apply(SPREAD), spread(view, 2, 1), equal_nan=True)
    assert stats.rolling(x[:, :0], 3).apply(SPREAD).shape == (2, 0, 5000)


MEAN = WindowState(
    """
    double sum = 0, count = 0;
    void add(double x) { sum += x, count += 1; }
    void remove(double x) { sum -= x, count -= 1; }
    double value() const { return sum / count; }
    """,
    "mean",
)
# Not commutative: the order of merges matters.
ENDS = WindowState(
    """
    bool any = false;
    double first = 0, last = 0, high = 0;
    void add(double x) { *this = {true, any ? first : x, x, any ? std::max(high, x) : x}; }
    void merge(const Window& b) { *this = {true, first, b.last, std::max(high, b.high)}; }
    double value() const { return any ? 100 * high + 10 * last + first : -7; }
    """,
    "ends",
)


def ends(window: np.ndarray) -> float:
    found = window[np.isfinite(window)]
    return float(100 * found.max() + 10 * found[-1] + found[0]) if len(found) else -7.0


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_follow_a_window(dtype: torch.dtype) -> None:
    """Windows of any place and length, rows with gaps, and segments that begin anew."""
    x = values(2, 500).to(dtype)
    x[1, 7] = math.inf
    for window, least, center, closed in (
        (0, 0, False, None), (1, 1, False, None), (7, 3, True, "both"), (7, 0, False, "neither"), (30, 1, True, "left"),
        (499, 5, False, None), (2000, 1, True, None),
    ):  # fmt: skip
        windows = stats.rolling(x, window, least, center, closed)  # type: ignore[arg-type]
        torch.testing.assert_close(windows.apply(ENDS), windows.apply(ends), equal_nan=True)
        if least:
            torch.testing.assert_close(windows.apply(MEAN), windows.mean(), equal_nan=True)
    torch.testing.assert_close(stats.expanding(x, 1).apply(MEAN), stats.expanding(x, 1).mean(), equal_nan=True)
    long = values(70_000)
    for step in (1, 3):
        windows = stats.rolling(long, 3000, 1, step=step)
        torch.testing.assert_close(windows.apply(MEAN), windows.mean(), rtol=1e-9, atol=1e-12, equal_nan=True)
    assert stats.rolling(long, 3000, 1).apply(ENDS)[-1] == ends(long[-3000:].numpy())


@pytest.mark.compiler
def test_a_state_that_subtracts_recovers() -> None:
    """An outlier leaves a rounding error behind: it ends where a window has no observation, and at the next segment."""
    x = torch.ones(60_000, dtype=torch.float64)
    x[10], x[20:40] = 1e300, math.nan
    found = stats.rolling(x, 5, 1).apply(MEAN)
    assert found[15:20].tolist() == [0.0] * 5  # as any sum that subtracts
    assert found[40:].eq(1).all()
    without = WindowState("double s = 0; void add(double x) { s += x; } double value() { return s; }", "half")
    with pytest.raises(UserError, match=r"^half: g\+\+: .*error: .*remove"):
        stats.rolling(x, 5, 1).apply(without)


@pytest.mark.compiler
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_on_cuda(dtype: torch.dtype) -> None:
    """The segments of a GPU are others than those of the CPU."""
    x = values(2, 70_000).to(dtype)
    x[1, 7] = math.inf
    windows = ((0, 0, False), (1, 1, False), (7, 3, True), (30, 1, False), (300, 1, False), (3000, 5, True))
    for window, least, center in (*windows, (20_000, 9, False), (70_000, 1, False)):
        here, there = (stats.rolling(each, window, least, center) for each in (x, x.cuda()))
        torch.testing.assert_close(there.apply(ENDS).cpu(), here.apply(ENDS), rtol=0, atol=0, equal_nan=True)
        if least:
            torch.testing.assert_close(there.apply(MEAN).cpu(), here.mean(), equal_nan=True)
            torch.testing.assert_close(there.apply(MERGED_MEAN).cpu(), here.mean(), equal_nan=True)


MERGED_MEAN = WindowState(
    """
    double sum = 0, count = 0;
    void add(double x) { sum += x, count += 1; }
    void merge(const Window& b) { sum += b.sum, count += b.count; }
    double value() const { return sum / count; }
    """,
    "merged mean",
)


# So large that shared memory has room for few of them.
RESIDUES = WindowState(
    """
    int counts[300] = {};
    constexpr int of(double x) { return static_cast<int>(x < 0 ? -x * 1000 : x * 1000) % 300; }
    void add(double x) { ++counts[of(x)]; }
    void merge(const Window& b) { for (int k = 0; k < 300; ++k) counts[k] += b.counts[k]; }
    double value() const {
        int most = 0;
        for (int k = 0; k < 300; ++k) most = counts[k] > most ? counts[k] : most;
        return most;
    }
    """,
    "residues",
)


def emulated(function: WindowState, x: torch.Tensor, first: int, length: int, least: int) -> torch.Tensor:
    """`apply` by the CUDA kernels in the emulator."""
    require(emulated_library.why_not())
    library = emulated_library.build_source(function._cuda_source, compile_once.cache_folder("emulated"))
    out = torch.full_like(x, 77)
    job = window_function._job_of(function, x, out, first, length, least, on_cuda=True)
    loaded = window_function._with_types(ctypes.CDLL(str(library)), on_cuda=True)
    window_function._launch("rolling: apply", function.name, loaded, job.packed(), x)
    return out


# Windows that one thread adds up; of many segments in a tile; about as long as a tile of 2,304 outputs; longer than the
# rows; and beside their output.
PLACES = (
    (0, 0), (-2, 3), (-15, 16), (-16, 17), (-29, 30), (5, 40), (-299, 300), (-2302, 2303), (-2303, 2304), (-2304, 2305),
    (-2999, 3000), (-5000, 8000), (-20_000, 20_001),
)  # fmt: skip


@pytest.mark.compiler
@pytest.mark.parametrize("function", [MEAN, MERGED_MEAN, ENDS], ids=["remove", "merge", "order"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_in_the_emulator(function: WindowState, dtype: torch.dtype) -> None:
    """Long rows, many short ones, and rows with gaps."""
    for shape in ((2, 500), (1, 9000), (70, 40)):
        x = values(*shape).to(dtype)
        x[0, 7] = math.inf
        for first, length in PLACES:
            least = 0 if function is ENDS else 1 + length // 20
            found = emulated(function, x, first, length, least)
            expected = window_function.apply(function, x, first, length, least)
            rtol = 0 if function is ENDS else 1e-10 if dtype == torch.float64 else 1e-5
            torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol / 10, equal_nan=True)


@pytest.mark.compiler
def test_a_large_state_in_the_emulator() -> None:
    x = values(2, 700)
    for first, length in ((-29, 30), (-299, 300)):
        found, expected = (call(RESIDUES, x, first, length, 1) for call in (emulated, window_function.apply))
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.compiler
@pytest.mark.cuda
def test_compiled_for_cuda() -> None:
    x = values(3, 5000)
    found = stats.rolling(x.cuda(), 30, 2).apply(SPREAD).cpu()
    torch.testing.assert_close(found, spread(x, 30, 2), equal_nan=True)


def library_for_cuda(function: RowFunction | WindowFunction | WindowState) -> Path:
    """Compiled by nvcc, where there is one. Whether it runs as well can only be seen on a GPU."""
    try:
        nvcc = compile_once.find_nvcc("tests")
    except UserError as error:
        require(str(error))
    flags = [*window_function._CUDA_FLAGS, "-arch=sm_80"]
    return compile_once.library_of(function.name, "tests", function._cuda_source, ".cu", nvcc, flags)


NORM = RowFunction("return sqrt(x.sum([](double v) { return v * v; }));")


@pytest.mark.parametrize(
    "function",
    [SPREAD, MEAN, ENDS, pytest.param(RESIDUES, marks=pytest.mark.slow), NORM],
    ids=["function", "state", "merged state", "large state", "row"],
)
def test_the_cuda_source_is_compiled_by_nvcc(function: RowFunction | WindowFunction | WindowState) -> None:
    assert library_for_cuda(function).is_file()


def test_nvcc_refuses_a_large_state_with_merge() -> None:
    large = WindowState(
        "int counts[1025] = {}; void add(double x) { ++counts[0]; } void merge(const Window& b) { *this = b; } "
        "double value() { return counts[0]; }",
        "large",
    )
    with pytest.raises(UserError, match=r"^large: nvcc: .*a state with merge may have at most 4096 bytes on CUDA") as e:
        library_for_cuda(large)
    assert "\n" not in str(e.value)


NO_RETURN = ("double x = w[0];", "if (w.size() > 2) return w[0];")


@pytest.mark.compiler
@pytest.mark.parametrize("body", NO_RETURN)
def test_a_body_without_return_is_refused(body: str) -> None:
    with pytest.raises(
        UserError, match=r"^forgot: g\+\+: 2:1: error: [^;]* non-void[^;]*\[-Werror=return-type]$"
    ) as caught:
        stats.rolling(torch.zeros(5), 3).apply(WindowFunction(body, "forgot"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", NO_RETURN)
def test_nvcc_refuses_a_body_without_return(body: str) -> None:
    with pytest.raises(UserError, match=r"^forgot: nvcc: \(2\): error: missing return statement at end of") as caught:
        library_for_cuda(WindowFunction(body, "forgot"))
    assert "\n" not in str(caught.value)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("thrown", "message"),
    [("std::bad_alloc()", "std::bad_alloc"), ("1", "an exception of another type than std::exception")],
)
def test_an_exception_of_a_body_is_an_error(thrown: str, message: str) -> None:
    """In several threads; it must not pass through the functions that Python calls, which would end the process."""
    throws = WindowFunction(f"if (w[0] > 50000) throw {thrown}; return w[0];", "throws")
    assert stats.rolling(torch.arange(5.0), 1).apply(throws).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match=rf"^rolling: apply: throws: {message}$"):
        stats.rolling(torch.arange(200_000.0), 1).apply(throws)


@pytest.mark.compiler
def test_compiled_once(capfd: pytest.CaptureFixture[str]) -> None:
    body = "return static_cast<double>(w.size());"
    x = torch.zeros(5)
    for _ in range(2):  # a new object each time, as another process would have
        found = stats.rolling(x, 3, 0, closed="left").apply(WindowFunction(body, "length"))
        assert found.tolist() == [0, 1, 2, 3, 3]
    assert capfd.readouterr().err.count("length: compiling for the CPU, once") == 1


@pytest.mark.compiler
def test_what_the_compiler_says_is_one_line() -> None:
    with pytest.raises(UserError, match=r"mistake: g\+\+: .*error.*missing") as caught:
        stats.rolling(torch.zeros(5), 3).apply(WindowFunction("return missing;", "mistake"))
    assert "\n" not in str(caught.value)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"window functions need a C\+\+20 compiler: \$CXX is 'no-such-compiler'"):
        stats.rolling(torch.zeros(5), 3).apply(WindowFunction("return 1;"))


def test_errors() -> None:
    x = torch.zeros(5)
    for call, message in (
        (lambda: stats.rolling(x, 3).apply(cast(Any, 3)), "apply: found int, expected a function, a WindowFunction or"),
        (lambda: stats.rolling(x.int(), 3).apply(np.mean), "apply: found torch.int32 of shape"),
        (lambda: stats.rolling(x.requires_grad_(), 3).apply(np.mean), "no derivative; pass x.detach"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            call()
