"""The feature transformer against a float64 reference: values, gradients, edges of the contract, errors."""

import pytest
import torch
from sample_inputs import Sample, make_sample, reference_backward, reference_forward
from typed import present

from nnue_trainer import FeatureTransformer, ops
from nnue_trainer.ops import functional

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# One rounding to the dtype, of sums whose own error is that of float32 (float64).
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14, torch.float16: 1e-3, torch.bfloat16: 8e-3}
# Alignments of N: whole slabs, whole vectors, 16 bytes, odd; B and K from nothing to more than a block.
SHAPES = [
    (37, 9, 50, 64),
    (37, 9, 50, 40),
    (300, 33, 700, 136),
    (5, 3, 7, 1),
    (17, 70, 90, 33),
    (1, 1, 1, 260),
    (0, 4, 10, 16),
    (6, 0, 10, 16),
    (6, 4, 0, 16),
    (6, 4, 10, 0),
]


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    scale = expected.abs().max().item() if expected.numel() else 1.0
    torch.testing.assert_close(
        actual.double(), expected, rtol=TOLERANCE[dtype], atol=4 * TOLERANCE[dtype] * max(scale, 1)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("values", [False, True], ids=["ones", "values"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(device: torch.device, shape: tuple[int, ...], values: bool, dtype: torch.dtype) -> None:
    sample = make_sample(*shape, values=values, dtype=dtype, device=device)
    out = ops.feature_transformer_forward(sample.indices, sample.weight, sample.bias, sample.values)
    assert out.dtype == dtype
    assert out.device.type == device.type
    assert out.shape == (shape[0], shape[3])
    assert_near(out, reference_forward(sample), dtype)


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("values", [False, True], ids=["ones", "values"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward(
    device: torch.device, shape: tuple[int, ...], values: bool, dtype: torch.dtype, deterministic: bool
) -> None:
    sample = make_sample(*shape, values=values, dtype=dtype, device=device)
    grad_output = torch.randn(shape[0], shape[3], generator=torch.Generator().manual_seed(1)).to(device, dtype)
    grad_output[: shape[0] // 4] = 0  # kernels may skip zero gradients
    weight, bias, by_value = reference_backward(sample, grad_output)
    grads = ops.feature_transformer_backward(
        grad_output, sample.indices, shape[2], sample.values, sample.weight,
        needs_values_grad=values, deterministic=deterministic,
    )  # fmt: skip
    assert grads[0] is not None
    assert grads[1] is not None
    assert grads[0].dtype == grads[1].dtype == dtype
    assert_near(grads[0], weight, dtype)
    assert_near(grads[1], bias, dtype)
    if values:
        assert grads[2] is not None
        assert grads[2].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert_near(grads[2], by_value, dtype)
    else:
        assert grads[2] is None


def test_backward_computes_only_what_is_asked(device: torch.device) -> None:
    sample = make_sample(values=True, device=device)
    grad_output = torch.randn(37, 40, device=device)
    full = ops.feature_transformer_backward(
        grad_output, sample.indices, 50, sample.values, sample.weight, needs_values_grad=True
    )
    for asked in range(3):
        needs = {f"needs_{name}_grad": i == asked for i, name in enumerate(("weight", "bias", "values"))}
        some = ops.feature_transformer_backward(grad_output, sample.indices, 50, sample.values, sample.weight, **needs)
        assert [grad is not None for grad in some] == [i == asked for i in range(3)]
        torch.testing.assert_close(some[asked], full[asked])


def test_hot_features(device: torch.device) -> None:
    """One feature in every row, twice: lists of thousands of rows, duplicates in a row."""
    indices = torch.full((5000, 4), -1, dtype=torch.int32, device=device)
    indices[:, :2] = 3
    indices[::3, 2] = 1
    sample = Sample(indices, None, torch.randn(5, 48, device=device), torch.randn(48, device=device))
    grad_output = torch.randn(5000, 48, device=device)
    for deterministic in (False, True):
        grad, _, _ = ops.feature_transformer_backward(grad_output, indices, 5, deterministic=deterministic)
        assert grad is not None
        torch.testing.assert_close(grad.double(), reference_backward(sample, grad_output)[0], rtol=1e-4, atol=2e-3)
    assert_near(
        ops.feature_transformer_forward(*(indices, sample.weight, sample.bias)),
        reference_forward(sample),
        torch.float32,
    )


def test_non_contiguous_inputs(device: torch.device) -> None:
    sample = make_sample(values=True, device=device)

    def strided(tensor: torch.Tensor) -> torch.Tensor:
        wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] * 2, dtype=tensor.dtype, device=device)
        wide[..., ::2] = tensor
        return wide[..., ::2]

    bent = Sample(*(strided(t) for t in sample.arguments if t is not None))
    assert not any(t.is_contiguous() for t in bent.arguments if t is not None)
    torch.testing.assert_close(
        torch.ops.nnue.feature_transformer_forward(*bent.arguments),
        torch.ops.nnue.feature_transformer_forward(*sample.arguments),
        rtol=0,
        atol=0,
    )
    grad_output = torch.randn(40, 37, device=device).t()
    for a, b in zip(
        torch.ops.nnue.feature_transformer_backward(
            grad_output, bent.indices, bent.values, bent.weight, 50, [True, True, True], True
        ),
        torch.ops.nnue.feature_transformer_backward(
            grad_output.contiguous(), *sample.arguments[:3], 50, [True, True, True], True
        ),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_misaligned_storage(device: torch.device) -> None:
    """Contiguous tensors that start off a 16-byte boundary."""
    sample = make_sample(outputs=64, device=device)

    def shifted(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)

    weight, bias = shifted(sample.weight), shifted(sample.bias)
    assert weight.data_ptr() % 16
    out = ops.feature_transformer_forward(shifted(sample.indices), weight, bias)
    assert_near(out, reference_forward(sample), torch.float32)
    grad_output = shifted(torch.randn(37, 64, device=device))
    grad, _, _ = ops.feature_transformer_backward(grad_output, shifted(sample.indices), 50)
    assert grad is not None
    assert_near(grad, reference_backward(sample, grad_output)[0], torch.float32)


@pytest.mark.parametrize("bad", [50, 2**31 - 1, -2, -(2**31)])
def test_illegal_index_names_row_and_value(device: torch.device, bad: int) -> None:
    sample = make_sample(device=device)
    sample.indices[1, 4] = bad  # row 1 is full
    expected = rf"found index {bad} in row 1, expected -1 \(end of row\) or 0 <= index < 50"
    with pytest.raises(RuntimeError, match=rf"nnue::feature_transformer_forward: indices: {expected}"):
        ops.feature_transformer_forward(sample.indices, sample.weight, sample.bias)
    with pytest.raises(RuntimeError, match=rf"nnue::feature_transformer_backward: indices: {expected}"):
        ops.feature_transformer_backward(torch.zeros(37, 40, device=device), sample.indices, 50)
    sample.indices[1, 3] = -1  # the row now ends before it
    ops.feature_transformer_forward(sample.indices, sample.weight, sample.bias)
    if device.type == "cuda":
        ops.raise_index_errors()


def test_any_index_is_illegal_without_features(device: torch.device) -> None:
    indices = torch.tensor([[-1], [0]], dtype=torch.int32, device=device)
    with pytest.raises(RuntimeError, match="found index 0 in row 1"):
        ops.feature_transformer_forward(indices, torch.zeros(0, 8, device=device), torch.zeros(8, device=device))


def _wrong(name: str, sample: Sample) -> Sample:
    i, v, w, b = sample.arguments
    assert v is not None
    return {
        "indices: found int64, expected int32": lambda: Sample(i.long(), v, w, b),
        r"indices: found shape \[333\], expected shape \[B, K\]": lambda: Sample(i.flatten(), v, w, b),
        r"values: found shape \[37, 3\], expected shape \[B, K\] = \[37, 9\]": lambda: Sample(i, v[:, :3], w, b),
        "values: found float64, expected float32": lambda: Sample(i, v.double(), w, b),
        "weight: found int32, expected float32 or float64 or": lambda: Sample(i, v, w.int(), b),
        r"weight: found shape \[2000\], expected shape \[F, N\]": lambda: Sample(i, v, w.flatten(), b),
        r"bias: found shape \[39\], expected shape \[N\] = \[40\]": lambda: Sample(i, v, w, b[1:]),
        "bias: found float64, expected float32": lambda: Sample(i, v, w, b.double()),
    }[name]()


FORWARD_ERRORS = [
    "indices: found int64, expected int32",
    r"indices: found shape \[333\], expected shape \[B, K\]",
    r"values: found shape \[37, 3\], expected shape \[B, K\] = \[37, 9\]",
    "values: found float64, expected float32",
    "weight: found int32, expected float32 or float64 or",
    r"weight: found shape \[2000\], expected shape \[F, N\]",
    r"bias: found shape \[39\], expected shape \[N\] = \[40\]",
    "bias: found float64, expected float32",
]


@pytest.mark.parametrize("error", FORWARD_ERRORS)
def test_forward_argument_errors(device: torch.device, error: str) -> None:
    wrong = _wrong(error, make_sample(values=True, device=device))
    with pytest.raises(RuntimeError, match=f"^nnue::feature_transformer_forward: {error}"):
        torch.ops.nnue.feature_transformer_forward(*wrong.arguments)


def test_backward_argument_errors(device: torch.device) -> None:
    sample = make_sample(values=True, device=device)
    i, v, w = sample.indices, sample.values, sample.weight
    grad = torch.zeros(37, 40, device=device)
    cases = [
        ((grad[:5], i, v, w, 50), r"grad_output: found shape \[5, 40\], expected shape \[B, N\] = \[37, any\]"),
        ((grad.int(), i, v, w, 50), "grad_output: found int32, expected float32 or"),
        ((grad, i, v, w, 51), r"weight: found shape \[50, 40\], expected shape \[F, N\] = \[51, 40\]"),
        ((grad, i, v, w.double(), 50), "weight: found float64, expected float32"),
        ((grad, i, None, w, 50, [True, True, True]), "values: found none, expected a tensor"),
        ((grad, i, v, None, 50, [True, True, True]), "weight: found none, expected a tensor"),
        ((grad, i, v, w, 50, [True, True]), "needs: found 2 flags, expected weight, bias and values"),
        ((grad, i, v, w, -1), "num_features: found F = -1, expected 0 <= F < 2"),
    ]
    for arguments, error in cases:
        with pytest.raises(RuntimeError, match=f"^nnue::feature_transformer_backward: {error}"):
            torch.ops.nnue.feature_transformer_backward(*arguments)


@pytest.mark.cuda
def test_mixed_devices(cuda: torch.device) -> None:
    sample, there = make_sample(), make_sample(device=cuda)
    with pytest.raises(RuntimeError, match=r"indices: found a tensor on cpu, expected one on cuda:0, where weight is"):
        ops.feature_transformer_forward(sample.indices, there.weight, there.bias)


def test_large_offsets(device: torch.device) -> None:
    """More than 2^31 weights: offsets must not be 32-bit."""
    if device.type == "cpu":
        pytest.skip("needs 5 GB; run on CUDA")
    features, outputs = 2**16 + 8, 2**15 + 8
    weight = torch.zeros(features, outputs, dtype=torch.bfloat16, device=device)
    weight[-1] = torch.arange(outputs, device=device) % 128
    indices = torch.tensor([[features - 1, -1], [0, features - 1]], dtype=torch.int32, device=device)
    out = ops.feature_transformer_forward(indices, weight, weight[0])
    torch.testing.assert_close(out, weight[-1].expand(2, -1), rtol=0, atol=0)
    for deterministic in (False, True):
        grad, _, _ = ops.feature_transformer_backward(out, indices, features, deterministic=deterministic)
        assert grad is not None
        torch.testing.assert_close(grad[-1], 2 * weight[-1], rtol=0, atol=0)
        assert int(grad.count_nonzero()) == 2 * int(weight[-1].count_nonzero())
        del grad


# ---- module and functional ---------------------------------------------------------------------------------------


def test_module(device: torch.device) -> None:
    torch.manual_seed(0)
    module = FeatureTransformer(50, 40, device=device)
    bound = (1 / 50) ** 0.5
    for parameter in (module.weight, module.bias):
        assert parameter.abs().max() <= bound
        assert parameter.abs().max() > 0.9 * bound
    sample = make_sample(values=True, device=device)
    own = Sample(sample.indices, sample.values, module.weight.detach(), module.bias.detach())
    assert_near(module(sample.indices, sample.values).detach(), reference_forward(own), torch.float32)
    assert repr(module) == "FeatureTransformer(num_features=50, num_outputs=40)"
    with pytest.raises(ValueError, match="num_outputs: found 0, expected at least 1"):
        FeatureTransformer(5, 0)


def test_training_matches_dense_layer(device: torch.device) -> None:
    """A few steps of SGD through autograd end where the dense layer on the multi-hot matrix ends."""
    sample = make_sample(rows=64, device=device).requires_grad()
    dense_weight, dense_bias = (t.detach().double().requires_grad_() for t in (sample.weight, sample.bias))
    hot = torch.zeros(64, 50, dtype=torch.float64, device=device)
    alive = (sample.indices == -1).cumsum(1) == 0
    rows = torch.arange(64, device=device)[:, None].expand_as(alive)
    hot.index_put_((rows[alive], sample.indices[alive].long()), hot.new_ones(()), accumulate=True)
    for _ in range(3):
        out = functional.feature_transformer(sample.indices, sample.weight, sample.bias)
        grads = torch.autograd.grad(out.square().mean(), (sample.weight, sample.bias))
        dense = torch.autograd.grad((hot @ dense_weight + dense_bias).square().mean(), (dense_weight, dense_bias))
        with torch.no_grad():
            for p, g in zip((sample.weight, sample.bias, dense_weight, dense_bias), (*grads, *dense), strict=True):
                p -= 0.5 * g
    torch.testing.assert_close(sample.weight.double(), dense_weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sample.bias.double(), dense_bias, rtol=1e-5, atol=1e-6)


def test_int64_rows_are_converted(device: torch.device) -> None:
    """torch's default for integers; numbers that int32 does not have are reported, and none becomes a feature."""
    sample = make_sample(values=True, device=device).requires_grad()
    rows = sample.indices.long()
    out = ops.feature_transformer_forward(rows, sample.weight, sample.bias, sample.values)
    assert torch.equal(out, functional.feature_transformer(sample.indices, sample.weight, sample.bias, sample.values))
    num_features = len(sample.weight)
    gradients = [ops.feature_transformer_backward(out.detach(), i, num_features) for i in (rows, sample.indices)]
    for one, other in zip(gradients[0][:2], gradients[1][:2], strict=True):
        assert torch.equal(present(one), present(other))
    for wrong in (2**32, 2**32 + 3, -(2**32) - 1, 2**63 - 1, -(2**63), 2**31):
        changed = rows.clone()
        changed[3, 0] = wrong
        reported = rf"indices: found index {wrong} in row 3, expected -1 \(end of row\) or 0 <= index < {num_features}"
        with pytest.raises(RuntimeError, match=rf"feature_transformer_forward: {reported}"):
            functional.feature_transformer(changed, sample.weight, sample.bias)
        with pytest.raises(RuntimeError, match=rf"feature_transformer_backward: {reported}"):
            ops.feature_transformer_backward(out.detach(), changed, num_features)
        behind_the_end = rows.clone()
        behind_the_end[3, :2] = torch.tensor([-1, wrong])
        ops.feature_transformer_forward(behind_the_end, sample.weight, sample.bias)
    with pytest.raises(RuntimeError, match=r"found int64, expected int32; nnue_trainer.ops.index_rows converts"):
        torch.ops.nnue.feature_transformer_forward(rows, None, sample.weight, sample.bias)


def test_what_is_no_tensor_is_named() -> None:
    rows, weight = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(4, 5)
    with pytest.raises(TypeError, match="feature_transformer: weight: found NoneType, expected a tensor"):
        functional.feature_transformer(rows, None, weight)  # type: ignore[arg-type]
