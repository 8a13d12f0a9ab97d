"""The kernels of the plain operator in the emulator: with small integers every order of a sum gives the same bits."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

ROWS, MOST, FEATURES = 70, 9, 12  # few features: most lists have several tasks


def numbers(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("width", [5, 64])
@pytest.mark.parametrize("has_values", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_equals_the_cpu(
    emulator: ctypes.CDLL, dtype: torch.dtype, has_values: bool, width: int, deterministic: bool
) -> None:
    emulator.emulator_configure(4, 1)
    generator = torch.Generator().manual_seed(width)
    indices = (torch.rand(ROWS, MOST, generator=generator) ** 3 * FEATURES).int()
    indices[torch.arange(MOST) >= torch.randint(0, MOST + 1, (ROWS, 1), generator=generator)] = -1
    weight, bias = (numbers(generator, *shape, dtype=dtype) for shape in ((FEATURES + 3, width), (width,)))
    sums = dtype if dtype == torch.float64 else torch.float32
    values = numbers(generator, ROWS, MOST, dtype=sums) if has_values else None
    grad = numbers(generator, ROWS, width, dtype=dtype)
    emulated, cpu = torch.ops.nnue_emulated, torch.ops.nnue
    forward = (indices, values, weight, bias, deterministic)
    backward = (grad, indices, values, weight, len(weight), [True, True, has_values], deterministic, True)
    found = (emulated.feature_transformer_forward(*forward), *emulated.feature_transformer_backward(*backward))
    expected = (cpu.feature_transformer_forward(*forward), *cpu.feature_transformer_backward(*backward))
    for own, wanted in zip(found, expected, strict=True):
        assert own.dtype == wanted.dtype
        assert torch.equal(own, wanted)


def atomics_of(emulator: ctypes.CDLL, grad: Tensor, indices: Tensor, deterministic: bool | None) -> tuple[Tensor, int]:
    """The gradient of a weight of FEATURES rows, and the atomic instructions that it took."""
    before = emulator.emulator_executed_atomics()
    found, _, _ = torch.ops.nnue_emulated.feature_transformer_backward(
        grad, indices, None, None, FEATURES, [True, False, False], deterministic, True
    )
    return found, emulator.emulator_executed_atomics() - before


# Numbers that one atomic adds: vectors of four float32 where whole vectors fit, as on 9.0.
@pytest.mark.parametrize(
    ("dtype", "width", "together"),
    [(torch.float32, 64, 4), (torch.float32, 5, 1), (torch.bfloat16, 64, 4), (torch.float64, 64, 1)],
)
def test_zero_gradients_cause_no_atomics(emulator: ctypes.CDLL, dtype: torch.dtype, width: int, together: int) -> None:
    emulator.emulator_configure(4, 1)
    generator = torch.Generator().manual_seed(width)
    indices = torch.randint(0, FEATURES, (ROWS, MOST), generator=generator, dtype=torch.int32)
    lengths = torch.randint(0, MOST + 1, (ROWS,), generator=generator)
    indices[torch.arange(MOST) >= lengths[:, None]] = -1
    grad = numbers(generator, ROWS, width, dtype=dtype)
    grad[torch.rand(ROWS, width, generator=generator) < 0.7] = -0.0
    grad[::3] = 0

    found, atomics = atomics_of(emulator, grad, indices, False)
    expected, none = atomics_of(emulator, grad, indices, True)
    assert torch.equal(found, expected)
    needed = (grad != 0).view(ROWS, width // together, together).any(2).sum(1)
    assert atomics == int((needed * lengths).sum())
    assert none == 0
    assert atomics_of(emulator, grad, indices, None)[1] == 0

    assert atomics_of(emulator, torch.zeros_like(grad), indices, False)[1] == 0


def test_gradients_that_are_not_numbers_are_not_skipped(emulator: ctypes.CDLL) -> None:
    emulator.emulator_configure(4, 1)
    grad = torch.zeros(2, 8)
    grad[0, 1], grad[1, 6] = torch.nan, torch.inf
    indices = torch.tensor([[3, -1], [3, 5]], dtype=torch.int32)
    found, atomics = atomics_of(emulator, grad, indices, False)
    expected, _ = atomics_of(emulator, grad, indices, True)
    assert torch.equal(found.nan_to_num(7, 8), expected.nan_to_num(7, 8))
    assert atomics == 3
