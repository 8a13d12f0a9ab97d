"""Smooths the curves of the pages with sliding windows and exponential weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer.base.arrays import Floats
from nnue_trainer.stats.exponential import ewm
from nnue_trainer.stats.windows import rolling


def window_for(length: int) -> int:
    """The window of a curve with `length` points: a twentieth of it, at least 5."""
    return max(5, length // 20)


def trend(values: npt.ArrayLike, span: float) -> Floats:
    """The exponentially weighted mean. What is missing (a loss that was not finite) is passed over."""
    return _floats(ewm(_finite(values), span=span).mean())


def band(values: npt.ArrayLike, window: int) -> tuple[Floats, Floats]:
    """Mean and standard deviation in a window around each point."""
    windows = rolling(_finite(values), window, min_periods=2, center=True)
    return _floats(windows.mean()), _floats(windows.std())


def middle(values: npt.ArrayLike, window: int) -> Floats:
    """The median in a window around each point: a stall of one record does not move it."""
    return _floats(rolling(_finite(values), window, min_periods=1, center=True).median())


def _finite(values: npt.ArrayLike) -> torch.Tensor:
    array = np.asarray(values, np.float64)
    return torch.from_numpy(np.where(np.isfinite(array), array, np.nan))


def _floats(tensor: torch.Tensor) -> Floats:
    found: Floats = tensor.numpy()
    return found
