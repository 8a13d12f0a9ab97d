"""Linear layers with stacks against the product of every position with its own stack's weights in float64."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from nnue_trainer.modules import StackedLinear
from nnue_trainer.modules import stacked_linear as layer

SHAPES = [
    (1, 1, 1, 1),
    (7, 3, 5, 2),
    (200, 30, 32, 8),
    (333, 32, 1, 8),
    (150, 1000, 16, 8),
    (65, 64, 17, 3),
    (9, 5, 40, 9),
]


def sample(
    positions: int, inputs: int, outputs: int, stacks: int, seed: int = 1
) -> tuple[Tensor, Tensor, StackedLinear]:
    g = torch.Generator().manual_seed(seed)
    module = StackedLinear(stacks, inputs, outputs)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=g)
    x = torch.randn(positions, inputs, generator=g, requires_grad=True)
    # Not all stacks occur where there are several.
    bucket = torch.randint(0, max(1, stacks - 1), (positions,), generator=g)
    return x, bucket, module


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_float64(shape: tuple[int, int, int, int]) -> None:
    x, bucket, module = sample(*shape)
    assert layer.is_fused(x, module.weight)
    weight, bias = (p.detach().double().requires_grad_() for p in (module.weight, module.bias))
    x64 = x.detach().double().requires_grad_()
    expected = torch.einsum("bi,boi->bo", x64, weight[bucket]) + bias[bucket]
    found = module(x, bucket)
    gradient = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    found.backward(gradient)
    expected.backward(gradient.double())
    limit = 1e-6 * max(shape) ** 0.5
    for ours, theirs in (
        (found, expected),
        (x.grad, x64.grad),
        (module.weight.grad, weight.grad),
        (module.bias.grad, bias.grad),
    ):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(
            ours.double(), theirs, rtol=0, atol=limit * max(1.0, float(theirs.detach().abs().max()))
        )


def test_a_stack_without_positions_gets_zeros() -> None:
    x, bucket, module = sample(50, 12, 4, 5)
    module(x, bucket).square().sum().backward()
    assert module.weight.grad is not None
    assert not module.weight.grad[4].any()
    assert module.weight.grad[:4].any()


def test_no_positions() -> None:
    x, bucket, module = sample(0, 12, 4, 5)
    out = module(x, bucket)
    assert out.shape == (0, 4)
    out.sum().backward()
    assert module.weight.grad is not None
    assert not module.weight.grad.any()


def test_a_second_derivative_is_an_error() -> None:
    """Also of a sum, whose gradient is a constant."""
    x, bucket, module = sample(20, 130, 16, 8)
    (grad,) = torch.autograd.grad(module(x, bucket).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"_stacked_linear_backward: .* no derivative of its own"):
        grad.square().sum().backward()


def test_equal_bits_for_any_number_of_threads() -> None:
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        x, bucket, module = sample(700, 130, 16, 8)
        out = module(x, bucket)
        out.square().sum().backward()
        results.append([out, x.grad, module.weight.grad, module.bias.grad])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.slow
def test_equal_bits_for_every_instruction_set() -> None:
    script = """
import hashlib, sys, torch
sys.path[:0] = ["tests/ops", "tests/support"]
from test_own_stacks import sample
digest = hashlib.sha256()
for shape in ((700, 130, 16, 8), (200, 30, 32, 8), (99, 32, 1, 8)):
    x, bucket, module = sample(*shape)
    out = module(x, bucket)
    out.backward(torch.cos(out.detach()).round(decimals=2))
    for tensor in (out, x.grad, module.weight.grad, module.bias.grad):
        digest.update(tensor.detach().numpy().tobytes())
print(digest.hexdigest())
"""
    found = set()
    for isa in ("baseline", "avx2", ""):
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "NNUE_CPU_ISA": isa},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout)
    assert len(found) == 1


@pytest.mark.parametrize("wrong", [-1, 8])
def test_an_illegal_bucket_is_named(wrong: int) -> None:
    x, bucket, module = sample(20, 12, 4, 8)
    bucket[13] = wrong
    message = f"nnue::_stacked_linear_forward: bucket: found {wrong} at position 13, expected 0 <= bucket < 8"
    with pytest.raises(RuntimeError, match=message):
        module(x, bucket)


def test_other_ways_agree() -> None:
    """Forward mode, float64 and autocast take torch's operators."""
    x, bucket, module = sample(40, 12, 4, 5)
    expected = module(x, bucket)
    tangent = torch.func.jvp(lambda v: module(v, bucket), (x.detach(),), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, (module.weight[bucket].sum(2)), rtol=0, atol=1e-5)
    torch.testing.assert_close(module.double()(x.double(), bucket).float(), expected, rtol=0, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert module.float()(x, bucket).dtype == torch.bfloat16


def test_opcheck() -> None:
    x, bucket, module = sample(20, 12, 4, 5)
    torch.library.opcheck(
        torch.ops.nnue._stacked_linear_forward,
        (x, bucket, module.weight, module.bias),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )
