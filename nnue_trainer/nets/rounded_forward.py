"""The float model's forward pass with every weight and activation rounded as the engine does it.

It follows from what a net says of its integers: their stages (`Net.integer_forward`), and scales and limits of weights
(`Net.tensors`). It holds integers as floats, so it gives the engine's score and not one near it, and its gradient goes
straight through the rounding: quantisation-aware training.

Not modelled are sums that an engine's 16 or 32 bits do not hold and that wrap around there; `nnue check` finds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.modules.stacked_linear import choose
from nnue_trainer.modules.straight_through import Steps, integer_linear, integer_rows, integers, straight
from nnue_trainer.nets.integer_forward import INT16_MAX, INT16_MIN, IntegerLayer
from nnue_trainer.schema import section

if TYPE_CHECKING:
    from nnue_trainer.data.batch import Batch
    from nnue_trainer.nets.base import Net, NnueModel


@section
class Awareness:
    """Whether training computes as the engine will."""

    aware: bool = False
    """quantisation-aware training: round weights and activations in the forward pass as the engine does; gradients go
    straight through the rounding"""
    aware_from: float = Field(0.0, ge=0, lt=1)
    """with aware: the part of the run that is trained without rounding first, 0 to 1"""

    def active(self, step: int, steps: int) -> bool:
        """Whether the step number `step` of `steps`, counted from 0, is computed with rounding."""
        return self.aware and step >= self.aware_from * steps


# fp32 sums of products count as exact if so many of the largest ones stay below 2^24: with bytes a quarter of all
# products would have to be the largest to pass it.
_LARGE_PRODUCTS = 256
# TF32 holds factors of 11 bits.
_LARGEST_TF32 = 2**11


class RoundedForward:
    """The forward pass for `model`, which is on its device already. ValueError, with the reason, for one that has none:
    whose net has no `integer_forward()`, or whose layers are not named as its tensors."""

    def __init__(self, net: Net, model: NnueModel) -> None:
        forward = net.integer_forward()
        if forward is None:
            raise ValueError("its net defines no integer_forward()")
        self.forward, self.score_scale = forward, net.score_scale
        self.tf32 = torch.get_float32_matmul_precision() != "highest"
        parameters = dict(model.named_parameters())
        self.parameters = {tensor.name: tensor.source_parameter for tensor in net.tensors()}
        """the parameter that each tensor is made of"""
        self.tables: dict[str, list[Steps]] = {}
        """how the rows of each parameter become integers, in the order of the rows"""
        for tensor in sorted(net.tensors(), key=lambda tensor: tensor.first_row):
            if tensor.source_parameter not in parameters:
                raise ValueError(f"its model has no parameter {tensor.source_parameter}")
            self.tables.setdefault(tensor.source_parameter, []).append(tensor.steps)
        self.transformer = self.parameters[forward.first.bias].rpartition(".")[0]
        module = dict(model.named_modules()).get(self.transformer)
        if not isinstance(module, PerspectiveTransformer):
            raise ValueError(f"its first layer, {self.transformer}, is no PerspectiveTransformer")
        self.stacks = torch.tensor(forward.stacks, device=next(model.parameters()).device)

    def __call__(self, model: NnueModel, batch: Batch) -> Tensor:
        """The engine's score of each position in units of the float model, fp32 [B], side to move's view."""
        with torch.autocast(batch.white.device.type, enabled=False):
            return self._score(model, batch)

    def _score(self, model: NnueModel, batch: Batch) -> Tensor:
        forward = self.forward
        if self.stacks.device != batch.white.device:
            self.stacks = self.stacks.to(batch.white.device)
        stack = self.stacks[batch.piece_count.long()]
        first, psqt = self._first_layer(model, batch, stack)
        vectors, largest, sums = [first], [forward.first.largest], []
        for layer in forward.layers:
            sums.append(self._sums(model, layer, vectors, max(largest[number] for number in layer.inputs), stack))
            if layer.activated:
                vectors.append(_activated(layer, sums[-1][:, : layer.activated]))
                largest.append(_largest(layer))
        output = sums[-1][:, 0].double()
        for skip in forward.skips:
            y = sums[skip.layer].double()
            part = y[:, skip.plus] if skip.minus is None else y[:, skip.plus] - y[:, skip.minus]
            output = output + _tdiv(part, skip.multiply, skip.divide)
        positional = _tdiv(output, forward.multiply, forward.divide)
        parts = [positional] if psqt is None else [psqt.double(), positional]
        if not forward.score_apart:
            parts = [sum(parts[1:], parts[0])]
        scores = [_tdiv(part, forward.score_multiply, forward.score_divide) for part in parts]
        return (sum(scores[1:], scores[0]) / self.score_scale).float()

    def _first_layer(self, model: NnueModel, batch: Batch, stack: Tensor) -> tuple[Tensor, Tensor | None]:
        """Activations fp32 [B, N] and the PSQT part fp32 [B], both integers."""
        first, transformer = self.forward.first, model.get_submodule(self.transformer)
        assert isinstance(transformer, PerspectiveTransformer)
        tables = {name: self.tables[f"{self.transformer}.{name}"] for name in ("weight", "bias")}
        psqt = None if transformer.psqt is None else self.tables[f"{self.transformer}.psqt"]
        factors = 1 if first.activation == "crelu" else 2
        power = factors * first.accumulator_shift - first.product_shift
        x, difference = transformer.apply_with(
            batch,
            stack,
            integer_rows(transformer.weight, tables["weight"]),
            integer_rows(transformer.bias, tables["bias"]),
            None if psqt is None or transformer.psqt is None else integer_rows(transformer.psqt, psqt),
            bound=first.clip / (1 << first.accumulator_shift),
            scale=2.0**power,
        )
        x = straight(x, "floor") if power < 0 else x
        return x, None if difference is None or psqt is None else straight(difference, "trunc", psqt[0].scale)

    def _sums(
        self, model: NnueModel, layer: IntegerLayer, vectors: list[Tensor], largest: int, stack: Tensor
    ) -> Tensor:
        """tdiv(Σ weight · x, divide) + bias of each position's own stack, [B, outputs], fp32 or float64. `largest` is
        what an input can be."""
        # Rows of the first layer hand their gradients on as they are, so what they get is multiplied by their scale.
        scale = self.tables[f"{self.transformer}.weight"][0].scale
        if layer.inputs == (0,):
            x, factor = vectors[0], scale
        else:
            parts = [straight(vectors[0], "floor", scale) if n == 0 else vectors[n] for n in layer.inputs]
            x, factor = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0], 1.0
        names = self.parameters[layer.weight], self.parameters[layer.bias]
        (weight_steps,), (bias_steps,) = (self.tables[name] for name in names)
        # The simple net has no dimension for stacks.
        weight = integers(model.get_parameter(names[0]), weight_steps).float().view(-1, x.shape[1])
        bias = integers(model.get_parameter(names[1]), bias_steps).view(-1)
        wide = self._is_wide(x.shape[1], largest, weight_steps.limit)
        every = integer_linear(x, weight, wide=wide, factor=factor)
        if layer.divide != 1:
            every = _tdiv(every.double(), 1, layer.divide)
        return choose((every + bias.to(every.dtype)).view(len(x), -1, layer.outputs), stack)

    def _is_wide(self, inputs: int, largest: int, limit: int) -> bool:
        """Whether sums of products of inputs and weights up to these take float64.

        Squares of 16 bits do. But a float64 copy of a wide layer's inputs is the largest tensor of a step, and in fp32
        the sums are off by about 10^-7 of themselves, which training cannot notice: it does without. Evaluation does
        not."""
        if self.tf32 and max(largest, limit) > _LARGEST_TF32:
            return True
        return not torch.is_grad_enabled() and largest * limit * min(inputs, _LARGE_PRODUCTS) > 2**24


def _tdiv(x: Tensor, factor: int, divisor: int) -> Tensor:
    """x · factor / divisor toward zero; float64 in, float64 out."""
    return x if factor == divisor else straight(x * factor / divisor, "trunc")


def _largest(layer: IntegerLayer) -> int:
    """Magnitude that an activation can have."""
    match layer.activation:
        case "screlu":
            return layer.clip**2 >> layer.square_shift
        case "none":
            return -INT16_MIN
    return layer.clip


def _activated(layer: IntegerLayer, y: Tensor) -> Tensor:
    """Sums of a layer as the inputs of the next one, fp32 integers. Squares do not fit fp32."""
    one = 2.0**-layer.shift
    square = one * one * 2.0**-layer.square_shift
    match layer.activation:
        case "none":
            return straight((y * one).clamp(INT16_MIN, INT16_MAX), "floor").float()
        case "screlu":
            return straight(y.double().clamp(0, layer.clip << layer.shift).square() * square, "floor").float()
    clamped = straight((y * one).clamp(0, layer.clip), "floor").float()
    if layer.activation == "crelu":
        return clamped
    squared = straight((y.double().square() * square).clamp(max=layer.clip), "floor").float()
    return torch.cat([squared, clamped], dim=1)
