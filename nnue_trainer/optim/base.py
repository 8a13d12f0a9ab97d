"""The contracts of the optimiser's parts, and the registry of its rules."""

from __future__ import annotations

import fnmatch
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from nnue_trainer.errors import UserError, quoted
from nnue_trainer.modules.perspective_transformer import LateRows
from nnue_trainer.nets.base import VirtualRows, WeightBound
from nnue_trainer.optim.parts import Columns, NormOf
from nnue_trainer.registry import Registry
from nnue_trainer.schema import section

OPTIMIZERS: Registry[OptimizerConfig] = Registry(
    "nnue_trainer.optim", lambda: OptimizerConfig, what="optimizer", default="adamw"
)
Betas = tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]


@section
class Group:
    """Parameters whose names match a pattern, and what is different for them. Where several groups have a parameter,
    the last one that has a value for a setting decides."""

    match: str = Field(min_length=1)
    """name of a parameter, or a pattern such as fc*.bias; `nnue inspect` prints the names"""
    lr_factor: float | None = Field(default=None, gt=0)
    """factor of the learning rate; null: not changed"""
    weight_decay: float | None = Field(default=None, ge=0)
    """weight decay; null: not changed"""
    betas: Betas | None = None
    """betas; null: not changed"""
    min_weight: float | None = None
    """lowest value that a weight may have after a step; null: only the limit of clip_weights"""
    max_weight: float | None = None
    """highest value; null: as for min_weight"""
    frozen: bool | None = None
    """true: no step, no decay and no clipping, and moments stay as they are; null: not changed"""
    rule: Annotated[Any, OPTIMIZERS] | None = None
    """rule that trains them in place of the recipe's, with its own learning rate, which follows the same schedule; its
    groups, factoriser, clip_weights, max_norm and max_value are the recipe's; null: not changed"""

    @model_validator(mode="after")
    def _in_order(self) -> Group:
        if self.min_weight is not None and self.max_weight is not None and self.min_weight > self.max_weight:
            raise ValueError(f"min_weight: found {self.min_weight:g}, expected at most max_weight, {self.max_weight:g}")
        return self

    def settings(self) -> dict[str, Any]:
        """The fields of `Settings` that the group has a value for."""
        values = {
            "rate": self.lr_factor,
            "decay": self.weight_decay,
            "betas": self.betas,
            "low": self.min_weight,
            "high": self.max_weight,
            "frozen": self.frozen,
            "rule": self.rule,
        }
        return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class Settings:
    """The settings of one parameter, from all groups that have it."""

    rate: float = 1.0
    """factor of the learning rate"""
    decay: float | None = None
    """None: the rule's"""
    betas: tuple[float, float] | None = None
    """None: the rule's"""
    low: float = -math.inf
    high: float = math.inf
    frozen: bool = False
    rule: OptimizerConfig | None = None
    """None: the recipe's"""

    @property
    def for_rule(self) -> bool:
        """Whether a rule has to heed any of them."""
        return (self.rate, self.decay, self.betas) != (1.0, None, None)


@dataclass(frozen=True)
class Work:
    """The tensors that a rule trains.

    `parameters` by name: first those of the model in its order, then the virtual rows as separate parameters, which
    `virtual` names. They start each step at zero and hold their update afterwards, so a rule must not decay them: the
    decay of the weight that the layer adds them to counts for both. `lr` is the learning rate of the current step,
    fp32, a scalar; `failed` is 1 from the first step on whose loss or gradient was not finite, else 0, fp32, a scalar.
    Both are on the device of the parameters and always the same tensors.

    `factorised` and `bounds` are empty, except for a rule that replaces the layers that use them
    (`OptimizerConfig.replaces`).
    """

    parameters: dict[str, nn.Parameter]
    lr: Tensor
    failed: Tensor
    virtual: frozenset[str] = frozenset()
    factorised: Mapping[str, list[VirtualRows]] = field(default_factory=dict)
    bounds: tuple[WeightBound, ...] = ()
    covered: frozenset[str] = frozenset()
    """Parameters whose gradients a guard need not check: `NnueModel.covered_gradients`."""
    transformers: frozenset[str] = frozenset()
    """Weights of feature transformers, without PSQT."""
    late: frozenset[str] = frozenset()
    """Parameters whose rows a fused rule may update when they are needed: see `FusedOptimizer.late_rows`."""
    positions: int = 0
    """of a batch; 0: unknown"""
    settings: Mapping[str, Settings] = field(default_factory=dict)
    """Settings from groups of the recipe, by name; a virtual row has its parameter's."""
    matrices: frozenset[str] = frozenset()
    """Weights of linear layers, [out, in] or [stacks, out, in]."""
    copies: Mapping[str, Tensor] = field(default_factory=dict)
    """16-bit copies of parameters that a fused rule writes along with these; their gradients are the parameters'."""


class Rule(ABC):
    """An update rule: how a step changes parameters from their gradients.

    A rule adds its update to the parameter, in place, and the update does not depend on the parameter's value (except
    for weight decay, which shrinks it). Then the update of a virtual row can be added to all rows that share it. A rule
    whose updates depend on the value, such as LARS, trains well only with `factoriser: false`.
    """

    heeds_failed: bool = False
    """whether the rule itself changes nothing while `work.failed` is 1; otherwise the guard skips or undoes the step"""
    capturable: bool = True
    """whether a step can be recorded in a CUDA graph and replayed: it calls the same kernels on the same tensors every
    time, and no number of Python's changes from step to step"""

    loss: Tensor | None = None
    """the loss of the current step, for rules that replace the guard"""
    step_count: Tensor | None = None
    """int64 on the device: the updates that were made, for rules that replace the guard and count them"""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._moments: dict[str, Tensor] = {}

    @abstractmethod
    def step(self) -> None:
        """One update of every parameter of `work` that has a gradient (`.grad`, of the parameter's shape and dtype).
        Runs without autograd, and must not wait for the device."""

    def moments(self, name: str) -> dict[str, Tensor]:
        """Zeros like each parameter, by its name, that are part of the state as `name/PARAMETER`."""
        own = {parameter: torch.zeros_like(tensor) for parameter, tensor in self.work.parameters.items()}
        self._moments |= {f"{name}/{parameter}": tensor for parameter, tensor in own.items()}
        return own

    def state_dict(self) -> dict[str, Tensor]:
        """All that later steps depend on, by name, on any device; by default what `moments` made. Not a copy."""
        return dict(self._moments)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads a state. ValueError naming a tensor that is missing, unknown or of another shape."""
        own = self.state_dict()
        check_state(own, state)
        for name, tensor in state.items():
            own[name].copy_(tensor)

    def set_lr(self, lr: float) -> None:  # noqa: B027 (most rules read the tensor)
        """The learning rate of the next step, for rules that need a Python number; `work.lr` holds it as well."""

    # ---- for rules that update rows late, write 16-bit copies, or have their net elsewhere than in the weights ----

    is_ours: bool = False
    """whether its state is known to be complete; the state of other rules is tried before the run (`rehearse`)"""
    late_rows: Mapping[str, LateRows] = {}
    """by parameter, what updates its rows when they are needed"""
    averages_weights: bool = False
    """whether the net is `net` and not the weights"""

    def net(self, name: str) -> Tensor:
        """The net's values of a parameter, in a new tensor of its shape [...] and dtype, of a rule with
        `averages_weights`."""
        raise NotImplementedError

    def settle(self) -> None:  # noqa: B027
        """Brings all rows up to date."""

    def write_copies(self, names: Container[str] | None = None) -> None:  # noqa: B027
        """Makes the copies anew, of weights that something else than a step has changed; None: of all."""

    def copy_in_steps(self, name: str, steps: float) -> int:
        """`FusedOptimizer.copy_in_steps`, of a rule that writes copies."""
        raise NotImplementedError

    def take_norm(self, norm_of: NormOf) -> None:  # noqa: B027
        """`FusedOptimizer.norm_of`; nothing for a rule that clips to no norm. UserError for a rule that needs all
        gradients in one process."""

    def take_columns(self, columns: Mapping[str, Columns]) -> None:  # noqa: B027
        """By parameter, those of which this process has some columns only; for rules whose update of a value depends on
        other columns."""

    def changed(self) -> list[Tensor]:
        """All tensors that a step changes, which the guard restores after a failed step."""
        return [parameter.detach() for parameter in self.work.parameters.values()] + list(self.state_dict().values())


class Layer(Protocol):
    """A layer around a rule."""

    def step(self, loss: Tensor, inner: Callable[[], None]) -> None:
        """Called when the gradients are computed, with the loss (fp32 scalar). It calls `inner`, which runs the layers
        below, at most once."""
        ...


@section
class OptimizerConfig(ABC):
    """An update rule and its numbers. A subclass is a section; the fields here belong to the layers around it."""

    kind: ClassVar[str]
    replaces: ClassVar[frozenset[str]] = frozenset()
    """layers whose work the rule does itself, such as a fused operator: of "guard", "clip", "virtual_rows" and
    "bounds". A rule that replaces the guard sets `work.failed`; one that replaces virtual rows gets none among its
    parameters."""
    heeds_settings: ClassVar[bool] = False
    """whether the rule heeds learning rate, decay and betas of `work.settings`"""
    lr: float = Field(default=1e-3, gt=0)
    """learning rate before the schedule"""
    factoriser: bool = True
    """also train the virtual features of a factoriser, where the feature set has them"""
    clip_weights: bool = True
    """keep weights in the range that the exported net can hold, after every step"""
    max_norm: float | None = Field(default=None, gt=0)
    """gradients are scaled down to this norm, taken over all of them, virtual rows included; null: never"""
    max_value: float | None = Field(default=None, gt=0)
    """gradients are clipped to ± this value, after their norm; null: never"""
    groups: list[Group] = Field(default_factory=list)
    """parameters that are trained differently"""

    def by_value(self) -> bool:
        """Whether the update of each value of a weight depends only on its own gradient and state, except for a norm
        over all gradients. Then several GPUs can each have some columns of a weight. Virtual rows are allowed."""
        return "virtual_rows" in self.replaces

    def group_settings(self, names: Iterable[str], where: str = "") -> dict[str, Settings]:
        """The settings of those of these parameters that are in a group. UserError, which begins with `where`, for
        groups that do not fit, or that leave nothing to train."""
        names, settings = list(names), dict[str, Settings]()
        for number, group in enumerate(self.groups):
            own = [name for name in names if fnmatch.fnmatchcase(name, group.match)]
            if not own:
                raise UserError(
                    f"{where}optimizer.groups.{number}.match: {quoted(group.match)} matches no parameter, expected a "
                    f"pattern for some of {', '.join(names)}"
                )
            for name in own:
                settings[name] = replace(settings.get(name, Settings()), **group.settings())
        for each in settings.values():
            rule = self if each.rule is None else each.rule
            if each.for_rule and not rule.heeds_settings:
                raise UserError(
                    f"{where}optimizer.groups: the optimizer {rule.kind!r} has no learning rate, decay or betas for "
                    "groups, expected only limits and frozen"
                )
        if len(settings) == len(names) and all(each.frozen for each in settings.values()):
            raise UserError(f"{where}optimizer.groups: all parameters are frozen, expected one that is trained")
        return settings

    @abstractmethod
    def rule(self, work: Work) -> Rule:
        """The rule for `work`. UserError if it does not fit."""


def check_state(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """ValueError naming the first tensor of `state` that is missing, unknown or of another shape than in `own`."""
    for name in sorted(own.keys() ^ state.keys()):
        raise ValueError(f"tensor {name} is {'missing' if name in own else 'unknown'}")
    for name, tensor in state.items():
        if own[name].shape != tensor.shape:
            raise ValueError(f"tensor {name} has shape {list(tensor.shape)}, expected {list(own[name].shape)}")
