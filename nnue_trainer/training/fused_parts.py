"""The parts of a fused step. Each holds the arguments of its operators that no batch changes.

`FusedTransformer` is the feature transformer. The layers after it, with the loss, are `StackKernels`, operators of a
GPU, or `StackReference`, torch's operators with autograd. Operators are called below autograd: each part sets the
gradients of its own parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnue_trainer.data.batch import Batch, Plan
from nnue_trainer.losses.base import Loss, mean
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerStacks, give_gradients
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.modules.straight_through import IntegerParameters, Places
from nnue_trainer.nets.base import StackedModel
from nnue_trainer.ops import capabilities, reference
from nnue_trainer.ops.capabilities import Mode
from nnue_trainer.ops.perspectives import Arguments, PerspectivePlan, number_of, plan_key

operators: Any = torch.ops.nnue
_below_autograd: Any = torch._C._AutoDispatchBelowAutograd
_MARKS = "marks"
_WHOLE_BFLOAT16 = 256  # up to which bfloat16 holds every integer


class Inputs(NamedTuple):
    """The inputs of the layers after the transformer and of the loss, for some positions of a batch."""

    x: Tensor
    """the transformer's output [B, N]; or, with `is_sums`, the complete sums of the first layer, fp32 [B, outputs]"""
    psqt: Tensor | None
    """fp32 [B]"""
    bucket: Tensor
    """the stack of each position, int64 [B]"""
    order: Tensor
    """`LayerStacks.order` of them; no elements where no operator reads it"""
    score: Tensor
    result: Tensor
    lam: Tensor
    """λ, an fp32 scalar or fp32 [B]"""
    spare: Tensor | None = None
    is_sums: bool = False


class Found(NamedTuple):
    """The loss, and the gradients of Σ weight · loss before they are divided by Σ weight."""

    totals: Tensor
    """Σ weight · loss, Σ weight and their quotient, the loss: fp32 [3]"""
    by_x: Tensor
    """the gradient of `Inputs.x`; of the operators, that of the first layer's sums, or of the transformer's rows,
    divided, where the loss makes these"""
    by_output: Tensor | None
    """the gradient of PSQT, which is that of the output, fp32 [B]"""
    partials: Tensor | None = None
    """of the operators: the gradients of the parameters, tile by tile"""
    others: Sequence[Tensor] = ()
    """the gradients of all parameters but the first weight, divided, where they are made already"""


class Rows(NamedTuple):
    """The transformer's inputs for a batch, and what its backward needs."""

    batch: list[Tensor]
    """white, black, the plan's data, and with PSQT the bucket of each position"""
    saved: Tensor
    bucket: Tensor


class FusedTransformer:
    """The feature transformer of a fused step, float or with the engine's rounding.

    `trained` takes the gradient of the weight: the parameter, or the optimiser's 16-bit copy of it. `psqt_apart`: the
    forward does not compute the PSQT output; see `psqt_of`."""

    def __init__(self, model: StackedModel, module: PerspectiveTransformer, mode: Mode, *, psqt_apart: bool) -> None:
        self.module, self.late = module, module.late
        rounded = model.rounded
        if rounded is None:
            weight, leaf, description = module.parameters_in_use()[0], None, module.description
            self.integers: IntegerParameters | None = None
        else:
            weight, leaf, self.integers, description = rounded.first_of_step(model)
        self.trained: Tensor = weight if leaf is None else leaf
        self.weight, self.bias, self.psqt = weight.detach(), module.bias, module.psqt
        self._read: tuple[Tensor, Tensor, Tensor | None] = (self.weight, self.bias, self.psqt)
        self.reads_all = self.integers is not None and leaf is None
        """whether a step reads the whole weight and not only the rows of its batch"""
        machine = capabilities.machine_of(weight.device)
        self.kernels = description.kernels(self.weight, machine, mode)
        self.arguments = self.backward_arguments = description.arguments(self.weight, self.psqt, self.kernels)
        self._plan_key = plan_key(len(weight), description.bucket_size, description.num_bucketed, weight.dtype)
        self.rounds = description.rounds_down and not self.arguments.transformer.rounds_down
        self.psqt_apart = psqt_apart and self.psqt is not None and self.kernels in capabilities.ON_GPU
        self.saved_alone = False
        """the forward's output has no rows, because the layers read what it saves"""
        self._is_sparse = False
        self._no_marks = torch.zeros(0, dtype=torch.uint8, device=weight.device)

    def plan(self, batch: Batch) -> PerspectivePlan:
        """The part of the forward pass that depends only on the batch."""
        rows, of = (batch.white, batch.black, batch.black_to_move), self.arguments.transformer
        data = operators._perspective_plan(*rows, of.num_features, *of[3:6], not batch.is_legal)
        return PerspectivePlan(data, *rows, *self._plan_key, self.kernels)  # type: ignore[arg-type]

    def marks(self, batch: Batch) -> Plan:
        """The rows of the weight that the batch has, if only these are brought up to date."""
        if self.late is None or self.reads_all:
            return Plan(_MARKS, self._no_marks, batch.white)
        return self.late.marks(batch.white, batch.black)

    def forward(self, batch: Batch, plan: Tensor, marks: Tensor, bucket: Tensor) -> tuple[Tensor, Tensor | None, Rows]:
        """The output, the PSQT output, and what the backward needs. `plan` and `marks`: the data of these."""
        rows = [batch.white, batch.black, plan, *([] if self.psqt is None else [bucket])]
        if self.late is not None and self.reads_all:
            self.late.settle(gradient=True)
        elif self.late is not None:
            self._is_sparse = self.late.catch_up_marked(marks)
        weight, bias, psqt = self._read
        if self.integers is not None:
            made = self.integers.forward()
            psqt = None if psqt is None else made.pop()
            bias = made.pop()
            weight = made[0] if made else weight
        with _below_autograd():
            x, of_psqt, saved = operators._perspective_transformer_forward(
                rows, weight, bias, psqt, *self.arguments, True, psqt_apart=self.psqt_apart,
                saved_alone=self.saved_alone,
            )  # fmt: skip
        x = x.floor_() if self.rounds else x
        return x, None if psqt is None else of_psqt, Rows(rows, saved, bucket)

    def psqt_of(self, rows: Rows, begin: int, end: int) -> Tensor:
        """The PSQT output of positions begin … end − 1, where the forward has left it out."""
        assert self.psqt is not None
        output: Tensor = operators._perspective_psqt(
            rows.batch, self.psqt.detach(), self.arguments.transformer, begin, end
        )
        return output

    @property
    def leaves_unused(self) -> bool:
        """Whether rows of the gradient of features that the batch lacks may stay unwritten."""
        return self.late is not None and self.late.leaves_unused()

    def backward(self, by_x: Tensor, by_psqt: Tensor | None, rows: Rows) -> None:
        """Sets the gradients, from the gradients of the two outputs."""
        dtype = self.trained.dtype
        if dtype == torch.float32:  # the fp32 kernels of CUDA read fp32 gradients
            by_x = by_x.float()
        transformer, range, _ = self.backward_arguments
        given = (by_x, by_psqt, rows.batch, rows.saved, transformer, range, dtype)
        if self._is_sparse:
            with _below_autograd():
                numbers, values, of_bias, of_psqt = operators._perspective_transformer_backward_rows(*given)
            of_weight = torch.sparse_coo_tensor(
                numbers[None],
                values,
                self.weight.shape,
                check_invariants=False,
                is_coalesced=True,
                device=values.device,
            )
        else:
            with _below_autograd():
                of_weight, of_bias, of_psqt = operators._perspective_transformer_backward(*given)
        self.give(of_weight, of_bias, of_psqt)

    def give(self, of_weight: Tensor, of_bias: Tensor, of_psqt: Tensor) -> None:
        """Sets its gradients."""
        self.trained.grad, self.bias.grad = of_weight, of_bias
        if self.psqt is not None:
            self.psqt.grad = of_psqt


class Stacks(Protocol):
    """The layers after the transformer and the loss."""

    def order(self, bucket: Tensor) -> Tensor:
        """`Inputs.order` of these buckets."""

    def first_sums(self, x: Tensor, order: Tensor, bucket: Tensor) -> Tensor:
        """weight · x of the first layer, fp32 [B, outputs], for some columns of x."""

    def loss(self, inputs: Inputs, rows: Rows) -> Found: ...

    def reads_x(self, found: Found) -> bool:
        """Whether the backward reads x."""

    def share(self, found: Found, order: Tensor) -> Tensor:
        """The gradients of all parameters but the first weight, not divided, flat, and after them the totals: fp32
        [n + 3]."""

    def add_shares(self, shares: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Totals and gradients, divided, of all processes; row p of `shares` belongs to process p."""

    def backward(self, found: Found, x: Tensor | None, order: Tensor, first: FusedTransformer, rows: Rows) -> None:
        """Sets the gradients of all parameters, the transformer's included. `found` is for the whole batch."""


class StackKernels:
    """The layers and the loss by the operators `_layer_stacks_*`."""

    def __init__(self, model: StackedModel, loss: Loss, first: FusedTransformer, mode: Mode, *, divided: bool) -> None:
        kernel, stacks, rounded = loss.kernel(), model.stacks_in_use(), model.rounded
        assert kernel is not None
        assert stacks is not None
        self._integers = None if rounded is None else rounded.parameters_of_step(model)
        self._parameters = _parameters_of(model) if self._integers is None else self._integers.parameters
        self._floats = [_stacked(parameter.detach(), n) for n, parameter in enumerate(self._parameters)]
        self._read: list[Tensor] = self._floats  # as the operators take them in this step
        self._others = Places(self._floats[1:], 4)
        self._loss: tuple[int, list[float]] = (kernel.kind, [model.score_scale, *kernel.constants])
        self.between = between(first, stacks, mode, divided=divided)
        self._stacks = stacks if self.between == "whole" else through(first, stacks, divided=divided)
        self._handle = self._stacks.description
        self._one = torch.ones((), dtype=torch.float32, device=first.weight.device)
        self._through: list[Any] = []
        if self.between == "rows" and not stacks.hidden:  # the loss makes the gradients of the transformer's rows
            transformer, (bound, scale), _ = first.backward_arguments
            self._through = [transformer, [bound, scale, first.arguments.range[1]]]
            first.saved_alone = True
        # PSQT has the gradient of the output; with one layer that is one of the two factors of x's.
        self._keeps_output = first.psqt is not None or (self.between != "whole" and not stacks.hidden)

    def order(self, bucket: Tensor) -> Tensor:
        order: Tensor = operators._stack_order(bucket, self._stacks.stacks)
        return order

    def first_sums(self, x: Tensor, order: Tensor, bucket: Tensor) -> Tensor:
        self._read_parameters()
        found: Tensor = operators._layer_stacks_first(x, order, self._read[0])
        return found

    def loss(self, inputs: Inputs, rows: Rows) -> Found:
        if self._integers is not None and not inputs.is_sums:
            self._read_parameters()
        x, targets = inputs.x, [inputs.score, inputs.result, inputs.lam]
        if self._through:
            x, targets = rows.saved, [*targets, *rows.batch]
        totals, by_sums, by_output, partials = operators._layer_stacks_loss(
            x, inputs.order, self._read, inputs.psqt, targets, self._handle, *self._loss, inputs.is_sums, *self._through
        )
        return Found(totals, by_sums, by_output if self._keeps_output else None, partials)

    def _read_parameters(self) -> None:
        if self._integers is not None:
            made = self._integers.forward()
            self._read = [_stacked(parameter, n) for n, parameter in enumerate(made)]

    def reads_x(self, found: Found) -> bool:
        """Whether the backward reads x: not where it makes x again, or where one kernel has done all of the layer."""
        one_pass = found.partials is not None and found.partials.shape[1] > self._stacks.inputs
        return self.between == "whole" or (not self._stacks.hidden and not one_pass)

    def share(self, found: Found, order: Tensor) -> Tensor:
        *_, flat = operators._layer_stacks_gradients(
            None, order, self._read, None, found.partials, found.by_output, [], self._handle, None, []
        )
        return torch.cat([flat, found.totals])

    def add_shares(self, shares: Tensor) -> tuple[Tensor, list[Tensor]]:
        totals, flat = operators._layer_stacks_add_shares(shares)
        return totals, self._others.cut(flat)

    def backward(self, found: Found, x: Tensor | None, order: Tensor, first: FusedTransformer, rows: Rows) -> None:
        grads = (found.by_x, found.partials, found.by_output)
        given = (x, order, self._read, *grads, [self._one, found.totals], self._handle)
        gradients = operators._layer_stacks_gradients
        if self.between == "whole":
            assert x is not None
            by_x, _, of_psqt, of_weight, flat = gradients(*given, x.dtype, [])
            first.backward(by_x, None if found.by_output is None else of_psqt, rows)
        else:
            transformer, range, _ = first.backward_arguments
            of_rows = [rows.saved, rows.bucket, *rows.batch]
            *of_first, of_weight, flat = gradients(
                *given, first.trained.dtype, of_rows, transformer, range, first.leaves_unused
            )
            first.give(*of_first)
        others = found.others if found.partials is None else self._others.cut(flat)
        every = [of_weight, *others]
        if self._integers is not None:
            shaped = [of.view_as(parameter) for of, parameter in zip(every, self._parameters, strict=True)]
            every = self._integers.backward(shaped)
        give(self._parameters, every)


class _OwnStacks(torch.autograd.Function):
    """`StackedLinear` where it is fused: the same operators, below autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bucket: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bucket, weight)
        with _below_autograd():
            output: Tensor = operators._stacked_linear_forward(x, bucket, weight, bias)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        needs_x, *_ = ctx.needs_input_grad
        with _below_autograd():
            of_x, *others = operators._stacked_linear_backward(grad_output, *ctx.saved_tensors, needs_x)
        return of_x if needs_x else None, None, *others


class StackReference:
    """The layers and the loss in torch's operators, with autograd: what has no kernels."""

    def __init__(self, model: StackedModel, loss: Loss) -> None:
        self._model, self._loss, self._parameters = model, loss, _parameters_of(model)
        self.between = "whole"
        linears: Sequence[Any] = model.linears()
        self._linears = [(each.weight, each.bias) for each in linears]
        self._no_order = torch.zeros(0, dtype=torch.int32, device="cpu")
        is_plain = model.rounded is None and all(type(each) in (StackedLinear, nn.Linear) for each in linears)
        self._output_of = self._plain_output if is_plain else self._output_of_model

    def order(self, bucket: Tensor) -> Tensor:
        return self._no_order

    def _output_of_model(self, inputs: Inputs) -> Tensor:
        return self._model.output_of(FirstOutputs(inputs.x, inputs.psqt, inputs.bucket))

    def _plain_output(self, inputs: Inputs) -> Tensor:
        """`_output_of_model`, without the modules around each product."""

        def linear(number: int, x: Tensor) -> Tensor:
            weight, bias = self._linears[number]
            return _OwnStacks.apply(x, inputs.bucket, weight, bias) if weight.dim() == 3 else F.linear(x, weight, bias)  # type: ignore

        return reference.layers(self._model.stacks.hidden, inputs.x, linear, inputs.psqt).squeeze(1)

    def first_sums(self, x: Tensor, order: Tensor, bucket: Tensor) -> Tensor:
        with torch.enable_grad():
            self._layers = self._model.layers_for(bucket)
            self._sums = self._layers.first_sums(x.requires_grad_())
        return self._sums.detach()

    def loss(self, inputs: Inputs, rows: Rows) -> Found:
        x, psqt = inputs.x.requires_grad_(), inputs.psqt
        sources = [x] if psqt is None else [x, psqt.requires_grad_()]
        with torch.enable_grad():
            if inputs.is_sums:
                layers = dataclasses.replace(self._layers, bucket=inputs.bucket)
                net = layers.output_of_sums(x, psqt)
            else:
                net = self._output_of(inputs)
            net = net.float() * self._model.score_scale
            weighted, weights = self._loss.terms(net, inputs.score, inputs.result, inputs.lam, None, inputs.spare)
            value = mean(weighted, weights)
        totals = torch.stack([weighted, weights, value]).detach().float()
        if inputs.is_sums:
            found = torch.autograd.grad(weighted, [*sources, *layers.parameters[1:]], materialize_grads=True)
        else:
            found = torch.autograd.grad(value, [*sources, *self._parameters])
        return Found(totals, found[0], None if psqt is None else found[1], None, found[len(sources) :])

    def reads_x(self, found: Found) -> bool:
        return True

    def share(self, found: Found, order: Tensor) -> Tensor:
        flat = [F.pad(each.float().flatten(), (0, -each.numel() % 4)) for each in found.others]
        return torch.cat([*flat, found.totals])

    def add_shares(self, shares: Tensor) -> tuple[Tensor, list[Tensor]]:
        total = shares[0].clone()
        for share in shares[1:]:  # a sum over the dimension might have another order
            total += share
        totals = torch.stack([total[-3], total[-2], mean(total[-3], total[-2])])
        flat = total[:-3] * mean(torch.ones_like(totals[1]), totals[1])
        return totals, Places(self._layers.parameters[1:], 4).cut(flat)

    def backward(self, found: Found, x: Tensor | None, order: Tensor, first: FusedTransformer, rows: Rows) -> None:
        by_psqt = found.by_output
        if len(found.others) == len(self._parameters):  # of one process
            give(self._parameters, found.others)
            first.backward(found.by_x, by_psqt, rows)
            return
        assert x is not None
        factor = mean(torch.ones_like(found.totals[1]), found.totals[1])
        of_x, of_weight = torch.autograd.grad(self._sums, [x, self._layers.parameters[0]], found.by_x * factor)
        give_gradients(self._layers.parameters, [of_weight, *found.others])
        first.backward(of_x, None if by_psqt is None else by_psqt * factor, rows)


def give(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Sets the gradients of parameters."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.view_as(parameter)


def _parameters_of(model: StackedModel) -> list[Tensor]:
    """Weight and bias of each layer after the first."""
    linears: Sequence[Any] = model.linears()
    return [parameter for linear in linears for parameter in (linear.weight, linear.bias)]


def _stacked(parameter: Tensor, number: int) -> Tensor:
    """A weight as [S, O, I], a bias (an odd number) as [S, O]: `nn.Linear` is one stack."""
    return parameter if parameter.dim() == 3 - number % 2 else parameter.unsqueeze(0)


def between(first: FusedTransformer, stacks: LayerStacks, mode: Mode, *, divided: bool) -> str:
    """The form of the gradient between the transformer and the layers: `capabilities.between`."""
    of, trained = first.arguments.transformer, first.trained
    return capabilities.between(
        first.kernels,
        stacks.kernels(trained.device, trained.dtype, mode=mode),
        trained.dtype,
        first.arguments.output_dtype,
        num_outputs=of.num_outputs,
        hidden=len(stacks.hidden),
        activation=of.activation,
        bound=first.arguments.range[0],
        has_psqt=of.psqt_buckets > 0,
        divided=divided,
    ).kernels


def through(first: FusedTransformer, stacks: LayerStacks, *, divided: bool) -> LayerStacks:
    """Changes the arguments of the transformer where the backward of the layers continues through it. Returns the
    layers after it."""
    integers = stacks.integers
    if integers is None or stacks.hidden or divided:
        return stacks
    # The backward takes gradients of the layer's sums with the factor of PSQT's.
    of_sums = integers.multiply / (integers.by * integers.divide * integers.psqt_scale)
    arguments, trained = first.arguments, first.trained
    bound, scale = arguments.range
    first.backward_arguments = arguments._replace(range=[bound, scale * integers.x_scale * of_sums])
    dtype = trained.dtype if bound <= _WHOLE_BFLOAT16 else torch.float32
    in_one_pass = stacks.kernels(trained.device, dtype) == "one_pass"
    is_screlu = arguments.transformer.activation == number_of("screlu")
    if not (is_screlu and first.kernels == "hopper" and in_one_pass):
        return stacks
    # x before it is squared fits 16 bits. Both have the same sums, so the same backward.
    crelu = arguments.transformer._replace(activation=number_of("crelu"), rounds_down=0)
    first.arguments = Arguments(crelu, [bound, 1.0], dtype)
    return dataclasses.replace(stacks, integers=dataclasses.replace(integers, square=scale))
