"""Rolling windows and exponentially weighted means with pandas' semantics, in plain NumPy: a reference, not fast.

Along one dimension. NaN is a missing value; infinity is treated as one, as pandas does in windows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Rolling:
    """`rolling(x, window)`: statistics over the last `window` values, this one included."""

    def __init__(self, x: npt.ArrayLike, window: int, min_periods: int | None = None, center: bool = False):
        values = np.asarray(x, np.float64)
        if values.ndim != 1:
            raise ValueError(f"rolling: x has {values.ndim} dimensions, expected 1")
        if window < 1:
            raise ValueError(f"rolling: window is {window}, expected at least 1")
        ahead = (window - 1) // 2 if center else 0
        padded = np.full(len(values) + window - 1, np.nan)
        padded[window - 1 - ahead : window - 1 - ahead + len(values)] = np.where(np.isfinite(values), values, np.nan)
        empty = np.empty((0, window))
        self._windows = np.lib.stride_tricks.sliding_window_view(padded, window) if len(values) else empty
        self._count = np.isfinite(self._windows).sum(axis=1)
        self._least = window if min_periods is None else min_periods

    def _where_enough(self, values: npt.ArrayLike, least: int) -> Floats:
        return np.where(self._count >= max(self._least, least), values, np.nan)

    def count(self) -> Floats:
        return self._where_enough(self._count.astype(np.float64), 0)

    def mean(self) -> Floats:
        total = np.where(np.isfinite(self._windows), self._windows, 0.0).sum(axis=1)
        return self._where_enough(total / np.maximum(self._count, 1), 1)

    def var(self, ddof: int = 1) -> Floats:
        mean = np.where(np.isfinite(self._windows), self._windows, 0.0).sum(axis=1) / np.maximum(self._count, 1)
        squares = np.where(np.isfinite(self._windows), (self._windows - mean[:, np.newaxis]) ** 2, 0.0).sum(axis=1)
        return self._where_enough(squares / np.maximum(self._count - ddof, 1), ddof + 1)

    def std(self, ddof: int = 1) -> Floats:
        return np.sqrt(self.var(ddof))

    def quantile(self, q: float) -> Floats:
        """Between two values, linearly."""
        result = np.full(len(self._windows), np.nan)
        some = self._count >= 1
        if some.any():
            result[some] = np.nanquantile(self._windows[some], q, axis=1)
        return self._where_enough(result, 1)

    def median(self) -> Floats:
        return self.quantile(0.5)


class Ewm:
    """`ewm(x, alpha=…)`: the exponentially weighted mean."""

    def __init__(self, x: npt.ArrayLike, alpha: float, adjust: bool, ignore_na: bool, min_periods: int):
        self._values = np.asarray(x, np.float64)
        if self._values.ndim != 1:
            raise ValueError(f"ewm: x has {self._values.ndim} dimensions, expected 1")
        self._alpha, self._adjust, self._ignore_na = alpha, adjust, ignore_na
        self._least = max(min_periods, 1)

    def mean(self) -> Floats:
        out = np.full(len(self._values), np.nan)
        mean, weight, seen = np.nan, 1.0, 0
        fresh = 1.0 if self._adjust else self._alpha
        for index, value in enumerate(self._values.tolist()):
            present = value == value
            seen += present
            if mean == mean:
                if present or not self._ignore_na:
                    weight *= 1 - self._alpha
                if present:
                    if mean != value:
                        mean = (weight * mean + fresh * value) / (weight + fresh)
                    weight = weight + fresh if self._adjust else 1.0
            elif present:
                mean = value
            if seen >= self._least:
                out[index] = mean
        return out


def rolling(x: npt.ArrayLike, window: int, min_periods: int | None = None, center: bool = False) -> Rolling:
    return Rolling(x, window, min_periods, center)


def ewm(
    x: npt.ArrayLike,
    *,
    com: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    alpha: float | None = None,
    adjust: bool = True,
    ignore_na: bool = False,
    min_periods: int = 0,
) -> Ewm:
    """One of `com`, `span`, `halflife` and `alpha` says how fast a value fades."""
    given = [name for name, value in (("com", com), ("span", span), ("halflife", halflife), ("alpha", alpha)) if value]
    if com is not None:
        alpha = 1 / (1 + com)
    elif span is not None:
        alpha = 2 / (span + 1)
    elif halflife is not None:
        alpha = 1 - float(np.exp(-np.log(2) / halflife))
    if len(given) > 1 or alpha is None or not 0 < alpha <= 1:
        raise ValueError(f"ewm: found {' and '.join(given) or 'nothing'}, expected one of com, span, halflife, alpha")
    return Ewm(x, alpha, adjust, ignore_na, min_periods)
