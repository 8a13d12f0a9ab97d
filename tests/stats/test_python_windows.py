"""Python functions of windows: as they are, and compiled by Numba for the CPU and for CUDA."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from nnue_trainer import stats
from nnue_trainer.errors import UserError
from nnue_trainer.stats import _python_windows

NO_NUMBA = importlib.util.find_spec("numba") is None


def second_smallest(w: np.ndarray) -> float:
    return float(np.sort(w)[1])


def spread(w: Any) -> float:
    """In loops, as Numba's CUDA needs them."""
    low, high, places = math.inf, -math.inf, 0
    for i in range(len(w)):
        if not (math.isnan(w[i]) or math.isinf(w[i])):
            low, high = min(low, w[i]), max(high, w[i])
        places += 1
    return 1000 * (high - low) + places


def values(*shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=g, dtype=torch.float64)
    x[torch.rand(shape, generator=g) < 0.2] = math.nan
    x.view(-1)[7] = math.inf
    return x


WINDOWS = (
    (0, 0, False, None),
    (1, 1, False, None),
    (7, 3, True, "both"),
    (7, 0, False, "neither"),
    (500, 5, True, None),
)


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    _clear()
    yield
    _clear()


def _clear() -> None:
    for cached in (_python_windows._compiled, _python_windows._kernel):
        cached.cache_clear()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("without_numba")
def test_python_function() -> None:
    x = torch.tensor([[3.0, 1, 2, math.nan, 5], [4, 4, 0, 1, 2]])
    found = stats.rolling(x, 3).apply(second_smallest)
    expected = torch.tensor([[math.nan, math.nan, 2, math.nan, math.nan], [math.nan, math.nan, 4, 1, 1]])
    torch.testing.assert_close(found, expected, equal_nan=True)


class _Sum:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, w: np.ndarray) -> float:
        return float(w.sum())


@pytest.mark.parametrize("numba", [True, False])
def test_any_function_that_returns_a_number(numba: bool, request: pytest.FixtureRequest) -> None:
    """With Numba, where that is installed, and without."""
    if not numba:
        request.getfixturevalue("without_numba")
    x = torch.arange(5.0).requires_grad_()
    with torch.no_grad():
        windows = stats.rolling(x, 3, 1)
    for function, expected in (
        (np.mean, [0, 0.5, 1, 2, 3]), (len, [1, 2, 3, 3, 3]), (partial(np.quantile, q=1), [0, 1, 2, 3, 4]),
        (_Sum(), [0, 1, 3, 6, 9]), (lambda w: None, [math.nan] * 5), (lambda w: w[0] > 0, [0, 0, 0, 1, 1]),
    ):  # fmt: skip
        with torch.no_grad():
            found = windows.apply(cast(Any, function))
        torch.testing.assert_close(found, torch.tensor(expected, dtype=x.dtype), equal_nan=True)
    for wrong, kind in ((lambda w: [1, 2], "list"), (lambda w: w, "ndarray"), (lambda w: "a", "str")):
        with torch.no_grad(), pytest.raises(ValueError, match=rf"<lambda>: found {kind} returned, expected a number"):
            windows.apply(cast(Any, wrong))


def test_a_function_cannot_change_the_elements() -> None:
    """Windows overlap, and a float64 tensor is not copied: sorting in place would change the caller's numbers."""
    x = torch.arange(5.0, dtype=torch.float64).flip(0)
    with pytest.raises(ValueError, match="read-only"):
        stats.rolling(x, 3).apply(lambda w: w.sort() or w[0])
    assert x.tolist() == [4, 3, 2, 1, 0]


def test_numba_compiles_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Numba is installed; else a stand-in shows that it is used and what for."""
    _clear()
    if NO_NUMBA:
        asked = []

        def njit(function: Any) -> Any:
            asked.append(function)
            function.compile = lambda signature: None
            return function

        stand_in = _numba_that_runs_python(monkeypatch)
        stand_in.njit, stand_in.typeof = njit, type  # type: ignore[attr-defined]
        stats.rolling(torch.zeros(5), 3).apply(second_smallest)
        assert asked == [second_smallest, _python_windows._over_windows]
        _clear()
        return
    import numba  # type: ignore[import-not-found, unused-ignore]

    x = torch.arange(9.0).flip(0)
    of_other_arrays = numba.njit("float64(float64[:])")(second_smallest)
    for function in (second_smallest, numba.njit(second_smallest), of_other_arrays):
        assert stats.rolling(x, 3).apply(function)[2:].tolist() == x[1:-1].tolist()
        assert _python_windows._compiled(function) is not None


# ---- CUDA ------------------------------------------------------------------------------------------------------------


class _Types:
    """Numba's types, of which only the signature is made."""

    def __getitem__(self, _: object) -> _Types:
        return self

    def __call__(self, *_: object, **__: object) -> _Types:
        return self


class _Kernel:
    """Runs a kernel as two threads."""

    def __init__(self, cuda: ModuleType, function: Any) -> None:
        self.cuda, self.function = cuda, function

    def __getitem__(self, _: object) -> Any:
        def run(*arguments: Any) -> None:
            for thread in range(2):
                self.cuda.grid = lambda _, thread=thread: thread  # type: ignore[attr-defined]
                self.function(*arguments)

        return run


def _numba_that_runs_python(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    numba, cuda = ModuleType("numba"), ModuleType("numba.cuda")
    numba.cuda = cuda  # type: ignore[attr-defined]
    for name in ("types", "float64", "int64", "void"):
        setattr(numba, name, _Types())
    numba.types.Array = _Types()
    made: dict[str, Any] = {
        "jit": lambda _=None, device=False: (lambda f: f) if device else partial(_Kernel, cuda),
        "gpus": [contextlib.nullcontext()],
        "gridsize": lambda _: 2,
        "as_cuda_array": torch.Tensor.numpy,
        "external_stream": lambda stream: stream,
        "is_available": lambda: True,
    }
    for name, value in made.items():
        setattr(cuda, name, value)
    monkeypatch.setitem(sys.modules, "numba", numba)
    monkeypatch.setitem(sys.modules, "numba.cuda", cuda)
    return numba


def on_cuda(windows: Any, function: Any) -> torch.Tensor:
    """`apply` as on CUDA, of a tensor on the CPU, where Numba's CUDA is a stand-in or its simulator."""
    found = torch.full_like(windows.x, 77)
    n = windows.x.shape[-1]
    low, high = (max(min(place, n), -n) for place in (windows.first, windows.first + windows.length))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
        patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
        _python_windows._on_cuda(function, windows.x, found, low, high, windows.min_periods)
    return found


def check_windows_on_cuda() -> None:
    for dtype in (torch.float32, torch.float64):
        x = values(3, 50).to(dtype)
        for window, least, center, closed in WINDOWS:
            windows = stats.rolling(x, window, least, center, closed)  # type: ignore[arg-type]
            torch.testing.assert_close(on_cuda(windows, spread), windows.apply(spread), rtol=0, atol=0, equal_nan=True)
    windows = stats.expanding(values(100))
    torch.testing.assert_close(on_cuda(windows, spread), windows.apply(spread), rtol=0, atol=0, equal_nan=True)


def test_the_kernel_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Numba: its kernel as a Python function."""
    _clear()
    numba = _numba_that_runs_python(monkeypatch)
    numba.njit = lambda function: function  # type: ignore[attr-defined]  # compiles nothing for the CPU
    check_windows_on_cuda()
    _clear()


@pytest.mark.skipif(NO_NUMBA, reason="no Numba, whose CUDA simulator this test needs")
def test_the_kernel_in_the_simulator() -> None:
    program = """
        import numpy, torch
        from numba import cuda
        import test_python_windows as tests
        from numba.cuda.simulator.kernel import _get_kernel_context as here
        cuda.as_cuda_array, cuda.external_stream = torch.Tensor.numpy, lambda stream: 0
        cuda.grid, cuda.gridsize = lambda n: here().grid(n), lambda n: here().gridsize(n)
        tests._python_windows._LEAST_BLOCKS = tests._python_windows._MOST_BLOCKS = 1
        tests.check_windows_on_cuda()
    """
    paths = [str(Path(__file__).parent), *sys.path]
    subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in program.splitlines())],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": os.pathsep.join(paths)},
        check=True,
    )


@pytest.mark.usefixtures("without_numba")
def test_without_numba_for_cuda() -> None:
    with pytest.raises(
        UserError,
        match=r"^rolling: apply: a Python function of a tensor on CUDA needs Numba for CUDA \(.*\): pip install "
        r"'numba-cuda\[cu\d+\]'; or pass a WindowFunction, or x\.cpu\(\)$",
    ):
        on_cuda(stats.rolling(torch.zeros(5), 3), spread)


class NumbaError(Exception):
    """The base class of Numba's errors of functions, whose text may have colours."""


def test_what_numba_for_cuda_says_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _clear()
    numba = _numba_that_runs_python(monkeypatch)
    windows = stats.rolling(torch.zeros(5), 3)
    text = (
        "Failed in cuda mode pipeline (step: nopython frontend)\nNo implementation found for signature:\n\n >>> sort()"
    )
    for said, expected in (
        (
            text,
            r"No implementation found for signature: >>> sort\(\); write loops over w with the functions of math, or",
        ),
        ("libnvvm.so: not found.\nSearched:\n /usr", r"libnvvm.so: not found; check Numba's CUDA, or pass a Window"),
        ("", r"RuntimeError; check Numba's CUDA"),
        (NumbaError("\x1b[1mNo setitem\x1b[0m\n"), r"No setitem; write loops over w with the functions of math, or"),
    ):

        def fails(*_: object, said: str | NumbaError = said, **__: object) -> Any:
            raise said if isinstance(said, NumbaError) else RuntimeError(said)

        numba.cuda.jit = fails
        with pytest.raises(UserError, match=rf"^rolling: apply: spread: Numba cannot run it on CUDA: {expected}") as e:
            on_cuda(windows, spread)
        assert "\n" not in str(e.value)
    for error, reason in (("Error at driver init:\n\nno driver.\n:", "no driver"), (None, "no CUDA toolkit")):
        numba.cuda.is_available, numba.cuda.cuda_error = lambda: False, lambda error=error: error
        with pytest.raises(UserError, match=rf"needs Numba for CUDA \({reason}\): pip install"):
            on_cuda(windows, spread)
    _clear()


@pytest.mark.cuda
@pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="no numba-cuda")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numba_on_cuda(dtype: torch.dtype) -> None:
    """Beside the CPU; on another stream; and what it cannot compile."""
    x = values(3, 5000).to(dtype)
    for window, least, center, closed in WINDOWS:
        here, there = (stats.rolling(each, window, least, center, closed) for each in (x, x.cuda()))  # type: ignore[arg-type]
        torch.testing.assert_close(there.apply(spread).cpu(), here.apply(spread), equal_nan=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = stats.rolling(x.cuda(), 30, 2, step=3).apply(lambda w: w[-1] - w[0]).cpu()
    torch.testing.assert_close(found, stats.rolling(x, 30, 2, step=3).apply(lambda w: w[-1] - w[0]), equal_nan=True)
    for wrong in (lambda w: np.sort(w)[1], lambda w: "a"):
        with pytest.raises(UserError, match=r"<lambda>: Numba cannot run it on CUDA: .*; write loops over w") as e:
            stats.rolling(x.cuda(), 30).apply(cast(Any, wrong))
        assert "\n" not in str(e.value)
