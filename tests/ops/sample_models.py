"""Whole nets with a batch, and the trainer's calls against their parts: for tests of the fused loss."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from sample_inputs import assert_close
from torch import Tensor

from nnue_trainer import data, nets
from nnue_trainer.losses import Loss, mean

FENS = [
    "4k3/8/8/8/8/8/8/4K3 w - - 0 1",
    "4k3/pp6/8/3q4/8/8/PPP5/4K2R b - - 0 1",
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
]


def make_model(net: dict[str, Any], device: str = "cpu") -> tuple[Any, Any]:
    """A net none of whose parameters is zero, PSQT columns included, and a batch of 90 positions for it."""
    torch.manual_seed(4)
    model: Any = nets.build(net)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    batch = data.expand(data.records_from_fens(FENS * 30), model.feature_set)
    batch = dataclasses.replace(batch, score=torch.randint(-900, 900, (len(batch),)).short())
    return model.to(device), batch.to(torch.device(device))


def assert_as_apart(
    model: Any, batch: Any, loss: Loss, lam: Tensor, found: Tensor, gradients: Sequence[Tensor], terms: float = 1e-30,
    tolerance: float = 3e-6,
) -> None:  # fmt: skip
    """`found` and its gradients by all parameters are those of forward and loss apart; `terms` as in `assert_close`."""
    expected = mean(*loss.terms(model(batch) * model.score_scale, batch.score, batch.result, lam))
    assert_close(found, expected, 1e-6, "loss")
    names = [name for name, _ in model.named_parameters()]
    for name, a, b in zip(names, gradients, torch.autograd.grad(expected, list(model.parameters())), strict=True):
        assert_close(a, b, tolerance, f"gradient of {name}", terms)
