"""Terms that are added to the training loss, one file for each kind."""

from nnue_trainer.optim.penalties.base import PENALTIES, Penalty

__all__ = ["PENALTIES", "Penalty"]
