"""Your own loss: cross entropy between the expected points of the net and of the target."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from nnue_trainer.losses import Loss, points
from nnue_trainer.schema import section


@section
class CrossEntropy(Loss):
    """Cross entropy; the target's entropy is subtracted, so a perfect net scores 0."""

    scale: float = Field(default=400.0, gt=0)
    """engine units in one unit of the sigmoid's argument"""

    def per_position(self, net: Tensor, score: Tensor, result: Tensor, lam: Tensor) -> tuple[Tensor, Tensor | None]:
        target = lam * torch.sigmoid(score / self.scale) + (1 - lam) * points(result, net.dtype)
        loss = binary_cross_entropy_with_logits(net / self.scale, target, reduction="none")
        entropy = -torch.special.xlogy(target, target) - torch.special.xlogy(1 - target, 1 - target)
        return loss - entropy, None  # None: all weights are 1
