"""The portable kernels in the emulator, against float64: every activation and dtype on shapes that fill nothing.

tests/ops/test_emulated_kernels.py has random cases of all kinds, against the CPU operator.
"""

from __future__ import annotations

import ctypes

import pytest
import torch
from sample_inputs import DTYPES, assert_close
from torch import Tensor

from nnue_trainer.ops.perspectives import number_of
from nnue_trainer.ops.reference import ACTIVATIONS, Activation

POSITIONS, FEATURES, ACTIVE = 37, 50, 13


def make_rows(seed: int) -> Tensor:
    """Every length from none to all, features twice, one feature in nearly every row, so that its list has pieces."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, FEATURES, (POSITIONS, ACTIVE), generator=g, dtype=torch.int32)
    rows[:, 1] = 7
    rows[3] = 5
    lengths = torch.arange(POSITIONS) % (ACTIVE + 1)
    columns = torch.arange(ACTIVE)[None]
    rows[columns > lengths[:, None]] = FEATURES + 9  # after the end
    return torch.where(columns == lengths[:, None], -1, rows).int()


def accumulate(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    alive = ((rows == -1).cumsum(1) == 0)[:, :, None]
    return bias + torch.where(alive, weight[rows.clamp(0, FEATURES - 1).long()], 0).sum(1)


@pytest.mark.parametrize("outputs", [16, 48, 272, 400])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_against_float64(emulator: ctypes.CDLL, activation: Activation, dtype: torch.dtype, outputs: int) -> None:
    """Output, gradients, psqt; the same bits with other schedules and other numbers of multiprocessors at work."""
    white, black, g = make_rows(1), make_rows(2), torch.Generator().manual_seed(3)
    black_to_move = torch.randint(0, 2, (POSITIONS,), generator=g, dtype=torch.uint8)
    # Multiples of 1/64 are exact in every type: no sum lies on another side of the clip.
    weight = (torch.randint(-24, 25, (FEATURES, outputs), generator=g) / 64).to(dtype)
    bias = torch.randint(-16, 65, (outputs,), generator=g) / 64
    psqt, psqt_bucket = torch.randn(FEATURES, 40, generator=g), torch.randint(0, 40, (POSITIONS,), generator=g)
    op, transformer = torch.ops.nnue_emulated, [FEATURES, outputs, 40, 0, FEATURES, 4, number_of(activation), 0]
    described = transformer, [0.75, 127 / 128]
    width = outputs if activation == "pairwise" else 2 * outputs
    grad = torch.randn(POSITIONS, width, generator=g).to(dtype)
    grad_psqt = torch.randn(POSITIONS, generator=g)

    def run() -> tuple[Tensor, ...]:
        plan = op._perspective_plan(white, black, black_to_move, FEATURES, 0, FEATURES, 4)
        batch = [white, black, plan, psqt_bucket]
        out, values, saved = op._perspective_transformer_forward(
            batch, weight, bias, psqt, *described, torch.float32, True
        )
        gradients = op._perspective_transformer_backward(grad, grad_psqt, batch, saved, *described, dtype)
        return (out, values, *gradients)

    wide, wide_bias, wide_psqt = (t.double().requires_grad_() for t in (weight, bias, psqt))
    black_first = black_to_move.bool()[:, None]
    us, them = torch.where(black_first, black, white), torch.where(black_first, white, black)
    halves = []
    for rows in (us, them):
        a = accumulate(rows, wide, wide_bias)
        c = a.clamp(0, 0.75)
        first, second = c.chunk(2, 1)
        halves.append({"identity": a, "crelu": c, "screlu": c * c, "pairwise": first * second}[activation])
    out = torch.cat(halves, 1) * (127 / 128)
    own, other = (accumulate(rows, wide_psqt, torch.zeros(40)) for rows in (us, them))
    values = (own - other).gather(1, psqt_bucket[:, None])[:, 0] / 2
    expected = [out, values]
    expected += torch.autograd.grad(expected, (wide, wide_bias, wide_psqt), [grad.double(), grad_psqt.double()])

    emulator.emulator_configure(4, 1)
    found = run()
    rounded = 2e-6 if dtype == torch.float32 else 8e-3  # row gradients of 16-bit weights are bf16
    names, tolerances = ("output", "psqt output", "weight", "bias", "psqt"), (1e-6, 1e-6, rounded, 1e-6, 1e-6)
    for name, a, b, tolerance in zip(names, found, expected, tolerances, strict=True):
        assert_close(a, b, tolerance, name)
    emulator.emulator_configure(3, 99)
    assert all(torch.equal(a, b) for a, b in zip(found, run(), strict=True))


def test_non_finite_shows_where_it_belongs(emulator: ctypes.CDLL) -> None:
    """A gradient that is not finite shows in the features of its row, and in no other feature."""
    white, black = make_rows(1), make_rows(2)
    black_to_move = torch.zeros(POSITIONS, dtype=torch.uint8)
    weight, bias = torch.zeros(FEATURES, 32), torch.zeros(32)
    op = torch.ops.nnue_emulated
    plan = op._perspective_plan(white, black, black_to_move, FEATURES, 0, FEATURES, 4)
    described = [FEATURES, 32, 0, 0, FEATURES, 4, number_of("identity"), 0], [1.0, 1.0], torch.float32
    batch = [white, black, plan]
    out, _, saved = op._perspective_transformer_forward(batch, weight, bias, None, *described, True)
    grad = torch.zeros_like(out)
    grad[4, 2] = float("inf")  # the side to move's, which is White
    gradient, *_ = op._perspective_transformer_backward(grad, None, batch, saved, *described)
    shows = torch.zeros(FEATURES, 32, dtype=torch.bool)
    shows[white[4][: int((white[4] == -1).int().argmax())].long(), 2] = True
    assert torch.equal(~torch.isfinite(gradient), shows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bucket_size": -1}, "bucket_size: found -1, expected 0 <= bucket_size <= 768"),
        ({"white": torch.zeros(1, dtype=torch.int32).expand(2**15, 2**15)}, r"white: found .*, expected 2 B K < 2\^31"),
    ],
)
def test_arguments(emulator: ctypes.CDLL, changes: dict[str, object], message: str) -> None:
    given = {"white": make_rows(1), "bucket_size": 0, **changes}
    white = given["white"]
    assert isinstance(white, Tensor)
    with pytest.raises(RuntimeError, match=message):
        torch.ops.nnue_emulated._perspective_plan(
            white, white, torch.zeros(len(white), dtype=torch.uint8), FEATURES, given["bucket_size"], FEATURES, 4
        )


def test_slopes_of_16_bit_weights_have_a_range(emulator: ctypes.CDLL) -> None:
    """They are kept in fp16, which would make a larger bound infinite."""
    rows, black_to_move = make_rows(1), torch.zeros(POSITIONS, dtype=torch.uint8)
    op, weight, bias = torch.ops.nnue_emulated, torch.zeros(FEATURES, 32, dtype=torch.bfloat16), torch.zeros(32)
    batch = [rows, rows, op._perspective_plan(rows, rows, black_to_move, FEATURES, 0, FEATURES, 4)]

    def forward(bound: float, save: bool) -> None:
        transformer = [FEATURES, 32, 0, 0, FEATURES, 2, number_of("screlu"), 0]
        op._perspective_transformer_forward(batch, weight, bias, None, transformer, [bound, 1.0], torch.float32, save)

    forward(65504.0, True)
    forward(1e5, False)
    with pytest.raises(RuntimeError, match=r"bound: found 100000\.0+, expected at most 65504 with 16-bit weights"):
        forward(1e5, True)
