"""How curves are smoothed on the pages: the one place that calls the windows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nnue_trainer.analysis._windows_reference import ewm, rolling

Floats = npt.NDArray[np.float64]


def window_for(length: int) -> int:
    """The window of a curve with `length` points: a twentieth of it, at least 5."""
    return max(5, length // 20)


def trend(values: npt.ArrayLike, span: float) -> Floats:
    """The exponentially weighted mean. What is missing (a loss that was not finite) is passed over."""
    return np.asarray(ewm(_finite(values), span=span).mean(), np.float64)


def band(values: npt.ArrayLike, window: int) -> tuple[Floats, Floats]:
    """Mean and standard deviation in a window around each point."""
    windows = rolling(_finite(values), window, min_periods=2, center=True)
    return np.asarray(windows.mean(), np.float64), np.asarray(windows.std(), np.float64)


def middle(values: npt.ArrayLike, window: int) -> Floats:
    """The median in a window around each point: a stall of one record does not move it."""
    return np.asarray(rolling(_finite(values), window, min_periods=1, center=True).quantile(0.5), np.float64)


def _finite(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    return np.where(np.isfinite(array), array, np.nan)
