"""Rounding whose gradient goes straight through: what quantisation-aware training is made of.

Integers are held as floats. Sums and products of integers below 2^24 are exact in fp32, whatever their order, and those
below 2^53 in float64; so a forward pass made of these functions gives the integers of an engine, not something near
them. Nothing waits for the device, and everything can be compiled and recorded in a CUDA graph.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nnue_trainer.base import _registration
from nnue_trainer.modules.stacked_linear import stacked_linear
from nnue_trainer.ops import capabilities

Rule = Literal["floor", "trunc", "round"]

_ALIGNMENT = 64  # of parameters in the result of _to_integers
_operators: Any = torch.ops.nnue


class _Straight(torch.autograd.Function):
    """`value` of x, whose gradient is changed by `by` and a factor, if that is not 1."""

    @staticmethod
    def forward(
        x: Tensor, value: Callable[[Tensor], Tensor], by: Callable[[Tensor, float], Tensor], factor: float
    ) -> Tensor:
        return value(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, ctx.by, ctx.factor = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return grads[0] if ctx.factor == 1.0 else ctx.by(grads[0], ctx.factor), None, None, None


_RULES: dict[Rule, Callable[[Tensor], Tensor]] = {"floor": torch.floor, "trunc": torch.trunc, "round": torch.round}


def ste_round(x: Tensor, rule: Rule, factor: float = 1.0) -> Tensor:
    """The straight-through estimator: `x` rounded down, toward zero, or to the nearest integer (half to even). The
    gradient is that of `factor · x`."""
    result: Tensor = _Straight.apply(x, _RULES[rule], torch.mul, factor)  # type: ignore[no-untyped-call]
    return result


def _with_gradient(x: Tensor, by: Callable[[Tensor, float], Tensor], factor: float) -> Tensor:
    result: Tensor = _Straight.apply(x, lambda x: x.view_as(x), by, factor)  # type: ignore[no-untyped-call]
    return result


class Steps(NamedTuple):
    """How consecutive rows of a parameter become integers: round(value · scale), clipped to ±limit. `wide`: computed in
    float64, as integers of more than 16 bits need it."""

    first_row: int
    rows: int
    scale: float
    limit: int
    wide: bool

    def of(self, values: Tensor) -> Tensor:
        """Values in steps, clipped but not rounded."""
        return ((values.double() if self.wide else values) * self.scale).clamp(-self.limit, self.limit)


def integers(parameter: Tensor, steps: Steps) -> Tensor:
    """A parameter as integers: fp32, or float64 where `steps.wide`. Gradient goes through where nothing is clipped."""
    return ste_round(steps.of(parameter), "round")


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(clipped: bool, words: _Words, *parameters: Tensor) -> tuple[Tensor, ...]:
        flat = _operators._to_integers(parameters, *words)
        return tuple(Places(parameters).cut(flat))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.clipped, ctx.words, *parameters = inputs
        ctx.set_materialize_grads(ctx.clipped)
        if ctx.clipped:
            ctx.save_for_backward(*parameters)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if not ctx.clipped:
            return None, None, *grads
        parameters = ctx.saved_tensors
        flat = _operators._to_integers_backward(grads, parameters, *ctx.words)
        return None, None, *Places(parameters).cut(flat)


_Words = tuple[list[int], list[float], list[int]]
"""Ranges, their scales and limits, as the operators take them (csrc/integers.h)."""


def _words(parameters: Sequence[Tensor], tables: Sequence[Sequence[Steps]]) -> _Words:
    sizes = [math.prod(parameter.shape[1:]) for parameter in parameters]
    every = [(n, size, each) for n, (size, table) in enumerate(zip(sizes, tables, strict=True)) for each in table]
    ranges = [number for n, size, each in every for number in (n, each.rows * size)]
    return ranges, [each.scale for _, _, each in every], [each.limit for _, _, each in every]


def _padded(tensor: Tensor, multiple: int) -> int:
    return -(-tensor.numel() // multiple) * multiple


class Places:
    """Where values with the shapes of `tensors` lie in a flat tensor: each begins at a multiple of `multiple`."""

    def __init__(self, tensors: Sequence[Tensor], multiple: int = _ALIGNMENT) -> None:
        begins = itertools.accumulate((_padded(tensor, multiple) for tensor in tensors), initial=0)
        self._of = [(begin, begin + of.numel(), of.shape) for begin, of in zip(begins, tensors, strict=False)]

    def cut(self, flat: Tensor) -> list[Tensor]:
        """Views of `flat` with these shapes."""
        return [flat[begin:end].view(shape) for begin, end, shape in self._of]


def integer_parameters(
    parameters: Sequence[Tensor], tables: Sequence[Sequence[Steps]], *, clipped: bool = True
) -> list[Tensor]:
    """Parameters as integers in fp32, all in one pass; each table has the ranges that cover the rows of a parameter, in
    their order.

    The gradient goes through where nothing is clipped, multiplied by the scale. Without `clipped`, which is meant for
    large parameters, the gradient passes unchanged. It is not multiplied: the caller multiplies the much smaller
    gradients of the values computed from the parameter. It is not masked where a value is clipped: the optimiser keeps
    values within their limits. Either would take one more pass over the largest gradient of a net.
    """
    if not capabilities.has_operators(parameters[0].device):
        return [_in_torch(parameter, table, clipped) for parameter, table in zip(parameters, tables, strict=True)]
    found: tuple[Tensor, ...] = _Together.apply(clipped, _words(parameters, tables), *parameters)  # type: ignore[no-untyped-call]
    return list(found)


def _in_torch(parameter: Tensor, table: Sequence[Steps], clipped: bool) -> Tensor:
    """`integer_parameters` of one parameter in torch's operators."""
    parts = [integers(parameter[each.first_row : each.first_row + each.rows], each) for each in table]
    found = torch.cat(parts).float()
    return found if clipped else found.detach() + (parameter - parameter.detach())  # the second term is 0


class IntegerParameters:
    """`integer_parameters` of the same parameters in every step, without autograd."""

    def __init__(self, parameters: Sequence[Tensor], tables: Sequence[Sequence[Steps]]) -> None:
        self.parameters, self._words, self._places = list(parameters), _words(parameters, tables), Places(parameters)

    def forward(self) -> list[Tensor]:
        """The parameters as integers, fp32."""
        return self._places.cut(_operators._to_integers(self.parameters, *self._words))

    def backward(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the parameters from the integers', 0 where one was clipped."""
        return self._places.cut(_operators._to_integers_backward(gradients, self.parameters, *self._words))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, wide: bool, factor: float) -> Tensor:
        return F.linear(x.double(), weight.double()) if wide else F.linear(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool, float], output: Tensor) -> None:
        x, weight, _, ctx.factor = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].to(x.dtype)
        wanted_x, wanted_weight, *_ = ctx.needs_input_grad
        # The gradient of a thin layer's outputs is far smaller than that of its inputs.
        scaled = grad if ctx.factor == 1.0 else grad * ctx.factor
        return scaled @ weight if wanted_x else None, grad.t() @ x if wanted_weight else None, None, None


def integer_linear(x: Tensor, weight: Tensor, *, wide: bool = False, factor: float = 1.0) -> Tensor:
    """Σ weight · x of integers in fp32, x [B, in], weight [out, in] → [B, out], fp32 or, if `wide`, float64. The
    gradient of x is multiplied by `factor`; gradients are computed in fp32 either way."""
    result: Tensor = _Linear.apply(x, weight, wide, factor)  # type: ignore[no-untyped-call]
    return result


def integer_stacked_linear(x: Tensor, bucket: Tensor, weight: Tensor, bias: Tensor, *, factor: float = 1.0) -> Tensor:
    """`integer_linear` and bias of each position's own bucket alone, all fp32: x [B, in], weight [S, out, in], bias
    [S, out], bucket int64 [B] → [B, out]. Where `stacked_linear.is_fused`."""
    if factor == 1.0 or not x.requires_grad:
        return stacked_linear(x, bucket, weight, bias)
    # The gradients of outputs and of weights are far smaller than that of the inputs.
    weight, bias = (_with_gradient(each, torch.div, factor) for each in (weight, bias))
    return _with_gradient(stacked_linear(x, bucket, weight, bias), torch.mul, factor)


def _fake(parameters: list[Tensor], ranges: list[int], scales: list[float], limits: list[int]) -> Tensor:
    return parameters[0].new_empty(sum(_padded(parameter, _ALIGNMENT) for parameter in parameters))


_registration.register_fakes({"nnue::_to_integers": _fake})
_registration.register_fakes({"nnue::_to_integers_backward": lambda gradients, *others: _fake(*others)})
