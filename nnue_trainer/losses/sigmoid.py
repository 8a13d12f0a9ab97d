"""The loss of simple nets."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from nnue_trainer.losses.base import LOSSES, Loss, LossKernel, points, power
from nnue_trainer.schema import section


@LOSSES.register("sigmoid")
@section
class SigmoidLoss(Loss):
    """The loss of simple nets, |σ(net / scale) − target|^power; the target mixes score and result."""

    scale: float = Field(default=400.0, gt=0)
    """engine units per unit of the sigmoid's argument"""
    power: float = Field(default=2.0, ge=1)
    """exponent of the error"""

    def per_position(self, net: Tensor, score: Tensor, result: Tensor, lam: Tensor) -> tuple[Tensor, None]:
        target = lam * torch.sigmoid(score / self.scale) + (1 - lam) * points(result, net.dtype)
        return power(torch.sigmoid(net / self.scale) - target, self.power), None

    def score_points(self, score: Tensor) -> Tensor:
        return torch.sigmoid(score / self.scale)

    def kernel(self) -> LossKernel | None:
        return self._kernel_of(SigmoidLoss, "sigmoid", self.scale, self.power)
