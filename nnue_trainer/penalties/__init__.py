"""Terms that are added to the training loss, one file for each kind."""

from nnue_trainer.penalties.activations import ActivationPenalty
from nnue_trainer.penalties.base import PENALTIES, Penalty
from nnue_trainer.penalties.weights import WeightPenalty

__all__ = ["PENALTIES", "ActivationPenalty", "Penalty", "WeightPenalty"]
