"""All layers after the first, with one set of weights per stack, described once as data.

A net describes its layers as data (`LayerStacks`). The description determines the forward pass in torch's operators, on
every device and in every mode, and on a GPU the operators `_layer_stacks_*` (csrc/layer_stacks.h,
docs/layer-stack-kernels.md), which order the positions by stack, compute only each position's own stack, and include
the built-in losses. `LayerCall` chooses; no net mentions a kernel.

Where `LayerStacks.integers` is set, the operators compute in an engine's integers and round as the engine does.
nets/rounded_forward.py makes such a description from a net, and does the same in torch's operators.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch, Plan, plan_of
from nnue_trainer.losses.base import LossKernel
from nnue_trainer.modules.stacked_linear import StackedLinear, stacked_linear
from nnue_trainer.modules.straight_through import cut
from nnue_trainer.ops import _registration, capabilities, reference
from nnue_trainer.ops.capabilities import Mode
from nnue_trainer.ops.perspectives import TransformerCall, number_of
from nnue_trainer.ops.reference import LayerActivation

_ACTIVATIONS: tuple[LayerActivation, ...] = get_args(LayerActivation)
_TOGETHER = ("tiles", "one_pass")  # kernels that compute all layers together
_WHOLE_BFLOAT16 = 256  # up to which bfloat16 holds every integer
_operators: Any = torch.ops.nnue


@dataclass(frozen=True)
class StackLayer:
    """Any layer except the last one, and what happens to its outputs y."""

    outputs: int
    activated: int
    """the number of outputs that are activated; they come first"""
    activation: LayerActivation
    """none: y clamped to [low, largest]; crelu: to [0, largest]; screlu: its square; dual: min(square · y², largest),
    then crelu, twice as many values"""
    largest: float
    low: float = 0.0
    square: float = 1.0
    plus: int | None = None
    """the index of the output that is added directly to the net's output"""
    minus: int | None = None
    """the index of the output that is subtracted from it"""
    output_scale: float | None = None
    """a factor: these activations, multiplied by it, are also inputs of the last layer, before those of later layers.
    None: they are not, unless this is the layer just before it"""
    step: float = 1.0
    """with integers: activations are multiplied by it, a power of two, before they are rounded down. Squares are
    multiplied by `square`"""
    skip_multiply: int = 1
    """with integers: what goes directly to the net's output is multiplied by it, and divided by `skip_divide`"""
    skip_divide: int = 1

    def numbers(self) -> tuple[list[int], list[float]]:
        """The layer as `_layer_stacks_describe` takes it (csrc/layer_stacks.h)."""
        plus, minus = (-1 if place is None else place for place in (self.plus, self.minus))
        activation, to_output = _ACTIVATIONS.index(self.activation), int(self.output_scale is not None)
        scale = 1.0 if self.output_scale is None else self.output_scale
        skip = [self.skip_multiply, self.skip_divide]
        return (
            [self.outputs, self.activated, activation, plus, minus, to_output],
            [self.largest, self.low, self.square, scale, self.step, *skip],
        )


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


class Targets(NamedTuple):
    """The scores and results that a net's output is compared with, and the loss."""

    score: Tensor
    """of the data, int16 [B]"""
    result: Tensor
    """int8 [B]"""
    lam: Tensor
    """λ, an fp32 scalar or fp32 [B], as in `Loss.terms`"""
    kernel: LossKernel | None
    """the loss, as the operators take it; None: they have none for it"""
    score_scale: float
    """engine units in 1 of the output"""

    @property
    def are_known(self) -> bool:
        """Whether there are operators for the loss and for the types of the tensors."""
        dtypes = (self.score.dtype, self.result.dtype, self.lam.dtype)
        return self.kernel is not None and dtypes == (torch.int16, torch.int8, torch.float32)


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

    def order_of(self, batch: Batch, *, of_share: bool = False) -> Tensor | None:
        """The order that was prepared for this batch, or for this process's share of it (`plan`): int32 [n], as `order`
        returns it. None if the batch has no such plan."""
        found = plan_of(batch.white, batch.plans, ("order", self, of_share))
        return None if found is None else found.data

    def plan(self, batch: Batch, bucket: Tensor, *, of_share: bool = False) -> Plan:
        """The `order` of these buckets, int64 [B], for `Batch.plans`. `of_share`: the buckets are those of this
        process's share of the positions."""
        return Plan(("order", self, of_share), self.order(bucket), batch.white)

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
    it, `output` and `loss` give None, and the others use torch's operators."""

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
                found = _operators._layer_stacks_backward(
                    grad_output, sums, self.order, parameters, self.of.description
                )
                grads = (*found, grad_output if needs[1] else None)
                *found, flat = self._gradients(x, parameters, grads, [], x.dtype if needs[0] else None)
                return *found, *_cut_gradients(flat, parameters)

            return output, (first.x, sums, *self.parameters), backward

        return _registration.differentiable(run, first.x, first.psqt, *self.parameters)  # type: ignore[no-any-return]

    def loss(self, first: FirstOutputs | TransformerCall, targets: Targets) -> Tensor | None:
        """`losses.mean` of a loss that the operators compute, a scalar. `first`: the inputs, or the call that computes
        them. Then their gradient is not made: if there is one layer, which has one output, the backward of the
        transformer takes its two factors; if there are more, the backward of the first one makes the gradients of the
        transformer's rows."""
        sources: tuple[Tensor | None, ...]
        if isinstance(first, TransformerCall):
            is_fused, sources = self._goes_through(first), first.parameters.leaves
        else:
            is_fused, sources = self._is_fused(first.x, first.psqt), first[:2]
        if not (is_fused and targets.are_known):
            return None
        forward, back, layers = self._through(first) if isinstance(first, TransformerCall) else (None, None, self)
        of_psqt = len(sources) - 1

        def run(needs: Sequence[bool]) -> Any:
            x, psqt, rows = (*sources, None) if forward is None else forward.run(_operators, save=True)
            totals, grad_sums, grad_output, partials = layers._loss(x, psqt, targets)

            def backward(saved: Sequence[Any], grad_loss: Tensor) -> tuple[Tensor | None, ...]:
                x, rows, totals, grad_sums, grad_output, partials, *parameters = saved
                is_needed = needs[of_psqt] or (back is not None and not layers.of.hidden)
                grads = (grad_sums, partials, grad_output if is_needed else None)
                to = x.dtype if back is None and needs[0] else None
                *found, flat = layers._gradients(x, parameters, grads, [grad_loss, totals], to, back, rows)
                return *found, *_cut_gradients(flat, parameters)

            # If one kernel did all of it, the gradient of the layer's weight is made, and x is not read again. Nor is
            # x read again where it can be made of what is saved.
            reads_x = back is None or (not layers.of.hidden and partials.shape[1] <= layers.of.inputs)
            saved = (x if reads_x else None, rows, totals, grad_sums, grad_output, partials, *self.parameters)
            return totals[2], saved, backward

        return _registration.differentiable(run, *sources, *self.parameters)  # type: ignore[no-any-return]

    def _through(self, call: TransformerCall) -> tuple[TransformerCall, TransformerCall, LayerCall]:
        """The calls whose forward and backward compute the loss through these layers, and the layers after them."""
        integers = self.of.integers
        if integers is None or self.of.hidden:
            return call, call, self
        # The backward takes gradients of the layer's sums with the factor of PSQT's.
        of_sums = integers.multiply / (integers.by * integers.divide * integers.psqt_scale)
        bound, scale = call.range
        back = call._replace(range=[bound, scale * integers.x_scale * of_sums])
        dtype = call.described[2] if bound <= _WHOLE_BFLOAT16 else torch.float32
        in_one_pass = self.of.kernels(self.bucket.device, dtype) == "one_pass"
        if not (call.transformer.activation == number_of("screlu") and call.kernels == "hopper" and in_one_pass):
            return call, back, self
        # x before it is squared fits 16 bits. Both have the same sums, so the same backward.
        crelu = call.transformer._replace(activation=number_of("crelu"), rounds_down=0)
        forward = call._replace(transformer=crelu, range=[bound, 1.0], output_dtype=dtype)
        of = dataclasses.replace(self.of, integers=dataclasses.replace(integers, square=scale))
        return forward, back, dataclasses.replace(self, of=of, prepared=self.order)

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

    def _goes_through(self, call: TransformerCall) -> bool:
        """Whether the gradient between the transformer and the layers need not be made."""
        (trained, bias, _), of = call.parameters.leaves, call.transformer
        found = capabilities.between(
            call.kernels,
            self._kernels(trained),  # which has the device of x, and its type or float32
            trained.dtype,
            call.output_dtype,
            num_outputs=of.num_outputs,
            hidden=len(self.of.hidden),
            activation=of.activation,
            bound=call.range[0],
            has_psqt=of.psqt_buckets > 0,
            is_needed=len(self.bucket) > 0 and (trained.requires_grad or bias.requires_grad),
        )
        return found.kernels != "whole"

    def _loss(
        self, x: Tensor, psqt: Tensor | None, targets: Targets, *, is_sums: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """totals, grad_sums, grad_output and partials."""
        score, result, lam, kernel, score_scale = targets
        assert kernel is not None
        found: tuple[Tensor, Tensor, Tensor, Tensor] = _operators._layer_stacks_loss(
            x, self.order, self.parameters, psqt, [score, result, lam], self.of.description, kernel.kind,
            [score_scale, *kernel.constants], is_sums=is_sums,
        )  # fmt: skip
        return found

    def _gradients(
        self,
        x: Tensor | None,
        parameters: Sequence[Tensor],
        grads: tuple[Tensor | None, Tensor | None, Tensor | None],
        scales: list[Tensor],
        to: torch.dtype | None = None,
        call: TransformerCall | None = None,
        rows: Tensor | None = None,
    ) -> tuple[Any, ...]:
        """The gradients of x, in the dtype `to` (None: not computed), and of PSQT; or with `call`, whose forward saved
        `rows`, those of its weight, bias and PSQT columns. Then those of the first weight and, flat, of the other
        parameters. `grads`: grad_sums, partials and grad_output as _layer_stacks_gradients takes them; without the last
        PSQT has no gradient."""
        through: tuple[Any, ...] = ([],)
        if call is not None:
            leaves_unused = call.leaves_unused is not None and call.leaves_unused()
            transformer, range, to = call.described
            through = [rows, self.bucket, *call.batch], transformer, range, leaves_unused
        of_x, of_bias, of_psqt, of_weight, flat = _operators._layer_stacks_gradients(
            x, self.order, parameters, *grads, scales, self.of.description, to, *through
        )
        of_psqt = None if grads[2] is None or (call is not None and not call.transformer.psqt_buckets) else of_psqt
        sources = (None if to is None else of_x, of_psqt) if call is None else (of_x, of_bias, of_psqt)
        return *sources, of_weight, flat


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


def _cut_gradients(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of all parameters except the first, views of `flat`: each begins at a multiple of 4."""
    return cut(flat, parameters[1:], 4)


_registration.refuse_cuda("nnue::_stack_order")
