"""The feature transformer of both perspectives: the fused operator and the way around it, against float64."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_inputs import assert_close
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from typed import grad_of

from nnue_trainer import ops
from nnue_trainer.ops import perspectives, reference
from nnue_trainer.ops.perspectives import (
    is_fused,
    perspective_plan,
    perspective_transformer,
    set_cuda_kernels,
)
from nnue_trainer.ops.reference import Activation

ACTIVATIONS: list[Activation] = ["identity", "crelu", "screlu", "pairwise"]


@pytest.fixture
def device(device_with_kernels: torch.device) -> torch.device:
    return device_with_kernels


def make_rows(positions: int, max_active: int, buckets: int, bucket_size: int, seed: int = 0) -> Tensor:
    """Rows of every length from 0 to K, features distinct and of one bucket, rubbish after the −1 that ends a row."""
    g = torch.Generator().manual_seed(seed)
    if positions == 0 or max_active == 0:
        return torch.zeros(positions, max_active, dtype=torch.int32)
    inside = torch.rand(positions, bucket_size, generator=g).argsort(1)[:, :max_active]
    bucket = torch.randint(0, buckets, (positions, 1), generator=g) ** 2 // max(buckets, 1)  # uneven
    rows = (bucket * bucket_size + inside).int()
    width = rows.shape[1]
    rows = torch.nn.functional.pad(rows, (0, max_active - width), value=-1)
    lengths = torch.randint(0, width + 1, (positions,), generator=g)
    lengths[0] = width
    columns = torch.arange(max_active)[None]
    rows = torch.where(columns < lengths[:, None], rows, 10**6)
    rows[columns == lengths[:, None]] = -1
    return rows


def make_skewed_rows(positions: int, buckets: int, bucket_size: int, seed: int = 0) -> Tensor:
    """Rows of about six features, of which a few are common, most rare and some in no row, as in chess."""
    g = torch.Generator().manual_seed(seed)
    density = 0.9 / (1 + torch.randperm(bucket_size, generator=g) / 4) ** 1.7
    has = torch.rand(positions, bucket_size, generator=g) < density
    bucket = torch.randint(0, buckets, (positions, 1), generator=g) ** 2 // buckets
    inside = torch.where(has, torch.arange(bucket_size), bucket_size).sort(1).values[:, :40]
    rows = torch.where(inside < bucket_size, bucket * bucket_size + inside, -1)
    return rows.int()


def mix_unbucketed(
    rows: Tensor, num_bucketed: int, unbucketed: int, active: int, skew: float, repeats: bool, seed: int
) -> Tensor:
    """Up to `active` features from `num_bucketed` on in each row, anywhere; a larger `skew` prefers fewer of them."""
    g = torch.Generator().manual_seed(seed)
    positions = len(rows)
    picks = (torch.rand(positions, active, generator=g, dtype=torch.float64) ** skew * unbucketed).int()
    if not repeats:
        picks = picks.sort(1).values
        picks[:, 1:][picks[:, 1:] == picks[:, :-1]] = -1
    picks[torch.arange(active)[None] >= torch.randint(0, active + 1, (positions, 1), generator=g)] = -1
    picks = torch.where(picks >= 0, picks + num_bucketed, -1)
    ended = (rows == -1).cumsum(1) > 0
    both = torch.cat([torch.where(ended, -1, rows), picks], 1)
    order = (torch.rand(both.shape, generator=g) + (both == -1)).argsort(1)  # mixed, left-packed
    return both.gather(1, order)


class Case:
    """Inputs on a device, and the float64 result and gradients."""

    def __init__(
        self,
        positions: int = 100,
        max_active: int = 12,
        buckets: int = 5,
        bucket_size: int = 96,
        outputs: int = 64,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int = 0,
        rows: tuple[Tensor, Tensor] | None = None,
        scale: float = 0.2,
        missing: int = 0,
        output_scale: float = 1.0,
        unbucketed: int = 0,
        unbucketed_active: int = 20,
        skew: float = 4.0,
        repeats: bool = False,
    ) -> None:
        self.scale = output_scale
        g = torch.Generator().manual_seed(seed)
        self.white, self.black = rows or (
            make_rows(positions, max_active, buckets, bucket_size, seed),
            make_rows(positions, max_active, buckets, bucket_size, seed + 1),
        )
        self.bucket_size, self.num_bucketed = bucket_size, buckets * bucket_size - missing
        positions = len(self.white)
        self.black_to_move = torch.randint(0, 2, (positions,), generator=g, dtype=torch.uint8)
        # `missing`: the last bucket is not full.
        for i in (self.white, self.black):
            i[i == self.num_bucketed] = 0
            i[(i > self.num_bucketed) & (i < 10**6)] = 1
        if unbucketed > 0:
            self.white, self.black = (
                mix_unbucketed(i, self.num_bucketed, unbucketed, unbucketed_active, skew, repeats, seed + n)
                for n, i in enumerate((self.white, self.black))
            )
        features = self.num_bucketed + unbucketed
        self.weight = (torch.randn(features, outputs, generator=g) * scale).to(dtype)
        self.bias = torch.rand(outputs, generator=g)
        self.white, self.black, self.black_to_move, self.weight, self.bias = (
            t.to(device) for t in (self.white, self.black, self.black_to_move, self.weight, self.bias)
        )

    def run(
        self, activation: Activation, bound: float = 1.0, output_dtype: torch.dtype | None = None, seed: int = 5
    ) -> tuple[Tensor, ...]:
        """(output, weight gradient, bias gradient, the gradient of the output that gave them)"""
        weight, bias = self.weight.clone().requires_grad_(), self.bias.clone().requires_grad_()
        out = perspective_transformer(
            self.white, self.black, self.black_to_move, weight, bias,
            activation=activation, bound=bound, scale=self.scale, bucket_size=self.bucket_size,
            num_bucketed=self.num_bucketed, output_dtype=output_dtype,
        )  # fmt: skip
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.device, out.dtype) * 1e-3
        if activation != "identity":
            grad[self.near_ties(activation, bound)] = 0
        out.backward(grad)
        assert weight.grad is not None
        assert bias.grad is not None
        return out.detach(), weight.grad, bias.grad, grad

    def accumulators(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The accumulators of the side to move and of the other side."""
        white, black = (
            reference.row_sums(i.clamp(max=len(weight) - 1), weight, bias) for i in (self.white, self.black)
        )
        black_first = self.black_to_move.bool()[:, None]
        return torch.where(black_first, black, white), torch.where(black_first, white, black)

    def near_ties(self, activation: Activation, bound: float) -> Tensor:
        """Outputs with a sum so near to 0 or `bound`, and not on it, that rounding decides about its gradient."""
        near = []
        for a in self.accumulators(self.weight.double(), self.bias.double()):
            distance = torch.minimum(a.abs(), (a - bound).abs())
            close = (distance > 0) & (distance < 1e-5)
            halves = close.chunk(2, 1)
            near.append(halves[0] | halves[1] if activation == "pairwise" else close)
        return torch.cat(near, 1)

    def reference(self, activation: Activation, bound: float, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight, bias = self.weight.double().requires_grad_(), self.bias.double().requires_grad_()

        sums = self.accumulators(weight, bias)
        out = torch.cat([reference.activate(each, activation, bound) for each in sums], 1) * self.scale
        out.backward(grad.double())
        assert weight.grad is not None
        assert bias.grad is not None
        return out.detach(), weight.grad, bias.grad


def check(
    case: Case,
    activation: Activation,
    bound: float = 1.0,
    output_dtype: torch.dtype | None = None,
    tolerance: float = 8e-3,
    exact_tolerance: float = 4e-6,
) -> None:
    """`tolerance`: of 16-bit weight gradients; `exact_tolerance`: of fp32 ones."""
    out, grad_weight, grad_bias, grad = case.run(activation, bound, output_dtype)
    expected = case.reference(activation, bound, grad)
    output_dtype = output_dtype or case.weight.dtype
    exact = case.weight.dtype == torch.float32
    assert out.dtype == output_dtype
    assert grad_weight.dtype == case.weight.dtype
    assert_close(
        out, expected[0], {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}[output_dtype], "output"
    )
    assert_close(grad_weight, expected[1], exact_tolerance if exact else tolerance, "weight gradient")
    assert_close(grad_bias, expected[2], 2e-6 if exact else 2e-3, "bias gradient")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_forward_backward(device: torch.device, activation: Activation, dtype: torch.dtype) -> None:
    check(Case(dtype=dtype, device=device), activation)


@pytest.mark.parametrize("output_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_output_dtype(device: torch.device, dtype: torch.dtype, output_dtype: torch.dtype) -> None:
    check(Case(dtype=dtype, device=device), "pairwise", 255 / 256, output_dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_scale(device: torch.device, activation: Activation, dtype: torch.dtype) -> None:
    check(Case(dtype=dtype, device=device, output_scale=127 / 128), activation)


@pytest.mark.parametrize("outputs", [16, 48, 208, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_widths(device: torch.device, outputs: int, dtype: torch.dtype) -> None:
    check(Case(outputs=outputs, dtype=dtype, device=device), "pairwise")


@pytest.mark.parametrize(
    ("buckets", "bucket_size", "missing"),
    [(1, 768, 0), (32, 768, 0), (32, 704, 0), (3, 641, 40), (60, 5, 2), (255, 40, 3), (1, 1, 0)],
)
def test_buckets(device: torch.device, buckets: int, bucket_size: int, missing: int) -> None:
    check(Case(400, 32, buckets, bucket_size, 32, device=device, missing=missing), "pairwise")


@pytest.mark.parametrize(("positions", "max_active"), [(1, 1), (1, 32), (31, 3), (33, 70), (5000, 32), (64, 0)])
def test_batches(device: torch.device, positions: int, max_active: int) -> None:
    check(Case(positions, max_active, 4, 100, 64, device=device), "crelu")


@pytest.mark.parametrize("max_active", [1, 8, 9, 32, 33, 40, 500])
def test_list_lengths(device: torch.device, max_active: int) -> None:
    """Lists that end anywhere in the eight features read at a time; with 500 half of a row's features are rare ones."""
    check(Case(200, max_active, 2, 768, 48, device=device), "identity")


def test_float32_is_exact(device: torch.device) -> None:
    """float32 weights of any magnitude are added as they are: nothing is lost but the rounding of each addition."""
    case = Case(2000, 32, 32, 768, 48, device=device)
    magnitude = 10.0 ** torch.randint(-20, 10, (len(case.weight), 1), generator=torch.Generator().manual_seed(1))
    case.weight *= magnitude.to(device)
    out, _, _, grad = case.run("identity")
    expected = case.reference("identity", 1.0, grad)[0]
    case.weight, case.bias = case.weight.abs(), case.bias.abs()
    largest = case.reference("identity", 1.0, grad)[0]
    assert ((out.double() - expected).abs() <= 33 * 2.0**-24 * largest).all()


@pytest.mark.parametrize("unbucketed", [0, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_negative_zero(device: torch.device, dtype: torch.dtype, unbucketed: int) -> None:
    """A sum of -0 lies in [0, bound]: the gradient of the clip is 1 there."""
    rows = torch.full((3, 4), -1, dtype=torch.int32, device=device)
    rows[1, 0], rows[2, 0] = 0, 1
    weight = torch.full((2 * 768 + unbucketed, 32), -0.0, dtype=dtype, device=device)
    bias = torch.cat([torch.full((16,), -0.0), torch.full((16,), 0.5)]).to(device).requires_grad_()
    to_move = torch.zeros(3, dtype=torch.uint8, device=device)
    out = perspective_transformer(rows, rows, to_move, weight, bias, bucket_size=768, num_bucketed=2 * 768)
    out.sum().backward()
    assert bias.grad is not None
    assert bias.grad.tolist() == [3.0] * 16 + [0.0] * 16


def test_empty_batch(device: torch.device) -> None:
    case = Case(0, 5, device=device)
    out, grad_weight, grad_bias, _ = case.run("pairwise")
    assert out.shape == (0, 64)
    assert not grad_weight.any()
    assert not grad_bias.any()


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 300), st.integers(0, 40), st.integers(1, 40), st.integers(1, 768), st.integers(1, 12),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), st.sampled_from(ACTIVATIONS), st.integers(0, 99),
)  # fmt: skip
def test_any_shape(
    device: torch.device,
    positions: int,
    max_active: int,
    buckets: int,
    bucket_size: int,
    sixteens: int,
    dtype: torch.dtype,
    activation: Activation,
    seed: int,
) -> None:
    check(
        Case(positions, max_active, buckets, bucket_size, 16 * sixteens, dtype=dtype, device=device, seed=seed),
        activation,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_rows_outside_the_rule(device: torch.device, activation: Activation, dtype: torch.dtype) -> None:
    """Duplicates and features of several buckets in a row are legal."""
    g = torch.Generator().manual_seed(3)
    rows = (make_rows(200, 12, 5, 96), make_rows(200, 12, 5, 96, 1))
    rows[0][10] = 7  # one feature twelve times
    rows[0][11:20] = -1
    rows[0][11:20, :4] = torch.randint(0, 480, (9, 4), generator=g, dtype=torch.int32)
    rows[1][199] = torch.arange(12, dtype=torch.int32) * 40
    check(Case(rows=rows, dtype=dtype, device=device), activation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_long_irregular_rows(device: torch.device, dtype: torch.dtype) -> None:
    """A duplicate, and a feature of another bucket, more than 32 entries after the others; rare features about them."""
    rows = (make_rows(150, 200, 2, 768), make_rows(150, 200, 2, 768, 1))
    for row, entry in ((0, 199), (7, 40), (64, 33)):
        full = rows[0][0].clone()
        full[entry] = full[1] if row else (full[1] + 768) % 1536
        rows[0][row] = full
    check(Case(buckets=2, bucket_size=768, rows=rows, outputs=48, dtype=dtype, device=device), "pairwise")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_unbucketed_features_behind_a_bucket_that_is_not_full(device: torch.device, dtype: torch.dtype) -> None:
    check(Case(300, unbucketed=300, missing=40, dtype=dtype, device=device), "pairwise")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_unbucketed_features(device: torch.device, activation: Activation, dtype: torch.dtype) -> None:
    check(Case(700, unbucketed=3000, dtype=dtype, device=device), activation)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positions", "unbucketed", "unbucketed_active", "skew"),
    [
        (300, 1, 3, 1.0),
        (300, 300, 40, 1.0),  # all dense
        (300, 768, 40, 2.0),
        (5000, 900, 30, 1.0),
        (9000, 2000, 30, 1.0),  # long lists
        (200, 70_000, 60, 6.0),
        (200, 70_000, 60, 1.0),  # most features have no row, the others one or two
        (1, 5000, 200, 1.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_unbucketed_counts(
    device: torch.device, positions: int, unbucketed: int, unbucketed_active: int, skew: float, dtype: torch.dtype
) -> None:
    case = Case(
        positions,
        unbucketed=unbucketed,
        unbucketed_active=unbucketed_active,
        skew=skew,
        outputs=48,
        dtype=dtype,
        device=device,
    )
    check(case, "pairwise")


@pytest.mark.parametrize(
    ("unbucketed", "active"), [(140_000, 30), (140_000, 90), (1_000_000, 30)], ids=["fit", "left out", "a million"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_features(device: torch.device, dtype: torch.dtype, unbucketed: int, active: int) -> None:
    """Bitmaps of up to 130 KB; a tile of more than 3,072 different features is left out of the product."""
    case = Case(150, unbucketed=unbucketed, unbucketed_active=active, skew=1.0, outputs=48, dtype=dtype, device=device)
    check(case, "pairwise")


@pytest.mark.parametrize("outputs", [16, 80, 208, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_unbucketed_widths(device: torch.device, outputs: int, dtype: torch.dtype) -> None:
    check(Case(200, unbucketed=2000, outputs=outputs, dtype=dtype, device=device), "pairwise")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_but_unbucketed_features(device: torch.device, dtype: torch.dtype) -> None:
    rows = torch.full((500, 1), -1, dtype=torch.int32)
    case = Case(rows=(rows, rows.clone()), buckets=0, unbucketed=2000, unbucketed_active=33, dtype=dtype, device=device)
    assert case.num_bucketed == 0
    check(case, "crelu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_unbucketed_features_no_row_has(device: torch.device, dtype: torch.dtype) -> None:
    case = Case(100, unbucketed=500, device=device, dtype=dtype)
    for i in (case.white, case.black):
        i[i >= case.num_bucketed] = -1
    check(case, "identity")


@pytest.mark.slow
@pytest.mark.parametrize("skew", [1.0, 6.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_repeated_unbucketed_features(
    device: torch.device, activation: Activation, dtype: torch.dtype, skew: float
) -> None:
    """Duplicates add up, of rare features (lists) and of frequent ones (products), and in rows outside the rule."""
    rows = (make_rows(300, 12, 5, 96), make_rows(300, 12, 5, 96, 1))
    rows[0][10] = 7
    rows[1][11, :2] = torch.tensor([5, 300], dtype=torch.int32)
    case = Case(rows=rows, unbucketed=1500, skew=skew, repeats=True, dtype=dtype, device=device)
    case.black[3] = case.num_bucketed + 1499
    check(case, activation, tolerance=0.1)  # rows outside the rule are rounded one by one


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 600), st.integers(0, 40), st.integers(0, 40), st.integers(1, 768), st.integers(1, 12),
    st.integers(1, 4000), st.integers(0, 60), st.floats(1, 10), st.booleans(),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), st.sampled_from(ACTIVATIONS), st.integers(0, 99),
)  # fmt: skip
def test_any_unbucketed_shape(
    device: torch.device,
    positions: int,
    max_active: int,
    buckets: int,
    bucket_size: int,
    sixteens: int,
    unbucketed: int,
    unbucketed_active: int,
    skew: float,
    repeats: bool,
    dtype: torch.dtype,
    activation: Activation,
    seed: int,
) -> None:
    none = torch.full((positions, 1), -1, dtype=torch.int32)
    case = Case(
        positions, max_active, buckets, bucket_size, 16 * sixteens, dtype=dtype, device=device, seed=seed,
        rows=(none, none.clone()) if buckets == 0 else None, unbucketed=unbucketed,
        unbucketed_active=unbucketed_active, skew=skew, repeats=repeats,
    )  # fmt: skip
    # One feature may be in every row, many times: fp32 sums of thousands of numbers that cancel.
    # Rows that break the rule of buckets, and features that a row has twice, are added one by one: in 16 bits the error
    # grows with the square root of the number of additions, which is that of rows times how often a row has a feature.
    additions = positions * max(1, unbucketed_active // unbucketed)
    check(case, activation, tolerance=8e-3 + 1.2e-2 * additions**0.5 if repeats else 8e-3, exact_tolerance=2e-5)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_clip_passes_gradient_at_both_ends(
    device: torch.device, dtype: torch.dtype, fused: bool, request: pytest.FixtureRequest
) -> None:
    """Sums of exactly 0 and exactly the bound, which fake-quantised weights make, pass gradient, as in torch.clamp."""
    if not fused:
        request.addfinalizer(partial(set_cuda_kernels, set_cuda_kernels("none")))
    bound = 255 / 256
    bias = torch.tensor([0.0, bound, -(2.0**-20), 0.5, bound + 2.0**-20, 1.0, bound - 2.0**-20, 2.0**-30]).repeat(4)
    rows = torch.tensor([[0, -1]], dtype=torch.int32, device=device)
    weight = torch.zeros(8, 32, dtype=dtype, device=device).requires_grad_()
    bias = bias.to(device).requires_grad_()
    out = perspective_transformer(
        rows, rows, torch.zeros(1, dtype=torch.uint8, device=device), weight, bias,
        activation="crelu", bound=bound, bucket_size=8 if fused else None, output_dtype=torch.float32,
    )  # fmt: skip
    out.sum().backward()
    expected = torch.tensor([1.0, 1, 0, 1, 0, 0, 1, 1]).repeat(4).to(device) * 2
    torch.testing.assert_close(bias.grad, expected, rtol=0, atol=0)
    torch.testing.assert_close(grad_of(weight)[0].float(), expected, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("unbucketed", "skew"), [(0, 1.0), (20_000, 4.0), (1000, 1.0)], ids=["none", "unbucketed", "long lists"]
)
def test_equal_bits(device: torch.device, dtype: torch.dtype, unbucketed: int, skew: float) -> None:
    case = Case(
        3000, 32, 32, 768, 272, dtype=dtype, device=device, unbucketed=unbucketed, unbucketed_active=40, skew=skew
    )
    first = case.run("pairwise")
    for _ in range(5 if device.type == "cuda" else 1):
        assert all(torch.equal(a, b) for a, b in zip(first, case.run("pairwise"), strict=True))


@pytest.mark.parametrize("unbucketed", [0, 2000])
def test_tiny_and_huge_gradients(device: torch.device, unbucketed: int) -> None:
    """fp32 gradients keep their precision over many orders of magnitude."""
    case = Case(500, 12, 5, 96, 64, device=device, unbucketed=unbucketed, skew=3)
    weight, bias = case.weight.clone().requires_grad_(), case.bias.clone().requires_grad_()
    out = perspective_transformer(
        case.white, case.black, case.black_to_move, weight, bias,
        activation="identity", bucket_size=96, num_bucketed=case.num_bucketed,
    )  # fmt: skip
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(device)
    grad = grad * 10.0 ** torch.arange(0, -7, -1, device=device).repeat(100)[:500, None]
    for scale in (1e-12, 1.0, 1e12):
        out.backward(grad * scale, retain_graph=True)
        assert weight.grad is not None
        assert_close(weight.grad, case.reference("identity", 1.0, grad * scale)[1], 2e-6, f"scale {scale}")
        weight.grad = None


def test_gradients_of_very_different_magnitude(device: torch.device) -> None:
    """One part of the batch does not cost another its fp32 precision: each bucket's gradient is as exact as alone."""
    exponents = torch.tensor([-90.0, -30.0, 0.0, 40.0, 80.0])
    g = torch.Generator().manual_seed(4)
    bucket = torch.randint(0, 5, (700, 1), generator=g)
    rows = (bucket * 96 + torch.rand(700, 96, generator=g).topk(9).indices).int()
    case = Case(rows=(rows, rows.flip(1)), outputs=80, device=device)
    weight = case.weight.clone().requires_grad_()
    out = perspective_transformer(
        case.white, case.black, case.black_to_move, weight, case.bias, activation="identity", bucket_size=96
    )
    grad = (torch.randn(out.shape, generator=g) * torch.exp2(exponents[bucket])).to(device)
    out.backward(grad)
    assert weight.grad is not None
    expected = case.reference("identity", 1.0, grad)[1]
    for b in range(5):
        part = slice(96 * b, 96 * (b + 1))
        assert_close(
            weight.grad[part].double() * 2.0 ** -exponents[b].item(),
            expected[part] * 2.0 ** -exponents[b].item(),
            2e-6,
            f"bucket {b}",
        )


@pytest.mark.parametrize("unbucketed", [False, True])
@pytest.mark.parametrize("value", [0.0, 3e38, 2.0**-120])
def test_gradient_at_the_ends_of_the_range(device: torch.device, value: float, unbucketed: bool) -> None:
    rows = torch.tensor([[2, -1]], dtype=torch.int32)
    case = Case(rows=(rows, torch.full_like(rows, -1)), buckets=1, bucket_size=8, outputs=32, device=device)
    weight = case.weight.clone().requires_grad_()
    out = perspective_transformer(
        case.white, case.black, case.black_to_move, weight, case.bias,
        activation="identity", bucket_size=8, num_bucketed=0 if unbucketed else 8,
    )  # fmt: skip
    out.backward(torch.full_like(out, value))
    expected = torch.zeros_like(weight)
    expected[2] = value
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_rows_do_not_show(device: torch.device, dtype: torch.dtype) -> None:
    """A feature's gradient has equal bits whether rows that do not have it have large gradients or tiny ones: the
    kernels add up several features' lists at a time, as a product with zeros."""
    positions = 3000
    case = Case(positions, 12, 5, 96, 272, dtype=dtype, device=device, unbucketed=5000, unbucketed_active=40, skew=1.5)
    number = torch.arange(positions, device=device)
    changed, anchors = number % 50 == 0, number % 8 == 1
    grads: list[Tensor] = []
    for factor in (1.0, 2.0**-20):
        weight = case.weight.clone().requires_grad_()
        out = perspective_transformer(
            case.white, case.black, case.black_to_move, weight, case.bias,
            activation="identity", bucket_size=96, num_bucketed=case.num_bucketed,
        )  # fmt: skip
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).clamp(-3, 3).to(device)
        grad *= torch.where(anchors, 1.0, 2.0**-12)[:, None]
        grad[changed] = grad[changed] * (2.0**12 * factor)
        grad[anchors, ::16] = 4.0  # so that the scale that fp32 gradients of a tile of rows share stays as it is
        grads += torch.autograd.grad(out, weight, grad.to(out.dtype))
    shows = torch.zeros(len(case.weight), dtype=torch.bool, device=device)
    for rows in (case.white, case.black):
        here = rows[changed]
        shows[here[((here == -1).cumsum(1) == 0) & (here < len(shows))].long()] = True
    alone = (grads[0] != 0).any(1) & ~shows
    assert alone.sum() > 500
    assert not torch.equal(grads[0][shows], grads[1][shows])
    assert torch.equal(grads[0][alone], grads[1][alone])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("outputs", [144, 1024])
def test_common_rare_and_unused_features(device: torch.device, outputs: int, dtype: torch.dtype) -> None:
    positions = 3000 if device.type == "cuda" else 300
    rows = (make_skewed_rows(positions, 3, 768), make_skewed_rows(positions, 3, 768, 1))
    case = Case(rows=rows, buckets=3, bucket_size=768, outputs=outputs, missing=5, dtype=dtype, device=device)
    check(case, "pairwise")
    grad_weight = case.run("crelu")[1]
    used = torch.cat([case.white, case.black]).unique()
    unused = torch.ones(len(case.weight), dtype=torch.bool, device=device)
    unused[used[used >= 0].long()] = False
    assert unused.any()
    assert not grad_weight[unused].any()


@pytest.mark.parametrize("max_active", [6, 40, 768])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_far_features(device: torch.device, dtype: torch.dtype, max_active: int) -> None:
    """All of a bucket's features equally frequent: half of the entries are of the features that come last, hundreds to
    tens of thousands in 64 rows; and buckets of so few rows that there are none."""
    positions = 500 if device.type == "cuda" else 60
    check(
        Case(positions, max_active, 4, 768, 272, dtype=dtype, device=device, scale=0.02, missing=3),
        "pairwise",
        tolerance=0.02,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_many_small_buckets(device: torch.device, dtype: torch.dtype) -> None:
    """A worker gets many buckets of one tile each, of one to six chunks of features, so that most of its warpgroups
    have no tile in most of them."""
    g = torch.Generator().manual_seed(3)
    buckets, positions = (90, 1500) if device.type == "cuda" else (9, 60)
    used = torch.randint(1, 500, (buckets,), generator=g)
    bucket = torch.randint(0, buckets, (positions, 1), generator=g)
    rows = (bucket * 500 + (torch.rand(positions, 20, generator=g) * used[bucket]).int()).int().sort(1).values
    rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = -1
    rows = torch.gather(rows, 1, (rows == -1).int().argsort(dim=1, stable=True))
    check(
        Case(rows=(rows, rows.flip(0)), buckets=buckets, bucket_size=500, outputs=1040, dtype=dtype, device=device),
        "crelu",
        tolerance=0.02,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_feature(device: torch.device, dtype: torch.dtype) -> None:
    """One feature of one bucket alone; and features of nearly all rows, ranked after a section of those of all rows."""
    rows = torch.full((700, 1), 3 * 768 + 767, dtype=torch.int32)
    check(Case(rows=(rows, rows), buckets=5, bucket_size=768, outputs=48, dtype=dtype, device=device), "crelu")
    rows = torch.arange(386, dtype=torch.int32).repeat(200, 1)
    rows[::7, 385] = -1
    check(
        Case(rows=(rows, rows), buckets=2, bucket_size=386, outputs=32, dtype=dtype, device=device, scale=0.02),
        "pairwise",
    )


@pytest.mark.parametrize("what", ["weight", "gradient"])
def test_non_finite_stays_visible(device: torch.device, what: str) -> None:
    case = Case(device=device)
    case.weight = case.weight.requires_grad_()
    if what == "weight":
        with torch.no_grad():
            case.weight[case.white[0, 0], 3] = float("nan")
    out = perspective_transformer(
        case.white, case.black, case.black_to_move, case.weight, case.bias, activation="pairwise", bucket_size=96
    )
    grad = torch.ones_like(out)
    if what == "gradient":
        grad[0, 0] = float("inf")
    out.backward(grad)
    assert case.weight.grad is not None
    assert not torch.isfinite(out if what == "weight" else case.weight.grad).all()


def test_gradcheck(device: torch.device) -> None:
    case = Case(6, 4, 3, 5, 6, device=device)
    weight, bias = case.weight.double().requires_grad_(), case.bias.double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda w, b: perspective_transformer(case.white, case.black, case.black_to_move, w, b, activation="pairwise"),
        (weight, bias),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "relu"}, "activation: found 'relu', expected one of identity, crelu"),
        ({"bound": 0.0}, "bound: found 0.0, expected a positive"),
        ({"weight": torch.zeros(480, 15)}, "found N = 15, expected an even N"),
        ({"num_bucketed": 481}, "num_bucketed: found 481, expected 0 to F = 480"),
    ],
)
def test_arguments(change: dict[str, object], message: str) -> None:
    case = Case()
    arguments: dict[str, Any] = {"weight": case.weight, "bias": case.bias, **change}
    with pytest.raises(ValueError, match=message):
        perspective_transformer(case.white, case.black, case.black_to_move, **arguments)


def test_illegal_index(device: torch.device) -> None:
    case = Case(device=device)
    case.black[7, 0] = 480
    with pytest.raises(RuntimeError, match="index 480 in row 7"):
        case.run("pairwise")
    case = Case(device=device, unbucketed=20)
    case.black[7, 0] = 500
    with pytest.raises(RuntimeError, match="index 500 in row 7"):
        case.run("pairwise")


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [15, 24, 64], ids=lambda n: f"N {n}")
@pytest.mark.parametrize("bucket_size", [None, 96])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_is_fused_matches_the_kernels(
    device: torch.device, dtype: torch.dtype, bucket_size: int | None, outputs: int
) -> None:
    called: list[object] = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func)
            return func(*args, **(kwargs or {}))

    case = Case(outputs=outputs, dtype=dtype, device=device)
    with Spy():
        perspective_transformer(
            case.white, case.black, case.black_to_move, case.weight, case.bias, activation="crelu",
            bucket_size=bucket_size,
        )  # fmt: skip
    fused = torch.ops.nnue._perspective_transformer_forward.default in called
    assert fused == is_fused(case.weight, bucket_size)
    assert fused != (torch.ops.nnue.feature_transformer_forward.default in called)
    if device.type == "cpu":
        assert fused == (outputs != 15 and dtype != torch.float64)


# ---- the operators themselves, on CUDA ------------------------------------------------------------------------------


@pytest.fixture(params=["auto", "portable"])
def fused(cuda: torch.device, request: pytest.FixtureRequest) -> Iterator[torch.device]:
    before = perspectives.set_cuda_kernels(request.param)
    try:
        if not is_fused(torch.empty(768, 64, device=cuda), 768):
            pytest.skip(f"no fused kernels for {torch.cuda.get_device_name()}")
        yield cuda
    finally:
        perspectives.set_cuda_kernels(before)


@pytest.mark.slow
@pytest.mark.parametrize("psqt_buckets", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("unbucketed", [0, 1000])
@pytest.mark.parametrize("activation", ["identity", "pairwise"])
def test_opcheck(
    device: torch.device, activation: Activation, unbucketed: int, dtype: torch.dtype, psqt_buckets: int
) -> None:
    case = Case(dtype=dtype, device=device, unbucketed=unbucketed)
    features = 480 + unbucketed
    if not is_fused(case.weight, 96):
        pytest.skip("no fused kernels for this device")
    plan = perspective_plan(case.white, case.black, case.black_to_move, features, 96, 480, dtype)
    psqt = torch.randn(features, psqt_buckets, device=device, requires_grad=True) if psqt_buckets else None
    psqt_bucket = torch.arange(100, device=device) % psqt_buckets if psqt_buckets else None
    batch = [case.white, case.black, plan.data, *([] if psqt_bucket is None else [psqt_bucket])]
    parameters = (case.weight.requires_grad_(), case.bias.requires_grad_(), psqt)
    transformer = [features, 64, psqt_buckets, *plan.layout, perspectives.number_of(activation), 0]
    described = (transformer, [1.0, 1.0], dtype)
    # On CUDA `plan` and `saved` have padding that nothing reads or writes: its bits are not comparable.
    comparable = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        torch.ops.nnue._perspective_plan.default,
        (case.white, case.black, case.black_to_move, features, *plan.layout),
        test_utils=comparable,
    )
    torch.library.opcheck(
        torch.ops.nnue._perspective_transformer_forward.default,
        (batch, *parameters, *described, True),
        test_utils=comparable,
    )
    out, psqt_out, saved = torch.ops.nnue._perspective_transformer_forward(batch, *parameters, *described, True)
    assert psqt_out.shape == (100 if psqt_buckets else 0,)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in batch]
        of = [None if each is None else mode.from_tensor(each) for each in parameters]
        for saved_alone in (False, True):
            rows, *_ = torch.ops.nnue._perspective_transformer_forward(
                fakes, *of, *described, True, saved_alone=saved_alone
            )
            assert rows.shape == (0 if saved_alone else len(out), out.shape[1])
    torch.library.opcheck(
        torch.ops.nnue._perspective_transformer_backward.default,
        (
            torch.randn_like(out),
            torch.randn(100, device=device) if psqt_buckets else None,
            batch,
            saved.detach(),
            *described,
        ),
    )


@pytest.mark.cuda
def test_shared_plan(fused: torch.device) -> None:
    case = Case(device=fused)
    plan = perspective_plan(case.white, case.black, case.black_to_move, 480, 96)
    arguments = (case.white, case.black, case.black_to_move, case.weight, case.bias)
    assert torch.equal(
        perspective_transformer(*arguments, bucket_size=96),
        perspective_transformer(*arguments, bucket_size=96, plan=plan),
    )
    with pytest.raises(RuntimeError, match=r"plan: found shape .* what _perspective_plan makes"):
        perspective_transformer(*arguments, bucket_size=96, plan=plan._replace(data=plan.data[:-1].clone()))


@pytest.mark.cuda
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile(fused: torch.device, dynamic: bool) -> None:
    case = Case(dtype=torch.bfloat16, device=fused)

    @torch.compile(fullgraph=True, dynamic=dynamic)
    def step(white: Tensor, black: Tensor, stm: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return perspective_transformer(white, black, stm, weight, bias, bucket_size=96) * 2

    weight, bias = case.weight.clone().requires_grad_(), case.bias.clone().requires_grad_()
    out = step(case.white, case.black, case.black_to_move, weight, bias)
    expected, grad_weight, _, grad = case.run("pairwise")
    torch.testing.assert_close(out, expected * 2)
    out.backward(grad / 2)
    torch.testing.assert_close(weight.grad, grad_weight)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("unbucketed", [0, 1000])
def test_cuda_graph(fused: torch.device, unbucketed: int, dtype: torch.dtype) -> None:
    """A captured step follows new index rows: nothing in it waits, or depends on the batch it was made with."""
    before = ops.set_index_check("off")
    case, other = (Case(500, device=fused, unbucketed=unbucketed, dtype=dtype, seed=seed) for seed in (0, 9))
    weight, bias = case.weight.clone().requires_grad_(), case.bias.clone().requires_grad_()
    grad = torch.randn(500, 64, device=fused, dtype=dtype)
    inputs = case.white.clone(), case.black.clone(), case.black_to_move.clone()

    def step() -> tuple[Tensor, ...]:
        out = perspective_transformer(*inputs, weight, bias, bucket_size=96, num_bucketed=480)
        return out, *torch.autograd.grad(out, (weight, bias), grad)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for now in (other, case):
        for target, source in zip(inputs, (now.white, now.black, now.black_to_move), strict=True):
            target.copy_(source)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))
    ops.set_index_check(before)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("unbucketed", "dtype"), [(0, torch.float32), (20_000, torch.float32), (20_000, torch.bfloat16)]
)
def test_streams(fused: torch.device, unbucketed: int, dtype: torch.dtype) -> None:
    case = Case(3000, 32, 32, 768, 256, device=fused, unbucketed=unbucketed, dtype=dtype)
    expected = case.run("pairwise")
    torch.cuda.synchronize()
    results = []
    streams = [torch.cuda.Stream() for _ in range(4)]
    for stream in streams:
        with torch.cuda.stream(stream):
            results.append(case.run("pairwise"))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for found in results for a, b in zip(expected, found, strict=True))


@pytest.mark.cuda
def test_threads(fused: torch.device) -> None:
    """Each on a separate stream: what runs beside a thread's stream is not mixed up with what is beside another's."""
    case = Case(3000, 32, 32, 768, 256, device=fused, unbucketed=20_000, dtype=torch.bfloat16)
    expected = case.run("pairwise")
    torch.cuda.synchronize()

    def work(stream: torch.cuda.Stream) -> list[tuple[Tensor, ...]]:
        with torch.cuda.stream(stream):
            found = [case.run("pairwise") for _ in range(5)]
        stream.synchronize()
        return found

    with ThreadPoolExecutor(3) as pool:
        results = pool.map(work, [torch.cuda.Stream() for _ in range(3)])
    assert all(torch.equal(a, b) for r in results for found in r for a, b in zip(expected, found, strict=True))


@pytest.mark.cuda
def test_sanitizer_forward_backward(fused: torch.device) -> None:
    """Small enough for compute-sanitizer (tools/gpu_check.sh), large enough for shared units and irregular rows."""
    rows = (make_rows(600, 12, 3, 96), make_rows(600, 12, 3, 96, 1))
    rows[0][10] = 7
    skewed = (make_skewed_rows(700, 2, 768), make_skewed_rows(700, 2, 768, 1))
    for dtype in (torch.float32, torch.bfloat16):
        for unbucketed in (0, 700):
            case = Case(
                buckets=3, rows=rows, outputs=80, dtype=dtype, device=fused, unbucketed=unbucketed, repeats=True
            )
            check(case, "pairwise", tolerance=0.1)
        check(Case(buckets=2, bucket_size=768, rows=skewed, outputs=80, dtype=dtype, device=fused), "pairwise")
    check(Case(200, 40, 40, 768, 80, dtype=torch.bfloat16, device=fused), "pairwise", tolerance=0.1)


@pytest.mark.cuda
def test_real_rows(fused: torch.device) -> None:
    """Many workers to a unit: a batch whose rows lie mostly in one bucket."""
    g = torch.Generator().manual_seed(0)
    bucket = torch.where(torch.rand(16_384, 1, generator=g) < 0.8, 29, torch.randint(0, 32, (16_384, 1), generator=g))
    rows = (bucket * 768 + torch.rand(16_384, 768, generator=g).topk(20).indices).int()
    for dtype in (torch.float32, torch.bfloat16):
        check(
            Case(
                rows=(rows, rows.flip(0)),
                buckets=32,
                bucket_size=768,
                outputs=256,
                dtype=dtype,
                device=fused,
                scale=0.05,
            ),
            "pairwise",
        )


@pytest.mark.cuda
@pytest.mark.parametrize("bucket_size", [320, 448, 512, 576, 768])
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sections_and_parts(fused: torch.device, dtype: torch.dtype, buckets: int, bucket_size: int) -> None:
    """All features of a bucket go into the product of the backward: in one section, two equal ones, or two others."""
    check(Case(6000, 24, buckets, bucket_size, 528, dtype=dtype, device=fused, scale=0.05), "pairwise")


@pytest.mark.cuda
@pytest.mark.parametrize("outputs", [16, 272])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_few_long_lists(fused: torch.device, dtype: torch.dtype, outputs: int) -> None:
    """One bucket, whose rare features have lists of more than 32 rows."""
    rows = (make_skewed_rows(8192, 1, 768), make_skewed_rows(8192, 1, 768, 1))
    check(Case(buckets=1, bucket_size=768, rows=rows, outputs=outputs, dtype=dtype, device=fused, scale=0.05), "screlu")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_million_positions(fused: torch.device, dtype: torch.dtype) -> None:
    check(Case(1_000_000, 8, 3, 16, 16, dtype=dtype, device=fused), "pairwise")
