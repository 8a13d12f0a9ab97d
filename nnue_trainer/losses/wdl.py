"""Cross-entropy of win, draw and loss, for nets whose head gives all three."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.special import xlogy

from nnue_trainer.losses.base import LOSSES, Loss
from nnue_trainer.schema import section


@LOSSES.register("wdl")
@section
class WdlLoss(Loss):
    """Cross-entropy between the softmax of three outputs (logits of loss, draw and win) and the target, minus a perfect
    net's, so the lowest possible loss is 0. The target is λ times the probabilities that a model gives the data's
    score, plus 1 − λ for the result of the game."""

    reads: ClassVar[int] = 3
    offset: float = Field(default=270.0, ge=0)
    """model of a score: where a win has probability 1/2, in engine units; the same below 0 for a loss, and what remains
    is a draw"""
    scaling: float = Field(default=380.0, gt=0)
    """model of a score: width of these two sigmoids, in engine units"""
    points: float = Field(default=0.0, ge=0)
    """factor of the squared error of the expected points, which is added to the cross-entropy"""
    cross_entropy: float = Field(default=1.0, ge=0)
    """factor of the cross-entropy"""

    def per_position(self, net: Tensor, score: Tensor, result: Tensor, lam: Tensor) -> tuple[Tensor, None]:
        target = self.target(score, result, lam)
        log_p = torch.log_softmax(net, dim=1)
        loss = self.cross_entropy * (xlogy(target, target) - target * log_p).sum(1)
        if self.points:
            error = _points(log_p.exp()) - _points(target)
            loss = loss + self.points * error.square()
        return loss, None

    def score_points(self, score: Tensor) -> Tensor:
        return _points(self.target(score, torch.zeros_like(score), torch.ones_like(score)))

    def target(self, score: Tensor, result: Tensor, lam: Tensor) -> Tensor:
        """The probabilities of loss, draw and win that the net is to learn, [B, 3] in the dtype of `score`."""
        win = torch.sigmoid((score - self.offset) / self.scaling)
        loss = torch.sigmoid((-score - self.offset) / self.scaling)
        of_score = torch.stack([loss, 1 - win - loss, win], dim=1)
        of_result = (result.unsqueeze(1) == torch.arange(-1, 2, device=result.device)).to(score.dtype)
        lam = torch.as_tensor(lam, dtype=score.dtype, device=score.device).reshape(-1, 1)
        # Rounding can make a draw slightly less likely than never.
        return (lam * of_score + (1 - lam) * of_result).clamp_min(0)


def _points(probabilities: Tensor) -> Tensor:
    return probabilities[:, 2] + probabilities[:, 1] / 2
