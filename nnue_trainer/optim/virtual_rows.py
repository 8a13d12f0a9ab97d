"""Factorised feature transformers: virtual rows that are trained too but are never part of the net.

Row r of a factorised weight [F, N] is trained as w[r] + v[r mod V], but only the sum is stored. The gradient of a
virtual row is the sum of its rows' gradients. Since a rule adds its update to a parameter, the sum moves by the update
of w (made in place, on the sum) plus the update of v. So v is a separate parameter for the rule. It is set to zero
before every step and then holds its update, which is added to all rows that share it. Weight decay acts on the sum,
which is the same as on both parts: lr·wd·(w + v).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from nnue_trainer.nets.base import VirtualRows
from nnue_trainer.optim.bounds import Bounds


@dataclass(frozen=True)
class _Range:
    name: str
    weight: nn.Parameter  # [F, …]
    first: int
    shared: nn.Parameter  # [V, …], its last update after a step
    rows: int
    low: float
    high: float

    def groups(self, tensor: Tensor) -> Tensor:
        """The range's rows of a tensor of the weight's shape, as [rows / V, V, …]."""
        if self.rows != len(tensor):
            tensor = tensor[self.first : self.first + self.rows]
        return tensor.view(-1, *self.shared.shape)


class SharedRows:
    """The layer between bounds and guard. It takes the limits of its rows over from `bounds`, because one pass over
    a weight can add and clip. ValueError for a range that does not fit its parameter."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        factorised: Mapping[str, list[VirtualRows]],
        bounds: Bounds,
    ) -> None:
        self._ranges: dict[str, _Range] = {}
        for name, ranges in factorised.items():
            weight = parameters[name]
            for part in ranges:
                check_range(name, weight, part)
                shared = nn.Parameter(weight.new_zeros(part.virtual, *weight.shape[1:]))
                low, high = bounds.take(weight, part.first, part.rows)
                key = f"{name}.virtual" if len(ranges) == 1 else f"{name}.virtual.{part.first}"
                self._ranges[key] = _Range(name, weight, part.first, shared, part.rows, low, high)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The virtual rows by name: `NAME.virtual`, or `NAME.virtual.FIRST` where a parameter has several ranges."""
        return {name: part.shared for name, part in self._ranges.items()}

    @property
    def owners(self) -> dict[str, str]:
        """By the name of virtual rows, that of the parameter whose rows share them."""
        return {name: part.name for name, part in self._ranges.items()}

    def uncovered(self, name: str) -> list[slice]:
        """The rows of the parameter `name` whose gradients are not part of any virtual row's gradient."""
        parts = sorted((p.first, p.first + p.rows, len(p.weight)) for p in self._ranges.values() if p.name == name)
        if not parts:
            return [slice(None)]
        starts, ends = [0, *(end for _, end, _ in parts)], [*(first for first, _, _ in parts), parts[0][2]]
        return [slice(start, end) for start, end in zip(starts, ends, strict=True) if start < end]

    def step(self, loss: Tensor, inner: Callable[[], None]) -> None:
        """Gives virtual rows their gradients, runs `inner`, and adds the updates of virtual rows to the rows that share
        them, clipped to their limits. `loss`: fp32 scalar, not used."""
        for part in self._ranges.values():
            part.shared.grad = self._sum(part)
            part.shared.zero_()
        inner()
        for part in self._ranges.values():
            # On the CPU group by group, so that a group stays in the cache between the two operations.
            groups = part.groups(part.weight.detach())
            for group in [groups] if groups.is_cuda else groups:
                group.add_(part.shared).clamp_(part.low, part.high)

    def _sum(self, part: _Range) -> Tensor | None:
        if part.weight.grad is None:
            return None
        groups = part.groups(part.weight.grad)
        if groups.is_cuda:
            return groups.sum(0)
        # On the CPU adding group by group is twice as fast as torch's sum over the first dimension.
        total = groups[0].clone()
        for group in groups[1:]:
            total.add_(group)
        return total


def check_range(name: str, weight: Tensor, part: VirtualRows) -> None:
    """ValueError unless the rows of the range exist and share their virtual rows evenly."""
    if part.first < 0 or part.rows < 1 or part.end > len(weight):
        raise ValueError(
            f"{name}: found virtual rows for rows {part.first} to {part.end}, expected rows within 0 to {len(weight)}"
        )
    if part.virtual < 1 or part.rows % part.virtual:
        raise ValueError(
            f"{name}: found {part.virtual} virtual rows for {part.rows} rows, expected a divisor of the rows"
        )
