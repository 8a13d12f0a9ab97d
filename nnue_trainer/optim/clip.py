"""Clips gradients by their norm and by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


class Clip:
    """The layer next to the rule: scales gradients down to a norm, then clips each value."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], max_norm: float | None, max_value: float | None) -> None:
        self._parameters, self._max_norm, self._max_value = list(parameters.values()), max_norm, max_value

    def step(self, loss: Tensor, inner: Callable[[], None]) -> None:
        if self._max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._max_norm)
        if self._max_value is not None:
            torch.nn.utils.clip_grad_value_(self._parameters, self._max_value)
        inner()
