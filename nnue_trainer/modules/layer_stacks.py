"""All layers behind the first, with one set of weights per stack, described once as data.

A net says what its layers are (`LayerStacks`). From that follow the forward pass in torch's operators, on every device
and in every mode, and on a GPU the operators `layer_stacks_*` (csrc/layer_stacks.h, docs/layer-stack-kernels.md), which
order the positions by stack, compute each for its own stack alone, and know the built-in losses. `LayerStacks` decides;
no net mentions a kernel.

Where `LayerStacks.integers` is set, the operators compute in an engine's integers and round as the engine does.
nets/rounded_forward.py makes such a description from a net, and does the same in torch's operators.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from nnue_trainer import _derivatives, capabilities, ops, reference
from nnue_trainer.data.batch import Batch
from nnue_trainer.losses.base import Loss, LossKernel, mean
from nnue_trainer.modules.stacked_linear import StackedLinear, stacked_linear
from nnue_trainer.perspectives import FusedCall, number_of

Activation = Literal["none", "crelu", "screlu", "dual"]
_ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
_WHOLE_BFLOAT16 = 256  # up to which bfloat16 holds every integer
_operators: Any = torch.ops.nnue


@dataclass(frozen=True)
class StackLayer:
    """Any layer except the last one, and what happens to its outputs y."""

    outputs: int
    activated: int
    """the number of outputs that are activated; they come first"""
    activation: Activation
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
    """a factor: the last layer also sees these activations, multiplied by it, in front of those of later layers. None:
    it does not, unless this is the layer just before it"""
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

    def activate(self, y: Tensor) -> Tensor:
        """[B, outputs] → [B, values]"""
        y = y[:, : self.activated]
        match self.activation:
            case "none":
                return y.clamp(self.low, self.largest)
            case "crelu":
                return y.clamp(0.0, self.largest)
            case "screlu":
                return y.clamp(0.0, self.largest).square()
        return torch.cat([(y.square() * self.square).clamp(max=self.largest), y.clamp(0.0, self.largest)], dim=1)

    def skipped(self, y: Tensor) -> Tensor | None:
        """What is added directly to the net's output, [B]."""
        if self.plus is None:
            return None
        return y[:, self.plus] if self.minus is None else y[:, self.plus] - y[:, self.minus]


@dataclass(frozen=True)
class Integers:
    """Says that x, the parameters and PSQT are an engine's integers, and how the engine rounds. csrc/layer_stacks.h
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

    def numbers(self) -> list[float]:
        """As `_layer_stacks_describe` takes it."""
        return [float(number) for number in dataclasses.astuple(self)]


class FirstOutputs(NamedTuple):
    """The inputs of the layers: the activated vector [B, N], the PSQT part fp32 [B] or None, and the stack of each
    position, int64 [B]."""

    x: Tensor
    psqt: Tensor | None
    bucket: Tensor


class AfterFirst(NamedTuple):
    """What comes behind the first layer, for some positions of a batch: gradients of their Σ weight · loss."""

    grad_sums: Tensor
    """by the sums of the first layer, fp32 [B, outputs]"""
    grad_psqt: Tensor | None
    """by the PSQT part, fp32 [B]"""
    gradients: Tensor
    """by all parameters but the first weight, flat, each from a multiple of 4 on; fp32 [n]"""
    totals: Tensor
    """Σ weight · loss, Σ weight (`Loss.terms`) and their quotient, fp32 [3]"""


class StackOrder(NamedTuple):
    """Positions of a batch ordered by stack: a plan of `Batch.plans`. `data` is int32, private to the operators."""

    data: Tensor
    white: Tensor
    """white's rows of the batch that it was made from"""
    stacks: int

    def is_for(self, white: Tensor, stacks: int) -> bool:
        """Whether it was made of these index rows and for this number of stacks."""
        return white is self.white and stacks == self.stacks


@dataclass(frozen=True)
class LayerStacks:
    """The layers of a net: the `hidden` ones, then one with a single output. There are `stacks` sets of weights, and
    the first layer takes `inputs` numbers."""

    inputs: int
    stacks: int
    hidden: tuple[StackLayer, ...] = ()
    integers: Integers | None = None
    """how the layers round, where they compute in an engine's integers; None: nothing is rounded"""

    def forward(self, first: FirstOutputs, linears: Sequence[nn.Module], order: Tensor | None = None) -> Tensor:
        """The net's output, fp32 [B]. `linears` are the layers: `StackedLinear`, or `nn.Linear` where there is one
        stack. `order` is the result of `order()` for these buckets; if it is None, it is made here."""
        output = self.fused_output(first, _parameters(linears), order)
        return self._plain(first, linears) if output is None else output

    def fused_output(
        self, first: FirstOutputs, parameters: Sequence[Tensor], order: Tensor | None = None
    ) -> Tensor | None:
        """`forward`, computed by the operators; None where they cannot compute it. `parameters`: the weight [S, O, I]
        and the bias [S, O] of each layer."""
        if not self._is_fused(first, parameters):
            return None
        order = self.order(first.bucket) if order is None else order
        output: Tensor = _Output.apply(self, first.x, first.psqt, order, *parameters)  # type: ignore[no-untyped-call]
        return output

    def loss(
        self,
        first: FirstOutputs,
        linears: Sequence[nn.Module],
        targets: tuple[Tensor, Tensor, Tensor],
        kernel: LossKernel,
        score_scale: float,
        order: Tensor | None = None,
    ) -> Tensor | None:
        """`losses.mean` of a loss that the operators know, a scalar; None where they cannot compute it. `targets`:
        score int16 [B], result int8 [B] and λ, an fp32 scalar or fp32 [B], as in `Loss.terms`."""
        return self.fused_loss(first, _parameters(linears), targets, kernel, score_scale, order)

    def fused_loss(
        self,
        first: FirstOutputs,
        parameters: Sequence[Tensor],
        targets: tuple[Tensor, Tensor, Tensor],
        kernel: LossKernel,
        score_scale: float,
        order: Tensor | None = None,
    ) -> Tensor | None:
        """`loss`; `parameters` as in `fused_output`."""
        score, result, lam = targets
        if not _targets_are_known(targets) or not self._is_fused(first, parameters):
            return None
        order = self.order(first.bucket) if order is None else order
        loss: Tensor = _Loss.apply(  # type: ignore[no-untyped-call]
            self, kernel, score_scale, first.x, first.psqt, order, score, result, lam, *parameters
        )
        return loss

    def loss_through(
        self,
        transformer: FusedCall,
        bucket: Tensor,
        linears: Sequence[nn.Module],
        targets: tuple[Tensor, Tensor, Tensor],
        kernel: LossKernel,
        score_scale: float,
        order: Tensor | None = None,
    ) -> Tensor | None:
        """`loss`, where x and the PSQT part are what the feature transformer `transformer` gives. The gradient of x is
        not made. If there is one layer, which has one output, the backward of the transformer takes its two factors.
        If there are more, the backward of the first one makes the gradients of the transformer's rows. None where
        neither is possible, and where the operators cannot compute it."""
        return self.fused_loss_through(transformer, bucket, _parameters(linears), targets, kernel, score_scale, order)

    def fused_loss_through(
        self,
        transformer: FusedCall,
        bucket: Tensor,
        parameters: Sequence[Tensor],
        targets: tuple[Tensor, Tensor, Tensor],
        kernel: LossKernel,
        score_scale: float,
        order: Tensor | None = None,
    ) -> Tensor | None:
        """`loss_through`; `parameters` as in `fused_output`."""
        if not _targets_are_known(targets) or not self._goes_through(transformer, parameters, bucket):
            return None
        order = self.order(bucket) if order is None else order
        score, result, lam = targets
        loss: Tensor = _LossThrough.apply(  # type: ignore[no-untyped-call]
            self, transformer, kernel, score_scale, bucket, order, score, result, lam,
            transformer.trained, transformer.bias, transformer.psqt, *parameters,
        )  # fmt: skip
        return loss

    # ---- in two parts, for a net whose first layer's inputs are on several devices ----

    def first_sums(
        self, x: Tensor, linears: Sequence[nn.Module], bucket: Tensor, order: Tensor | None = None
    ) -> Tensor:
        """weight · x of the first of the layers, without its bias: fp32 [B, outputs]. x may be some of the inputs, and
        the weight the columns for them; then `inputs` counts these. `first_gradients` is its backward, which autograd
        cannot call: on CUDA it would need Σ weight of the whole batch."""
        if self.integers is not None:
            raise ValueError("LayerStacks: layers that round see all inputs of the first layer, found some of them")
        parameters = _parameters(linears)
        weight, bias, *_ = parameters
        if self._is_fused(FirstOutputs(x, None, bucket), parameters):
            order = self.order(bucket) if order is None else order
            return _FirstSums.apply(x, order, weight)  # type: ignore[no-any-return, no-untyped-call]
        return stacked_linear(x, bucket, weight, torch.zeros_like(bias)).float()

    def first_gradients(
        self,
        sums: Tensor,
        first: FirstOutputs,
        linears: Sequence[nn.Module],
        grads: tuple[Tensor, Tensor | None],
        scales: tuple[Tensor, Tensor],
        order: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradients by x, by the weight and by the PSQT part, where `sums` is `first_sums` of `first`. `grads` are
        `AfterFirst.grad_sums` and `.grad_psqt` of the whole batch, and `scales` a factor for all of them, a scalar, and
        the `totals` of the whole batch, whose Σ weight they are divided by."""
        parameters, (grad_sums, grad_psqt) = _parameters(linears), grads
        if self._is_fused(first, parameters):
            order = self.order(first.bucket) if order is None else order
            grad_x, grad_weight, scaled_psqt, _ = _operators._layer_stacks_gradients(
                first.x, order, parameters, grad_sums, None, grad_psqt, list(scales), self.description, first.x.dtype
            )  # fmt: skip
            return grad_x, grad_weight, None if grad_psqt is None else scaled_psqt
        factor = mean(scales[0], scales[1][1])
        weight = linears[0].weight
        assert isinstance(weight, Tensor)
        grad_x, grad_weight = torch.autograd.grad(sums, [first.x, weight], grad_sums * factor)
        return grad_x, grad_weight, None if grad_psqt is None else grad_psqt * factor

    def first_through(
        self, transformer: FusedCall, linears: Sequence[nn.Module], bucket: Tensor, order: Tensor | None = None
    ) -> FirstThrough | None:
        """`first_sums` of what `transformer` gives, without its PSQT part; None where `gradients_through` cannot go
        back."""
        parameters = _parameters(linears)
        if not self._goes_through(transformer, parameters, bucket) or not self.hidden:
            return None
        order = self.order(bucket) if order is None else order
        with torch.no_grad():
            alone = transformer._replace(batch=transformer.batch[:3], psqt=None)
            x, _, saved = _operators._perspective_transformer_forward(*alone.arguments, True)
            return FirstThrough(transformer, saved, _operators._layer_stacks_first(x, order, parameters[0]))

    def gradients_through(
        self,
        first: FirstThrough,
        linears: Sequence[nn.Module],
        bucket: Tensor,
        grads: tuple[Tensor, Tensor | None],
        scales: tuple[Tensor, Tensor],
        order: Tensor | None = None,
    ) -> tuple[TransformerGradients, Tensor]:
        """The gradients of the transformer of `first`, and of the first weight; `grads` and `scales` as in
        `first_gradients`."""
        order = self.order(bucket) if order is None else order
        grad_sums, grad_psqt = grads
        found, grad_weight, _ = _gradients_through(
            _Kept.of(first.transformer), first.transformer.batch, first.saved, self.description, order,
            _parameters(linears), (grad_sums, None, grad_psqt), list(scales),
        )  # fmt: skip
        return found, grad_weight

    def from_sums(self, first: FirstOutputs, linears: Sequence[nn.Module], order: Tensor | None = None) -> Tensor:
        """`forward`, where `first.x` is the complete `first_sums`."""
        parameters = _parameters(linears)
        if not torch.is_grad_enabled() and self._is_fused(first, parameters):
            order = self.order(first.bucket) if order is None else order
            of = self.description
            output, _ = _operators._layer_stacks_forward(first.x, order, parameters, first.psqt, of, is_sums=True)
            return output  # type: ignore[no-any-return]
        return self._plain(first, linears, sums_are_given=True)

    def after_first(
        self,
        first: FirstOutputs,
        linears: Sequence[nn.Module],
        targets: tuple[Tensor, Tensor, Tensor],
        loss: Loss,
        score_scale: float,
        order: Tensor | None = None,
    ) -> AfterFirst:
        """The rest of the net, the loss of it and all gradients, where `first.x` is the complete `first_sums`."""
        parameters, kernel = _parameters(linears), loss.kernel()
        if kernel is not None and _targets_are_known(targets) and self._is_fused(first, parameters):
            order = self.order(first.bucket) if order is None else order
            kind, constants = kernel
            numbers, layers = [score_scale, *constants], self.description
            totals, grad_sums, grad_output, partials = _operators._layer_stacks_loss(
                first.x, order, parameters, first.psqt, list(targets), layers, kind, numbers, is_sums=True
            )
            _, _, _, flat = _operators._layer_stacks_gradients(
                None, order, parameters, None, partials, grad_output, [], layers, None
            )
            return AfterFirst(grad_sums, None if first.psqt is None else grad_output, flat, totals)
        with torch.enable_grad():
            sums = first.x.detach().requires_grad_()
            psqt = None if first.psqt is None else first.psqt.detach().requires_grad_()
            output = self.from_sums(FirstOutputs(sums, psqt, first.bucket), linears)
            weighted, weights = loss.terms(output.float() * score_scale, *targets)
            # The first weight has no part in this.
            ours = [parameter for linear in linears for parameter in (linear.weight, linear.bias)][1:]
            inner = [sums, *ours] if psqt is None else [sums, *ours, psqt]
            found = torch.autograd.grad(weighted, inner, materialize_grads=True)  # type: ignore[arg-type]
        totals = _totals(weighted, weights).detach().float()
        flat = _joined_gradients(found[1 : 1 + len(ours)])
        return AfterFirst(found[0], None if psqt is None else found[-1], flat, totals)

    def add_shares(self, shares: Tensor, linears: Sequence[nn.Module]) -> tuple[Tensor, list[Tensor]]:
        """The totals of several processes, and the gradients of all their positions by all parameters but the first
        weight, divided by Σ weight. Row p of `shares`, fp32 [P, n + 3], is what process p has in `AfterFirst`: the
        gradients, then the totals. They are added in the order of the processes."""
        parameters = _parameters(linears)
        if self.may_be_fused(shares.device):
            totals, flat = _operators._layer_stacks_add_shares(shares)
        else:
            total = shares[0].clone()
            for share in shares[1:]:  # a sum over the dimension might have another order
                total += share
            weighted, weights = total[-3], total[-2]
            totals = _totals(weighted, weights)
            flat = total[:-3] * mean(torch.ones_like(weights), weights)
        return totals, _cut_gradients(flat, parameters)

    def may_be_fused(self, device: torch.device) -> bool:
        """Whether there are operators for these layers on this device. It is asked before there are tensors."""
        return self._kernels(device, torch.float32) in ("tiles", "one_pass")

    def _kernels(self, device: torch.device, x_dtype: torch.dtype) -> str:
        return capabilities.stacks(capabilities.machine_of(device), self, x_dtype).kernels

    def order_of(self, batch: Batch) -> Tensor | None:
        """The order that was prepared for this batch; None if there is none."""
        orders = (plan for plan in batch.plans if isinstance(plan, StackOrder))
        return next((order.data for order in orders if order.is_for(batch.white, self.stacks)), None)

    def order(self, bucket: Tensor) -> Tensor:
        """Positions ordered by stack, for the operators on CUDA. It depends on int64 [B] `bucket` alone."""
        order: Tensor = _operators._stack_order(bucket, self.stacks)
        return order

    def _plain(self, first: FirstOutputs, linears: Sequence[nn.Module], *, sums_are_given: bool = False) -> Tensor:
        """`sums_are_given`: `first.x` is what the weight of the first of the layers gives, without its bias."""
        return self.outputs(first, linears, sums_are_given=sums_are_given).squeeze(1)

    def outputs(self, first: FirstOutputs, linears: Sequence[nn.Module], *, sums_are_given: bool = False) -> Tensor:
        """The outputs of the last layer in torch's operators, fp32 [B, n], for a last layer of any number of outputs.
        What goes directly to the output is added to each of them. `sums_are_given`: as for `_plain`."""

        def linear(number: int, x: Tensor) -> Tensor:
            if number == 0 and sums_are_given:
                _, bias = _parameters([linears[0]])
                return x + reference.choose(bias.unsqueeze(0), first.bucket)
            return _apply(linears[number], x, first.bucket)

        return reference.layers(self.hidden, first.x, linear, [] if first.psqt is None else [first.psqt])

    def _is_fused(self, first: FirstOutputs, parameters: Sequence[Tensor]) -> bool:
        """Whether the operators serve this call: the table's choice for these layers, in a mode and on tensors that
        operators take."""
        x, floats = first.x, [*parameters, *([] if first.psqt is None else [first.psqt])]
        if torch.compiler.is_compiling() or _derivatives.in_onnx_export():  # first: neither can follow the table
            return False
        if self._kernels(x.device, x.dtype) not in ("tiles", "one_pass") or x.dim() != 2:
            return False
        if any(t.dtype != torch.float32 or not t.is_cuda for t in floats):
            return False
        if not _derivatives.only_reverse_mode(x, *floats):
            return False
        return x.data_ptr() % 16 == 0 and parameters[0].data_ptr() % 16 == 0

    def _goes_through(self, transformer: FusedCall, parameters: Sequence[Tensor], bucket: Tensor) -> bool:
        """Whether the gradient between the transformer and the layers need not be made."""
        if len(bucket) == 0 or not (transformer.trained.requires_grad or transformer.bias.requires_grad):
            return False  # nobody needs the gradient between
        if transformer.gradient_between("tiles", len(self.hidden)) == "whole":
            return False
        like_x = transformer.trained  # has the device of x, and its type or float32
        return self._is_fused(FirstOutputs(like_x, None, bucket), parameters)

    @functools.cached_property
    def numbers(self) -> tuple[int, int, tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
        """The layers as `_layer_stacks_describe` takes them (csrc/layer_stacks.h)."""
        layers = [layer.numbers() for layer in self.hidden]
        hidden = tuple(number for ints, _ in layers for number in ints)
        constants = tuple(number for _, floats in layers for number in floats)
        integers = () if self.integers is None else tuple(self.integers.numbers())
        return self.inputs, self.stacks, hidden, constants, integers

    @property
    def description(self) -> int:
        """The layers as the operators take them: a number that stands for them in this process."""
        return _describe(_operators, self)


@functools.lru_cache(maxsize=256)
def _describe(operators: Any, of: LayerStacks) -> int:
    return int(operators._layer_stacks_describe(*of.numbers))


def _parameters(linears: Sequence[nn.Module]) -> list[Tensor]:
    """Weight [S, O, I] and bias [S, O] of each layer; an `nn.Linear` is one stack."""
    found: list[Tensor] = []
    for linear in linears:
        weight, bias = linear.weight, linear.bias
        assert isinstance(weight, Tensor)
        assert isinstance(bias, Tensor)
        found += [weight, bias] if weight.dim() == 3 else [weight.unsqueeze(0), bias.unsqueeze(0)]
    return found


def _apply(linear: nn.Module, x: Tensor, bucket: Tensor) -> Tensor:
    if isinstance(linear, StackedLinear):
        return linear(x, bucket)  # type: ignore[no-any-return]
    assert isinstance(linear, nn.Linear)
    # Call the module, not F.linear: `nnue inspect` sees the inputs of a layer through the module's hooks.
    return linear(x)  # type: ignore[no-any-return]


def _gradients(
    ctx: Any,
    of: LayerStacks,
    tensors: tuple[Tensor, Tensor, list[Tensor]],
    found: tuple[Tensor, Tensor],
    grad_output: Tensor | None,
    scales: list[Tensor],
) -> tuple[Tensor | None, Tensor | None, list[Tensor]]:
    """(grad_x, grad_psqt, gradients of the parameters) from the results of a forward or backward operator."""
    (x, order, parameters), (grad_sums, partials) = tensors, found
    grad_x, grad_weight, grad_psqt, flat = _operators._layer_stacks_gradients(
        x, order, parameters, grad_sums, partials, grad_output, scales, of.description,
        x.dtype if ctx.needs_x else None,
    )  # fmt: skip
    gradients = [grad_weight, *_cut_gradients(flat, parameters)]
    return grad_x if ctx.needs_x else None, grad_psqt if grad_output is not None else None, gradients


def _totals(weighted: Tensor, weights: Tensor) -> Tensor:
    """`AfterFirst.totals`."""
    return torch.stack([weighted, weights, mean(weighted, weights)])


def _joined_gradients(gradients: Sequence[Tensor]) -> Tensor:
    """Those of all parameters but the first, flat as the operators make them."""
    return torch.cat([nn.functional.pad(each.float().flatten(), (0, -each.numel() % 4)) for each in gradients])


def _cut_gradients(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those of all parameters but the first, each of which begins at a multiple of 4."""
    gradients, begin = [], 0
    for parameter in parameters[1:]:
        gradients.append(flat[begin : begin + parameter.numel()].view(parameter.shape))
        begin += -(-parameter.numel() // 4) * 4
    return gradients


def _targets_are_known(targets: tuple[Tensor, Tensor, Tensor]) -> bool:
    """Whether score, result and λ have the types that the operators know."""
    score, result, lam = targets
    return score.dtype == torch.int16 and result.dtype == torch.int8 and lam.dtype == torch.float32


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of: LayerStacks, x: Tensor, psqt: Tensor | None, order: Tensor, *parameters: Tensor
    ) -> Tensor:
        output, sums = _operators._layer_stacks_forward(x, order, parameters, psqt, of.description)
        ctx.of, ctx.needs_x = of, ctx.needs_input_grad[1]
        ctx.save_for_backward(x, order, sums, *parameters)
        return output  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        of, (x, order, sums, *parameters) = ctx.of, ctx.saved_tensors
        found = _operators._layer_stacks_backward(grad_output, sums, order, parameters, of.description)
        # Without integers, PSQT has the gradient of the output.
        straight = grad_output if of.integers is not None and ctx.needs_input_grad[2] else None
        grad_x, grad_psqt, gradients = _gradients(ctx, of, (x, order, parameters), found, straight, [])
        if ctx.needs_input_grad[2] and of.integers is None:
            grad_psqt = grad_output
        return None, grad_x, grad_psqt, None, *gradients


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of: LayerStacks, kernel: LossKernel, score_scale: float, x: Tensor, psqt: Tensor | None,
        order: Tensor, score: Tensor, result: Tensor, lam: Tensor, *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        kind, constants = kernel
        totals, grad_sums, grad_output, partials = _operators._layer_stacks_loss(
            x, order, parameters, psqt, [score, result, lam], of.description, kind, [score_scale, *constants]
        )
        ctx.of, ctx.needs_x, ctx.needs_psqt = of, ctx.needs_input_grad[3], ctx.needs_input_grad[4]
        ctx.save_for_backward(x, order, totals, grad_sums, grad_output, partials, *parameters)
        return totals[2]  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        x, order, totals, grad_sums, grad_output, partials, *parameters = ctx.saved_tensors
        found, straight = (grad_sums, partials), grad_output if ctx.needs_psqt else None
        grad_x, grad_psqt, gradients = _gradients(
            ctx, ctx.of, (x, order, parameters), found, straight, [grad_loss, totals]
        )
        return None, None, None, grad_x, grad_psqt, None, None, None, None, *gradients


class TransformerGradients(NamedTuple):
    """The gradients of a feature transformer's parameters."""

    weight: Tensor
    bias: Tensor
    psqt: Tensor | None


class FirstThrough(NamedTuple):
    """A feature transformer and the first of the layers behind it, after their forward."""

    transformer: FusedCall
    saved: Tensor
    """what the forward of the transformer has left for its backward"""
    sums: Tensor
    """`LayerStacks.first_sums`"""


class _Kept(NamedTuple):
    """What the backward of a transformer takes besides tensors."""

    made_for: list[int]
    sizes: list[int]
    """F, N and P"""
    activation: tuple[int, list[float], torch.dtype]
    """with its bound and scale, and the dtype of the weight"""

    @classmethod
    def of(cls, transformer: FusedCall) -> _Kept:
        psqt = transformer.psqt
        sizes = [*transformer.weight.shape, 0 if psqt is None else psqt.shape[1]]
        activation = (transformer.activation, transformer.bound_and_scale, transformer.trained.dtype)
        return cls(transformer.made_for, sizes, activation)


def _gradients_through(
    kept: _Kept,
    batch: list[Tensor],
    saved: Tensor,
    layers: int,
    order: Tensor,
    parameters: Sequence[Tensor],
    grads: tuple[Tensor, Tensor | None, Tensor | None],
    scales: list[Tensor],
) -> tuple[TransformerGradients, Tensor, Tensor]:
    """The gradients of the transformer, of the first weight and, flat, of the other parameters. `grads`: grad_sums,
    partials and grad_output as _layer_stacks_gradients takes them."""
    made_for, sizes, activation = kept
    grad_sums, partials, grad_output = grads
    has_psqt = sizes[2] > 0
    rows, grad_bias, grad_first, grad_psqt, flat = _operators._layer_stacks_gradients_through(
        order, parameters, grad_sums, partials, grad_output if has_psqt else None, scales, layers, batch, made_for,
        saved, sizes[0], activation[1],
    )  # fmt: skip
    grad_weight, _, of_psqt = _operators._perspective_transformer_backward(
        rows, grad_psqt if has_psqt else None, batch, made_for, saved, sizes, *activation, []
    )
    return TransformerGradients(grad_weight, grad_bias, of_psqt if has_psqt else None), grad_first, flat


class _LossThrough(torch.autograd.Function):
    """The feature transformer and the loss behind it."""

    @staticmethod
    def forward(
        ctx: Any, of: LayerStacks, transformer: FusedCall, kernel: LossKernel, score_scale: float, bucket: Tensor,
        order: Tensor, score: Tensor, result: Tensor, lam: Tensor, weight: Tensor, bias: Tensor, psqt: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        kind, constants = kernel
        ctx.kept, ctx.of_batch, ctx.by_rows = _Kept.of(transformer), len(transformer.batch), bool(of.hidden)
        if of.integers is not None and not ctx.by_rows:
            # What the backward takes as the gradient of the layer's sums has the factor of PSQT's.
            integers, (activation, (bound, scale), dtype) = of.integers, ctx.kept.activation
            of_sums = integers.multiply / (integers.by * integers.divide * integers.psqt_scale)
            ctx.kept = ctx.kept._replace(activation=(activation, [bound, scale * integers.x_scale * of_sums], dtype))
            dtype = dtype if bound <= _WHOLE_BFLOAT16 else torch.float32
            in_one_pass = of._kernels(bucket.device, dtype) == "one_pass"
            if activation == number_of("screlu") and transformer.made_for[0] != 0 and in_one_pass:
                # x before it is squared fits 16 bits. Both have the same sums, so the same backward.
                transformer = transformer._replace(
                    activation=number_of("crelu"), bound_and_scale=[bound, 1.0], output_dtype=dtype, rounds_down=False
                )
                of = dataclasses.replace(of, integers=dataclasses.replace(integers, square=scale))
        x, psqt_output, saved = _operators._perspective_transformer_forward(*transformer.arguments, True)
        totals, grad_sums, grad_output, partials = _operators._layer_stacks_loss(
            x, order, parameters, None if psqt is None else psqt_output, [score, result, lam], of.description, kind,
            [score_scale, *constants],
        )  # fmt: skip
        ctx.layers = of.description
        # If one kernel did all of it, the gradient of the layer's weight is made, and nobody reads x again. Nor is x
        # read again where it can be made of what is saved.
        reads_x = not ctx.by_rows and partials.shape[1] <= of.inputs
        ctx.save_for_backward(
            bucket,
            order,
            x if reads_x else None,
            saved,
            totals,
            grad_sums,
            grad_output,
            partials,
            *transformer.batch,
            *parameters,
        )
        return totals[2]  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        bucket, order, x, saved, totals, grad_sums, grad_output, partials, *others = ctx.saved_tensors
        batch, parameters = others[: ctx.of_batch], others[ctx.of_batch :]
        scales, (made_for, sizes, activation) = [grad_loss, totals], ctx.kept
        if ctx.by_rows:
            of_psqt = sizes[2] if ctx.needs_input_grad[11] else 0
            kept, grads = ctx.kept._replace(sizes=[*sizes[:2], of_psqt]), (grad_sums, partials, grad_output)
            of_transformer, grad_first, flat = _gradients_through(
                kept, batch, saved, ctx.layers, order, parameters, grads, scales
            )
        else:
            _, grad_first, grad_sum, flat = _operators._layer_stacks_gradients(
                x, order, parameters, grad_sums, partials, grad_output, scales, ctx.layers, None
            )
            grad_weight, grad_bias, _ = _operators._perspective_transformer_backward(
                parameters[0], None, batch, made_for, saved, sizes, *activation, [grad_sum, bucket]
            )
            of_transformer = TransformerGradients(grad_weight, grad_bias, None)
        return *[None] * 9, *of_transformer, grad_first, *_cut_gradients(flat, parameters)


class _FirstSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, weight: Tensor) -> Tensor:
        return _operators._layer_stacks_first(x, order, weight)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError("LayerStacks.first_sums: found a call of backward, expected one of first_gradients")


if ops._libraries.cuda_error is not None:
    torch.library.impl("nnue::_stack_order", "CUDA", ops._no_cuda)
