"""How much each position counts in the training loss, one file for each kind of weight."""

from nnue_trainer.losses.position_weights.base import POSITION_WEIGHTS, PositionWeight

__all__ = ["POSITION_WEIGHTS", "PositionWeight"]
