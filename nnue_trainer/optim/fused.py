"""Rules on the project's own operators: decay, virtual rows, bounds, guard and the rule in one pass over memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from nnue_trainer import fused_optimizer
from nnue_trainer.fused_optimizer import FusedOptimizer, LateRows, Part
from nnue_trainer.nets.base import VirtualRows
from nnue_trainer.optim.base import OptimizerConfig, Rule, Work, check_state
from nnue_trainer.optim.virtual_rows import check_range
from nnue_trainer.schema import section

Betas = tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]


@section
class FusedConfig(OptimizerConfig):
    """A rule on the operators, which also do the work of the layers around it. A subclass is a section; the fields here
    are those that the rules share."""

    replaces: ClassVar[frozenset[str]] = frozenset({"guard", "virtual_rows", "bounds"})
    betas: Betas = (0.9, 0.999)
    """decay of the running mean of the gradient and of its square"""
    eps: float = Field(1e-8, gt=0)
    """added to the root of the mean square gradient"""
    weight_decay: float = Field(0.01, ge=0)
    """decoupled: weights shrink by lr·weight_decay per step"""


class FusedRule(Rule):
    """State: `step/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME` for each parameter and each of its virtual rows, which are
    NAME.virtual, or NAME.virtual.FIRST where a parameter has several ranges of them; and what the rule has beside them.
    """

    heeds_failed = True

    def __init__(self, work: Work, rule: fused_optimizer.Rule, *, decay: float, max_norm: float = math.inf) -> None:
        """`decay` is for all weights; `max_norm` as in FusedOptimizer."""
        super().__init__(work)
        parts = [part for name in work.parameters for part in _parts(work, name, decay)]
        # A bound of some of the rows that share virtual rows is a pass over all of them in every step.
        clipped = {part.name for part in _late_bounds(work)}
        self.fused = FusedOptimizer(parts, rule, work.lr, max_norm, work.failed, work.late - clipped)
        self.step_count = self.fused.step_count
        self._late = _late_bounds(work)

    def step(self) -> None:
        assert self.loss is not None
        self.fused.step(self.loss, self.work.covered)
        for part in self._late:
            self.fused.clip(part)

    @property
    def late_rows(self) -> Mapping[str, LateRows]:
        """By parameter: who brings its rows up to date."""
        return self.fused.late_rows

    def state_dict(self) -> dict[str, Tensor]:
        self.fused.settle()
        # One count for all; a tensor for each name, as states have had it from the first version on.
        names = [name.removeprefix("exp_avg/") for name in self.fused.state if name.startswith("exp_avg/")]
        step = self.fused.step_count.clone()
        return {f"step/{name}": step for name in names} | self.fused.state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        own = self.state_dict()
        check_state(own, state)
        counts = {name: int(tensor.item()) for name, tensor in state.items() if name.startswith("step/")}
        first = next(iter(counts))
        for name, count in counts.items():
            if count != counts[first]:
                raise ValueError(f"tensor {name} is {count}, expected {counts[first]} as {first}")
        for name, tensor in self.fused.state.items():
            tensor.copy_(state[name])
        self.fused.step_count.fill_(counts[first])
        for late in self.fused.late_rows.values():
            late.restart()

    def changed(self) -> list[Tensor]:
        self.fused.settle()
        parameters = [parameter.detach() for parameter in self.work.parameters.values()]
        return [*parameters, *self.fused.state.values(), self.fused.step_count]


def _parts(work: Work, name: str, decay: float) -> list[Part]:
    """The rows of a parameter that have virtual rows, and the others cut where their bounds change."""
    parameter = work.parameters[name]
    if name in work.virtual:
        decay = 0.0
    ranges = sorted(work.factorised.get(name, []))
    for part in ranges:
        check_range(name, parameter, part)
    if parameter.dim() == 0:
        low, high = _limits(work, name, 0, 1)
        return [Part(name, parameter, decay=decay, low=low, high=high)]
    cuts = {0, len(parameter)}
    for part in ranges:
        cuts |= {part.first, part.first + part.rows}
    for bound in work.bounds:
        if bound.parameter is parameter:
            end = len(parameter) if bound.rows is None else bound.first_row + bound.rows
            cuts |= {cut for cut in (bound.first_row, end) if not any(p.first < cut < p.first + p.rows for p in ranges)}
    found = []
    for first, end in pairwise(sorted(cuts)):
        virtual = next((part for part in ranges if part.first == first), VirtualRows(first, end - first, 0))
        low, high = _limits(work, name, first, end)
        found.append(
            Part(
                name,
                parameter,
                first,
                end - first,
                virtual.virtual,
                decay=decay,
                low=low,
                high=high,
                copy=work.copies.get(name),
                virtual_name=f"{name}.virtual" if len(ranges) == 1 else f"{name}.virtual.{first}",
            )
        )
    return found


def _limits(work: Work, name: str, first: int, end: int) -> tuple[float, float]:
    """The tightest limits that hold for all of the rows [first, end)."""
    parameter, low, high = work.parameters[name], -math.inf, math.inf
    for bound in work.bounds:
        if bound.parameter is not parameter:
            continue
        stop = end if bound.rows is None or parameter.dim() == 0 else bound.first_row + bound.rows
        if bound.first_row <= first and end <= stop:
            low, high = max(low, bound.low), min(high, bound.high)
    return low, high


def _late_bounds(work: Work) -> list[Part]:
    """Bounds of some of the rows that share virtual rows: they take a pass of their own."""
    found = []
    for name, ranges in work.factorised.items():
        for bound in work.bounds:
            if bound.parameter is not work.parameters[name]:
                continue
            stop = len(bound.parameter) if bound.rows is None else bound.first_row + bound.rows
            for part in ranges:
                first, end = max(part.first, bound.first_row), min(part.first + part.rows, stop)
                if 0 < end - first < part.rows:
                    copy = work.copies.get(name)
                    found.append(
                        Part(name, bound.parameter, first, end - first, low=bound.low, high=bound.high, copy=copy)
                    )
    return found
