"""Parameters as an engine's integers in one pass, and the way back, against the same in torch's operators."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from nnue_trainer.modules import straight_through
from nnue_trainer.modules.straight_through import Steps, integer_parameters, integers

# Rows of each parameter, and how they become integers; the last one is as large as several tasks and thread blocks.
CASES: list[tuple[tuple[int, ...], list[Steps]]] = [
    ((8, 16, 30), [Steps(0, 8, 64.0, 127, False)]),
    ((8, 1), [Steps(0, 8, 9600.0, 2**31 - 1, True)]),
    ((13,), [Steps(0, 13, 255.0, 506, False)]),
    ((7, 5), [Steps(0, 3, 127.0, 300, False), Steps(3, 4, 127.0, 90, False)]),
    ((0, 4), [Steps(0, 0, 1.0, 1, False)]),
    ((300, 129), [Steps(0, 1, 7.56, 32767, False), Steps(1, 298, 7.56, 99, False), Steps(299, 1, 7.56, 40000, True)]),
]


def made(device: torch.device, repeats: int = 1) -> tuple[list[Tensor], list[list[Steps]]]:
    generator = torch.Generator().manual_seed(1)
    parameters, tables = [], []
    for shape, steps in CASES * repeats:
        x = torch.randn(shape, generator=generator) * 2
        flat = x.view(-1)
        scale, limit = steps[0].scale, steps[0].limit
        if len(flat):
            flat[::3] = ((flat[::3] * scale).round() + 0.5) / scale  # ties, or next to them
            flat[1::7] = limit / scale
            flat[2::11] = -1.1 * limit / scale
        parameters.append(x.to(device).requires_grad_())
        tables.append(steps)
    return parameters, tables


def expected_of(parameter: Tensor, table: Sequence[Steps]) -> Tensor:
    parts = [integers(parameter[s.first_row : s.first_row + s.rows], s._replace(first_row=0)).float() for s in table]
    return torch.cat(parts)


def check(parameters: list[Tensor], tables: list[list[Steps]]) -> None:
    found = integer_parameters(parameters, tables)
    wanted = [expected_of(parameter, table) for parameter, table in zip(parameters, tables, strict=True)]
    grads = [torch.randn(x.shape, generator=torch.Generator().manual_seed(x.numel())).to(x.device) for x in found]
    for one, other, parameter in zip(found, wanted, parameters, strict=True):
        assert one.dtype == torch.float32
        assert one.shape == parameter.shape
        assert one.data_ptr() % 64 == 0 or one.numel() == 0
        assert torch.equal(one, other)
    first = torch.autograd.grad(found, parameters, grads)
    second = torch.autograd.grad(wanted, parameters, grads)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        assert torch.equal(one, other), number
    unclipped = integer_parameters(parameters, tables, clipped=False)
    assert all(map(torch.equal, unclipped, found))
    assert all(map(torch.equal, torch.autograd.grad(unclipped, parameters, grads), grads))


@pytest.mark.parametrize("repeats", [1, 5], ids=["", "many"])
def test_it_is_what_torch_gives(device: torch.device, repeats: int) -> None:
    """To the bit, in more ranges than one launch has."""
    check(*made(device, repeats))


@pytest.mark.parametrize("repeats", [1, 5], ids=["", "many"])
def test_emulated(emulator: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, repeats: int) -> None:
    emulator.emulator_configure(4, 7)
    monkeypatch.setattr(straight_through, "_operators", torch.ops.nnue_emulated)
    check(*made(torch.device("cpu"), repeats))


def test_not_a_number_stays_and_gets_no_gradient(device: torch.device) -> None:
    x = torch.tensor([[1.0, torch.nan], [torch.inf, -torch.inf]], device=device, requires_grad=True)
    (found,) = integer_parameters([x], [[Steps(0, 2, 10.0, 127, False)]])
    assert found.isnan().tolist() == [[False, True], [False, False]]
    assert found.nan_to_num(0).tolist() == [[10, 0], [127, -127]]
    found.backward(torch.ones_like(found))
    assert x.grad is not None
    assert x.grad.tolist() == [[10, 0], [0, 0]]


def test_what_is_not_contiguous(device: torch.device) -> None:
    x = torch.randn(6, 10, device=device).t().requires_grad_()
    (found,) = integer_parameters([x], [[Steps(0, 10, 100.0, 127, False)]])
    assert torch.equal(found, expected_of(x, [Steps(0, 10, 100.0, 127, False)]))


def test_only_some_gradients_are_wanted(device: torch.device) -> None:
    parameters, tables = made(device)
    parameters[0].requires_grad_(False)
    found = integer_parameters(parameters, tables)
    found[3].sum().backward()
    assert parameters[0].grad is None
    assert parameters[3].grad is not None
    assert parameters[3].grad.abs().sum() > 0
    assert parameters[2].grad is None or not parameters[2].grad.any()


@pytest.mark.parametrize(
    ("ranges", "scales", "limits", "message"),
    [
        ([0, 5], [1.0], [1], r"ranges: found 5 elements of parameter 0, expected all 6"),
        ([0, 7], [1.0], [1], r"ranges: found 0 elements of parameter 0, expected all 6"),
        ([0, -1], [1.0], [1], r"ranges: found 0 elements of parameter 0, expected all 6"),
        ([0, 6, 1, 6], [1.0, 1.0], [1, 1], r"ranges: found one of parameter 1, expected parameters in order"),
        ([0, 6], [1.0], [1, 2], r"ranges: found 2 numbers, expected two for each scale and each limit"),
    ],
)
def test_errors(device: torch.device, ranges: Any, scales: Any, limits: Any, message: str) -> None:
    x = torch.zeros(2, 3, device=device)
    with pytest.raises(RuntimeError, match=message):
        torch.ops.nnue._to_integers([x], ranges, scales, limits)


def test_errors_of_tensors(device: torch.device) -> None:
    x, op, back = torch.zeros(6, device=device), torch.ops.nnue._to_integers, torch.ops.nnue._to_integers_backward
    with pytest.raises(RuntimeError, match=r"_to_integers: parameters: found float64, expected float32"):
        op([x.double()], [0, 6], [1.0], [1])
    with pytest.raises(RuntimeError, match=r"_to_integers_backward: gradients: found 0 tensors, expected as many as"):
        back([], [x], [0, 6], [1.0], [1])
    with pytest.raises(
        RuntimeError, match=r"_to_integers_backward: gradients: found shape \[5\], expected shape \[6\]"
    ):
        back([x[:5]], [x], [0, 6], [1.0], [1])
