"""Random numbers that are a function of (seed, stream, offset): Philox4x32-10, the same on CPU and CUDA.

    numbers = Philox(seed=1)
    x = numbers.uniform((1000,), device="cuda")
    y = numbers.normal((1000,))                  # continues where x ended
    again = Philox(1).uniform((1000,))           # the numbers of x

Element i of a call is number offset + i of the stream. The table in csrc/random.h has the bits that each kind of number
is made of. CPU and CUDA give equal bits, except for normal numbers, which may differ in the last place. Streams of one
seed, and seeds, are independent of each other. Nothing here touches torch's own generators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nnue_trainer.ops import _enumerations
from nnue_trainer.stats import _plain

__all__ = ["Philox"]

FILL = "nnue::random_fill"

Size = int | Sequence[int]
_STEP = 1 << 62


@dataclass
class Philox:
    """A place in a stream of random numbers; each call advances `offset` past the numbers that it returned.

    seed, stream: any integers of 64 bits. offset: from 0 on. All three are the state: save them, and go on later.
    Every number counts as one, whatever its distribution. Distributions use different numbers of bits, so calls with
    different distributions may share bits. Where they have to be independent, give each distribution its own stream.
    """

    seed: int
    stream: int = 0
    offset: int = 0

    def __post_init__(self) -> None:
        for name in ("seed", "stream"):
            value = getattr(self, name)
            if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 64:
                raise ValueError(f"random: {name}: found {value!r}, expected an integer of 64 bits")
        if not isinstance(self.offset, int) or not 0 <= self.offset < _STEP:
            raise ValueError(f"random: offset: found {self.offset!r}, expected an integer, 0 or more, below 2^62")

    def state(self) -> tuple[int, int, int]:
        """(seed, stream, offset): Philox(*state) continues from here."""
        return self.seed, self.stream, self.offset

    def _fill(self, out: Tensor, distribution: str, *numbers: float | int) -> Tensor:
        place = signed(self.seed), signed(self.stream), self.offset
        torch.ops.nnue.random_fill(out, _enumerations.code("random_fill.distribution", distribution), *place, *numbers)
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
        """low + (high − low) · u, a tensor [*size]; u is a multiple of 2^−24 (float32) or 2^−53 (float64) in [0, 1)."""
        return self._fill(_empty(size, dtype, device), "uniform", low, high)

    def normal(
        self,
        size: Size,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Normal numbers, a tensor [*size] of float32 or float64."""
        return self._fill(_empty(size, dtype, device), "normal", mean, std)

    def integers(
        self,
        low: int,
        high: int,
        size: Size,
        dtype: torch.dtype = torch.int64,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Integers low ≤ value < high, a tensor [*size] of int32 or int64; all are exactly equally likely."""
        return self._fill(_empty(size, dtype, device), "integers", 0.0, 1.0, low, high)

    def bernoulli(
        self, p: float, size: Size, dtype: torch.dtype = torch.bool, device: torch.device | str = "cpu"
    ) -> Tensor:
        """1 with probability p, else 0; a tensor [*size] of bool, uint8, float32 or float64."""
        return self._fill(_empty(size, dtype, device), "bernoulli", p)


def signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _empty(size: Size, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    return torch.empty(size if isinstance(size, Sequence) else (size,), dtype=dtype, device=device)


_plain.register(FILL)
