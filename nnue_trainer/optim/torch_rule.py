"""Any optimiser that is a torch.optim.Optimizer as a rule: torch's by name, and other packages'."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from nnue_trainer.base.defaults import torch_defaults
from nnue_trainer.errors import UserError
from nnue_trainer.optim.base import OPTIMIZERS, OptimizerConfig, Rule, Settings, Work
from nnue_trainer.optim.object_state import TEXT, Captured, from_tensor, restore, to_tensor, without
from nnue_trainer.schema import section

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

# Options that a recipe does not set, since the trainer does.
_OURS = ("self", "params", "lr", "foreach", "fused", "capturable", "differentiable", "maximize")
# These need gradients of another kind, or call the model several times in a step.
_UNFIT = ("LBFGS", "Optimizer", "SparseAdam")
# In torch 2.10 to 2.13, these take a learning rate that lies on the device, and no step waits for it.
_CAPTURABLE = ("Adam", "AdamW", "NAdam", "RAdam")
# These move each value by its own gradient; the others use rows, columns or norms of a parameter.
_BY_VALUE = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")


class TorchRule(Rule):
    """A rule made of a torch.optim.Optimizer.

    Its state is everything that the optimiser holds except what its constructor made (`optim.object_state`): tensors
    of its `state` as `KEY/PARAMETER`, other tensors by where they are, and everything else as JSON in `rule.json`.
    """

    capturable = False

    def __init__(self, work: Work, make: Make, *, capturable: bool = False) -> None:
        """`make` builds the optimiser from parameter groups; groups of virtual rows have `weight_decay: 0`. With
        `capturable` it was made with `lr=work.lr`, keeps numbers on the device and never waits for it; else its
        learning rate is set from the host before each step. UserError if it holds a value that a file cannot store."""
        super().__init__(work)
        self.capturable = capturable
        groups: dict[tuple[bool, Settings], list[nn.Parameter]] = {(False, Settings()): []}
        for name, parameter in work.parameters.items():
            own = replace(work.settings.get(name, Settings()), low=-math.inf, high=math.inf, frozen=False)
            groups.setdefault((name in work.virtual, own), []).append(parameter)
        if not groups[False, Settings()]:
            del groups[False, Settings()]
        self._rates = [settings.rate for _, settings in groups]
        with torch_defaults():
            self.optimizer = make([_group(*key, parameters) for key, parameters in groups.items()])
        if any("betas" in group and "betas" not in self.optimizer.defaults for group in self.optimizer.param_groups):
            raise UserError(
                f"optimizer.groups: found betas, but {type(self.optimizer).__qualname__} has none; remove them"
            )
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            if rate != 1:
                group["lr"] *= rate
        self._wide = 0  # parameters whose counts are wide
        self._initial = self._captured().node

    def step(self) -> None:
        with torch_defaults():  # for the counts of steps
            self.optimizer.step()
        if len(self.optimizer.state) != self._wide:
            self._widen_counts()

    def _widen_counts(self) -> None:
        """Makes counts of steps on the host float64: torch's are float32, which cannot count beyond 2²⁴. Counts on
        the device stay float32: the rules that have them compute the same values after a million steps."""
        for state in self.optimizer.state.values():
            step = state.get("step") if isinstance(state, dict) else None
            if isinstance(step, Tensor) and step.dtype == torch.float32 and step.dim() == 0 and step.is_cpu:
                state["step"] = step.double()
        self._wide = len(self.optimizer.state)

    def set_lr(self, lr: float) -> None:
        if not self.capturable:
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = lr * rate

    def state_dict(self) -> dict[str, Tensor]:
        captured = self._captured()
        return captured.tensors | {TEXT: to_tensor(without(captured.node, self._initial))}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        state = dict(state)
        if TEXT not in state:
            raise ValueError(f"tensor {TEXT} is missing")
        node = from_tensor(state.pop(TEXT))
        restore(self.optimizer, node, state, self.work.parameters, counts_on_host=not self.capturable)
        self._widen_counts()

    def changed(self) -> list[Tensor]:
        parameters = [parameter.detach() for parameter in self.work.parameters.values()]
        return parameters + list(self._captured().tensors.values())

    def _captured(self) -> Captured:
        try:
            return Captured(self.optimizer, self.work.parameters, self.work.lr)
        except ValueError as error:
            name = type(self.optimizer).__qualname__
            raise UserError(f"optimizer: {name} cannot be saved and resumed: its {error}") from None


def _group(virtual: bool, settings: Settings, parameters: list[nn.Parameter]) -> dict[str, Any]:
    """A parameter group in the form that torch's optimisers take."""
    group: dict[str, Any] = {"params": parameters}
    decay = 0.0 if virtual else settings.decay
    if decay is not None:
        group["weight_decay"] = decay
    return group if settings.betas is None else group | {"betas": settings.betas}


@OPTIMIZERS.register("torch")
@section
class TorchOptimizer(OptimizerConfig):
    """Any optimiser of torch.optim, by its name and with its own options."""

    heeds_settings: ClassVar[bool] = True
    name: str
    """name of a class in torch.optim: RAdam, NAdam, SGD, Adagrad, …"""
    options: dict[str, Any] = Field(default_factory=dict)
    """arguments of its constructor besides parameters and lr, such as {betas: [0.9, 0.99], weight_decay: 0.01}"""

    @field_validator("name")
    @classmethod
    def _is_there(cls, name: str) -> str:
        if name not in _classes():
            close = difflib.get_close_matches(name, _classes(), n=1)
            known = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(sorted(_classes()))}"
            raise ValueError(f"torch.optim has no optimizer {name!r} that can be used here ({known})")
        return name

    @model_validator(mode="after")
    def _takes_its_options(self) -> TorchOptimizer:
        make = _classes()[self.name]
        known = [option for option in inspect.signature(make.__init__).parameters if option not in _OURS]
        for option in self.options:
            if option not in known:
                close = difflib.get_close_matches(option, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
                raise ValueError(f"options: {self.name} has no {option!r} ({hint})")
        parameter = nn.Parameter(torch.ones(2, 2, dtype=torch.float32, device="cpu"))
        parameter.grad = torch.ones(2, 2, dtype=torch.float32, device="cpu")
        try:
            with torch_defaults():
                make([parameter], lr=1e-3, **_tuples(self.options)).step()
        except Exception as error:  # any error that torch raises for a wrong value
            raise ValueError(f"options: {self.name} refuses {self.options}: {' '.join(str(error).split())}") from None
        return self

    def by_value(self) -> bool:
        return self.name in _BY_VALUE and self.max_norm is None

    def rule(self, work: Work) -> Rule:
        make = _classes()[self.name]
        rates = {each.rate for each in work.settings.values()}
        on_device = work.lr.is_cuda and self.name in _CAPTURABLE and rates <= {1.0}
        ours: dict[str, Any] = {"lr": work.lr, "capturable": True} if on_device else {"lr": self.lr}
        try:
            return TorchRule(work, lambda groups: make(groups, **ours, **_tuples(self.options)), capturable=on_device)
        except (ValueError, TypeError) as error:  # Muon takes matrices only
            raise UserError(f"optimizer: {self.name}: {' '.join(str(error).split())}") from None


def _classes() -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name not in _UNFIT
    }


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    """The options with tuples instead of lists: torch expects tuples, and YAML has only lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
