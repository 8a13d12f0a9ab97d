"""How much each position counts in the training loss, one file for each kind of weight."""

from nnue_trainer.position_weights.base import POSITION_WEIGHTS, PositionWeight
from nnue_trainer.position_weights.knots import Knots
from nnue_trainer.position_weights.product import Product

__all__ = ["POSITION_WEIGHTS", "Knots", "PositionWeight", "Product"]
