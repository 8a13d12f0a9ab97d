"""The whole of `perspective_transformer` on every device: PSQT columns, values, and torch around it.

What is special to the kernels of one device is in test_fused_perspectives.py.
"""

import os
from operator import methodcaller
from pathlib import Path

import pytest
import torch
from cases import some
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ports import free_port
from sample_inputs import PairSample, assert_close, make_pair, reference_pair
from torch import Tensor, nn
from typed import batch_from, grad_of, present

from nnue_trainer import ops
from nnue_trainer.data.batch import Batch
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.ops.perspectives import (
    is_fused,
    number_of,
    perspective_plan,
    perspective_transformer,
    set_cuda_kernels,
)
from nnue_trainer.ops.reference import Activation

ACTIVATIONS: list[Activation] = ["identity", "crelu", "screlu", "pairwise"]


@pytest.fixture
def device(device_with_kernels: torch.device) -> torch.device:
    return device_with_kernels


# For outputs and gradients, which are rounded to the dtype.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def run(pair: PairSample, **options: object) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs, gradients of all floats, and the gradients of the outputs that gave them."""
    own = pair.requires_grad()
    result = perspective_transformer(*own.arguments, **own.options, **options)  # type: ignore[call-overload]
    outputs = list(result) if isinstance(result, tuple) else [result]
    g = torch.Generator().manual_seed(7)
    grads = [torch.randn(o.shape, generator=g).to(o.device, o.dtype) for o in outputs]
    return [o.detach() for o in outputs], list(torch.autograd.grad(outputs, own.parameters, grads)), grads


def check(
    pair: PairSample,
    activation: Activation,
    bound: float,
    scale: float,
    bucket_size: int | None = None,
    num_bucketed: int | None = None,
) -> None:
    outputs, gradients, grads = run(
        pair, activation=activation, bound=bound, scale=scale, bucket_size=bucket_size, num_bucketed=num_bucketed
    )
    out, psqt, wide = reference_pair(pair, activation, bound, scale)
    expected = [out] if psqt is None else [out, psqt]
    by_hand = torch.autograd.grad(expected, wide.parameters, [g.double() for g in grads], retain_graph=True)
    magnitudes = torch.autograd.grad(expected, wide.parameters, [g.double().abs() for g in grads])
    for name, found, wanted in zip(("output", "psqt output"), outputs, expected, strict=False):
        assert_close(found, wanted, TOLERANCE[found.dtype], name)
    least = max(float(torch.cat([g.double().flatten() for g in grads]).norm()), 1e-30)  # psqt is a difference itself
    for i, (found, wanted, terms) in enumerate(zip(gradients, by_hand, magnitudes, strict=True)):
        tolerance = TOLERANCE[found.dtype]
        if (
            pair.weight.is_cuda
            and is_fused(pair.weight, bucket_size, num_bucketed)
            and pair.weight.dtype != torch.float32
        ):
            tolerance = max(tolerance, 8e-3)  # row gradients are rounded to bf16
        assert_close(found, wanted, tolerance, f"gradient {i}", max(float(terms.norm()) / 8, least))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    positions=st.integers(0, 300),
    max_active=st.integers(0, 40),
    features=st.integers(1, 900),
    outputs=st.one_of(st.integers(1, 24).map(lambda n: 8 * n), st.sampled_from([1, 2, 6, 33, 520])),
    psqt_buckets=st.sampled_from([0, 0, 1, 3, 8, 33]),
    values=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    activation=st.sampled_from(ACTIVATIONS),
    bound=st.sampled_from([1.0, 0.5, 15 / 16]),
    scale=st.sampled_from([1.0, 127 / 128]),
    bucket_size=st.sampled_from([None, 1000, 64, 768]),
    unbucketed=st.sampled_from([0, 0, 1, 2]),
    seed=st.integers(0, 99),
)
@example(  # a bias gradient of which little is left
    positions=245, max_active=0, features=1, outputs=1, psqt_buckets=0, values=False, dtype=torch.float32,
    activation="identity", bound=1.0, scale=1.0, bucket_size=None, unbucketed=0, seed=0,
)  # fmt: skip
@example(  # one feature, many times in every row
    positions=97, max_active=11, features=1, outputs=6, psqt_buckets=0, values=False, dtype=torch.float32,
    activation="identity", bound=1.0, scale=1.0, bucket_size=None, unbucketed=0, seed=0,
)  # fmt: skip
def test_float64(
    device: torch.device,
    positions: int,
    max_active: int,
    features: int,
    outputs: int,
    psqt_buckets: int,
    values: bool,
    dtype: torch.dtype,
    activation: Activation,
    bound: float,
    scale: float,
    bucket_size: int | None,
    unbucketed: int,
    seed: int,
) -> None:
    """Any shape, with duplicates, empty and full rows, and sums exactly on the ends of the clip."""
    outputs += outputs % 2 if activation == "pairwise" else 0
    pair = make_pair(
        positions,
        max_active,
        features,
        outputs,
        psqt_buckets=psqt_buckets,
        values=values,
        dtype=dtype,
        device=device,
        seed=seed,
    )
    if dtype == torch.float64:
        pair = pair.double()
    check(pair, activation, bound, scale, bucket_size, features * (2 - unbucketed) // 2)


def test_samples_hit_the_ends_of_the_clip() -> None:
    """The samples have the ties that test_float64 assumes."""
    out, _, _ = reference_pair(make_pair(200, 9, 50, 64), "identity", 1.0, 1.0)
    assert (out == 0).sum() > 100
    assert (out == 0.5).sum() > 100


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("values", [False, True], ids=["ones", "values"])
def test_gradcheck(device: torch.device, values: bool, activation: Activation) -> None:
    pair = make_pair(6, 5, 12, 6, psqt_buckets=3, values=values, device=device).double()
    own = pair.map(lambda t: t + torch.rand_like(t) / 8 if t.is_floating_point() else t).requires_grad()
    floats = own.parameters

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        given_by = {id(old): new for old, new in zip(floats, inputs, strict=True)}
        now = own.map(lambda t: given_by.get(id(t), t))
        return perspective_transformer(*now.arguments, **now.options, activation=activation)

    assert torch.autograd.gradcheck(function, floats)


@pytest.mark.parametrize("bucket_size", [None, 50], ids=["plain", "fused"])
def test_either_output_alone(device: torch.device, bucket_size: int | None) -> None:
    """A loss that reads one of the two outputs, and a psqt that is not trained."""
    pair = make_pair(psqt_buckets=4, outputs=48, device=device)
    _, full, grads = run(pair, bucket_size=bucket_size)
    for which in (0, 1):
        own = pair.requires_grad()
        result = perspective_transformer(*own.arguments, **own.options, bucket_size=bucket_size)
        result[which].backward(grads[which])
        weight, bias, psqt = (own.parameters[i].grad for i in range(3))
        if which == 0:
            assert torch.equal(present(weight), full[0])
            assert torch.equal(present(bias), full[1])
            assert psqt is None or not psqt.any()
        else:
            assert torch.equal(present(psqt), full[2])
            assert weight is None or not weight.any()
    frozen = pair.requires_grad()
    assert frozen.psqt is not None
    frozen.psqt.requires_grad_(False)
    outputs = perspective_transformer(*frozen.arguments, **frozen.options, bucket_size=bucket_size)
    torch.autograd.backward(outputs[0], grads[0])
    assert frozen.psqt.grad is None
    assert torch.equal(grad_of(frozen.weight), full[0])
    with torch.no_grad():
        for a, b in zip(outputs, perspective_transformer(*frozen.arguments, **frozen.options), strict=True):
            torch.testing.assert_close(a, b)


def test_psqt_gradient_of_every_size(device: torch.device) -> None:
    """A gradient of 1e-6 beside one of 1 keeps fp32's precision; so do gradients that are all tiny or all huge."""
    pair = make_pair(3000, 20, 200, 16, psqt_buckets=8, device=device)
    g = torch.Generator().manual_seed(2)
    grad = (torch.randn(3000, generator=g) * 10 ** (-6 * torch.rand(3000, generator=g))).to(device)
    assert pair.psqt_bucket is not None
    grad[pair.psqt_bucket != 3] *= 1e-6 / grad[pair.psqt_bucket != 3].abs().max()
    for scale in (1.0, 1e-30, 1e30):
        own = pair.requires_grad()
        perspective_transformer(*own.arguments, **own.options, bucket_size=200)[1].backward(grad * scale)
        _, psqt, wide = reference_pair(pair, "pairwise", 1.0, 1.0)
        assert psqt is not None
        assert wide.psqt is not None
        psqt.backward((grad * scale).double())
        assert own.psqt is not None
        for bucket in (2, 3):
            assert_close(grad_of(own.psqt)[:, bucket], grad_of(wide.psqt)[:, bucket], 1e-6, f"bucket {bucket}, {scale}")


def test_psqt_gradient_that_is_not_finite_stays_visible(device: torch.device) -> None:
    for bad in (float("inf"), float("nan")):
        own = make_pair(psqt_buckets=4, outputs=16, device=device).requires_grad()
        out = perspective_transformer(*own.arguments, **own.options, bucket_size=50)[1]
        grad = torch.ones_like(out)
        grad[1] = bad  # row 1 is full
        out.backward(grad)
        assert own.psqt is not None
        assert not torch.isfinite(grad_of(own.psqt)).all()


# ---- errors -----------------------------------------------------------------------------------------------------


def test_psqt_and_psqt_bucket_come_together() -> None:
    pair = make_pair(psqt_buckets=4)
    for left_out in ("psqt", "psqt_bucket"):
        options = {**pair.options, left_out: None}
        with pytest.raises(ValueError, match=f"perspective_transformer: {left_out}: found none, expected a tensor"):
            perspective_transformer(*pair.arguments, **options)
    with pytest.raises(RuntimeError, match="psqt_bucket: found none, expected a tensor, since there is psqt"):
        torch.ops.nnue._perspective_transformer_forward(
            list(pair.arguments[:3]),
            pair.weight,
            pair.bias,
            pair.psqt,
            [*pair.weight.shape, 4, 768, 50, 4, number_of("identity"), 0],
            [1.0, 1.0],
            torch.float32,
            False,
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {"psqt_bucket": t["psqt_bucket"].int()}, "psqt_bucket: found int32, expected int64"),
        (
            lambda t: {"psqt_bucket": t["psqt_bucket"][1:]},
            r"psqt_bucket: found shape \[36\], expected shape \[B\] = \[37\]",
        ),
        (lambda t: {"psqt": t["psqt"][1:]}, r"psqt: found shape \[49, 4\], expected shape \[F, P\] = \[50, any\]"),
        (lambda t: {"psqt": t["psqt"].half()}, "psqt: found float16, expected float32"),
    ],
)
def test_psqt_errors(device: torch.device, change: object, message: str) -> None:
    pair = make_pair(psqt_buckets=4, outputs=48, device=device)
    if not is_fused(pair.weight, 50):
        pytest.skip("no fused kernels for this device")
    options = {**pair.options, **change(pair.options)}  # type: ignore[operator]
    with pytest.raises(RuntimeError, match=f"^nnue::_perspective_transformer_forward: {message}"):
        perspective_transformer(*pair.arguments, **options, bucket_size=50)


def test_choice_of_kernels() -> None:
    before = set_cuda_kernels("portable")
    try:
        assert set_cuda_kernels("none") == "portable"
        with pytest.raises(ValueError, match="set_cuda_kernels: found 'hopper', expected one of auto, portable, none"):
            set_cuda_kernels("hopper")  # type: ignore[arg-type]
        assert set_cuda_kernels("auto") == "none"
    finally:
        set_cuda_kernels(before)


@pytest.mark.cuda
def test_choice_of_kernels_on_cuda(cuda: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    """A plan keeps the kernels that it was made for; what is not fused is reported once."""
    pair = make_pair(outputs=48, device=cuda)
    given = dict(zip(("white", "black", "black_to_move"), pair.rows, strict=True))
    rest = dict.fromkeys(("counts", "score", "result", "piece_count", "material"), given["white"][:, 0])
    batch = batch_from(given | rest)
    module = PerspectiveTransformer(len(pair.weight), 48, "crelu", bucket_size=50).to(cuda)
    own, before = module.plan(batch), set_cuda_kernels("portable")
    try:
        portable = module.plan(batch)
        assert own is not None
        assert portable is not None
        assert portable.kernels == "portable"
        expected = perspective_transformer(*pair.arguments, bucket_size=50, plan=own)
        set_cuda_kernels("auto")
        found = perspective_transformer(*pair.arguments, bucket_size=50, plan=portable)
        torch.testing.assert_close(found, expected)
        set_cuda_kernels("none")
        assert not is_fused(pair.weight, 50)
        assert module.plan(batch) is None
        assert module.plan(batch) is None
        assert caplog.text.count("is not fused on") <= 1  # an earlier test may have heard it
    finally:
        set_cuda_kernels(before)


@pytest.mark.parametrize("bad", [-1, 4, 2**40])
def test_illegal_psqt_bucket(device: torch.device, bad: int) -> None:
    pair = make_pair(psqt_buckets=4, outputs=48, device=device)
    if not is_fused(pair.weight, 50):
        pytest.skip("no fused kernels for this device")
    assert pair.psqt_bucket is not None
    pair.psqt_bucket[9] = bad
    message = r"psqt_bucket: found bucket -?\d+ in row 9, expected 0 <= bucket < 4"
    with pytest.raises(RuntimeError, match=message):
        perspective_transformer(*pair.arguments, **pair.options, bucket_size=50)


@pytest.mark.parametrize("values", [False, True])
def test_int64_rows_are_converted(device: torch.device, values: bool) -> None:
    """Fused or not. A plan is made of int32 rows, as calls with the plan compare them with its own."""
    pair = make_pair(psqt_buckets=4, outputs=48, values=values, device=device)
    white, black, black_to_move, weight, bias = pair.arguments
    wide = (white.long(), black.long(), black_to_move, weight, bias)
    assert all(map(torch.equal, perspective_transformer(*wide, **pair.options), run(pair, activation="pairwise")[0]))
    wide[1][3, 0] = 2**32 + 1
    with pytest.raises(RuntimeError, match=r"indices: found index 4294967297 in row 3, expected"):
        perspective_transformer(*wide, **pair.options)
    with pytest.raises(RuntimeError, match=r"found int64, expected int32; nnue_trainer.ops.index_rows converts"):
        perspective_plan(*wide[:3], len(pair.weight))


def test_plan_of_another_batch(device: torch.device) -> None:
    pair = make_pair(outputs=48, device=device)
    if not is_fused(pair.weight, 50):
        pytest.skip("no fused kernels for this device")
    features = len(pair.weight)
    plan = perspective_plan(*pair.rows, features, 50)
    expected = perspective_transformer(*pair.arguments, bucket_size=50)
    assert torch.equal(perspective_transformer(*pair.arguments, bucket_size=50, plan=plan), expected)
    for i, name in enumerate(("white", "black", "black_to_move")):
        other = list(pair.arguments)
        other[i] = other[i].clone()  # as large as that of the plan
        with pytest.raises(ValueError, match=f"plan: found the plan of another tensor `{name}`"):
            perspective_transformer(*other, bucket_size=50, plan=plan)
    module = PerspectiveTransformer(features, 48, "pairwise", bucket_size=50).to(device)
    for name, changed in zip(("black", "black_to_move"), pair.rows[1:], strict=True):
        rows = tuple(tensor.clone() if tensor is changed else tensor for tensor in pair.rows)
        with pytest.raises(ValueError, match=f"plan: found the plan of another tensor `{name}`"):
            module(*rows, plans=(plan,))
    with pytest.raises(ValueError, match="plan: found a plan for bucket_size = 50, expected 25"):
        perspective_transformer(*pair.arguments, bucket_size=25, plan=plan)
    with pytest.raises(ValueError, match=f"plan: found a plan for num_bucketed = {features}, expected 0"):
        perspective_transformer(*pair.arguments, bucket_size=50, num_bucketed=0, plan=plan)
    wider = torch.cat([pair.weight, pair.weight])
    with pytest.raises(ValueError, match=f"plan: found a plan for num_features = {features}"):
        perspective_transformer(*pair.rows, wider, pair.bias, bucket_size=50, num_bucketed=features, plan=plan)
    half = pair.weight.half()
    with pytest.raises(ValueError, match=r"found a plan for weight_dtype = torch.float32, expected torch.float16"):
        perspective_transformer(*pair.rows, half, pair.bias, bucket_size=50, plan=plan)
    with pytest.raises(RuntimeError, match=r"plan: found shape .* what _perspective_plan makes"):
        perspective_transformer(*pair.arguments, bucket_size=50, plan=plan._replace(data=plan.data[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_plan_in_a_compiled_function(dynamic: bool) -> None:
    pair = make_pair(outputs=48)

    @torch.compile(fullgraph=True, dynamic=dynamic)
    def twice(white: Tensor, black: Tensor, black_to_move: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        plan = perspective_plan(white, black, black_to_move, weight.shape[0], 50)
        one, other = (
            perspective_transformer(white, black, black_to_move, w, bias, bucket_size=50, plan=plan)
            for w in (weight, weight * 2)
        )
        return one + other

    one, other = (
        perspective_transformer(*pair.rows, w, pair.bias, bucket_size=50) for w in (pair.weight, pair.weight * 2)
    )
    assert torch.equal(twice(*pair.arguments), one + other)


@pytest.mark.cuda
def test_more_outputs_than_the_grid_holds(cuda: torch.device) -> None:
    weight = torch.zeros(1, 65536 * 32, device=cuda)
    with pytest.raises(RuntimeError, match="weight: found N = 2097152, expected N <= 2097120 on CUDA"):
        ops.feature_transformer_forward(torch.zeros(1, 1, dtype=torch.int32, device=cuda), weight, weight[0])


@pytest.mark.parametrize("max_active", [0, 5])
def test_no_positions(device: torch.device, max_active: int) -> None:
    """Gradients of zeros, whatever lies in the memory they are given."""
    pair = make_pair(0, max_active, 300, 48, psqt_buckets=8, device=device)
    for _ in range(3):
        outputs, gradients, _ = run(pair, bucket_size=100)
        assert [o.numel() for o in outputs] == [0, 0]
        assert [g.shape for g in gradients] == [p.shape for p in pair.parameters]
        assert not any(g.any() for g in gradients)
        for g in gradients:
            g.fill_(float("nan"))  # comes back from the allocator


# ---- sizes ------------------------------------------------------------------------------------------------------


def test_a_million_positions(device: torch.device) -> None:
    small = make_pair(1000, 3, 60, 16, psqt_buckets=3, device=device)
    large = small.map(lambda t: t.repeat(1000, *(1,) * (t.dim() - 1)) if len(t) == 1000 else t)
    few, few_grads, grads = run(small, bucket_size=60)
    own = large.requires_grad()
    many = perspective_transformer(*own.arguments, **own.options, bucket_size=60)
    for a, b, grad in zip(few, many, grads, strict=True):
        assert torch.equal(b.view(1000, *a.shape), a.expand(1000, *a.shape))
        b.backward(grad.repeat(1000, *(1,) * (grad.dim() - 1)), retain_graph=True)
    for found, one in zip(map(grad_of, (own.weight, own.bias, own.psqt)), few_grads, strict=True):
        assert_close(found / 1000, one.double(), 1e-4, "gradient")


@pytest.mark.cuda
def test_more_than_2_31_sums(cuda: torch.device) -> None:
    """Accumulators of a batch that are more than 32-bit offsets reach: 2^20 positions, N 1024."""
    if torch.cuda.mem_get_info(cuda)[0] < 40 << 30:
        pytest.skip("needs 40 GB")
    # No duplicates: of such rows each one's share of a 16-bit gradient is rounded.
    small = make_pair(1024, 1, 60, 1024, psqt_buckets=3, dtype=torch.bfloat16, device=cuda)
    large = small.map(lambda t: t.repeat(1024, *(1,) * (t.dim() - 1)) if len(t) == 1024 and t.dim() != 1 else t)
    large = PairSample(
        large.white, large.black, small.black_to_move.repeat(1024), small.weight, small.bias, small.psqt,
        present(small.psqt_bucket).repeat(1024), None, None,
    )  # fmt: skip
    few, few_grads, grads = run(small, bucket_size=60)
    own = large.requires_grad()
    many = perspective_transformer(*own.arguments, **own.options, bucket_size=60)
    for a, b, grad in zip(few, many, grads, strict=True):
        assert torch.equal(b.view(1024, *a.shape), a.expand(1024, *a.shape))
        b.backward(grad.repeat(1024, *(1,) * (grad.dim() - 1)), retain_graph=True)
    for found, one in zip(map(grad_of, (own.weight, own.bias, own.psqt)), few_grads, strict=True):
        assert_close(found.float() / 1024, one.double(), 1e-2, "gradient")


# ---- a citizen of torch -----------------------------------------------------------------------------------------


def test_cpu_is_the_same_for_any_thread_count() -> None:
    pair = make_pair(3000, 32, 500, 200, psqt_buckets=8)
    pair = pair.map(lambda t: t + torch.rand_like(t) if t.is_floating_point() else t)
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        outputs, gradients, _ = run(pair)
        results.append([*outputs, *gradients])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("values", [False, True], ids=["fused", "values"])
@pytest.mark.parametrize("dynamic", some([True, False], every=2), ids=["dynamic", "static"])
def test_compile(device: torch.device, dynamic: bool, values: bool) -> None:
    @torch.compile(fullgraph=True, dynamic=dynamic)
    def step(own: PairSample) -> Tensor:
        activated, psqt = perspective_transformer(*own.arguments, **own.options, bucket_size=50)
        return activated.square().sum(1) + psqt * 3

    for positions in (37, 52) if dynamic else (37,):
        pair = make_pair(positions, outputs=48, psqt_buckets=4, values=values, device=device)
        eager, compiled = pair.requires_grad(), pair.requires_grad()
        activated, psqt = perspective_transformer(*eager.arguments, **eager.options, bucket_size=50)
        expected = activated.square().sum(1) + psqt * 3
        found = step(compiled)
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        for a, b in zip(compiled.parameters, eager.parameters, strict=True):
            torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("values", [False, True], ids=["fused", "values"])
def test_autocast_changes_nothing(device: torch.device, values: bool, dtype: torch.dtype) -> None:
    pair = make_pair(outputs=48, psqt_buckets=4, values=values, dtype=dtype, device=device)
    without = run(pair, bucket_size=50)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        within = run(pair, bucket_size=50)
    for a, b in zip([*without[0], *without[1]], [*within[0], *within[1]], strict=True):
        assert torch.equal(a, b)


@pytest.mark.cuda
def test_rows_that_are_known_to_be_legal_are_not_checked(cuda: torch.device) -> None:
    rows = torch.arange(50, dtype=torch.int32, device=cuda)[:, None].contiguous()
    black_to_move = torch.zeros(50, dtype=torch.uint8, device=cuda)
    illegal = rows.clone()
    illegal[3, 0] = 300
    with pytest.raises(RuntimeError, match="row 3"):
        perspective_plan(illegal, rows, black_to_move, 300)
    perspective_plan(illegal, rows, black_to_move, 300, check_indices=False)


@pytest.mark.cuda
def test_cuda_graph_follows_its_inputs(cuda: torch.device) -> None:
    before = ops.set_index_check("off")
    pair, other = (make_pair(500, 20, 300, 48, psqt_buckets=8, device=cuda, seed=seed) for seed in (0, 9))
    static = pair.requires_grad()
    grads = [torch.randn(500, 48, device=cuda), torch.randn(500, device=cuda)]

    def step() -> tuple[Tensor, ...]:
        outputs = perspective_transformer(*static.arguments, **static.options, bucket_size=300)
        return *outputs, *torch.autograd.grad(outputs, static.parameters, grads)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for now in (other, pair):
        with torch.no_grad():
            for target, source in zip(static.tensors, now.tensors, strict=True):
                target.copy_(source)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))
    ops.set_index_check(before)


@pytest.mark.cuda
def test_streams_give_equal_bits(cuda: torch.device) -> None:
    """Results do not depend on the schedule; nor do the integer atomics of the PSQT gradient."""
    pair = make_pair(4000, 32, 700, 256, psqt_buckets=8, device=cuda)
    pair = pair.map(lambda t: t + torch.rand_like(t) if t.is_floating_point() else t)
    expected = run(pair, bucket_size=700)
    torch.cuda.synchronize()
    results = []
    for stream in [torch.cuda.Stream() for _ in range(4)]:
        with torch.cuda.stream(stream):
            results.append(run(pair, bucket_size=700))
    torch.cuda.synchronize()
    for found in results:
        for these, others in zip(expected, found, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(these, others, strict=True))


@pytest.mark.cuda
@pytest.mark.two_gpus
def test_every_device(cuda: torch.device) -> None:
    """Tensors of a device that is not the current one, and work on two devices at once."""
    pair = make_pair(500, 20, 300, 64, psqt_buckets=8)
    expected = run(pair.map(lambda t: t.to("cuda:0")), bucket_size=300)
    results = []
    for device in ("cuda:0", "cuda:1"):
        there = pair.map(methodcaller("to", device))
        assert is_fused(there.weight, 300)
        results.append(run(there, bucket_size=300))
        assert all(t.device == torch.device(device) for t in results[-1][0])
    assert torch.cuda.current_device() == 0
    for found in results:
        for these, others in zip(expected, found, strict=True):
            assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(these, others, strict=True))
    there = pair.map(lambda t: t.to("cuda:1"))
    with pytest.raises(RuntimeError, match="weight: found a tensor on cuda:0, expected one on cuda:1"):
        perspective_transformer(*there.rows, pair.weight.to("cuda:0"), there.bias, bucket_size=300)
    there.black[3, 0] = 300
    with pytest.raises(RuntimeError, match="index 300 in row 3"):
        run(there, bucket_size=300)


def test_a_parametrized_weight() -> None:
    """torch.nn.utils puts a property in the place of the parameter, so it is not among `_parameters`."""

    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    pair = make_pair(9, 5, 30, 16)
    rows = (pair.white, pair.black, pair.black_to_move)
    layer, doubled = (PerspectiveTransformer(30, 16, "pairwise") for _ in range(2))
    doubled.load_state_dict({name: value.clone() for name, value in layer.state_dict().items()})
    torch.nn.utils.parametrize.register_parametrization(doubled, "weight", Doubled())
    with torch.no_grad():
        layer.weight.mul_(2)
    assert torch.equal(doubled(*rows)[0], layer(*rows)[0])
    doubled(*rows)[0].sum().backward()
    assert doubled.get_parameter("parametrizations.weight.original").grad is not None


# ---- several processes ------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A feature transformer with PSQT, and one layer behind it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.transformer = PerspectiveTransformer(features, 32, "pairwise", psqt_buckets=4, bucket_size=features)
        self.layer = nn.Linear(32, 1)
        with torch.no_grad():
            self.transformer.bias.add_(0.3)

    def forward(self, batch: Batch, bucket: Tensor) -> Tensor:
        activated, psqt = self.transformer.of_batch(batch, bucket)
        assert psqt is not None
        out: Tensor = self.layer(activated).squeeze(1) + psqt
        return out


def loss_of(net: nn.Module, pair: PairSample, begin: int, end: int) -> Tensor:
    now = slice(begin, end)
    rest = dict.fromkeys(("counts", "score", "result", "piece_count", "material"), torch.zeros(end - begin))
    rows = {"white": pair.white[now], "black": pair.black[now], "black_to_move": pair.black_to_move[now]}
    batch = batch_from(rest | rows)
    assert pair.psqt_bucket is not None
    out: Tensor = net(batch, pair.psqt_bucket[now])
    return (out - 0.5).square().mean()


def train_in_parallel(rank: int, backend: str, port: int, folder: str) -> None:
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    device = torch.device("cpu" if backend == "gloo" else f"cuda:{rank}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=2)
    try:
        pair = make_pair(120, 9, 80, 32, psqt_buckets=4, device=device)
        net = nn.parallel.DistributedDataParallel(Net(80).to(device))
        loss_of(net, pair, 60 * rank, 60 * rank + 60).backward()
        torch.save([p.grad.cpu() for p in net.parameters() if p.grad is not None], Path(folder) / str(rank))
    finally:
        dist.destroy_process_group()
    # Without destructors: once, gloo's thread waited for the interpreter's lock, which the destructor of the group that
    # `net` keeps held while it waited for that thread (torch 2.13).
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=[pytest.mark.cuda, pytest.mark.two_gpus])])
def test_distributed_data_parallel(backend: str, tmp_path: Path) -> None:
    """Two processes with half the batch each have the gradients of the whole batch, and equal ones."""
    torch.multiprocessing.spawn(train_in_parallel, (backend, free_port(), str(tmp_path)), nprocs=2)
    net = Net(80)
    loss_of(net, make_pair(120, 9, 80, 32, psqt_buckets=4), 0, 120).backward()
    found = [torch.load(tmp_path / str(rank), weights_only=True) for rank in range(2)]
    for a, b, parameter in zip(*found, net.parameters(), strict=True):
        assert torch.equal(a, b)
        assert parameter.grad is not None
        assert parameter.grad.any()
        assert_close(a, parameter.grad.double(), 2e-6, "gradient")
