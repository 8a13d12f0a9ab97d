"""All layers after the first, with one set of weights per stack, described once as data.

A net describes its layers as data (`LayerStacks`). The description determines the forward pass in torch's operators, on
every device and in every mode, and on a GPU the operators `_layer_stacks_*` (csrc/layer_stacks.h,
docs/kernels.md), which order the positions by stack, compute only each position's own stack, and include
the built-in losses. `LayerCall` chooses for modules, and a fused step calls them itself; no net mentions a kernel.

Where `LayerStacks.integers` is set, the operators compute in an engine's integers and round as the engine does.
nets/rounded_forward.py makes such a description from a net, and does the same in torch's operators.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nnue_trainer.base import _registration
from nnue_trainer.data.batch import Batch, Plan, plan_of
from nnue_trainer.modules.stacked_linear import StackedLinear, stacked_linear
from nnue_trainer.modules.straight_through import Places
from nnue_trainer.ops import capabilities, reference
from nnue_trainer.ops.capabilities import Mode
from nnue_trainer.ops.reference import StackLayer

_TOGETHER = ("tiles", "one_pass")  # kernels that compute all layers together
_operators: Any = torch.ops.nnue


@dataclass(frozen=True)
class Integers:
    """How an engine rounds, for layers whose x, parameters and PSQT are the engine's integers. csrc/layer_stacks.h
    explains each number."""

    divide: int = 1
    multiply: int = 1
    by: int = 1
    score_multiply: int = 1
    score_divide: int = 1
    apart: bool = False
    unit: float = 1.0
    x_scale: float = 1.0
    psqt_scale: float = 1.0
    square: float = 0.0


class FirstOutputs(NamedTuple):
    """The inputs of the layers: the activated vector [B, N], the PSQT part fp32 [B] or None, and the stack of each
    position, int64 [B]."""

    x: Tensor
    psqt: Tensor | None
    bucket: Tensor


@dataclass(frozen=True)
class LayerStacks:
    """The layers of a net: the `hidden` ones, then one with a single output. There are `stacks` sets of weights, and
    the first layer takes `inputs` numbers: [B, inputs] → fp32 [B].

    `linears`, in the methods, have the weights: fp32 [stacks, outputs, inputs] and [stacks, outputs] for each layer.
    """

    inputs: int
    stacks: int
    hidden: tuple[StackLayer, ...] = ()
    integers: Integers | None = None
    """how the layers round, where they compute in an engine's integers; None: nothing is rounded"""

    def forward(self, first: FirstOutputs, linears: Sequence[nn.Module], order: Tensor | None = None) -> Tensor:
        """The net's output, fp32 [B]. `linears` are the layers: `StackedLinear`, or `nn.Linear` where there is one
        stack. `order` is the result of `order()` for these buckets; if it is None, it is computed."""
        output = self.call(linears, first.bucket, order).output(first)
        return self.outputs(first, linears).squeeze(1) if output is None else output

    def call(self, linears: Sequence[nn.Module], bucket: Tensor, order: Tensor | None = None) -> LayerCall:
        """These layers for some positions, by the project's operators or torch's. `linears`: one for each layer; an
        `nn.Linear` is one stack. `bucket`: the stack of each position, int64 [B]. `order`: see `order_of`."""
        parameters: list[Tensor] = []
        for linear in linears:
            both: list[Any] = [linear.weight, linear.bias]
            parameters += both if both[0].dim() == 3 else [each.unsqueeze(0) for each in both]
        return LayerCall(self, parameters, bucket, order)

    def may_be_fused(self, device: torch.device, **call: Any) -> bool:
        """Whether there are operators for these layers on this device, for a call with these options of
        `kernels`. It can be called before there are tensors."""
        return self.kernels(device, **call) in _TOGETHER

    def kernels(
        self, device: torch.device, *dtypes: torch.dtype, mode: Mode = "plain", wide_sums: bool = False,
        read: Sequence[Tensor] = (),
    ) -> str:  # fmt: skip
        """The choice of `capabilities.stacks` for this device and these arguments. `read`: inputs [B, inputs] and first
        weight, of the first of `dtypes`; only their alignment counts."""
        if mode in ("compiled", "onnx"):  # as the table has it, which these cannot follow
            return "torch"
        machine, is_aligned = capabilities.machine_of(device), all(t.data_ptr() % 16 == 0 for t in read)
        return capabilities.stacks(
            machine, self, *dtypes, is_aligned=is_aligned, wide_sums=wide_sums, mode=mode
        ).kernels

    def order_of(self, batch: Batch) -> Tensor | None:
        """The order that was prepared for a batch (`plan`): int32 [n], as `order` returns it; None if it has none."""
        found = plan_of(batch.white, batch.plans, ("order", self))
        return None if found is None else found.data

    def plan(self, batch: Batch, bucket: Tensor) -> Plan:
        """The `order` of these buckets, int64 [B], for `Batch.plans`."""
        return Plan(("order", self), self.order(bucket), batch.white)

    def order(self, bucket: Tensor) -> Tensor:
        """The positions ordered by stack, for the operators on CUDA. It depends only on `bucket`, int64 [B]."""
        order: Tensor = _operators._stack_order(bucket, self.stacks)
        return order

    def outputs(self, first: FirstOutputs, linears: Sequence[nn.Module]) -> Tensor:
        """The outputs of the last layer in torch's operators, fp32 [B, n], for a last layer of any number of outputs.
        Skip connections are added to each of them."""

        def linear(number: int, x: Tensor) -> Tensor:
            # Call the module, not F.linear: `nnue inspect` sees the inputs of a layer through the module's hooks.
            module = linears[number]
            output: Tensor = module(x, first.bucket) if isinstance(module, StackedLinear) else module(x)
            return output

        return reference.layers(self.hidden, first.x, linear, first.psqt)

    @functools.cached_property
    def numbers(self) -> tuple[int, int, tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
        """The layers as `_layer_stacks_describe` takes them (csrc/layer_stacks.h)."""
        layers = [layer.numbers() for layer in self.hidden]
        hidden = tuple(number for ints, _ in layers for number in ints)
        constants = tuple(number for _, floats in layers for number in floats)
        integers = () if self.integers is None else tuple(map(float, dataclasses.astuple(self.integers)))
        return self.inputs, self.stacks, hidden, constants, integers

    @property
    def description(self) -> int:
        """The handle of these layers in this process, an argument of the operators."""
        return _describe(_operators, self)


@dataclass(frozen=True)
class LayerCall:
    """Layers with their parameters, for some positions: what the operators compute of them. Where these cannot compute
    it, `output` gives None, and the others use torch's operators."""

    of: LayerStacks
    parameters: Sequence[Tensor]
    """weight [S, O, I] and bias [S, O] of each layer"""
    bucket: Tensor
    """the stack of each position, int64 [B]"""
    prepared: Tensor | None = None
    """`LayerStacks.order` of these buckets; None: it is made when it is needed"""

    @functools.cached_property
    def order(self) -> Tensor:
        return self.of.order(self.bucket) if self.prepared is None else self.prepared

    def output(self, first: FirstOutputs) -> Tensor | None:
        """The net's output, fp32 [B]."""
        if not self._is_fused(first.x, first.psqt):
            return None

        def run(needs: Sequence[bool]) -> Any:
            output, sums = _operators._layer_stacks_forward(
                first.x, self.order, self.parameters, first.psqt, self.of.description
            )

            def backward(saved: Sequence[Tensor], grad_output: Tensor) -> tuple[Tensor | None, ...]:
                x, sums, *parameters = saved
                layers = self.of.description
                made = _operators._layer_stacks_backward(grad_output, sums, self.order, parameters, layers)
                of_psqt = grad_output if needs[1] else None
                of_x, _, of_psqt_columns, of_weight, flat = _operators._layer_stacks_gradients(
                    x, self.order, parameters, *made, of_psqt, [], layers, x.dtype if needs[0] else None, []
                )
                of_sources = (of_x if needs[0] else None, of_psqt_columns if needs[1] else None)
                return *of_sources, of_weight, *Places(parameters[1:], 4).cut(flat)

            return output, (first.x, sums, *self.parameters), backward

        return _registration.differentiable(run, first.x, first.psqt, *self.parameters)  # type: ignore[no-any-return]

    # ---- in two parts, for a net whose first layer's inputs are on several devices ----

    def first_sums(self, x: Tensor) -> Tensor:
        """`sums` in torch's operators, with a gradient."""
        weight, bias, *_ = self.parameters
        return stacked_linear(x, self.bucket, weight, torch.zeros_like(bias)).float()

    def output_of_sums(self, sums: Tensor, psqt: Tensor | None) -> Tensor:
        """`from_sums` in torch's operators."""

        def linear(number: int, x: Tensor) -> Tensor:
            weight, bias = self.parameters[2 * number : 2 * number + 2]
            if number == 0:
                return x + reference.choose(bias.unsqueeze(0), self.bucket)
            return stacked_linear(x, self.bucket, weight, bias)

        return reference.layers(self.of.hidden, sums, linear, psqt).squeeze(1)

    def sums(self, x: Tensor) -> Tensor:
        """weight · x of the first layer without its bias, fp32 [B, outputs], without a gradient. x may be some of its
        inputs, and the weight the columns for them; then `inputs` counts these."""
        if self._is_fused(x):
            found: Tensor = _operators._layer_stacks_first(x.detach(), self.order, self.parameters[0].detach())
            return found
        return self.first_sums(x)

    def from_sums(self, sums: Tensor, psqt: Tensor | None) -> Tensor:
        """The net's output, without a gradient, from the complete `sums` and the PSQT part."""
        if not self._is_fused(sums, psqt):
            return self.output_of_sums(sums, psqt)
        output, _ = _operators._layer_stacks_forward(
            sums, self.order, self.parameters, psqt, self.of.description, is_sums=True
        )
        return output  # type: ignore[no-any-return]

    # ---- what they have in common ----

    def _kernels(self, x: Tensor, psqt: Tensor | None = None) -> str:
        """The kernels that `capabilities.stacks` selects for inputs such as x."""
        mode = capabilities.mode_of(x, *self.parameters, psqt)
        weights = next((p.dtype for p in self.parameters if p.dtype != torch.float32), torch.float32)
        return self.of.kernels(x.device, x.dtype, weights, mode=mode, read=(x, self.parameters[0]))

    def _is_fused(self, x: Tensor, psqt: Tensor | None = None) -> bool:
        return self._kernels(x, psqt) in _TOGETHER


@functools.lru_cache(maxsize=256)
def _describe(operators: Any, of: LayerStacks) -> int:
    return int(operators._layer_stacks_describe(*of.numbers))


def give_gradients(tensors: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
    """Sets `grad` of tensors that are leaves, and runs the backward of the others with their gradients. Tensors that
    need no gradient, and those without one, are left out."""
    made: list[tuple[Tensor, Tensor]] = []
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if tensor is None or gradient is None or not tensor.requires_grad:  # it is frozen
            continue
        gradient = gradient.to(tensor.dtype).view_as(tensor)
        if tensor.is_leaf:
            tensor.grad = gradient
        else:
            made.append((tensor, gradient))
    if made:
        torch.autograd.backward([tensor for tensor, _ in made], [gradient for _, gradient in made])


_registration.refuse_cuda("nnue::_stack_order")
