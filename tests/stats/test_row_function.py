"""Your own functions of rows: values, broadcasting, `out`, and one line for what is refused."""

from __future__ import annotations

import copy
import ctypes
import struct
from collections.abc import Callable
from typing import Any, cast

import emulated_library
import numpy as np
import numpy.typing as npt
import pytest
import torch
from needs import require

from nnue_trainer.errors import UserError
from nnue_trainer.files import compile_once
from nnue_trainer.stats import RowFunction, WindowFunction, matrix, rolling, window_function

LENGTH = RowFunction("return sqrt(x.sum([](double v) { return v * v; }));", name="length")
DOT = RowFunction(
    """
    double sum = 0;
    for (int64_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    if (a.size() != b.size()) return -1;
    return sum;
    """,
    inputs=("a", "b"),
    name="dot",
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norm_equals_the_operator(dtype: torch.dtype, device: torch.device) -> None:
    """For rows shorter and longer than the lanes of a sum, rows that are not contiguous, and no elements."""
    for shape in ((1000, 2), (50, 31), (7, 32), (3, 5, 1000), (4, 0), (0, 4), (9,)):
        x = torch.randn(shape, dtype=dtype, device=device)
        for rows in (x, x.mT.contiguous().mT) if x.dim() > 1 else (x,):
            torch.testing.assert_close(
                LENGTH(rows), matrix.norm(x), rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=0
            )


# A sum inside a sum, a loop, and a decision that depends on a sum.
NESTED = RowFunction(
    """
    const double mean = x.sum([](double v) { return v; }) / x.size();
    double first = 0;
    for (int64_t i = 0; i < 3 && i < x.size(); ++i) first += x[i];
    if (mean > first) return -first;
    return x.sum([&](double v) { return v > mean ? x.sum([&](double u) { return u - v; }) : 1.0; });
    """,
    name="nested",
)
PRODUCT = RowFunction(
    "return a.sum([](double v) { return v * v; }) * b.sum([](double v) { return v + 1; }) + b.size();",
    inputs=("a", "b"),
    name="product",
)
# Several sums, of which one needs another one.
VARIANCE = RowFunction(
    """
    double done = 0;
    for (int turn = 0; turn < 3; ++turn) {
        const double mean = x.sum([](double v) { return v; }) / x.size();
        done += x.sum([=](double v) { return (v - mean) * (v - mean); }) / x.size();
    }
    return done / 3;
    """,
    name="variance",
)

# Tiles of short rows, a warp for each row, a thread block for each long one, and several blocks for few very long ones.
SHAPES = ((1000, 2), (3000, 1), (300, 3), (50, 31), (40, 32), (40, 64), (21, 65), (9, 100), (4, 0), (9,), (3, 1000))
LONG = ((2, 4095), (2, 4096), (3, 4097), (30, 9000), (5, 17_000), (1, 40_001), (2049, 4100))
PAIRS = (((6, 1, 40), (5, 40)), ((5, 40), (40,)), ((200, 3), (3,)), ((200, 3), (200, 70)), ((1, 100), (30, 200)))


def agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Threads that compute a row together add in another order."""
    rtol = 1e-6 if found.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found, expected, rtol=rtol, atol=0, equal_nan=True)


def emulated(function: RowFunction, *rows: torch.Tensor) -> torch.Tensor:
    """The function by its CUDA kernels in the emulator."""
    require(emulated_library.why_not())
    path = emulated_library.build_source(function._cuda_source, compile_once.cache_folder("emulated"))
    library = window_function._with_types(ctypes.CDLL(str(path)), on_cuda=True)
    out = rows[0].new_full(function._broadcast(rows), 77)
    job = struct.pack("3q", 0, out.data_ptr(), out.numel())
    given = [row if row.numel() == row.shape[-1] else row.expand(*out.shape, -1).contiguous() for row in rows]
    for row in given:
        size = row.shape[-1]
        job += struct.pack("3q", row.data_ptr(), size, 0 if row.numel() == size else size)
    window_function._launch("row function", function.name, library, job, out)
    return out


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_in_the_emulator(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(1)
    for shape in (*SHAPES, *LONG):
        x = torch.randn(shape, generator=g, dtype=dtype)
        for function in (LENGTH, NESTED) if x.numel() < 9000 else (LENGTH, VARIANCE):
            agree(emulated(function, x), function(x))
    for shapes in PAIRS:
        rows = [torch.randn(shape, generator=g, dtype=dtype) for shape in shapes]
        for function in (DOT, PRODUCT):
            agree(emulated(function, *rows), function(*rows))


@pytest.mark.compiler
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_agrees_with_the_cpu(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(1)
    for shape in (*SHAPES, *LONG, (3, 100_000), (200_000, 3), (1, 10_000_019), (64, 1 << 17), (900, 20_000)):
        x = torch.randn(shape, generator=g, dtype=dtype)
        for function in (LENGTH, NESTED) if x.numel() < 9000 else (LENGTH, VARIANCE):
            agree(function(x.cuda()).cpu(), function(x))
    for shapes in PAIRS:
        rows = [torch.randn(shape, generator=g, dtype=dtype) for shape in shapes]
        for function in (DOT, PRODUCT):
            agree(function(*(row.cuda() for row in rows)).cpu(), function(*rows))


def test_inputs_broadcast_and_out_is_filled(device: torch.device) -> None:
    a = torch.randn(6, 1, 40, dtype=torch.float64, device=device)
    b = torch.randn(5, 40, dtype=torch.float64, device=device)
    out = torch.empty(6, 5, dtype=torch.float64, device=device)
    assert DOT(a, b, out=out) is out
    torch.testing.assert_close(out, torch.einsum("ixn,jn->ij", a, b))
    torch.testing.assert_close(DOT(b, a[0, 0]), b @ a[0, 0])
    torch.testing.assert_close(DOT(b.expand(3, 5, 40), a[:3]), torch.einsum("ixn,jn->ij", a[:3], b))
    assert DOT(b, a[0, 0, :3]).eq(-1).all()


def in_order(squares: npt.NDArray[np.float64]) -> float:
    """The sum in the order of `x.sum`."""

    def folded(lanes: npt.NDArray[np.float64]) -> float:
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        return float(lanes[0])

    done = len(squares) // 16 * 16
    lanes = np.zeros(16)
    for chunk in squares[:done].reshape(-1, 16):
        lanes += chunk
    total = folded(lanes)
    fours = done + (len(squares) - done) // 4 * 4
    for four in squares[done:fours].reshape(-1, 4):
        total += folded(four)
    for square in squares[fours:]:
        total += float(square)
    return total


@pytest.mark.parametrize("level", ["AVX512", "AVX2", "DEFAULT"])
def test_vectors_of_all_widths_give_the_same_bits(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = ["AVX512", "AVX2", "DEFAULT"]
    own = torch.backends.cpu.get_cpu_capability()
    if levels.index(level) < levels.index(own if own in levels else "DEFAULT"):
        pytest.skip(f"this CPU has no {level}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: level)
    function = RowFunction("return x.sum([](double v) { return v * v; });")
    for n in (1, 3, 4, 15, 16, 17, 32, 47, 100):
        x = torch.from_numpy(np.random.default_rng(n).standard_normal((20, n)))
        assert function(x).tolist() == [in_order(row * row) for row in x.numpy()]


def test_many_rows_in_several_threads() -> None:
    x = torch.randn(100_000, 9)
    torch.testing.assert_close(LENGTH(x), matrix.norm(x), rtol=1e-6, atol=0)


def test_views_with_changed_signs_and_shared_memory() -> None:
    """The memory of such a view has the numbers with their old signs, and the compiled functions read the memory."""
    first = RowFunction("return x[0];")
    x = torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    view = torch._neg_view(x)
    assert view.is_contiguous()
    assert first(view).tolist() == [-1, -3, -5]
    assert first(view[:1]).tolist() == [-1]
    assert rolling(view, 1).apply(WindowFunction("return w[0];")).tolist() == (-x).tolist()
    with pytest.raises(ValueError, match="out: found a view with the signs changed"):
        first(x, out=torch._neg_view(torch.zeros(3)))
    for place in range(4):
        with pytest.raises(ValueError, match="out: found a tensor that shares memory with x"):
            first(x, out=x.view(-1)[place : place + 3])
    pairs = torch.zeros(12)
    first(pairs[:6].view(3, 2), out=pairs[6:9])


def test_a_copy_has_no_numbers_of_this_process() -> None:
    assert LENGTH(torch.ones(3)).item() == pytest.approx(3**0.5)
    copied = copy.deepcopy(LENGTH)  # by the state that pickle sends to a spawned process
    assert copied == LENGTH
    assert "_on_cpu" in vars(LENGTH)
    assert "_on_cpu" not in vars(copied)
    assert copied(torch.ones(3)).item() == pytest.approx(3**0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LENGTH(torch.ones(3, dtype=torch.int32)), "x: found torch.int32 of .*, expected float32"),
        (lambda: LENGTH(cast(Any, [1.0])), "x: found list, expected float32 or float64"),
        (lambda: LENGTH(torch.tensor(1.0)), r"x: found torch.float32 of shape \[\]"),
        (lambda: LENGTH(torch.ones(3, requires_grad=True)), r"requires grad; pass x.detach\(\)"),
        (lambda: LENGTH(), "found 0 inputs, expected 1"),
        (lambda: LENGTH(torch.ones(2, 3), out=torch.ones(3)), r"out: found torch.float32 of shape \[3\].*shape \[2\]"),
        (lambda: LENGTH(torch.ones(3), out=torch.ones(4)), r"out: found torch.float32 of shape \[4\].*shape \[\]"),
        (lambda: LENGTH(torch.ones(1, 3), out=torch.ones(4)), r"out: found torch.float32 of shape \[4\].*shape \[1\]"),
        (lambda: LENGTH(torch.ones(5, 0), out=torch.ones(3)), r"out: found torch.float32 of shape \[3\].*shape \[5\]"),
        (lambda: LENGTH(torch.nested.nested_tensor([torch.ones(2)])), "x: found"),
        (lambda: LENGTH(torch.ones(2, 3), out=cast(Any, [0.0] * 2)), "out: found list, expected a tensor"),
        (lambda: LENGTH(torch.ones(2, 3), out=torch.ones(4)[::2]), "out: found a tensor that is not contiguous"),
        (lambda: DOT(torch.ones(2, 3), torch.ones(2, 3).double()), "b: found torch.float64"),
        (lambda: DOT(torch.ones(2, 3), torch.ones(4, 3)), r"found shapes \[2, 3\], \[4, 3\], expected leading"),
        (lambda: RowFunction("return 0;", inputs=("a", "a")), "inputs: found .*, expected 1 to 8 different C.. names"),
        (lambda: RowFunction("return 0;", inputs="x"), "inputs: found 'x'"),
        (lambda: RowFunction("return y;")(torch.ones(3)), "y"),
        (lambda: RowFunction("if (x[0] > 5) return 1;")(torch.ones(3)), "return"),
        (lambda: RowFunction("throw std::runtime_error(\"too long\");", name="f")(torch.ones(3)), "f: too long"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError, UserError), match=message) as error:
        call()
    assert "\n" not in str(error.value)
