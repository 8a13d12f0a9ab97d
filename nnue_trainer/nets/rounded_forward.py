"""The float model's forward pass with every weight and activation rounded as the engine does it.

It follows from what a net states about its integers: the stages (`Net.integer_forward`), and the scales and limits of
the weights (`Net.tensors`). It holds integers as floats, so it gives exactly the engine's score. Its gradient goes
straight through the rounding: this is quantisation-aware training.

It does not model sums that overflow an engine's 16 or 32 bits and wrap around there; `nnue check` finds them.

On a GPU the layers after the first one, and the loss, are computed by the same operators as without rounding
(`modules/layer_stacks.py`), if these operators support the net's layers. The code in this file uses torch's operators.
It is the reference for the GPU operators and runs everywhere else; on a CPU it computes only each position's own stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from nnue_trainer.data.piece_weights import weights_of_features
from nnue_trainer.modules import stacked_linear
from nnue_trainer.modules.layer_stacks import FirstOutputs, Integers, LayerCall, LayerStacks
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.modules.straight_through import (
    IntegerParameters,
    Steps,
    integer_linear,
    integer_parameters,
    integer_stacked_linear,
    integers,
    ste_round,
)
from nnue_trainer.nets.integer_forward import INT16_MAX, INT16_MIN, IntegerForward, IntegerLayer, Skip
from nnue_trainer.nets.net_tensor import NetTensor
from nnue_trainer.ops import capabilities
from nnue_trainer.ops.perspectives import Description, Parameters, TransformerCall, is_fused
from nnue_trainer.ops.reference import StackLayer, activate_layer, choose
from nnue_trainer.schema import section

if TYPE_CHECKING:
    from nnue_trainer.data.batch import Batch


@section
class QatConfig:
    """Quantisation-aware training: whether, and from when on, the forward pass rounds as the engine does."""

    qat: bool = False
    """quantisation-aware training: round weights and activations in the forward pass as the engine does; gradients go
    straight through the rounding"""
    qat_from: float = Field(default=0.0, ge=0, lt=1)
    """with qat: the part of the run that is trained without rounding first, 0 to 1"""

    def active(self, step: int, steps: int) -> bool:
        """Whether the step number `step` of `steps`, counted from 0, is computed with rounding."""
        return self.qat and step >= self.qat_from * steps


# fp32 sums of products count as exact if the sum of this many products of the largest size stays below 2^24: with
# bytes, a quarter of all products would have to be of the largest size to pass it.
_LARGE_PRODUCTS = 256
# bfloat16 holds every integer up to this.
_WHOLE_BFLOAT16 = 256
# TF32 holds factors of 11 bits.
_LARGEST_TF32 = 2**11


def stack_entries(batch: Batch, feature_weights: Tensor | None, entries: int) -> Tensor:
    """int64 [B]: the entry of each position in a table of stacks. With `feature_weights` (those of
    `weights_of_features`, and a 0 after them, which index −1 finds) it is the sum of the weights, below `entries`."""
    if feature_weights is None:
        return batch.stack_entry
    mover = torch.where(batch.black_to_move.unsqueeze(1) != 0, batch.black, batch.white)
    # The last element, for −1: ONNX has no negative indices into a table.
    rows = torch.where(mover < 0, len(feature_weights) - 1, mover).long()
    return feature_weights[rows].sum(1).clamp(max=entries - 1).long()


def one_side(x: Tensor, batch: Batch, sides: str) -> Tensor:
    """The part of a first layer's output [B, both sides] that the next layer reads, as `FirstLayer.sides` selects."""
    if sides == "both":
        return x
    us, them = x.chunk(2, dim=1)
    return us if sides == "mover" else torch.where(batch.black_to_move.unsqueeze(1) != 0, them, us)


def log_odds(logits: Tensor) -> Tensor:
    """ln(E / (1 − E)) of E = win + draw / 2, the expected points by the softmax of the logits of loss, draw and win:
    [B, 3] → [B], `integer_forward.log_odds` with a gradient."""
    loss, half, win = logits[:, 0], logits[:, 1] - math.log(2), logits[:, 2]
    return torch.logaddexp(win, half) - torch.logaddexp(loss, half)


class RoundedForward:
    """The forward pass for `model`, which is already on its device. ValueError, with the reason, for a model without
    one: its net has no `integer_forward()`, or its layers do not have the names of its tensors."""

    def __init__(
        self,
        forward: IntegerForward | None,
        tensors: Sequence[NetTensor],
        feature_set: str,
        score_scale: float,
        model: nn.Module,
    ) -> None:
        """The first four are of the model's net; `feature_set`: of its integers."""
        if forward is None:
            raise ValueError("the net does not define integer_forward() (docs/own-nets.md)")
        self.forward, self.score_scale = forward, score_scale
        self.tf32 = torch.get_float32_matmul_precision() != "highest"
        parameters = dict(model.named_parameters())
        self.parameters = {tensor.name: tensor.source_parameter for tensor in tensors}
        """the parameter that each tensor is made of"""
        self.tables: dict[str, list[Steps]] = {}
        """how the rows of each parameter become integers, in the order of the rows"""
        for tensor in sorted(tensors, key=lambda tensor: tensor.first_row):
            if tensor.source_parameter not in parameters:
                raise ValueError(f"tensor {tensor.name}: the model has no parameter {tensor.source_parameter}")
            self.tables.setdefault(tensor.source_parameter, []).append(tensor.steps)
        for name, table in self.tables.items():
            if len(table) == 1:  # a process may have some of the columns only (nnue_trainer.training.parallel)
                table[0] = table[0]._replace(rows=min(table[0].rows, len(parameters[name])))
        self.transformer = self.parameters[forward.first.bias].rpartition(".")[0]
        module = dict(model.named_modules()).get(self.transformer)
        if not isinstance(module, PerspectiveTransformer):
            raise ValueError(
                f"{self.transformer}, the first layer, is a {type(module).__name__}, expected a PerspectiveTransformer"
            )
        self._on_gpu = module.weight.is_cuda and is_fused(module.weight, module.bucket_size, module.num_bucketed)
        self.stack_table = torch.tensor(forward.stacks, device=next(model.parameters()).device)
        weights = forward.piece_weights
        self.feature_weights: Tensor | None = None
        """of the features, where weights of pieces choose the stack"""
        if weights:
            found = np.append(weights_of_features(feature_set, weights), 0)
            self.feature_weights = torch.from_numpy(found).to(self.stack_table.device)
        largest = [forward.first.largest, *(_largest(layer) for layer in forward.layers)]
        names = [self.parameters[layer.weight] for layer in forward.layers]
        self.limits = [
            (parameters[name].shape[-1], max(largest[n] for n in layer.inputs), self.tables[name][0].limit)
            for name, layer in zip(names, forward.layers, strict=True)
        ]
        """of each layer: the number of its inputs, and the largest magnitudes of one and of a weight"""
        self.floats = {tensor.source_parameter for tensor in tensors if tensor.is_float}
        """the parameters that are not rounded"""
        self.stacks = self._layer_stacks(module)
        """the layers after the first as the operators of a GPU take them; None if those are not made for them"""

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The engine's score of each position in units of the float model, fp32 [B], side to move's view."""
        with torch.autocast(batch.white.device.type, enabled=False):
            first = self.first_outputs(model, batch)
            if self._takes_operators(model, first.x):
                assert self.stacks is not None
                output = self._layers(model, batch, first.bucket).output(first)
                if output is not None:
                    return output
            score = self.output_of(model, first)
            return (
                torch.where(batch.black_to_move != 0, -score, score) if self.forward.first.sides == "white" else score
            )

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """The engine's logits of a net with a head of win, draw and loss, fp32 [B, 3], from the net's view."""
        with torch.autocast(batch.white.device.type, enabled=False):
            sums = self._sums_of_layers(self._steps(model), self.first_outputs(model, batch))
            return self._logits(sums).float()

    def _logits(self, sums: list[Tensor]) -> Tensor:
        return sums[-1].double() / self.forward.divide

    # ---- for a fused step, which calls the operators itself ----

    def first_of_step(self, model: nn.Module) -> tuple[Tensor, Tensor | None, IntegerParameters, Description]:
        """Of the feature transformer in a step: the weight, the leaf that takes its gradient in its place, the
        parameters that each step makes integers of (the weight first, unless the optimiser keeps its integers; bias;
        PSQT), whose gradients are those of the integers, and the description."""
        transformer, copy = self._transformer(model), self._copy(model)
        weight, bias, psqt = transformer.parameters_in_use()
        parameters = {} if copy is not None else {"weight": weight}
        parameters |= {"bias": bias} | ({} if psqt is None else {"psqt": psqt})
        tables = [self.tables[f"{self.transformer}.{name}"] for name in parameters]
        made = IntegerParameters([each.detach() for each in parameters.values()], tables)
        weight, leaf = (weight, None) if copy is None else copy
        return weight, leaf, made, self._described(transformer, leaf)

    def parameters_of_step(self, model: nn.Module) -> IntegerParameters:
        """The parameters of the layers after it, which each step makes integers of."""
        names = self._names()
        return IntegerParameters([model.get_parameter(name) for name in names], [self.tables[name] for name in names])

    def output_of(self, model: nn.Module, first: FirstOutputs) -> Tensor:
        """The score, fp32 [B], from the first layer's integers, in torch's operators."""
        return self._score(first, self._sums_of_layers(self._steps(model), first))

    # ---- in two parts, for a net whose first layer's inputs are on several devices ----

    def layers_for(self, model: nn.Module, bucket: Tensor, order: Tensor | None) -> LayerCall:
        """`StackedModel.layers_for` of this forward pass."""
        if self.stacks is None:
            raise ValueError("its layers are not computed one after the other, expected LayerStacks")
        operators = self._takes_operators(model, bucket)
        return _RoundedCall(self.stacks, self._steps(model), bucket, order, forward=self, operators=operators)

    def _layers(self, model: nn.Module, batch: Batch, bucket: Tensor) -> LayerCall:
        assert self.stacks is not None
        return LayerCall(self.stacks, self._parameters(model), bucket, self.stacks.order_of(batch))

    def _takes_operators(self, model: nn.Module, like: Tensor) -> bool:
        """Whether the table has operators for the layers, on the device of `like`, a tensor of the call."""
        if self.stacks is None:
            return False
        wide_sums = any(self._in_float64(number) for number in range(len(self.forward.layers)))
        # Not `model.parameters()`, which would bring all rows of the transformer up to date in each step.
        own = [model.get_parameter(name) for name in self._names()]
        mode = capabilities.mode_of(like, *self._transformer(model).parameters_in_use(), *own)
        return self.stacks.may_be_fused(like.device, wide_sums=wide_sums, mode=mode)

    def _steps(self, model: nn.Module) -> list[Tensor]:
        """The parameters of the layers, as torch's operators take them."""
        return self._parameters(model, exact=not torch.is_grad_enabled())

    def _sums_of_layers(
        self, parameters: Sequence[Tensor], first: FirstOutputs, *, sums_are_given: bool = False
    ) -> list[Tensor]:
        """The sums y of each layer. `sums_are_given`: `first.x` is `first_sums` of the inputs."""
        forward = self.forward
        vectors = [first.x if sums_are_given else first.x.float()]
        sums: list[Tensor] = []
        for number, layer in enumerate(forward.layers):
            weight, bias = parameters[2 * number : 2 * number + 2]
            if number == 0 and sums_are_given:
                sums.append(self._with_bias(number, first.x, bias, first.bucket))
            else:
                sums.append(self._sums(number, vectors, weight, bias, first.bucket))
            if layer.activated:
                vectors.append(_activated(layer, sums[-1][:, : layer.activated]))
        return sums

    def first_sums(self, x: Tensor, weight: Tensor, bucket: Tensor) -> Tensor:
        """Σ weight · x of the first of the layers, whose inputs x are: [B, outputs], fp32 or float64."""
        return self._product(0, x.float(), weight.float(), bucket, self._x_scale)

    def output_of_sums(self, parameters: Sequence[Tensor], first: FirstOutputs) -> Tensor:
        """The result of `self`, where `first.x` is the complete `first_sums`."""
        return self._score(first, self._sums_of_layers(parameters, first, sums_are_given=True))

    def _score(self, first: FirstOutputs, sums: list[Tensor]) -> Tensor:
        forward = self.forward
        if forward.head == "wdl":
            odds = log_odds(self._logits(sums)) * forward.multiply
            return (ste_round(odds, "trunc") / self.score_scale).float()
        output = sums[-1][:, 0].double()
        for skip in forward.skips:
            y = sums[skip.layer].double()
            part = y[:, skip.plus] if skip.minus is None else y[:, skip.plus] - y[:, skip.minus]
            if forward.is_float:
                output = output + part * skip.multiply / skip.divide
            else:
                output = output + _tdiv(part, skip.multiply, skip.divide)
        if forward.is_float:
            positional = ste_round(output * forward.multiply / forward.divide, "trunc")
        else:
            positional = _tdiv(output, forward.multiply, forward.divide)
        parts = [positional]
        if first.psqt is not None:
            parts = [ste_round(first.psqt, "trunc", self._psqt_scale).double(), positional]
        if not forward.score_apart:
            parts = [sum(parts[1:], parts[0])]
        scores = [_tdiv(part, forward.score_multiply, forward.score_divide) for part in parts]
        return (sum(scores[1:], scores[0]) / self.score_scale).float()

    @property
    def copies(self) -> dict[str, float]:
        """The parameters that this forward pass reads as an optimiser's integer copies, if there are any, and how many
        integers are in 1.0: on a GPU, where the feature transformer is fused."""
        name = f"{self.transformer}.weight"
        same = len({table.scale for table in self.tables[name]}) == 1
        return {name: self._x_scale} if same and self._on_gpu else {}

    def weight_dtype(self, model: nn.Module) -> torch.dtype:
        """The dtype of the feature transformer's weight, as this forward pass reads it."""
        return torch.float32 if self._copy(model) is None else torch.float16

    def _transformer(self, model: nn.Module) -> PerspectiveTransformer:
        transformer = model.get_submodule(self.transformer)
        assert isinstance(transformer, PerspectiveTransformer)
        return transformer

    def _copy(self, model: nn.Module) -> tuple[Tensor, Tensor] | None:
        """The integers of the feature transformer's weight that the optimiser keeps, and what takes their gradient."""
        return self._transformer(model).integer_copy(self._x_scale)

    def buckets(self, batch: Batch) -> Tensor:
        """The stack of each position, int64 [B]."""
        if self.stack_table.device != batch.white.device:
            self.stack_table = self.stack_table.to(batch.white.device)
            if self.feature_weights is not None:
                self.feature_weights = self.feature_weights.to(batch.white.device)
        return self.stack_table[stack_entries(batch, self.feature_weights, len(self.stack_table))]

    def first_outputs(self, model: nn.Module, batch: Batch) -> FirstOutputs:
        """Activations [B, N], rounded down, and the PSQT part fp32 [B], not rounded yet."""
        stack = self.buckets(batch)
        return self._rounded_outputs(self._first_call(model, batch, stack), batch, stack)

    def _rounded_outputs(self, call: TransformerCall, batch: Batch, stack: Tensor) -> FirstOutputs:
        """`call`: what `_first_call` gives for the same batch and stack."""
        x, difference = call.outputs()
        x = one_side(x, batch, self.forward.first.sides)
        rounds = self._power < 0 and not call.transformer.rounds_down
        return FirstOutputs(ste_round(x, "floor") if rounds else x, difference, stack)

    def _first_call(self, model: nn.Module, batch: Batch, stack: Tensor) -> TransformerCall:
        """The call that computes the first layer."""
        weights, transformer = self._integers(model), self._transformer(model)
        described = self._described(transformer, weights.leaf)
        return transformer.call_with(batch.rows, batch.plans, stack, weights, described)

    def _described(self, transformer: PerspectiveTransformer, leaf: Tensor | None) -> Description:
        """The first layer in integers. `leaf`: what takes the gradient of the optimiser's copy, if there is one."""
        first, dtype = self.forward.first, None
        if leaf is not None:  # the output is in 16 bits where these hold all of its integers
            dtype = leaf.dtype if first.largest <= _WHOLE_BFLOAT16 else torch.float32
        return transformer.description._replace(
            bound=first.clip / (1 << first.accumulator_shift),
            scale=2.0**self._power,
            output_dtype=dtype,
            rounds_down=self._power < 0,
        )

    def _integers(self, model: nn.Module) -> Parameters:
        """The integers of the feature transformer."""
        transformer, copy = self._transformer(model), self._copy(model)
        parameters = {} if copy is not None else {"weight": transformer.weight}
        parameters |= {"bias": transformer.bias}
        parameters |= {} if transformer.psqt is None else {"psqt": transformer.psqt}
        tables = [self.tables[f"{self.transformer}.{name}"] for name in parameters]
        found = dict(zip(parameters, integer_parameters(list(parameters.values()), tables, clipped=False), strict=True))
        weight, leaf = (found["weight"], None) if copy is None else copy
        return Parameters(weight, found["bias"], found.get("psqt"), leaf)

    @property
    def _power(self) -> int:
        """Bits by which the first layer shifts its activations to the left."""
        first = self.forward.first
        return (1 if first.activation == "crelu" else 2) * first.accumulator_shift - first.product_shift

    @property
    def _x_scale(self) -> float:
        """The scale of the first layer's rows. They hand their gradient on as it is, so the gradient of the activations
        is multiplied by this."""
        return self.tables[f"{self.transformer}.weight"][0].scale

    @property
    def _psqt_scale(self) -> float:
        """The scale of the PSQT columns, for the gradient of the PSQT part."""
        rows = self.tables.get(f"{self.transformer}.psqt")
        return 1.0 if rows is None else rows[0].scale

    def _names(self) -> list[str]:
        """The parameters of the layers after the first: weight and bias of each."""
        return [self.parameters[name] for layer in self.forward.layers for name in (layer.weight, layer.bias)]

    def _parameters(self, model: nn.Module, *, exact: bool = False) -> list[Tensor]:
        """Weight [S, O, I] and bias [S, O] of all layers, as integers in fp32; `exact`: in float64 where fp32 may not
        hold them."""
        shapes: list[tuple[int, ...]] = []
        names = self._names()
        for layer, (inputs, *_) in zip(self.forward.layers, self.limits, strict=True):
            # The simple net has no dimension for stacks.
            stack = (self.forward.num_stacks, layer.outputs)
            shapes += [(*stack, inputs), stack]
        found: dict[str, Tensor] = {name: model.get_parameter(name) for name in names}
        rounded = [name for name in found if name not in self.floats]
        parameters, tables = [found[name] for name in rounded], [self.tables[name] for name in rounded]
        if exact:
            steps = [integers(parameter, step) for parameter, (step,) in zip(parameters, tables, strict=True)]
        else:
            steps = integer_parameters(parameters, tables) if rounded else []
        found |= dict(zip(rounded, steps, strict=True))
        return [found[name].view(shape) for name, shape in zip(names, shapes, strict=True)]

    def _sums(self, number: int, vectors: list[Tensor], weight: Tensor, bias: Tensor, stack: Tensor) -> Tensor:
        """tdiv(Σ weight · x, divide) + bias of each position's own stack, [B, outputs], fp32 or float64, of a layer."""
        layer, scale = self.forward.layers[number], self._x_scale
        if layer.factor is not None:
            parts = [ste_round(vectors[0], "floor", scale) if n == 0 else vectors[n] for n in layer.inputs]
            x, rows = torch.cat(parts, dim=1).double(), weight.double()
            sums = choose((x @ rows.view(-1, x.shape[1]).T).view(len(x), -1, layer.outputs), stack)
            return (sums * layer.factor + F.embedding(stack, bias).double()).float()
        if layer.inputs == (0,):
            x, factor = vectors[0], scale
        else:
            parts = [ste_round(vectors[0], "floor", scale) if n == 0 else vectors[n] for n in layer.inputs]
            x, factor = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0], 1.0
        weight = weight.float()
        if layer.divide == 1 and stacked_linear.is_fused(x, weight) and not self._in_float64(number):
            return integer_stacked_linear(x, stack, weight, bias.float(), factor=factor)
        return self._with_bias(number, self._product(number, x, weight, stack, factor), bias, stack)

    def _with_bias(self, number: int, products: Tensor, bias: Tensor, stack: Tensor) -> Tensor:
        """`_sums` of a layer, where `products` is its Σ weight · x."""
        divide = self.forward.layers[number].divide
        own = products if divide == 1 else _tdiv(products.double(), 1, divide)
        return own + F.embedding(stack, bias).to(own.dtype)

    def _product(self, number: int, x: Tensor, weight: Tensor, stack: Tensor, factor: float) -> Tensor:
        """Σ weight · x of each position's own stack, [B, outputs], fp32 or float64, of a layer. The gradient of x is
        multiplied by `factor`."""
        if stacked_linear.is_fused(x, weight) and not self._in_float64(number):
            zeros = torch.zeros(weight.shape[:2], dtype=x.dtype, device=x.device)
            return integer_stacked_linear(x, stack, weight, zeros, factor=factor)
        wide = self._in_float64(number) or (self.tf32 and max(self.limits[number][1:]) > _LARGEST_TF32)
        every = integer_linear(x, weight.view(-1, x.shape[1]), wide=wide, factor=factor)
        return choose(every.view(len(x), -1, weight.shape[1]), stack)

    def _in_float64(self, number: int) -> bool:
        """Whether sums of products of a layer are computed in float64, which only evaluation does.

        fp32 does not hold sums of squares of 16 bits. But a float64 copy of a wide layer's inputs is the largest tensor
        of a step, and in fp32 the relative error of the sums is about 10^-7, which training cannot notice."""
        inputs, largest, limit = self.limits[number]
        if self.forward.layers[number].factor is not None:
            return False
        return not torch.is_grad_enabled() and largest * limit * min(inputs, _LARGE_PRODUCTS) > 2**24

    def _layer_stacks(self, transformer: PerspectiveTransformer) -> LayerStacks | None:
        """The layers as the operators take them; None for layers that see others than the one before."""
        forward, hidden = self.forward, list[StackLayer]()
        *before, last = forward.layers
        *kept, final = last.inputs
        in_order = [layer.inputs == (number,) for number, layer in enumerate(before)]
        whole = [layer.divide == 1 for layer in forward.layers[1:]]
        skips = {skip.layer: skip for skip in forward.skips}
        known = kept == sorted({*kept} - {0, final}) and final == len(before) and len(skips) == len(forward.skips)
        if not (all(in_order) and all(whole) and known) or forward.is_float or forward.first.sides != "both":
            return None
        if forward.head != "value":
            return None
        for number, layer in enumerate(before):
            skip, one = skips.get(number), 1 << layer.shift
            none = layer.activation == "none"
            hidden.append(
                StackLayer(
                    layer.outputs,
                    layer.activated,
                    layer.activation,
                    float((INT16_MAX if none else layer.clip) * one),
                    low=float(INT16_MIN * one if none else 0),
                    square=2.0 ** -(2 * layer.shift + layer.square_shift),
                    step=1 / one,
                    output_scale=1.0 if number + 1 in kept else None,
                    **({} if skip is None else _skip_words(skip)),
                )
            )
        of_output = Integers(
            forward.layers[0].divide, forward.multiply, forward.divide, forward.score_multiply, forward.score_divide,
            forward.score_apart, self.score_scale, self._x_scale, self._psqt_scale,
        )  # fmt: skip
        return LayerStacks(transformer.num_outputs, forward.num_stacks, tuple(hidden), of_output)


@dataclass(frozen=True)
class _RoundedCall(LayerCall):
    """Layers in two parts, where torch's operators round as `forward` does."""

    forward: RoundedForward | None = None
    operators: bool = True
    """whether the operators of the layers may be taken"""

    def _kernels(self, x: Tensor, psqt: Tensor | None = None) -> str:
        return super()._kernels(x, psqt) if self.operators else "torch"

    def first_sums(self, x: Tensor) -> Tensor:
        assert self.forward is not None
        return self.forward.first_sums(x, self.parameters[0], self.bucket)

    def output_of_sums(self, sums: Tensor, psqt: Tensor | None) -> Tensor:
        assert self.forward is not None
        return self.forward.output_of_sums(self.parameters, FirstOutputs(sums, psqt, self.bucket))


def _skip_words(skip: Skip) -> dict[str, Any]:
    return {"plus": skip.plus, "minus": skip.minus, "skip_multiply": skip.multiply, "skip_divide": skip.divide}


def _tdiv(x: Tensor, factor: int, divisor: int) -> Tensor:
    """x · factor / divisor toward zero; float64 in, float64 out."""
    return x if factor == divisor else ste_round(x * factor / divisor, "trunc")


def _largest(layer: IntegerLayer) -> int:
    """Magnitude that an activation can have."""
    match layer.activation:
        case "screlu":
            return layer.clip**2 >> layer.square_shift
        case "none":
            return -INT16_MIN
    return layer.clip


def _activated(layer: IntegerLayer, y: Tensor) -> Tensor:
    """Sums of a layer as the inputs of the next one, fp32 integers, or floats. Squares do not fit fp32."""
    if layer.factor is not None:
        return y if layer.activation == "none" else activate_layer(y, layer.activation, layer.clip)
    one = 2.0**-layer.shift
    square = one * one * 2.0**-layer.square_shift
    match layer.activation:
        case "none":
            return ste_round((y * one).clamp(INT16_MIN, INT16_MAX), "floor").float()
        case "screlu":
            return ste_round(y.double().clamp(0, layer.clip << layer.shift).square() * square, "floor").float()
    clamped = ste_round((y * one).clamp(0, layer.clip), "floor").float()
    if layer.activation == "crelu":
        return clamped
    squared = ste_round((y.double().square() * square).clamp(max=layer.clip), "floor").float()
    return torch.cat([squared, clamped], dim=1)
