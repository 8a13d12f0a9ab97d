"""Muon for the matrices of linear layers, AdamW or another fused rule for everything else.

A step of Muon follows the momentum after all of its singular values have been brought close to 1, by five steps of a
Newton-Schulz iteration. On a GPU, one operator updates all matrices (csrc/muon.h). On a CPU, and for matrices with two
long sides, torch's operators do so here. The other rule is one pass of the fused operators, which also check the
gradients of the matrices, count the step and compute the norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from nnue_trainer.ops import capabilities
from nnue_trainer.ops.capabilities import Choice
from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.adamw import AdamW
from nnue_trainer.optim.base import OPTIMIZERS, Rule, Settings, Work, check_state
from nnue_trainer.optim.fused import FusedConfig, FusedRule, limits
from nnue_trainer.optim.lion import Lion
from nnue_trainer.optim.parts import Columns
from nnue_trainer.optim.radam import RAdam
from nnue_trainer.optim.ranger import Ranger, RangerLite
from nnue_trainer.optim.update_rule import UpdateRule
from nnue_trainer.schema import section

_COEFFICIENTS = (3.4445, -4.775, 2.0315)
_ITERATIONS = 5
# Not schedule_free: it would average only a part of the net.
_OTHERS: dict[str, type[FusedConfig]] = {
    "adamw": AdamW, "radam": RAdam, "ranger": Ranger, "ranger_lite": RangerLite, "lion": Lion,
}  # fmt: skip


@OPTIMIZERS.register("muon")
@section
class Muon(FusedConfig):
    """Muon for weights of linear layers that are matrices, each stack separately; AdamW or another rule for all others,
    such as the feature transformer, biases and layers with one output."""

    matrix_lr: float = Field(default=1e-3, gt=0)
    """learning rate of the matrices; it follows the schedule as lr does"""
    matrix_decay: float = Field(default=0.1, ge=0)
    """decoupled weight decay of the matrices"""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """decay of the running mean of the matrices' gradients"""
    step_size: Literal["original", "match_rms_adamw"] = "original"
    """a step of a matrix is multiplied by: original: the root of rows/columns, if above 1; match_rms_adamw: 0.2 times
    the root of the larger one, which moves weights as far as AdamW does"""
    others: Literal["adamw", "radam", "ranger", "ranger_lite", "lion"] = "adamw"
    """rule for all other parameters, with lr, betas, eps and weight_decay of this section, and the defaults of its kind
    for what this section does not have; lion needs a learning rate 3 to 10 times lower"""

    def update(self) -> UpdateRule:
        return _OTHERS[self.others](betas=self.betas, eps=self.eps).update()

    def by_value(self) -> bool:
        # `take_columns` exchanges the columns of a matrix, but not the norms of its gradient.
        return self.max_norm is None

    def rule(self, work: Work) -> Rule:
        return MuonRule(work, self)


@dataclass(frozen=True)
class _Matrix:
    """A weight [..., rows, columns], its state and its settings."""

    name: str
    weight: nn.Parameter
    momentum: Tensor
    virtual: Tensor
    """momentum of the virtual rows [V, ..., rows, columns]; no elements if there are none"""
    rate: float
    decay: float
    low: float
    high: float
    choice: Choice
    """the kernels that compute its step"""
    columns: Columns | None = None
    """None: this process has all columns"""


class MuonRule(FusedRule):
    """State: FusedRule's, and `momentum/NAME` of each matrix and its virtual rows."""

    def __init__(self, work: Work, config: Muon) -> None:
        own = {
            name: parameter
            for name, parameter in work.parameters.items()
            if name in work.matrices and min(parameter.shape[-2:]) > 1
        }
        others = {name: parameter for name, parameter in work.parameters.items() if name not in own}
        self._config = config
        factorised = {name: ranges for name, ranges in work.factorised.items() if name in others}
        super().__init__(replace(work, parameters=others, factorised=factorised), config)
        self.work = work
        self._state: dict[str, Tensor] = {}
        self._matrices = [self._matrix(work, name, parameter) for name, parameter in own.items()]

    def _matrix(self, work: Work, name: str, weight: nn.Parameter) -> _Matrix:
        settings, config = work.settings.get(name, Settings()), self._config
        ranges = work.factorised.get(name, [])
        if any((part.first, part.rows) != (0, len(weight)) for part in ranges):
            raise ValueError(
                f"{name}: found virtual rows for some rows only, expected virtual rows for all rows or for none"
            )
        if ranges and weight.dim() < 3:
            raise ValueError(f"{name}: found virtual rows in a single matrix, expected a stack of matrices")
        momentum = self._state[f"momentum/{name}"] = torch.zeros_like(weight.detach())
        virtual = momentum.new_empty(0)
        if ranges:
            virtual = momentum.new_zeros(ranges[0].virtual, *weight.shape[1:])
            self._state[f"momentum/{name}.virtual"] = virtual
        rows, columns = weight.shape[-2:]
        size = self._size(rows, columns)
        rate = settings.rate * config.matrix_lr / config.lr
        decay = config.matrix_decay if settings.decay is None else settings.decay
        decay = 0.0 if name in work.virtual else decay
        low, high = limits(work, name, 0, len(weight))
        choice = capabilities.matrix_step(capabilities.machine_of(weight.device), rows, columns)
        return _Matrix(name, weight, momentum, virtual, rate * size, decay / size, low, high, choice)

    def _size(self, rows: int, columns: int) -> float:
        """The factor of a step of a matrix."""
        if self._config.step_size == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))

    def take_columns(self, columns: Mapping[str, Columns]) -> None:
        for number, matrix in enumerate(self._matrices):
            if matrix.name not in columns:
                continue
            split, (rows, own) = columns[matrix.name], matrix.weight.shape[-2:]
            scale = self._size(rows, split.all_columns) / self._size(rows, own)
            choice = Choice("torch", "each process has some columns of the matrix")
            self._matrices[number] = replace(
                matrix, rate=matrix.rate * scale, decay=matrix.decay / scale, choice=choice, columns=split
            )

    def step(self) -> None:
        assert self.loss is not None
        self.fused.step(self.loss, self.apart())
        by_operator: list[_Matrix] = []
        for matrix in self._matrices:
            if matrix.weight.grad is None:
                continue
            if matrix.choice.kernels == "operators":
                by_operator.append(matrix)
            else:
                self._step_torch(matrix, matrix.weight.grad)
        if by_operator:
            self._step_operators(by_operator)

    def apart(self) -> list[tuple[Tensor, int]]:
        return [(own.weight.grad, len(own.virtual)) for own in self._matrices if own.weight.grad is not None]

    def _step_operators(self, matrices: list[_Matrix]) -> None:
        config = self._config
        weights, gradients = [each.weight.detach() for each in matrices], [each.weight.grad for each in matrices]
        momenta = [momentum for each in matrices for momentum in (each.momentum, each.virtual)]
        settings = [number for each in matrices for number in (each.rate, each.decay, each.low, each.high)]
        torch.autograd.graph.increment_version(weights)
        constants = [config.momentum, config.max_value or math.inf, _ITERATIONS, *_COEFFICIENTS]
        fused_operators.namespace._optimizer_update_matrices(
            weights, gradients, momenta, self.work.lr, self.fused.tensors, settings, constants
        )

    def _step_torch(self, matrix: _Matrix, gradient: Tensor) -> None:
        go, scale = self.fused.numbers[0] != 0, self.fused.numbers[fused_operators.GRADIENT]
        change = self._direction(matrix, matrix.momentum, gradient, scale, go)
        if matrix.virtual.numel():
            shared = gradient.view(-1, *matrix.virtual.shape).sum(0)
            by = self._direction(matrix, matrix.virtual, shared, scale, go)
            change = change + by.repeat(len(change) // len(by), *[1] * (change.dim() - 1))
        weight, lr = matrix.weight.detach(), self.work.lr.to(change.dtype) * matrix.rate
        new = (weight * (1 - lr * matrix.decay) - lr * change).clamp_(matrix.low, matrix.high)
        matrix.weight.copy_(torch.where(go, new, weight))

    def _direction(self, matrix: _Matrix, momentum: Tensor, gradient: Tensor, scale: Tensor, go: Tensor) -> Tensor:
        """The direction of a step of a matrix or of its virtual rows; brings the momentum of these up to date."""
        keep, config = self._config.momentum, self._config
        gradient = gradient.to(momentum.dtype) * scale.to(momentum.dtype)
        if config.max_value is not None:
            gradient = gradient.clamp(-config.max_value, config.max_value)
        new = torch.lerp(gradient, momentum, keep)
        momentum.copy_(torch.where(go, new, momentum))
        steepest = torch.lerp(gradient, new, keep)
        if matrix.columns is None:
            return orthogonal(steepest)
        return matrix.columns.own(orthogonal(matrix.columns.whole(steepest)))

    def choices(self) -> dict[str, Choice]:
        return {matrix.name: matrix.choice for matrix in self._matrices}

    def state_dict(self) -> dict[str, Tensor]:
        return super().state_dict() | self._state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        check_state(self.state_dict(), state)
        super().load_state_dict({name: tensor for name, tensor in state.items() if name not in self._state})
        for name, tensor in self._state.items():
            tensor.copy_(state[name])

    def changed(self) -> list[Tensor]:
        return [*super().changed(), *self._state.values()]


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [..., rows, columns] with singular vectors of those given and singular values near 1, of their dtype."""
    flat = matrices.reshape(-1, *matrices.shape[-2:])
    x = flat / flat.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    a, b, c = _COEFFICIENTS
    with torch.autocast(x.device.type, enabled=False):
        for _ in range(_ITERATIONS):  # three kernels each; the layers are small, so launches dominate on a GPU
            gram = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    found: Tensor = (x.mT if tall else x).view(matrices.shape)
    return found
