"""Forward mode, torch.func and vmap over the operators: the right derivative or a clear error, never a silent zero."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sample_inputs import Sample, make_pair, make_sample, reference_forward
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from typed import present

from nnue_trainer import FeatureTransformer, ops
from nnue_trainer.ops import functional, perspectives

ACTIVATIONS = ["identity", "crelu", "screlu", "pairwise"]


def sample64(device: torch.device, values: bool = True, rows: int = 6) -> Sample:
    return make_sample(rows, 4, 9, 6, values=values, dtype=torch.float64, device=device)


def transformer(sample: Sample) -> Callable[..., torch.Tensor]:
    def f(weight: torch.Tensor, bias: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
        return functional.feature_transformer(sample.indices, weight, bias, values)

    return f


def floats(sample: Sample) -> tuple[torch.Tensor, ...]:
    return tuple(t for t in (sample.weight, sample.bias, sample.values) if t is not None)


def like(tensors: tuple[torch.Tensor, ...], seed: int = 7) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(t.shape, generator=g, dtype=torch.float64).to(t) for t in tensors)


def by_differences(f: Callable[..., torch.Tensor], at: tuple[Any, ...], along: tuple[Any, ...]) -> torch.Tensor:
    """The directional derivative in float64, of a function that is a polynomial of degree two around `at`."""
    step = 1e-4
    ahead, behind = (f(*(x + sign * step * d for x, d in zip(at, along, strict=True))) for sign in (1, -1))
    return (ahead - behind) / (2 * step)


# ---- the plain operator ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [False, True], ids=["ones", "values"])
def test_jvp(device: torch.device, values: bool) -> None:
    sample = sample64(device, values)
    at = floats(sample)
    along = like(at)
    out, tangent = jvp(transformer(sample), at, along)[:2]
    torch.testing.assert_close(out, reference_forward(sample).to(out))
    assert tangent.abs().max() > 0.1
    torch.testing.assert_close(tangent, by_differences(transformer(sample), at, along))


@pytest.mark.parametrize("argument", [0, 1, 2], ids=["weight", "bias", "values"])
def test_jvp_of_one_argument(device: torch.device, argument: int) -> None:
    sample = sample64(device)
    at = floats(sample)
    along = tuple(d if i == argument else torch.zeros_like(d) for i, d in enumerate(like(at)))
    f = transformer(sample)
    expected = by_differences(f, at, along)

    def of_one(x: torch.Tensor) -> torch.Tensor:
        return f(*at[:argument], x, *at[argument + 1 :])

    tangent = jvp(of_one, (at[argument],), (along[argument],))[1]
    assert tangent.abs().max() > 0.1
    torch.testing.assert_close(tangent, expected)
    with forward_ad.dual_level():
        dual = of_one(forward_ad.make_dual(at[argument], along[argument]))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_jvp_in_other_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    sample = make_sample(dtype=dtype, device=device)
    along = like((sample.weight, sample.bias))
    tangent = jvp(transformer(sample), (sample.weight, sample.bias), along)[1]
    assert tangent.dtype == dtype
    expected = functional.feature_transformer(sample.indices, along[0], along[1])
    torch.testing.assert_close(tangent, expected)


def test_gradcheck_in_forward_mode(device: torch.device) -> None:
    sample = sample64(device).requires_grad()
    arguments: tuple[Any, ...] = sample.arguments  # gradcheck takes None too, which its types lack
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(
            lambda i, v, w, b: torch.ops.nnue.feature_transformer_forward(i, v, w, b, True),
            arguments,
            check_forward_ad=True,
            check_batched_grad=True,
            check_batched_forward_grad=True,
        )


def test_forward_mode_of_the_gradient(device: torch.device) -> None:
    """Hessian products, forward over reverse, through the backward operator's own tangents."""
    sample = sample64(device)
    at = floats(sample)

    def loss(*arguments: torch.Tensor) -> torch.Tensor:
        return transformer(sample)(*arguments).pow(3).sum()

    def dense(weight: torch.Tensor, bias: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        lengths = (sample.indices == -1).int().cumsum(1) == 0
        rows = weight[sample.indices.clamp(min=0).long()] * (values * lengths).unsqueeze(2)
        return (bias + rows.sum(1)).pow(3).sum()

    along = like(at)
    numbers = tuple(range(3))
    ours = jvp(grad(loss, argnums=numbers), at, along)[1]
    expected = jvp(grad(dense, argnums=numbers), at, along)[1]
    for found, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(hessian(loss, argnums=1)(*at), hessian(dense, argnums=1)(*at))


def test_grad_vjp_jacobians(device: torch.device) -> None:
    sample = sample64(device).requires_grad()
    at = tuple(t.detach() for t in floats(sample))
    f = transformer(sample)
    f(*floats(sample)).square().sum().backward()
    expected = [t.grad for t in floats(sample)]
    for found, wanted in zip(grad(lambda *a: f(*a).square().sum(), argnums=(0, 1, 2))(*at), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    out, pull = vjp(f, *at)[:2]
    for found, wanted in zip(pull(2 * out), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(jacrev(f)(*at), jacfwd(f)(*at))
    assert jacrev(f)(*at).abs().max() > 0.1


@pytest.mark.parametrize("values", [False, True], ids=["ones", "values"])
def test_vmap_over_rows(device: torch.device, values: bool) -> None:
    samples = [make_sample(5, 4, 9, 6, values=values, seed=seed, device=device) for seed in range(3)]
    weight, bias = samples[0].weight, samples[0].bias
    indices = torch.stack([s.indices for s in samples], dim=1)
    expected = torch.stack([functional.feature_transformer(s.indices, weight, bias, s.values) for s in samples])
    if values:
        factors = torch.stack([s.values for s in samples])  # type: ignore[misc]
        out = vmap(lambda i, v: functional.feature_transformer(i, weight, bias, v), (1, 0))(indices, factors)
    else:
        out = vmap(lambda i: functional.feature_transformer(i, weight, bias), 1)(indices)
    assert torch.equal(out, expected)


def test_vmap_over_weights_and_per_sample_gradients(device: torch.device) -> None:
    sample = sample64(device)
    weights = torch.stack([sample.weight, 2 * sample.weight, -sample.weight])
    out = vmap(lambda w: functional.feature_transformer(sample.indices, w, sample.bias))(weights)
    for one, weight in zip(out, weights, strict=True):
        assert torch.equal(one, functional.feature_transformer(sample.indices, weight, sample.bias))

    def loss(weight: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return functional.feature_transformer(row[None], weight, sample.bias).square().sum()

    gradients = vmap(grad(loss), (None, 0))(sample.weight, sample.indices)
    for one, row in zip(gradients, sample.indices, strict=True):
        torch.testing.assert_close(one, grad(loss)(sample.weight, row))


def test_module_under_functional_call(device: torch.device) -> None:
    sample = make_sample(device=device)
    module = FeatureTransformer(50, 40, device=device)
    parameters = dict(module.named_parameters())
    gradients = grad(lambda p: functional_call(module, p, (sample.indices,)).square().sum())(parameters)
    module(sample.indices).square().sum().backward()
    torch.testing.assert_close(gradients["weight"], module.weight.grad)
    torch.testing.assert_close(gradients["bias"], module.bias.grad)


def test_double_backward_says_so_in_torch_func(device: torch.device) -> None:
    sample = sample64(device)

    def inner(weight: torch.Tensor) -> torch.Tensor:
        return grad(lambda w: functional.feature_transformer(sample.indices, w, sample.bias).pow(3).sum())(weight).sum()

    with pytest.raises(RuntimeError, match="no derivative of its own"):
        grad(inner)(sample.weight)


def test_compiled_forward_mode_is_no_silent_zero(device: torch.device) -> None:
    sample = sample64(device, values=False)
    at = floats(sample)
    along = like(at)

    def directional(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return jvp(transformer(sample), (weight, bias), along)[1]

    expected = directional(*at)
    torch.testing.assert_close(torch.compile(directional)(*at), expected)


def test_expand_features_under_vmap(device: torch.device) -> None:
    from nnue_trainer.data import records_from_fens

    fens = ["4k3/8/8/8/8/8/8/4K3 w - - 0 1", "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"]
    records = torch.from_numpy(records_from_fens(fens)).to(device)
    one = ops.expand_features(records, "Chess768")
    many = vmap(lambda r: tuple(ops.expand_features(r, "Chess768")))(torch.stack([records, records.flip(0)]))
    assert torch.equal(many[0][0], one.white)
    assert torch.equal(many[0][1], one.white.flip(0))


# ---- both perspectives ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_perspectives_in_forward_mode(device: torch.device, activation: Any, dtype: torch.dtype) -> None:
    """In float32 the call is fused on a CPU: that operator supports no tangents, so others must replace it."""
    pair = make_pair(7, 5, 30, 16, psqt_buckets=4, device=device)
    rows = (pair.white, pair.black, pair.black_to_move)
    at = tuple(t.detach().double() for t in (pair.weight, pair.bias, present(pair.psqt)))
    # Away from the corners of the clip, where a difference quotient is not the derivative.
    at = tuple((t + 0.01 * d).to(dtype) for t, d in zip(at, like(at, seed=1), strict=True))
    along = like(at)

    def f(weight: torch.Tensor, bias: torch.Tensor, psqt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return perspectives.perspective_transformer(
            *rows, weight, bias, activation=activation, psqt=psqt, psqt_bucket=pair.psqt_bucket, scale=0.5
        )

    wide = tuple(t.double() for t in at), tuple(t.double() for t in along)
    tangents = jvp(f, at, along)[1]
    for k in range(2):
        expected = by_differences(lambda *a, k=k: f(*a)[k], *wide)
        assert tangents[k].abs().max() > 0.01
        torch.testing.assert_close(tangents[k], expected.to(dtype), rtol=1e-4, atol=1e-4)
    with forward_ad.dual_level():
        out = f(*(forward_ad.make_dual(x, d) for x, d in zip(at, along, strict=True)))
        for k in range(2):
            assert torch.equal(forward_ad.unpack_dual(out[k]).tangent, tangents[k])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_perspectives_in_torch_func(device: torch.device, activation: Any) -> None:
    pair = make_pair(7, 5, 30, 16, psqt_buckets=0, device=device)
    rows = (pair.white, pair.black, pair.black_to_move)
    weight, bias = pair.weight.detach().float(), pair.bias.detach().float()

    def loss(w: torch.Tensor, b: torch.Tensor, black_to_move: torch.Tensor) -> torch.Tensor:
        white, black, _ = rows
        out = perspectives.perspective_transformer(white, black, black_to_move, w, b, activation=activation)
        return out.square().sum()

    w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    loss(w, b, rows[2]).backward()
    for found, wanted in zip(grad(loss, (0, 1))(weight, bias, rows[2]), (w.grad, b.grad), strict=True):
        torch.testing.assert_close(found, wanted)
    both = torch.stack([rows[2], 1 - rows[2]])
    losses = vmap(loss, (None, None, 0))(weight, bias, both)
    torch.testing.assert_close(losses, torch.stack([loss(weight, bias, one) for one in both]))


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["jvp", "grad"])
def test_compiled_transforms_of_perspectives(device: torch.device, transform: str) -> None:
    pair = make_pair(7, 5, 30, 16, device=device)
    rows = (pair.white, pair.black, pair.black_to_move)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return perspectives.perspective_transformer(*rows, weight, pair.bias, activation="screlu").square().sum()

    def transformed(weight: torch.Tensor) -> torch.Tensor:
        return jvp(loss, (weight,), (weight,))[1] if transform == "jvp" else grad(loss)(weight)

    torch.testing.assert_close(torch.compile(transformed)(pair.weight), transformed(pair.weight))


def fused_call(pair: Any, weight: torch.Tensor) -> torch.Tensor:
    white, black = pair.white, pair.black
    plan = perspectives.perspective_plan(white, black, pair.black_to_move, weight.shape[0])
    return torch.ops.nnue._perspective_transformer_forward(
        [white, black, plan.data],
        weight,
        pair.bias.detach().float(),
        None,
        [*weight.shape, 0, *plan.layout, perspectives.number_of("crelu"), 0],
        [1.0, 1.0],
        torch.float32,
        True,
    )[0]


def test_the_fused_operator_itself_refuses(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("the refusal is registered once for all devices; these rows are made for the CPU")
    pair = make_pair(7, 5, 30, 16, psqt_buckets=0, device=device)
    weight = pair.weight.detach().float()
    with pytest.raises(RuntimeError, match=r"_perspective_transformer_forward: forward mode: .* call nnue_trainer"):
        jvp(lambda w: fused_call(pair, w), (weight,), (weight,))
    with pytest.raises(RuntimeError, match=r"_perspective_transformer_forward: vmap: .* call nnue_trainer"):
        vmap(lambda w: fused_call(pair, w))(torch.stack([weight, weight]))
    records = torch.zeros(2, 3, 32, dtype=torch.uint8)
    out = ops.expand_features(torch.zeros(0, 32, dtype=torch.uint8), "Chess768")
    with pytest.raises(RuntimeError, match=r"expand_features_into: vmap: .* call ops.expand_features"):
        vmap(lambda r: ops.expand_features_into(r, "Chess768", out))(records)
