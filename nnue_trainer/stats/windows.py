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

from nnue_trainer.stats import _given, _plain, window_function

ROLLING = "nnue::rolling"
QUANTILE = "nnue::rolling_quantile"

Closed = Literal["right", "left", "both", "neither"]
Interpolation = Literal["linear", "lower", "higher", "midpoint", "nearest"]


@dataclass(frozen=True)
class Rolling:
    """The windows of `rolling` and `expanding`. Every statistic has the kind, shape, dtype and device of `x`, with
    `step` only every step-th element of the last dimension.

    NaN and infinity do not count as observations. An output is NaN if its window has fewer than `min_periods` of them,
    or too few for the statistic. Sums are computed in float64, also for float32.
    """

    given: _given.Given
    first: int
    """the window of output i is what [i + first, i + first + length) has in common with [0, n)"""
    length: int
    min_periods: int
    step: int = 1

    @property
    def x(self) -> Tensor:
        """The elements, as a tensor."""
        return self.given.tensor

    def _out(self, every: Tensor) -> Any:
        return self.given.back(every if self.step == 1 else every[..., :: self.step])

    def _every(self, name: str, x: Tensor, other: Tensor | None = None, ddof: float = 1) -> Tensor:
        rule = self.first, self.length, self.min_periods, _given.number("rolling: ddof", ddof)
        return cast(Tensor, torch.ops.nnue.rolling(x, other, _plain.code("rolling.statistic", name), *rule))

    def _statistic(self, name: str, other: Tensor | None = None, ddof: float = 1) -> Any:
        return self._out(self._every(name, self.x, other, ddof))

    def sum(self) -> Any:
        """Σ x; 0 for no observations, if min_periods is 0."""
        return self._statistic("sum")

    def mean(self) -> Any:
        """The mean."""
        return self._statistic("mean")

    def var(self, ddof: float = 1) -> Any:
        """Σ (x − mean)² / (count − ddof); NaN where count ≤ ddof."""
        return self._statistic("var", ddof=ddof)

    def std(self, ddof: float = 1) -> Any:
        """The root of `var`."""
        return self._statistic("std", ddof=ddof)

    def sem(self, ddof: float = 1) -> Any:
        """The standard error of the mean: `std(ddof)` / √count, with the observations for the count."""
        counts = self._every("sum", self.x.isfinite().to(self.x.dtype))
        return self._out(self._every("std", self.x, ddof=ddof) / counts.sqrt())

    def min(self) -> Any:
        """The least observation."""
        return self._statistic("min")

    def max(self) -> Any:
        """The greatest observation."""
        return self._statistic("max")

    def skew(self) -> Any:
        """The unbiased skewness; NaN for fewer than 3 observations, or where all are equal."""
        return self._statistic("skew")

    def kurt(self) -> Any:
        """The unbiased excess kurtosis; NaN for fewer than 4 observations, or where all are equal."""
        return self._statistic("kurt")

    def count(self) -> Any:
        """How many elements of the window are not NaN. As in pandas infinity counts, and min_periods counts places."""
        return self._out(self._every("sum", (~self.x.isnan()).to(self.x.dtype)))

    def median(self) -> Any:
        """The median: `quantile(0.5)`."""
        return self.quantile(0.5)

    def quantile(self, q: float, interpolation: Interpolation = "linear") -> Any:
        """The observation at q · (count − 1) in order, q from 0 to 1.

        interpolation: what stands between two observations: "linear", or "lower", "higher", "nearest", "midpoint".
        """
        kind = _plain.code("rolling_quantile.interpolation", interpolation)
        place = _given.number("rolling: q", q, nan=True)
        if not 0 <= place <= 1:
            raise ValueError(f"rolling: q: found {q!r}, expected a number from 0 to 1")
        rule = self.first, self.length, self.min_periods, place, kind
        return self._out(torch.ops.nnue.rolling_quantile(self.x, *rule))

    def cov(self, other: Any, ddof: float = 1) -> Any:
        """The covariance with `other`, of the kind and shape of x, over the places where both have an observation."""
        return self._statistic("cov", _like(self.given, other), ddof)

    def corr(self, other: Any) -> Any:
        """The correlation with `other`, of the kind and shape of x; NaN where one of them is constant."""
        return self._statistic("corr", _like(self.given, other))

    def apply(
        self, function: window_function.WindowFunction | window_function.WindowState | Callable[..., float]
    ) -> Any:
        """A function of your own of each window, which gets all of its elements in float64, NaN included.

        function: a `WindowFunction`, which is C++ and is compiled at its first use, for CPU and CUDA; a `WindowState`,
            which is C++ too, follows a window in constant time per element, and gets observations only; or a Python
            function of a NumPy array that it must not change. Numba compiles it where that is installed; on CUDA, Numba
            for CUDA is required, and the function is compiled from what that supports.

        Only windows with at least `min_periods` observations are requested; the other outputs are NaN.
        """
        return self._out(window_function.apply(function, self.x, self.first, self.length, self.min_periods))


def rolling(
    x: Any,
    window: int,
    min_periods: int | None = None,
    center: bool = False,
    closed: Closed | None = None,
    step: int | None = None,
) -> Rolling:
    """Statistics of windows of `window` elements along the last dimension of x, as pandas' `Series.rolling`.

    Args:
        x: [..., n], float32 or float64, on CPU or CUDA; need not be contiguous. Or a NumPy array (integers, booleans
            and float16 become float64), a Series or a DataFrame of numbers: results are the same kind of object, for
            pandas in float64 and with the same index.
        window: elements of a window, from 0 on; longer than n is fine.
        min_periods: observations that an output needs, at most `window`; None: `window`.
        center: the window is centred on its output's place instead of ending there.
        closed: which ends of [i − window, i] belong to the window of output i: "right" (as None), "left", "both",
            "neither".
        step: only every step-th output is returned, from the first one on.

    Raises:
        ValueError: an argument is out of range, or x has no numbers. RuntimeError: x is a tensor of another dtype.
    """
    window = _given.whole("rolling: window", window)
    least = window if min_periods is None else _given.whole("rolling: min_periods", min_periods)
    if min_periods is not None and least > window:
        raise ValueError(f"rolling: min_periods: found {least}, expected at most the window, {window}")
    if closed is not None and closed not in get_args(Closed):
        raise ValueError(f"rolling: closed: found {closed!r}, expected one of {', '.join(get_args(Closed))}")
    center = _given.flag("rolling: center", center)
    left, right = closed in ("left", "both"), closed not in ("left", "neither")
    offset = (window - 1) // 2 if center or window == 0 else 0
    first = 1 + offset - window - left
    every = 1 if step is None else _given.whole("rolling: step", step)
    if every == 0:
        raise ValueError("rolling: step: found 0, expected at least 1")
    return Rolling(_given.given("rolling: x", x, every), first, max(offset + right - first, 0), least, every)


def expanding(x: Any, min_periods: int | None = 1) -> Rolling:
    """Statistics of all elements up to each one, as pandas' `Series.expanding`; `x` as for `rolling`.

    min_periods: observations that an output needs; None: 0.
    """
    least = 0 if min_periods is None else _given.whole("rolling: min_periods", min_periods)
    given = _given.given("expanding: x", x)
    n = given.tensor.shape[-1] if given.tensor.dim() > 0 else 0
    return Rolling(given, 1 - n, n, least)


def _like(x: _given.Given, other: Any) -> Tensor:
    """The numbers of `other`, in the dtype of those of `x`."""
    found = _given.given("rolling: other", other)
    if x.labels and found.labels and not all(map(_same_labels, x.labels, found.labels)):
        raise ValueError("rolling: other: found other labels than those of x; align the two first: x.align(other)")
    dtype, floats = x.tensor.dtype, (torch.float32, torch.float64)
    return found.tensor.to(dtype) if found.tensor.dtype in floats and dtype in floats else found.tensor


def _same_labels(a: Any, b: Any) -> bool:
    return bool(a.equals(b))


_plain.register(ROLLING, _plain.like_x)
_plain.register(QUANTILE, _plain.like_x)
