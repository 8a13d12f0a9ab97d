"""Parts of parameters that the fused operators move, and the state of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

LARGEST_COPY = 2048
"""The largest integer of a copy: float16 holds all up to it."""


@dataclass(frozen=True)
class Part:
    """Rows of a parameter that are trained alike: all of them, or `size` rows from `first` on.

    virtual_rows: V, a divisor of the number of rows: rows r and r + V of the part share a virtual row. 0: none.
    rate, decay: factor of the learning rate, and the decoupled weight decay.
    low, high: the closed range that the weight is clipped to after every step.
    copy: float16 or bfloat16 of the parameter's shape, written along with the weight. Where it has a gradient, that is
        the part's, and not the parameter's. See `FusedOptimizer.copy_in_steps`.
    """

    name: str
    parameter: Tensor
    first: int = 0
    size: int | None = None
    virtual_rows: int = 0
    rate: float = 1.0
    decay: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    copy: Tensor | None = None
    virtual_name: str | None = None
    """of the virtual rows, for their moments; NAME.virtual unless given"""
    betas: tuple[float, float] | None = None
    """in place of the rule's"""
    average_dtype: torch.dtype | None = None
    """bfloat16: of the running mean, but not that of virtual rows; None: the parameter's"""

    @property
    def is_whole(self) -> bool:
        """Whether the part has all rows of the parameter."""
        return self.first == 0 and self.size in (None, *self.parameter.shape[:1])

    def settings(self, steps: float = 0.0) -> list[float]:
        """The arguments of `_optimizer_describe`. `steps`: of the copy."""
        most = LARGEST_COPY / steps if steps else math.inf
        return [self.rate, self.decay, max(self.low, -most), min(self.high, most), steps]

    def rows(self, tensor: Tensor) -> Tensor:
        """The part's rows of a tensor of the parameter's shape."""
        if self.is_whole:
            return tensor
        size = tensor.shape[0] - self.first if self.size is None else self.size
        return tensor[self.first : self.first + size]


@dataclass
class Moments:
    """The state of a part: views of the parameter's moments, and the moments of its virtual rows."""

    weight: Tensor
    own: list[Tensor]
    """averages and squares"""
    shared: list[Tensor]
    """the same of the virtual rows"""
    slow: Tensor | None
    copy: Tensor
    steps: float = 0.0
    """integers of the copy in 1.0; 0: it has the weight itself"""
    is_late: bool = False
    """rows are updated when they are needed (`LateRows`), and not in every step"""
    kept: list[Tensor] = field(default_factory=list)
    """then: steps made by each row, changes of virtual rows, and numbers of the steps in the window"""

    @property
    def tensors(self) -> int:
        """How many tensors have a row of the parameter: the weight and its moments."""
        return 1 + len(self.own) + (self.slow is not None)

    @property
    def words(self) -> float:
        """The bytes of these tensors for each weight, divided by those of the weight."""
        short = sum(1 - tensor.element_size() / self.weight.element_size() for tensor in self.own)
        return self.tensors - short


Pair = tuple[Part, Moments]
Given = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def given(pairs: Sequence[Pair]) -> Given:
    """Weights, moments, copies and what is kept of late rows, as the operators take them."""
    states = [moments for _, moments in pairs]
    own = [t for m in states for t in (*m.own, *m.shared, *([] if m.slow is None else [m.slow]))]
    return [m.weight for m in states], own, [m.copy for m in states], [t for m in states for t in m.kept]


class Columns(Protocol):
    """A tensor of which this process has some columns, and other processes have the others. All must call `whole`
    together."""

    @property
    def all_columns(self) -> int:
        """Columns of the whole tensor."""

    def whole(self, own: Tensor) -> Tensor:
        """The whole tensor [..., all_columns] from each process's columns [..., n]."""

    def own(self, whole: Tensor) -> Tensor:
        """This process's columns [..., n] of a whole tensor [..., all_columns], contiguous."""


Norm = Callable[[Sequence[tuple[Part, Moments, Tensor]]], Tensor]
"""The norm of the gradients of some parts, virtual rows included."""
NormOf = Callable[[Sequence[tuple[Part, Moments, Tensor]], Norm], Tensor]
"""Numbers whose norm is the norm of all gradients of all processes, from the parts of this process and a `Norm`."""


def write_copy(copy: Tensor, weight: Tensor, steps: float) -> None:
    copy.copy_(torch.round(weight * steps) if steps else weight)
