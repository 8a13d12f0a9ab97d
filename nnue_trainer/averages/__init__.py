"""Averages of the weights over steps, one file each. Validation, `best`, checkpoints and export take the average."""

from nnue_trainer.averages.base import AVERAGES, Average
from nnue_trainer.averages.ema import Ema
from nnue_trainer.averages.swa import Swa

__all__ = ["AVERAGES", "Average", "Ema", "Swa"]
