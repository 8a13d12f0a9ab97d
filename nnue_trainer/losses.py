"""What a net is trained towards: losses over a batch of outputs, scores and game results.

Both losses turn scores into expected game points, mix them with the game's result by λ, and compare. A loss is a
weighted mean; `terms` gives its two sums, so that a loss over many batches is exact.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from nnue_trainer.schema import section

# A score of at least this size is no evaluation but a proven win (tablebase or mate), coded by its distance.
PROVEN_WIN = 31755
MATE = 32000


@section
class WinRateLoss:
    """Win-rate model of Stockfish nets: expected points by two sigmoids, |error|^power."""

    kind: Literal["win_rate"] = "win_rate"
    start_lambda: float = Field(1.0, ge=0, le=1)
    """λ at the first step: 1 trains on scores only, 0 on game results only"""
    end_lambda: float = Field(1.0, ge=0, le=1)
    """λ at the last step; linear in between"""
    lambda_steps: int | None = Field(None, gt=0)
    """steps in which λ goes from start to end; null: the whole run"""
    lambda_bump: float = Field(0.0, ge=-1, le=1)
    """height of a cosine bump added to λ, at its highest midway; λ stays within 0 and 1"""
    in_offset: float = 270.0
    """score of the net at which a win is as likely as not, engine units"""
    in_scaling: float = Field(340.0, gt=0)
    """width of that sigmoid, engine units"""
    out_offset: float = 270.0
    """the same for the score of the data"""
    out_scaling: float = Field(380.0, gt=0)
    """the same for the score of the data"""
    power: float = Field(2.5, ge=1)
    """exponent of the error"""
    qp_asymmetry: float = Field(0.0, ge=0)
    """errors count 1 + this where the net is above the target"""
    weight_boost: float = 0.0
    """w1: weight of a position is 1 + (2^w1 - 1)·((p - 1/2)²·p·(1 - p))^w2, p the expected points of its score"""
    weight_power: float = Field(0.5, gt=0)
    """w2, see weight_boost"""
    proven_base: float = 4000.0
    """a proven win counts as proven_base + proven_decay^distance·proven_scale engine units"""
    proven_scale: float = 4000.0
    """see proven_base"""
    proven_decay: float = Field(0.85, gt=0, le=1)
    """see proven_base"""

    def terms(self, net: Tensor, score: Tensor, result: Tensor, lam: Tensor | float) -> tuple[Tensor, Tensor]:
        """Σ weight·loss and Σ weight over a batch, both scalars; the loss is their ratio.

        `net` [B] float, the net's score in engine units; `score` [B] the data's score in engine units; `result` [B]
        −1, 0 or 1; all of the side to move. `lam` is λ, a number or a scalar tensor on the same device.
        """
        data = self.compress_proven(score.to(net.dtype))
        q = expected_points(net, self.in_offset, self.in_scaling)
        p = expected_points(data, self.out_offset, self.out_scaling)
        target = lam * p + (1 - lam) * points(result, net.dtype)
        loss = power(q - target, self.power)
        if self.qp_asymmetry:
            loss = loss * (1 + self.qp_asymmetry * (q > target).to(loss.dtype))
        if self.weight_boost == 0:
            return loss.sum(), loss.new_full((), loss.numel())
        # Rounding can leave p a hair above 1, and a negative base has no power.
        sharpness = ((p - 0.5).square() * p * (1 - p)).clamp_min(0).pow(self.weight_power)
        weight = 1 + (2**self.weight_boost - 1) * sharpness
        return (weight * loss).sum(), weight.sum()

    def lambda_at(self, step: int, steps: int) -> float:
        """λ for the step `step` of `steps`, counted from 0."""
        share = min(1.0, step / (self.lambda_steps or steps))
        bump = self.lambda_bump * 0.5 * (1 - math.cos(2 * math.pi * share))
        return min(1.0, max(0.0, interpolate(self.start_lambda, self.end_lambda, share) + bump))

    @property
    def final_lambda(self) -> float:
        """λ that validation uses, so that its losses compare from the first epoch to the last."""
        return self.end_lambda

    def compress_proven(self, score: Tensor) -> Tensor:
        """Scores with proven wins brought down to a size that a net can output."""
        size = score.abs()
        compressed = self.proven_base + self.proven_decay ** (MATE - size) * self.proven_scale
        return torch.where(size >= PROVEN_WIN, score.sign() * compressed, score)


@section
class SigmoidLoss:
    """Plain sigmoid loss of simple nets: |σ(net / scale) - target|^power, the target mixing score and result."""

    kind: Literal["sigmoid"] = "sigmoid"
    start_wdl: float = Field(0.0, ge=0, le=1)
    """share of the game result in the target at the first step (1 - λ)"""
    end_wdl: float = Field(0.0, ge=0, le=1)
    """the same at the last step; linear in between"""
    wdl_steps: int | None = Field(None, gt=0)
    """steps in which the share goes from start to end; null: the whole run"""
    scale: float = Field(400.0, gt=0)
    """engine units in one unit of the sigmoid's argument"""
    power: float = Field(2.0, ge=1)
    """exponent of the error"""

    def terms(self, net: Tensor, score: Tensor, result: Tensor, lam: Tensor | float) -> tuple[Tensor, Tensor]:
        """As in WinRateLoss."""
        data = score.to(net.dtype)
        target = lam * torch.sigmoid(data / self.scale) + (1 - lam) * points(result, net.dtype)
        loss = power(torch.sigmoid(net / self.scale) - target, self.power)
        return loss.sum(), loss.new_full((), loss.numel())

    def lambda_at(self, step: int, steps: int) -> float:
        """λ for the step `step` of `steps`, counted from 0."""
        return 1 - interpolate(self.start_wdl, self.end_wdl, min(1.0, step / (self.wdl_steps or steps)))

    @property
    def final_lambda(self) -> float:
        """As in WinRateLoss."""
        return 1 - self.end_wdl


LossConfig = Annotated[WinRateLoss | SigmoidLoss, Field(discriminator="kind")]


def interpolate(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


def points(result: Tensor, dtype: torch.dtype) -> Tensor:
    """Game points 0, ½, 1 of results −1, 0, 1."""
    return result.to(dtype) * 0.5 + 0.5


def expected_points(score: Tensor, offset: float, scaling: float) -> Tensor:
    """½(1 + P(win) − P(loss)), both by a sigmoid of the score (engine units)."""
    return 0.5 * (1 + torch.sigmoid((score - offset) / scaling) - torch.sigmoid((-score - offset) / scaling))


def power(error: Tensor, exponent: float) -> Tensor:
    """|error|^exponent; its gradient at 0 is 0 for every exponent ≥ 1."""
    return error.square() if exponent == 2 else error.abs().pow(exponent)
