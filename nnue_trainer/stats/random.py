"""Random numbers that are a function of (seed, stream, offset): Philox4x32-10, the same on CPU and CUDA.

    numbers = Philox(seed=1)
    x = numbers.uniform((1000,), device="cuda")
    y = numbers.normal((1000,))                  # continues where x ended
    again = Philox(1).uniform((1000,))           # the numbers of x

Element i of a call is number offset + i of the stream. The table in csrc/random.h has the bits that each kind of number
is made of. CPU and CUDA give equal bits, except for normal numbers of float64, which may differ in the last place.
Streams of one seed, and seeds, are independent of each other. Nothing here touches torch's own generators.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnue_trainer.stats._given import number

__all__ = ["Philox"]

Size = int | Sequence[int]
_STEP = 1 << 62


@dataclass
class Philox:
    """A place in a stream of random numbers; each call advances `offset` past the numbers that it returned.

    seed, stream: any integers of 64 bits, NumPy's too. offset: from 0 on. All three are the state: save them, and go on
    later.
    Every number counts as one, whatever its distribution. Distributions use different numbers of bits, and so do
    integers of up to 2^24 values and others, so calls with different distributions may share bits. Where they have to
    be independent, give each distribution its own stream.
    """

    seed: int
    stream: int = 0
    offset: int = 0

    def __post_init__(self) -> None:
        self.seed, self.stream = (integer_of_64_bits(name, getattr(self, name)) for name in ("seed", "stream"))
        offset = _integer(self.offset)
        if offset is None or not 0 <= offset < _STEP:
            raise ValueError(f"random: offset: found {self.offset!r}, expected an integer, 0 or more, below 2^62")
        self.offset = offset

    def state(self) -> tuple[int, int, int]:
        """(seed, stream, offset): Philox(*state) continues from here."""
        return self.seed, self.stream, self.offset

    def _fill(self, out: Tensor, distribution: str, *numbers: float | int) -> Tensor:
        place = _wrapped(operator.index(self.seed)), _wrapped(operator.index(self.stream)), self.offset
        from nnue_trainer.stats._random_fill import CODES  # only here: it loads the library of statistics

        try:
            torch.ops.nnue.random_fill(out, CODES[distribution], *place, *numbers)
        except RuntimeError:  # of torch, for another type than a number, with several lines
            for value in numbers:
                number(f"random: {distribution}", value, nan=True)
            raise
        self.offset += out.numel()
        return out

    def bits(self, size: Size, dtype: torch.dtype = torch.int64, device: torch.device | str = "cpu") -> Tensor:
        """Integers of int32 or int64, a tensor [*size]; all values are equally likely."""
        return self._fill(_empty(size, dtype, device), "bits")

    def uniform(
        self,
        size: Size,
        low: float = 0.0,
        high: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """low + (high − low) · u, a tensor [*size]; u is a multiple of 2^−24 (float32) or 2^−53 (float64) in [0, 1).

        low and high are rounded to `dtype`, and every number is below high. If both are equal, all numbers are low.
        """
        return self._fill(_empty(size, dtype, device), "uniform", low, high)

    def normal(
        self,
        size: Size,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Normal numbers, a tensor [*size] of float32 or float64. mean and std are rounded to `dtype`."""
        return self._fill(_empty(size, dtype, device), "normal", mean, std)

    def integers(
        self,
        low: int,
        high: int,
        size: Size,
        dtype: torch.dtype = torch.int64,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Integers low ≤ value < high, a tensor [*size] of int32 or int64; all are exactly equally likely.

        ValueError if `low` or `high` is not an integer of int64; RuntimeError if low ≥ high.
        """
        for name, value in (("low", low), ("high", high)):
            found = _integer(value)
            if found is None or not -(1 << 63) <= found < 1 << 63:
                raise ValueError(f"random: {name}: found {value!r}, expected an integer of int64")
        return self._fill(_empty(size, dtype, device), "integers", 0.0, 1.0, int(low), int(high))

    def bernoulli(
        self, p: float, size: Size, dtype: torch.dtype = torch.bool, device: torch.device | str = "cpu"
    ) -> Tensor:
        """1 with probability p, else 0; a tensor [*size] of bool, uint8, float32 or float64."""
        return self._fill(_empty(size, dtype, device), "bernoulli", p)


def integer_of_64_bits(name: str, value: Any) -> int:
    """`value` as a Python integer. ValueError if it is not an integer or has more than 64 bits."""
    found = _integer(value)
    if found is None or not -(1 << 63) <= found < 1 << 64:
        raise ValueError(f"random: {name}: found {value!r}, expected an integer of 64 bits")
    return found


def signed(name: str, value: Any) -> int:
    """An integer of 64 bits, such as a seed, as operators take it; ValueError as `integer_of_64_bits`."""
    return _wrapped(integer_of_64_bits(name, value))


def _wrapped(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _integer(value: Any) -> int | None:
    try:
        return operator.index(value)
    except TypeError:
        return None


def _empty(size: Size, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    return torch.empty(size, dtype=dtype, device=device)
