"""A step in torch's own operators: the reference of everything that the kernels compute.

It runs where no kernel does: in float64, in torch.func and forward mode, in what torch.compile and exporters trace, and
on devices without kernels. Tests compare the kernels with it. `perspectives` and `modules` choose between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

Activation = Literal["identity", "crelu", "screlu", "pairwise"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
LayerActivation = Literal["none", "crelu", "screlu", "dual"]
_LAYER_ACTIVATIONS: tuple[LayerActivation, ...] = get_args(LayerActivation)

RowSums = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


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
        activation, to_output = _LAYER_ACTIVATIONS.index(self.activation), int(self.output_scale is not None)
        scale = 1.0 if self.output_scale is None else self.output_scale
        skip = [self.skip_multiply, self.skip_divide]
        return (
            [self.outputs, self.activated, activation, plus, minus, to_output],
            [self.largest, self.low, self.square, scale, self.step, *skip],
        )


def row_sums(indices: Tensor, weight: Tensor, bias: Tensor, values: Tensor | None = None) -> Tensor:
    """bias + Σ value · weight[i] over the indices i of each row, [B, N]: what `ops.feature_transformer_forward` sums.
    It gathers all rows, so it takes B · K · N numbers of memory."""
    alive = (indices == -1).cumsum(1) == 0
    factor = alive.to(weight.dtype) if values is None else torch.where(alive, values, 0)
    return bias + (factor[:, :, None] * weight[indices.clamp(min=0).long()]).sum(1)


def activate(accumulator: Tensor, activation: Activation, bound: float) -> Tensor:
    """[B, N] → [B, N], of "pairwise" [B, N / 2]: see `perspectives.perspective_transformer`."""
    if activation == "identity":
        return accumulator
    clipped = accumulator.clamp(0.0, bound)
    if activation == "crelu":
        return clipped
    if activation == "screlu":
        return clipped.square()
    first, second = clipped.chunk(2, dim=1)
    return first * second


def activate_layer(
    y: Tensor, activation: LayerActivation, largest: float, low: float = 0.0, square: float = 1.0
) -> Tensor:
    """The activation of a layer after the first, [B, outputs] → [B, values]: `StackLayer`."""
    if activation == "none":
        return y.clamp(low, largest)
    if activation == "dual":
        return torch.cat([(y.square() * square).clamp(max=largest), y.clamp(0.0, largest)], dim=1)
    return activate(y, activation, largest)


def perspective_transformer(
    rows: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    activation: Activation,
    bound: float,
    scale: float,
    output_dtype: torch.dtype,
    *,
    psqt: Tensor | None = None,
    psqt_bucket: Tensor | None = None,
    values: tuple[Tensor, Tensor] | None = None,
    row_sums: RowSums = row_sums,
) -> tuple[Tensor, Tensor | None]:
    """`perspectives.perspective_transformer`: output and PSQT output. `rows`: white, black and black_to_move."""
    white, black, black_to_move = rows
    # Swapping index rows moves a few dozen integers per position, and swapping accumulators thousands of floats.
    black_first = black_to_move.bool().unsqueeze(1)
    sides = [torch.where(black_first, black, white), torch.where(black_first, white, black)]
    factors: list[Tensor | None] = [None, None]
    if values is not None:
        ours, theirs = values
        factors = [torch.where(black_first, theirs, ours), torch.where(black_first, ours, theirs)]
    # A sum of 16-bit weights in their own dtype would be rounded too early.
    wide = weight if weight.dtype == torch.float64 else weight.float()
    sums = [row_sums(i, wide, bias.to(wide.dtype), v) for i, v in zip(sides, factors, strict=True)]
    out = torch.cat([activate(each, activation, bound) for each in sums], dim=1)
    out = (out if scale == 1.0 else out * scale).to(output_dtype)
    if psqt is None or psqt_bucket is None:
        return out, None
    no_bias = psqt.new_zeros(psqt.shape[1])
    us, them = (row_sums(i, psqt, no_bias, v) for i, v in zip(sides, factors, strict=True))
    # A masked sum with one term: the gradient of a gather is a scatter, which has to sort if it is deterministic.
    chosen = psqt_bucket.unsqueeze(1) == torch.arange(psqt.shape[1], device=psqt.device)
    return out, torch.where(chosen, us - them, 0.0).sum(1) / 2


def stacked_linear(x: Tensor, bucket: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [B, I], bucket int64 [B], weight [S, O, I], bias [S, O] → [B, O].

    One product for all stacks, and then a choice. No shape depends on the data, so nothing waits for the device, and
    the layer can be compiled and captured. On a GPU the layers are thin, so the unused outputs are cheap."""
    num_stacks, out_features, in_features = weight.shape
    every = F.linear(x, weight.view(-1, in_features), bias.view(-1)).view(-1, num_stacks, out_features)
    return choose(every, bucket)


def choose(every: Tensor, bucket: Tensor) -> Tensor:
    """Row `bucket[b]` of `every[b]`: fp32 [B, num_stacks, n], int64 [B] → fp32 [B, n].

    This is a masked sum with one term, because the gradient of a gather is a scatter. Where that has to be
    deterministic on CUDA, it sorts its indices, which takes 0.36 ms of a 2.7 ms SFNNv5 step on an H200.
    """
    mask = bucket.unsqueeze(1) == torch.arange(every.shape[1], device=every.device)
    return torch.where(mask.unsqueeze(2), every, 0.0).sum(1)


def layers(
    hidden: Sequence[StackLayer], x: Tensor, linear: Callable[[int, Tensor], Tensor], psqt: Tensor | None = None
) -> Tensor:
    """The outputs of the last layer, [B, n], of x [B, I] (csrc/layer_stacks.h). `linear(number, x)` computes one of the
    layers, of which all but the last are `hidden`; `psqt` [B] is added to each output."""
    kept: list[Tensor] = []
    added = [] if psqt is None else [psqt]
    for number, layer in enumerate(hidden):
        y = linear(number, x)
        if layer.plus is not None:
            added.append(y[:, layer.plus] if layer.minus is None else y[:, layer.plus] - y[:, layer.minus])
        x = activate_layer(y[:, : layer.activated], layer.activation, layer.largest, layer.low, layer.square)
        if layer.output_scale is not None and layer is not hidden[-1]:
            kept.append(x if layer.output_scale == 1.0 else x * layer.output_scale)
    output = linear(len(hidden), torch.cat([*kept, x], dim=1) if kept else x)
    for part in added:
        output = output + part.unsqueeze(1)
    return output
