"""The gradient of a feature transformer's weight with the rows of the batch's features alone, on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nnue_trainer.ops.perspectives import number_of, perspective_plan, perspective_transformer
from nnue_trainer.ops.reference import Activation

FEATURES, POSITIONS, OUTPUTS = 300, 70, 48


def batch_of(positions: int = POSITIONS) -> list[Tensor]:
    """Index rows of few features, and who is to move."""
    g = torch.Generator().manual_seed(3)
    rows = torch.randint(0, FEATURES // 5, (2, positions, 7), generator=g, dtype=torch.int32) * 5
    rows[0, ::3, 4:] = -1
    return [rows[0], rows[1], torch.randint(0, 2, (positions,), generator=g, dtype=torch.uint8)]


def gradients(
    batch: list[Tensor], dtype: torch.dtype, activation: Activation, sparse_grad: bool, times: int = 1
) -> list[Tensor]:
    g = torch.Generator().manual_seed(5)
    weight = (torch.randn(FEATURES, OUTPUTS, generator=g) / 4).to(dtype).requires_grad_()
    bias = torch.randn(OUTPUTS, generator=g).div_(4).requires_grad_()
    psqt = torch.randn(FEATURES, 8, generator=g).requires_grad_()
    bucket = torch.arange(len(batch[2])) % 8
    white, black, black_to_move = batch
    for _ in range(times):
        out, psqt_out = perspective_transformer(
            white,
            black,
            black_to_move,
            weight,
            bias,
            activation=activation,
            psqt=psqt,
            psqt_bucket=bucket,
            sparse_grad=sparse_grad,
        )
        (out.float() * torch.randn(out.shape, generator=g)).sum().add(psqt_out.square().sum()).backward()
    found = [weight.grad, bias.grad, psqt.grad]
    assert all(gradient is not None for gradient in found)
    return [gradient for gradient in found if gradient is not None]


@pytest.mark.parametrize("activation", ["identity", "crelu", "screlu", "pairwise"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("positions", [POSITIONS, 0])
def test_equal_bits(positions: int, dtype: torch.dtype, activation: Activation) -> None:
    batch = batch_of(positions)
    dense = gradients(batch, dtype, activation, sparse_grad=False)
    sparse = gradients(batch, dtype, activation, sparse_grad=True)
    assert not dense[0].is_sparse
    assert sparse[0].is_sparse
    present = torch.cat(batch[:2]).unique()
    assert torch.equal(sparse[0]._indices()[0], present[present >= 0].long())
    for one, other in zip(dense, sparse, strict=True):
        assert torch.equal(one, other.to_dense())


def test_gradients_of_several_passes_add_up() -> None:
    dense, sparse = (gradients(batch_of(), torch.float32, "crelu", sparse_grad=way, times=2) for way in (False, True))
    torch.testing.assert_close(sparse[0].to_dense(), dense[0])


def test_opcheck() -> None:
    batch = batch_of()
    plan = perspective_plan(batch[0], batch[1], batch[2], FEATURES)
    rows = [batch[0], batch[1], plan.data, torch.arange(POSITIONS) % 8]
    weight, bias, psqt = torch.randn(FEATURES, OUTPUTS), torch.randn(OUTPUTS), torch.randn(FEATURES, 8)
    transformer = [FEATURES, OUTPUTS, 8, 0, FEATURES, 4, number_of("pairwise"), 0]
    described = (transformer, [1.0, 1.0], torch.float32)
    out, _, saved = torch.ops.nnue._perspective_transformer_forward(rows, weight, bias, psqt, *described, True)
    arguments = (torch.randn_like(out), torch.randn(POSITIONS), rows, saved, *described)
    torch.library.opcheck(
        torch.ops.nnue._perspective_transformer_backward_rows.default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )
