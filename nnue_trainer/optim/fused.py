"""Rules on the project's own operators: decay, virtual rows, bounds, guard and the rule in one pass over memory."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from nnue_trainer.errors import UserError
from nnue_trainer.nets.base import WeightBound
from nnue_trainer.ops.capabilities import Choice
from nnue_trainer.optim.base import Betas, OptimizerConfig, Rule, Settings, Work, check_state
from nnue_trainer.optim.fused_optimizer import FusedOptimizer
from nnue_trainer.optim.parts import NormOf, Part
from nnue_trainer.optim.update_rule import UpdateRule
from nnue_trainer.optim.virtual_rows import check_range
from nnue_trainer.schema import section

_log = logging.getLogger(__name__)
# A mean that is rounded to the nearest drifts with a larger beta1: in a simulation of sparse features the sum of all
# steps was off by 0.07 % with 0.95, by 0.6 % with 0.98 and by 5 % with 0.99.
_LARGEST_SHORT_BETA = 0.95


@section
class FusedConfig(OptimizerConfig):
    """A rule on the operators, which also do the work of the layers around it. A subclass is a section; the fields here
    are those that the rules share."""

    replaces: ClassVar[frozenset[str]] = frozenset({"guard", "clip", "virtual_rows", "bounds"})
    heeds_settings: ClassVar[bool] = True
    betas: Betas = (0.9, 0.999)
    """decay of the running mean of the gradient and of its square"""
    eps: float = Field(default=1e-8, gt=0)
    """added to the root of the mean square gradient"""
    weight_decay: float = Field(default=0.01, ge=0)
    """decoupled: weights shrink by lr·weight_decay per step"""
    exp_avg_dtype: Literal["fp32", "bf16"] = "fp32"
    """type in which the running mean of the feature transformer's gradient is kept, of adamw, radam and ranger: bf16
    takes less memory and time, and is rounded to the nearest in each step"""

    @model_validator(mode="after")
    def _keeps_its_means(self) -> FusedConfig:
        if self.exp_avg_dtype == "fp32":
            return self
        if self.update().kind not in ("adam", "rectified"):
            name = getattr(self, "others", self.kind)
            raise ValueError(f"exp_avg_dtype: found bf16, expected fp32, as {name} keeps its means in fp32")
        for beta in (self.betas[0], *(group.betas[0] for group in self.groups if group.betas)):
            if beta > _LARGEST_SHORT_BETA:
                raise ValueError(
                    f"exp_avg_dtype: found bf16 and a beta1 of {beta:g}, expected fp32 or a beta1 of at most "
                    f"{_LARGEST_SHORT_BETA:g}"
                )
        return self

    @abstractmethod
    def update(self) -> UpdateRule:
        """The rule by which weights move, without what all rules have in common."""

    def rule(self, work: Work) -> Rule:
        return FusedRule(work, self)


class FusedRule(Rule):
    """State: `step/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME` for each parameter and each of its virtual rows, which are
    NAME.virtual, or NAME.virtual.FIRST where a parameter has several ranges of them; and what the rule has instead of
    them or beside them.
    """

    heeds_failed = True
    is_ours = True

    def __init__(self, work: Work, config: FusedConfig) -> None:
        super().__init__(work)
        rule = replace(config.update(), max_value=config.max_value or math.inf)
        short = set() if config.exp_avg_dtype == "fp32" else work.transformers
        parts = [
            replace(part, average_dtype=torch.bfloat16 if name in short else None)
            for name in work.parameters
            for part in _parts(work, name, config.weight_decay)
        ]
        max_norm = config.max_norm or math.inf
        self.fused = FusedOptimizer(
            parts, rule, work.lr, max_norm, work.failed, work.late, positions=work.positions, covered=work.covered
        )
        self.step_count, self.late_rows = self.fused.step_count, self.fused.late_rows
        self.averages_weights = rule.kind == "schedule_free"
        self.settle, self.write_copies = self.fused.settle, self.fused.write_copies  # type: ignore[method-assign]
        self.copy_in_steps = self.fused.copy_in_steps  # type: ignore[method-assign]
        self._first_average = f"{rule.averages[0]}/"

    def step(self) -> None:
        assert self.loss is not None
        self.fused.step(self.loss)

    def apart(self) -> list[tuple[Tensor, int]]:
        """Gradients of parameters that the common operators do not move, and the number of virtual rows of each."""
        return []

    def watched(self) -> list[tuple[Tensor, int]]:
        """All gradients of the rule, and the number of virtual rows of each."""
        own = zip(self.fused.pairs, self.fused.gradients(), strict=True)
        return [(each, part.virtual_rows) for (part, _), each in own if each.numel()] + self.apart()

    def net(self, name: str) -> Tensor:
        return self.fused.averaged(name)

    def take_norm(self, norm_of: NormOf) -> None:
        if self.fused.rule.stable_decay:
            raise UserError(
                "optimizer.stable_decay: found true, but several processes share the feature transformer; set it "
                "to false, or train in one process"
            )
        self.fused.norm_of = norm_of

    def choices(self) -> dict[str, Choice]:
        """By parameter, the kernels that move it, for parameters that the common operators do not move."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        self.fused.settle()
        # One count for all; a tensor for each name, as states have had it from the first version on.
        first = self._first_average
        names = [name.removeprefix(first) for name in self.fused.state if name.startswith(first)]
        step = self.fused.step_count.clone()
        return {f"step/{name}": step for name in names} | self.fused.state | self.fused.kept

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        check_state(FusedRule.state_dict(self), state)
        counts = {name: int(tensor.item()) for name, tensor in state.items() if name.startswith("step/")}
        first = next(iter(counts), "")  # none: all parameters are moved apart from the common operators
        for name, count in counts.items():
            if count != counts[first]:
                raise ValueError(f"tensor {name}: found {count}, expected {counts[first]}, as in {first}")
        for name, tensor in (self.fused.state | self.fused.kept).items():
            if tensor.dtype != state[name].dtype:
                _log.warning("%s: converted from %s to %s", name, state[name].dtype, tensor.dtype)
            tensor.copy_(state[name])
        self.fused.tensors[0].fill_(counts.get(first, 0))  # the step count of every part
        for late in self.fused.late_rows.values():
            late.restart()

    def changed(self) -> list[Tensor]:
        self.fused.settle()
        parameters = [parameter.detach() for parameter in self.work.parameters.values()]
        return [*parameters, *self.fused.state.values(), self.fused.step_count]


def _parts(work: Work, name: str, decay: float) -> list[Part]:
    """The rows of a parameter that have virtual rows, and the others, cut where their bounds differ."""
    parameter, settings = work.parameters[name], work.settings.get(name, Settings())
    decay = 0.0 if name in work.virtual else decay if settings.decay is None else settings.decay
    part_of = partial(Part, name, parameter, rate=settings.rate, decay=decay, betas=settings.betas)
    if parameter.dim() == 0:
        low, high = limits(work, name, 0, 1)
        return [part_of(low=low, high=high)]
    ranges = sorted(work.factorised.get(name, []))
    cuts = {0, len(parameter)}
    for shared in ranges:
        check_range(name, parameter, shared)
        cuts |= {shared.first, shared.end}
    for bound in _bounds_of(work, name):
        ends = (bound.first_row, bound.end)
        cuts |= {cut for cut in ends if not any(shared.first < cut < shared.end for shared in ranges)}
    found: list[Part] = []
    for first, end in pairwise(sorted(cuts)):
        virtual = next((shared.virtual for shared in ranges if shared.first == first), 0)
        low, high = limits(work, name, first, end)
        own_name = f"{name}.virtual" if len(ranges) == 1 else f"{name}.virtual.{first}"
        copy = work.copies.get(name)
        part = part_of(first, end - first, virtual, low=low, high=high, copy=copy, virtual_name=own_name)
        before = found.pop() if found else part
        if not virtual and (before.virtual_rows, before.low, before.high) == (0, low, high):
            part = replace(part, first=before.first, size=end - before.first)  # trained alike, so it is one part
        elif before is not part:
            found.append(before)
        found.append(part)
    return found


def _bounds_of(work: Work, name: str) -> list[WeightBound]:
    return [bound for bound in work.bounds if bound.parameter is work.parameters[name]]


def limits(work: Work, name: str, first: int, end: int) -> tuple[float, float]:
    """The tightest limits that hold for all of the rows [first, end)."""
    whole = [bound for bound in _bounds_of(work, name) if bound.first_row <= first and end <= bound.end]
    return max((b.low for b in whole), default=-math.inf), min((b.high for b in whole), default=math.inf)
