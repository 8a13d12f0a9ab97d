"""Statistics of sliding windows along the last dimension, with the values and the NaN rules of pandas.

    smooth = stats.rolling(loss, 100, min_periods=1).mean()

Each statistic is one operator, `nnue::rolling` or `nnue::rolling_quantile`. Its time does not depend on the window;
that of quantiles grows with the window's logarithm. Nothing is subtracted, so nothing cancels and nothing drifts:
csrc/rolling.h describes how. The operators have no derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from nnue_trainer.ops import _enumerations
from nnue_trainer.stats import _plain, window_function

ROLLING = "nnue::rolling"
QUANTILE = "nnue::rolling_quantile"

Closed = Literal["right", "left", "both", "neither"]
Interpolation = Literal["linear", "lower", "higher", "midpoint", "nearest"]


@dataclass(frozen=True)
class Rolling:
    """The windows of `rolling`. Every statistic is a tensor of the shape, dtype and device of `x`.

    NaN and infinity do not count as observations. An output is NaN if its window has fewer than `min_periods` of them,
    or too few for the statistic. Sums are computed in float64, also for float32.
    """

    x: Tensor
    first: int
    """the window of output i is what [i + first, i + first + length) has in common with [0, n)"""
    length: int
    min_periods: int

    def _statistic(self, name: str, other: Tensor | None = None, ddof: float = 1) -> Tensor:
        rule = self.first, self.length, self.min_periods, _number("ddof", ddof)
        return cast(Tensor, torch.ops.nnue.rolling(self.x, other, _enumerations.code("rolling.statistic", name), *rule))

    def sum(self) -> Tensor:
        """Σ x; 0 for no observations, if min_periods is 0."""
        return self._statistic("sum")

    def mean(self) -> Tensor:
        """The mean."""
        return self._statistic("mean")

    def var(self, ddof: float = 1) -> Tensor:
        """Σ (x − mean)² / (count − ddof); NaN where count ≤ ddof."""
        return self._statistic("var", ddof=ddof)

    def std(self, ddof: float = 1) -> Tensor:
        """The root of `var`."""
        return self._statistic("std", ddof=ddof)

    def min(self) -> Tensor:
        """The least observation."""
        return self._statistic("min")

    def max(self) -> Tensor:
        """The greatest observation."""
        return self._statistic("max")

    def skew(self) -> Tensor:
        """The unbiased skewness; NaN for fewer than 3 observations, or where all are equal."""
        return self._statistic("skew")

    def kurt(self) -> Tensor:
        """The unbiased excess kurtosis; NaN for fewer than 4 observations, or where all are equal."""
        return self._statistic("kurt")

    def count(self) -> Tensor:
        """How many elements of the window are not NaN. As in pandas infinity counts, and min_periods counts places."""
        present = (~self.x.isnan()).to(self.x.dtype)
        return Rolling(present, self.first, self.length, self.min_periods).sum()

    def median(self) -> Tensor:
        """The median: `quantile(0.5)`."""
        return self.quantile(0.5)

    def quantile(self, q: float, interpolation: Interpolation = "linear") -> Tensor:
        """The observation at q · (count − 1) in order, q from 0 to 1.

        interpolation: what stands between two observations: "linear", or "lower", "higher", "nearest", "midpoint".
        """
        kind = _enumerations.code("rolling_quantile.interpolation", interpolation)
        rule = self.first, self.length, self.min_periods, _number("q", q), kind
        return cast(Tensor, torch.ops.nnue.rolling_quantile(self.x, *rule))

    def cov(self, other: Tensor, ddof: float = 1) -> Tensor:
        """The covariance with `other`, of the shape of x, over the places where both have an observation."""
        return self._statistic("cov", _same_kind(self.x, other), ddof)

    def corr(self, other: Tensor) -> Tensor:
        """The correlation with `other`; NaN where one of them is constant."""
        return self._statistic("corr", _same_kind(self.x, other))

    def apply(self, function: window_function.WindowFunction | Callable[..., float]) -> Tensor:
        """A function of your own of each window, which gets all of its elements in float64, NaN included.

        function: a `WindowFunction`, which is C++ and is compiled at its first use, for CPU and CUDA; or a Python
            function of a NumPy array, for tensors on the CPU, which is compiled by Numba where that is installed.

        Only windows with at least `min_periods` observations are requested; the other outputs are NaN.
        """
        return window_function.apply(function, self.x, self.first, self.length, self.min_periods)


def rolling(
    x: Tensor, window: int, min_periods: int | None = None, center: bool = False, closed: Closed | None = None
) -> Rolling:
    """Statistics of windows of `window` elements along the last dimension of x, as pandas' `Series.rolling`.

    Args:
        x: [..., n], float32 or float64, on CPU or CUDA; need not be contiguous.
        window: elements of a window, from 0 on; longer than n is fine.
        min_periods: observations that an output needs, at most `window`; None: `window`.
        center: the window is centred on its output's place instead of ending there.
        closed: which ends of [i − window, i] belong to the window of output i: "right" (as None), "left", "both",
            "neither".

    Raises:
        ValueError: an argument is out of range. RuntimeError: x is not such a tensor.
    """
    window = _whole("window", window)
    least = window if min_periods is None else _whole("min_periods", min_periods)
    if min_periods is not None and least > window:
        raise ValueError(f"rolling: min_periods: found {least}, expected at most the window, {window}")
    if closed is not None and closed not in get_args(Closed):
        raise ValueError(f"rolling: closed: found {closed!r}, expected one of {', '.join(get_args(Closed))}")
    if not isinstance(center, bool):
        raise ValueError(f"rolling: center: found {center!r}, expected True or False")
    left, right = closed in ("left", "both"), closed not in ("left", "neither")
    offset = (window - 1) // 2 if center or window == 0 else 0
    first = 1 + offset - window - left
    return Rolling(x, first, max(offset + right - first, 0), least)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 0:
        raise ValueError(f"rolling: {name}: found {value!r}, expected a whole number, at least 0")
    return int(value)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"rolling: {name}: found {value!r}, expected a number") from None


def _same_kind(x: Tensor, other: Any) -> Tensor:
    if not isinstance(other, Tensor):
        raise ValueError(f"rolling: other: found {type(other).__name__}, expected a tensor like x")
    return other.to(x.dtype) if other.dtype in (torch.float32, torch.float64) and other.dtype != x.dtype else other


# ---- registration ---------------------------------------------------------------------------------------------------


def _like_x(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


_plain.register(ROLLING, _like_x)
_plain.register(QUANTILE, _like_x)
