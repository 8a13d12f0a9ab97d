"""The loss of Stockfish nets."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from nnue_trainer.losses.base import LOSSES, Loss, LossKernel, points, power
from nnue_trainer.schema import section

# A score of at least this size is not an evaluation but a proven win (tablebase or mate), coded by its distance.
PROVEN_WIN = 31755
MATE = 32000


@LOSSES.register("win_rate")
@section
class WinRateLoss(Loss):
    """Win-rate model of Stockfish nets: the loss is |error|^power of the expected points, which are made of two
    sigmoids."""

    in_offset: float = 270.0
    """score of the net at which a win has probability 1/2, in engine units"""
    in_scaling: float = Field(default=340.0, gt=0)
    """width of that sigmoid, in engine units"""
    out_offset: float = 270.0
    """the same for the score of the data"""
    out_scaling: float = Field(default=380.0, gt=0)
    """the same for the score of the data"""
    power: float = Field(default=2.5, ge=1)
    """exponent of the error"""
    qp_asymmetry: float = Field(default=0.0, ge=0)
    """errors are multiplied by 1 + this where the net is above the target"""
    weight_boost: float = 0.0
    """w1: weight of a position is 1 + (2^w1 - 1)·((p - 1/2)²·p·(1 - p))^w2, p the expected points of its score"""
    weight_power: float = Field(default=0.5, gt=0)
    """w2, see weight_boost"""
    proven_base: float = 4000.0
    """a proven win counts as proven_base + proven_decay^distance·proven_scale engine units"""
    proven_scale: float = 4000.0
    """see proven_base"""
    proven_decay: float = Field(default=0.85, gt=0, le=1)
    """see proven_base"""

    def per_position(self, net: Tensor, score: Tensor, result: Tensor, lam: Tensor) -> tuple[Tensor, Tensor | None]:
        q = expected_points(net, self.in_offset, self.in_scaling)
        p = expected_points(self.compress_proven(score), self.out_offset, self.out_scaling)
        target = lam * p + (1 - lam) * points(result, net.dtype)
        loss = power(q - target, self.power)
        if self.qp_asymmetry:
            loss = loss * (1 + self.qp_asymmetry * (q > target).to(loss.dtype))
        if self.weight_boost == 0:
            return loss, None
        # Rounding can make p slightly larger than 1, and a negative base has no power.
        sharpness = ((p - 0.5).square() * p * (1 - p)).clamp_min(0).pow(self.weight_power)
        return loss, 1 + (2**self.weight_boost - 1) * sharpness

    def score_points(self, score: Tensor) -> Tensor:
        return expected_points(self.compress_proven(score), self.out_offset, self.out_scaling)

    def kernel(self) -> LossKernel | None:
        return self._kernel_of(
            WinRateLoss, "win_rate", self.in_scaling, self.power, self.in_offset, self.out_offset, self.out_scaling,
            self.qp_asymmetry, self.weight_boost, self.weight_power, self.proven_base, self.proven_scale,
            self.proven_decay,
        )  # fmt: skip

    def compress_proven(self, score: Tensor) -> Tensor:
        """Scores with proven wins brought down to a size that a net can output; floats [B] → floats [B]."""
        size = score.abs()
        compressed = self.proven_base + self.proven_decay ** (MATE - size) * self.proven_scale
        return torch.where(size >= PROVEN_WIN, score.sign() * compressed, score)


def expected_points(score: Tensor, offset: float, scaling: float) -> Tensor:
    """½(1 + P(win) − P(loss)); each probability is a sigmoid of the score (engine units)."""
    return 0.5 * (1 + torch.sigmoid((score - offset) / scaling) - torch.sigmoid((-score - offset) / scaling))
