"""Averages of the weights over steps, one file each. Validation, `best`, checkpoints and export take the average."""

from nnue_trainer.optim.averages.base import AVERAGES, Average

__all__ = ["AVERAGES", "Average"]
