"""Losses over a batch of outputs, scores and game results.

`base` has the class that every loss derives from and the registry; each built-in loss has its own file.
"""

from nnue_trainer.losses.base import LOSSES, NO_SCORE, Loss, LossKernel, mean, points, power
from nnue_trainer.losses.cross_entropy import CrossEntropyLoss
from nnue_trainer.losses.sigmoid import SigmoidLoss
from nnue_trainer.losses.wdl import WdlLoss
from nnue_trainer.losses.win_rate import WinRateLoss

__all__ = [
    "LOSSES",
    "NO_SCORE",
    "CrossEntropyLoss",
    "Loss",
    "LossKernel",
    "SigmoidLoss",
    "WdlLoss",
    "WinRateLoss",
    "mean",
    "points",
    "power",
]
