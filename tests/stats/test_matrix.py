"""nnue::transpose and nnue::row_norms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from nnue_trainer.stats import matrix

SHAPES = [(1, 1), (3, 5), (64, 64), (65, 129), (1, 300), (257, 2), (2, 3, 70, 33), (0, 4), (4, 0), (0, 3, 4)]
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.bfloat16, torch.float32, torch.int64, torch.float64]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda), "emulated"])
def place(request: pytest.FixtureRequest) -> tuple[Any, torch.device]:
    """The operators on the CPU, on CUDA, and the CUDA kernels in the emulator; the device of their tensors."""
    if request.param != "emulated":
        return torch.ops.nnue, torch.device(request.param)
    request.getfixturevalue("emulator")
    return torch.ops.nnue_emulated, torch.device("cpu")


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_transpose(place: tuple[Any, torch.device], dtype: torch.dtype) -> None:
    operators, device = place
    for shape in SHAPES:
        x = numbers(shape, dtype).to(device)
        found = operators.transpose(x)
        assert found.is_contiguous()
        assert torch.equal(found, x.mT)
        assert torch.equal(operators.transpose(x.mT), x)


def behind_a_number(x: torch.Tensor) -> torch.Tensor:
    """A copy that begins at an address that is a multiple of the element's size only."""
    return torch.cat([x.new_ones(1), x.flatten()])[1:].view(x.shape)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.float64])
def test_words_and_elements(place: tuple[Any, torch.device], dtype: torch.dtype) -> None:
    """Sides that are multiples of four or two, or odd; whole tiles of CUDA, and their edges; rows from any address."""
    operators, device = place
    sides = ((4, 8), (128, 256), (132, 124), (130, 36), (36, 130), (2, 300), (129, 128), (128, 131), (65, 33), (127, 1))
    tiles_of_bytes = ((256, 128), (260, 132), (257, 128), (256, 131), (259, 133))
    for shape in (*sides, *tiles_of_bytes, (3, 64, 32), (3, 33, 64), (3, 5, 7)):
        x = numbers(shape, dtype).to(device)
        for given in (x, behind_a_number(x)):
            assert torch.equal(operators.transpose(given), x.mT), shape


def test_many_matrices(device: torch.device) -> None:
    """More than CUDA transposes in one launch."""
    x = numbers((65537, 2, 3), torch.int16).to(device)
    assert torch.equal(matrix.transpose(x), x.mT)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.float64])
def test_tiles_and_their_edges(device: torch.device, dtype: torch.dtype) -> None:
    """Around the sizes of tiles, and outputs so large that they are written past the caches."""
    sizes = (7, 8, 63, 64, 71, 72, 136)
    large = ((1024, 8192), (1088, 1030, 8), (3, 2048, 1400), (2049, 4099))
    for shape in (*itertools.product(sizes, (*sizes, 255, 256, 257)), (1100, 40), *large):
        x = numbers(shape, dtype).to(device)
        assert torch.equal(matrix.transpose(x), x.mT), shape


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def expected(x: torch.Tensor) -> list[torch.Tensor]:
    d = x.double().abs()
    largest = d.amax(-1) if x.shape[-1] else d.sum(-1)
    return [t.to(x.dtype) for t in (d.sum(-1), d.square().sum(-1).sqrt(), largest)]


def normal(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_norms(place: tuple[Any, torch.device], dtype: torch.dtype) -> None:
    """Rows of any length, from any address; one norm by itself is that of all three. A few rows are long enough for
    CUDA to split them."""
    operators, device = place
    # A sum in double that is rounded once may give the neighbouring number.
    tolerance = 1e-14 if dtype == torch.float64 else torch.finfo(dtype).eps
    few = ((1,), (7,), (5, 0), (0, 5), (3, 3), (70, 2), (2, 3, 33), (9, 257), (3, 1024), (3, 1000), (2, 5000))
    for shape in (*few, (1, 70000), (3, 40001)):
        x = normal(shape, dtype).to(device)
        for given in (x, behind_a_number(x)):
            found = [torch.empty(shape[:-1], dtype=dtype, device=device) for _ in range(3)]
            operators.row_norms(given, *found)
            for one, value in zip(found, expected(x), strict=True):
                torch.testing.assert_close(one, value, rtol=tolerance, atol=0)
            for i, all_three in enumerate(found):
                alone = torch.empty_like(all_three)
                operators.row_norms(given, *(alone if k == i else None for k in range(3)))
                assert torch.equal(alone, all_three)


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_that_are_not_finite(place: tuple[Any, torch.device], dtype: torch.dtype) -> None:
    """A NaN anywhere makes all norms NaN, whatever is beside it; an infinity makes them infinite."""
    operators, device = place
    for n in (1, 9, 300, 20001):
        rows_of = [(at, value) for at in {0, n // 3, n // 2, n - 1} for value in (math.nan, -math.nan, -math.inf)]
        x = normal((len(rows_of), n), dtype)
        for row, (at, value) in enumerate(rows_of):
            x[row, (at + 1) % n] = math.inf
            x[row, at] = value
        found = [torch.empty(len(rows_of), dtype=dtype, device=device) for _ in range(3)]
        operators.row_norms(behind_a_number(x.to(device)), *found)
        for norm in found:
            torch.testing.assert_close(norm.cpu(), torch.tensor([abs(v) for _, v in rows_of]).to(dtype), equal_nan=True)


def test_norms_of_the_wrapper(device: torch.device) -> None:
    x = normal((3, 16), torch.float32).to(device)
    for order, found, value in zip((1, 2, math.inf), matrix.norms(x), expected(x), strict=True):
        torch.testing.assert_close(found, value)
        torch.testing.assert_close(matrix.norm(x, order), value)


def test_out(device: torch.device) -> None:
    """Results go into the tensors that are given, and into no others."""
    x = torch.tensor([[3.0, -4.0], [0.0, 1.0]], device=device)
    l2 = torch.empty(2, device=device)
    found = matrix.norms(x, out=(None, l2, None))
    assert found.l2 is l2
    assert [t.tolist() for t in found] == [[7, 1], [5, 1], [4, 1]]
    assert matrix.norm(x, math.inf, out=l2) is l2
    assert l2.tolist() == [4, 1]


def test_an_output_inside_the_input_is_refused(place: tuple[Any, torch.device]) -> None:
    """It would be written while it is read."""
    operators, device = place
    x = torch.ones(1, 50, device=device)
    for out in (x[:, 0], x[:, 49], x.view(50)[7:8]):
        with pytest.raises(RuntimeError, match="nnue::row_norms: roots: found a tensor that shares memory with x, exp"):
            operators.row_norms(x, None, out, None)
    out = torch.empty(4, device=device)
    with pytest.raises(RuntimeError, match="largest: found a tensor that shares memory with sums"):
        operators.row_norms(torch.ones(3, 5, device=device), out[:3], None, out[1:])
    assert (x == 1).all()
    whole = torch.ones(60, device=device)
    operators.row_norms(whole[:50].view(1, 50), None, whole[50:51], None)
    assert whole[50].item() == pytest.approx(50**0.5)


def test_nan_and_huge_rows(device: torch.device) -> None:
    x = torch.zeros(3, 40, device=device)
    x[0, 17], x[1, 5], x[2] = math.nan, math.inf, 3e38
    l1, l2, largest = (t.tolist() for t in matrix.norms(x))
    assert all(math.isnan(t[0]) for t in (l1, l2, largest))
    assert [t[1] for t in (l1, l2, largest)] == [math.inf] * 3
    assert largest[2] == pytest.approx(3e38)
    assert matrix.norm(x[2, :1].expand(1, 1)).item() == pytest.approx(3e38)


@pytest.mark.parametrize("size", [1, 4, 37, 5000])
def test_norms_of_numbers_of_any_size(place: tuple[Any, torch.device], size: int) -> None:
    """Squares may leave the range of float64; the root of their sum does not."""
    operators, device = place
    g = torch.Generator().manual_seed(size)
    ordinary = torch.randn(2, size, generator=g, dtype=torch.float64)
    rows = [ordinary * 2.0**power for power in (-1000, -700, -512, -511, -500, 0, 485, 486, 487, 700, 1000)]
    mixed = torch.stack([ordinary[0] * 1e-200, ordinary[0], ordinary[0] * 1e200]).repeat(1, 2)
    mixed[:, :size] = ordinary[1] * 1e-250
    for x in (*rows, mixed):
        found = torch.empty(len(x), dtype=torch.float64, device=device)
        operators.row_norms(x.to(device), None, found, None)
        exact = [math.hypot(*row) for row in x.tolist()]
        assert found.tolist() == pytest.approx(exact, rel=1e-13)


def test_norms_at_the_ends_of_the_range(place: tuple[Any, torch.device]) -> None:
    operators, device = place
    for row, expected in (
        ([1e-170] * 4, 2e-170), ([1e200] * 4, 2e200), ([5e-324] * 4, 1e-323), ([1e308] * 4, math.inf), ([0.0] * 4, 0),
        ([1e200, math.inf], math.inf), ([1e-200, math.nan], math.nan), ([1e200, math.nan, 1e-200], math.nan),
    ):  # fmt: skip
        found = torch.empty(1, dtype=torch.float64, device=device)
        operators.row_norms(torch.tensor([row], dtype=torch.float64, device=device), None, found, None)
        assert found.item() == pytest.approx(expected, nan_ok=True), row


def test_errors() -> None:
    x = torch.ones(3, 4)
    for call, message in (
        (lambda: matrix.transpose(x[0]), r"nnue::transpose: x: found 1 dimensions, expected shape \[..., R, C\]"),
        (lambda: matrix.transpose(x.to(torch.complex128)), "expected a dtype of 1, 2, 4 or 8 bytes"),
        (lambda: matrix.norms(x.int()), "nnue::row_norms: x: found int32, expected float32"),
        (lambda: matrix.norms(x, (torch.empty(4), None, None)), r"sums: found shape \[4\], expected shape \[3\]"),
        (lambda: matrix.norms(x, (None, torch.empty(3).double(), None)), "roots: found float64, expected float32"),
        (lambda: matrix.norms(x, (None, None, torch.empty(6)[::2])), "largest: found a tensor that is not contiguous"),
        (lambda: matrix.norm(x, 3), "order: found 3, expected 1, 2 or inf"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            call()


def test_opcheck_and_no_derivative(device: torch.device) -> None:
    x = torch.randn(3, 4, device=device)
    torch.library.opcheck(torch.ops.nnue.transpose.default, (x,))
    torch.library.opcheck(torch.ops.nnue.row_norms.default, (x, torch.empty(3, device=device), None, None))
    with pytest.raises(RuntimeError, match=r"nnue::transpose: gradient: .*detach its inputs"):
        matrix.transpose(x.requires_grad_()).sum().backward()


def test_dimensions_in_any_order() -> None:
    """Those that `transpose` can make, and the others."""
    for shape in ((), (5,), (70, 90), (3, 70, 33), (2, 3, 5, 7), (4, 0, 3)):
        values = numbers(shape, torch.int16).numpy()
        for order in itertools.permutations(range(len(shape))):
            for given in (
                values,
                values[..., ::-1] if shape else values,
                np.frombuffer(values.tobytes(), values.dtype),
            ):
                given = given.reshape(shape)
                found = matrix.permuted(given, order)
                assert found.flags.c_contiguous
                assert np.array_equal(found, given.transpose(order)), (shape, order)


@pytest.mark.parametrize("kind", [">f8", ">i2", "M8[s]", "c16", "O", "S3"])
def test_dimensions_of_elements_that_torch_has_not(kind: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(kind)
    found = matrix.permuted(values, (1, 0))
    assert found.dtype == values.dtype
    assert found.flags.c_contiguous
    assert np.array_equal(found, values.T)


def test_what_permuted_refuses() -> None:
    with pytest.raises(ValueError, match="permuted: found a masked array, expected an array; fill it first"):
        matrix.permuted(np.ma.masked_less(np.eye(2), 1), (1, 0))
    with pytest.raises(ValueError, match="repeated axis"):
        matrix.permuted(np.eye(2), (1, 1))
    array: Any = np.eye(2)
    for call in (matrix.norms, matrix.norm, matrix.transpose):
        with pytest.raises(ValueError, match="x: found ndarray, expected a tensor; make one with"):
            call(array)
