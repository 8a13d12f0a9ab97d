"""Weights that stay in range: after every step each is clipped to what the exported net can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from nnue_trainer.nets.base import WeightBound


class Bounds:
    """The outermost layer."""

    def __init__(self, bounds: Iterable[WeightBound]) -> None:
        self._bounds = [(bound.parameter, bound.first_row, bound.end, bound.low, bound.high) for bound in bounds]

    def __bool__(self) -> bool:
        """Whether there is a bound."""
        return bool(self._bounds)

    def take(self, parameter: nn.Parameter, first: int, rows: int) -> tuple[float, float]:
        """The limits of consecutive rows of a parameter, if one bound is for all of them, and infinite ones otherwise.
        The caller then clips these rows itself: a layer that writes them anyway saves a pass over them."""
        end = first + rows
        for index, (own, begin, stop, low, high) in enumerate(self._bounds):
            if own is parameter and begin <= first and end <= stop:
                rest = [(own, a, b, low, high) for a, b in ((begin, first), (end, stop)) if a < b]
                self._bounds[index : index + 1] = rest
                return low, high
        return -math.inf, math.inf

    def step(self, loss: Tensor, inner: Callable[[], None]) -> None:
        """Runs `inner`, then clips every bounded row to its range. `loss`: fp32 scalar, not used."""
        inner()
        for parameter, begin, stop, low, high in self._bounds:
            torch.atleast_1d(parameter.detach())[begin:stop].clamp_(low, high)  # type: ignore[no-untyped-call]
