"""The plan of a layered net: the layers of its integer arithmetic, with their scales and limits, from the recipe.

Scales. The scale of an integer is its value for 1.0 of the float model. An accumulator has the scale
`quantisation.first.scale`. If the inputs of a layer have the scale u and its weights the scale w, its sums have u · w.
An engine's shifts can give the inputs of one layer slightly different scales: with `dual`, for example, 127 for the
values and 127 · 127 / 128 for the squares. The float model then multiplies the squares by the quotient of the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nnue_trainer.modules.perspective_transformer import Activation
from nnue_trainer.nets.base import INT16_MAX, INT32_MAX
from nnue_trainer.nets.layered_sections import Layer, Quantisation


@dataclass(frozen=True)
class Step:
    """A layer of the integer net; the output layer is a step, too. It computes y = tdiv(Σ weight · x, divide) + bias,
    and a hidden layer then shifts and activates y. A "scale" here is the integer that stands for 1.0."""

    inputs: int
    outputs: int
    unit: float
    """scale of the inputs x"""
    divide: int
    one: int
    """scale of y"""
    shift: int = 0
    """bits by which y is shifted right"""
    square_shift: int = 0
    """further bits by which y² is shifted right, besides 2 · shift"""
    clip: int = 0
    """the largest integer of a clamped value"""
    activation: str = ""
    quantised: float | None = None
    """scale of the weights of a float layer (`is_float`); None: a layer in integers"""

    @property
    def is_float(self) -> bool:
        """Whether y is a float. Then all scales after the sums are 1."""
        return self.quantised is not None

    @property
    def factor(self) -> float | None:
        """`IntegerLayer.factor`: one float unit of a sum; None for a layer in integers."""
        return None if self.quantised is None else 1 / (self.unit * self.quantised)

    @property
    def weight_scale(self) -> float:
        return self.one * self.divide / self.unit if self.quantised is None else self.quantised

    @property
    def clamped_one(self) -> float:
        """The scale of a clamped value, clamp(y >> shift, 0, clip)."""
        return self.one / (1 << self.shift)

    @property
    def square(self) -> float:
        """The factor of y² in the float model that gives the engine's y² >> (2 · shift + square_shift) at the scale of
        a clamped value."""
        return self.clamped_one / (1 << self.square_shift)

    @property
    def activated_one(self) -> float:
        """The scale of the activations. For `dual` it is that of the clamped values; `square` corrects the squares."""
        return self.clamped_one * self.square if self.activation == "screlu" else self.clamped_one

    @property
    def largest(self) -> int:
        """The largest magnitude of an activation."""
        match self.activation:
            case "screlu":
                return self.clip**2 >> self.square_shift
            case "none":
                return INT16_MAX + 1
        return self.clip


@dataclass(frozen=True)
class Plan:
    """All layers of the integer net."""

    first_clip: int
    """the largest integer of a clamped accumulator"""
    first_largest: int
    """the largest integer of the first layer's activations"""
    layers: tuple[Step, ...]
    output: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*self.layers, self.output)


def plan_of(
    layers: Sequence[Layer], quantisation: Quantisation, activation: Activation, inputs: int, outputs: int
) -> Plan:
    """The layers of the integer net: `activation` is the first layer's, which gives `inputs` numbers to the `layers`;
    the net has `outputs`."""
    first = quantisation.first
    clip = first.clip or first.scale
    is_product = activation != "crelu"
    unit = first.scale**2 / 2**first.product_shift if is_product else float(first.scale)
    divide = first.scale if is_product and not first.product_shift else 1
    largest = clip**2 >> first.product_shift if is_product else clip
    kept, steps = 0, []
    for layer in layers:
        if layer.is_float:
            quantised = 1.0 if layer.type == "f32" else float(layer.scale)
            most, kind = layer.clip or 1, layer.activation
            step = Step(inputs, layer.outputs, unit, 1, 1, clip=most, activation=kind, quantised=quantised)
        else:
            one = round(unit * layer.scale / divide)
            shift = round(math.log2(layer.scale)) if layer.shift is None else layer.shift
            clamped = one / 2**shift
            step = Step(
                inputs,
                layer.outputs,
                unit,
                divide,
                one,
                shift,
                max(0, round(math.log2(max(clamped, 1)))),
                min(layer.clip or math.floor(clamped), INT32_MAX >> shift),
                layer.activation,
            )
        steps.append(step)
        inputs = layer.activated * (2 if layer.activation == "dual" else 1)
        unit, divide = step.activated_one, 1
        if layer.to_output and layer is not layers[-1]:
            kept += inputs
    out = quantisation.output
    if "f32" in (out.type, out.bias_type):
        last = Step(inputs + kept, outputs, unit, 1, 1, quantised=1.0 if out.type == "f32" else float(out.scale))
    else:
        last = Step(inputs + kept, outputs, unit, divide, round(unit * out.scale / divide))
    return Plan(clip, largest, tuple(steps), last)
