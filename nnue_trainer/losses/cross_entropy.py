"""Cross-entropy of expected points."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, sigmoid
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.special import xlogy

from nnue_trainer.losses.base import LOSSES, Loss, LossKernel, points
from nnue_trainer.schema import section


@LOSSES.register("cross_entropy")
@section
class CrossEntropyLoss(Loss):
    """Cross-entropy between σ(net / scale) and the target, which mixes score and result, minus a perfect net's,
    so the lowest possible loss is 0."""

    scale: float = Field(default=400.0, gt=0)
    """engine units per unit of the sigmoid's argument"""

    def per_position(self, net: Tensor, score: Tensor, result: Tensor, lam: Tensor) -> tuple[Tensor, None]:
        target = lam * sigmoid(score / self.scale) + (1 - lam) * points(result, net.dtype)
        entropy = -xlogy(target, target) - xlogy(1 - target, 1 - target)
        return binary_cross_entropy_with_logits(net / self.scale, target, reduction="none") - entropy, None

    def score_points(self, score: Tensor) -> Tensor:
        return sigmoid(score / self.scale)

    def kernel(self) -> LossKernel | None:
        return self._kernel_of(CrossEntropyLoss, "cross_entropy", self.scale)
