"""Exponentially weighted moments along the last dimension, with the values and the NaN rules of pandas.

    trend = stats.ewm(loss, span=100).mean()

One operator, `nnue::ewm`, a scan on CPU and CUDA; its contract is in csrc/ewm.h. It has no derivative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from nnue_trainer.stats import _given, _plain

EWM = "nnue::ewm"


@dataclass(frozen=True)
class Ewm:
    """The weights of `ewm`. Every statistic has the kind, shape, dtype and device of `x`.

    NaN and infinity do not count as observations. An output is NaN before the first observation, and until there have
    been `min_periods` of them. Everything is computed in float64, also for float32.
    """

    given: _given.Given
    alpha: float
    adjust: bool
    ignore_na: bool
    min_periods: int

    def _statistic(self, name: str, bias: bool = False) -> Any:
        rule = self.alpha, self.adjust, self.ignore_na, _given.flag("ewm: bias", bias), self.min_periods
        return self.given.back(torch.ops.nnue.ewm(self.given.tensor, _plain.code("ewm.statistic", name), *rule))

    def mean(self) -> Any:
        """The weighted mean."""
        return self._statistic("mean")

    def var(self, bias: bool = False) -> Any:
        """The weighted variance; without `bias` it is multiplied by (Σw)² / ((Σw)² − Σw²), and NaN where that has no
        value."""
        return self._statistic("var", bias)

    def std(self, bias: bool = False) -> Any:
        """The root of `var`."""
        return self._statistic("std", bias)


def ewm(
    x: Any,
    com: float | None = None,
    span: float | None = None,
    halflife: float | None = None,
    alpha: float | None = None,
    min_periods: int | None = 0,
    adjust: bool = True,
    ignore_na: bool = False,
) -> Ewm:
    """Exponentially weighted statistics, as pandas' `Series.ewm`: weights fall by the factor 1 − alpha per element.

    Args:
        x: [..., n], float32 or float64, on CPU or CUDA; need not be contiguous. Or a NumPy array, a Series or a
            DataFrame, as for `rolling`.
        com, span, halflife, alpha: exactly one of them: alpha = 1 / (1 + com), com ≥ 0; alpha = 2 / (1 + span),
            span ≥ 1; alpha = 1 − exp(−ln 2 / halflife), halflife > 0; or 0 < alpha ≤ 1. With infinity for one of the
            first three, all observations weigh the same.
        min_periods: observations before there is an output; at least 1, also where it is 0 or None.
        adjust: True: weighted means over all earlier elements. False: y[i] = (1 − alpha) · y[i − 1] + alpha · x[i].
        ignore_na: True: weights fall with every observation. False: they fall with every element, NaN included.

    Raises:
        ValueError: an argument is out of range, or x has no numbers. RuntimeError: x is a tensor of another dtype.
    """
    rules = {"com": com, "span": span, "halflife": halflife, "alpha": alpha}
    given = {name: value for name, value in rules.items() if value is not None}
    named = {name: _given.number(f"ewm: {name}", value, nan=True) for name, value in given.items()}
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise ValueError(f"ewm: found {found}, expected exactly one of com, span, halflife and alpha")
    ((name, value),) = named.items()
    limits = {"com": (value >= 0, "≥ 0"), "span": (value >= 1, "≥ 1"), "halflife": (value > 0, "> 0")}
    right, expected = limits.get(name, (0 < value <= 1, "above 0, up to 1"))
    if not right:
        raise ValueError(f"ewm: {name}: found {value}, expected a number {expected}")
    if name == "com":
        value = 1 / (1 + value)
    elif name == "span":
        value = 2 / (1 + value)
    elif name == "halflife":
        value = -math.expm1(-math.log(2) / value)
    least = 0 if min_periods is None else _given.whole("ewm: min_periods", min_periods)
    adjust, ignore_na = _given.flag("ewm: adjust", adjust), _given.flag("ewm: ignore_na", ignore_na)
    return Ewm(_given.given("ewm: x", x), abs(value), adjust, ignore_na, least)


_plain.register(EWM, _plain.like_x)
