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
