"""Random changes of λ, for each batch and for each position."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

from torch import Tensor

_STREAM = 0x4241544348  # "BATCH"; of the random numbers of a seed
_BLOCK = 4096  # normal numbers that are made at a time


def autoregressive(normals: Iterable[float], std: float, decay: float) -> Iterator[float]:
    """b ← decay · b + std · √(1 − decay²) · n for each normal number, from b = 0. Its standard deviation becomes
    `std`."""
    b, scale = 0.0, std * math.sqrt(1 - decay * decay)
    for normal in normals:
        b = decay * b + scale * normal
        yield b


def add_jitter(lam: float, std: float, normals: Tensor) -> Tensor:
    """λ of each position, clipped to 0 … 1, for the normal number of each."""
    return (lam + std * normals).clamp_(0, 1)


class BatchJitter:
    """The numbers b of a seed, by step. Although each follows from the one before, nothing has to be saved: for a
    step that is not the next one they are made again from the first step on, a few million in a second."""

    def __init__(self, seed: int, std: float, decay: float):
        self._seed, self._std, self._decay = seed, std, decay
        self._values: Iterator[float] = iter(())
        self._step, self._value = 0, 0.0
        self._restart()

    @staticmethod
    @functools.cache
    def of(seed: int, std: float, decay: float) -> BatchJitter:
        return BatchJitter(seed, std, decay)

    def at(self, step: int) -> float:
        if step < self._step:
            self._restart()
        while self._step < step:
            self._value = next(self._values)
            self._step += 1
        return self._value

    def _restart(self) -> None:
        self._step, self._value = -1, 0.0
        self._values = autoregressive(self._normals(), self._std, self._decay)

    def _normals(self) -> Iterator[float]:
        import torch

        from nnue_trainer.stats.random import Philox

        numbers = Philox(self._seed, _STREAM)
        while True:
            yield from numbers.normal(_BLOCK, dtype=torch.float64).tolist()
