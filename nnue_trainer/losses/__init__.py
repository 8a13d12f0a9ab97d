"""Losses over a batch of outputs, scores and game results.

`base` has the class that every loss derives from and the registry; each built-in loss has its own file.
`position_weights` has the weights of positions in a loss, in the same way.
"""

from nnue_trainer.data.fields import NO_SCORE
from nnue_trainer.losses import position_weights
from nnue_trainer.losses.base import LOSSES, Loss, mean, points, power
from nnue_trainer.losses.sigmoid import SigmoidLoss

__all__ = [
    "LOSSES",
    "NO_SCORE",
    "Loss",
    "SigmoidLoss",
    "mean",
    "points",
    "position_weights",
    "power",
]
