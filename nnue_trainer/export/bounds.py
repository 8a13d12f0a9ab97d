"""Bounds of the sums of a net, computed from the weights in its file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nnue_trainer.data.features import FeaturePart, feature_set, outside_set
from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.nets.base import INT16_MAX, INT32_MAX
from nnue_trainer.nets.integer_forward import INT16_MIN, IntegerLayer


class SumBound(NamedTuple):
    """Bounds of the magnitudes in a layer y = tdiv(Σ weight · x, divide) + bias."""

    total: int
    """of Σ weight · x, before the division"""
    divide: int
    y: int


def overflows(quantized: QuantizedNet) -> list[str]:
    """A line for the accumulators and for each layer, if its sums may wrap around in an engine."""
    bound, limit = accumulator_bound(quantized), quantized.net.accumulator_limit
    lines = [f"accumulators may reach {bound}, but the engine's wrap around beyond {limit}"] if bound > limit else []
    return lines + layer_overflows(quantized)


def layer_overflows(quantized: QuantizedNet) -> list[str]:
    """A line for each layer whose sums may exceed 32 bits, before or after they are divided."""
    lines = []
    for name, bound in sum_bounds(quantized).items():
        if bound.divide > 1 and bound.total > INT32_MAX:
            lines.append(
                f"sums of {name} may reach {bound.total} before they are divided by {bound.divide}: they have 64 bits "
                f"here and in nnue.h; an engine with sums of 32 bits wraps around beyond {INT32_MAX}"
            )
        if bound.y > INT32_MAX:
            lines.append(f"sums of {name} may reach {bound.y}, but the engine's wrap around beyond {INT32_MAX}")
    return lines


def beyond_limits(quantized: QuantizedNet) -> list[str]:
    """A line for each tensor with integers beyond the limits of its net: training clips them, export refuses them."""
    lines = []
    for tensor in quantized.net.tensors():
        integers = quantized.tensors[tensor.name][..., : tensor.columns]
        if tensor.is_float or not integers.size:
            continue
        low, high = int(integers.min()), int(integers.max())
        if tensor.lowest <= low and high <= tensor.limit:
            continue
        count = np.count_nonzero((integers < tensor.lowest) | (integers > tensor.limit))
        advice = f"; for a larger limit, set model.{tensor.limit_option} in the recipe" if tensor.limit_option else ""
        lines.append(
            f"{tensor.name}: {count} of {integers.size} integers are beyond the limit ±{tensor.limit} (from {low} to "
            f"{high}), so training clips them and export refuses them{advice}"
        )
    return lines


def accumulator_bound(quantized: QuantizedNet) -> int:
    """No position can bring an accumulator beyond this magnitude: of a king bucket at most one feature per square is
    active, of another part at most as many as a row has room for.

    It is a bound, not a maximum: nets above `Net.accumulator_limit` may still never wrap around in a legal position.
    """
    net, forward = quantized.net, quantized.net.integer_forward()
    if forward is None:
        return 0
    parts = sorted(feature_set(net.integer_feature_set).parts, key=lambda part: part.first_feature)
    highest = lowest = quantized.tensors[forward.first.bias].reshape(-1).astype(np.int64)
    for name, part in zip(forward.first.weights, parts, strict=True):
        high, low = _extremes(quantized.tensors[name], part)
        highest, lowest = highest + high, lowest + low
    return int(max(highest.max(), -lowest.min()))


def sum_bounds(quantized: QuantizedNet) -> dict[str, SumBound]:
    """For the weights of each layer that sums integers: no position can bring its sums beyond these magnitudes. As
    `accumulator_bound`, a bound and not a maximum."""
    forward, found = quantized.net.integer_forward(), dict[str, SumBound]()
    if forward is None:
        return found
    first, tensors = forward.first, quantized.tensors
    most = min(first.clip, accumulator_bound(quantized) << first.accumulator_shift)
    if first.activation != "crelu":
        most = most**2 >> first.product_shift
    width = tensors[first.bias].size // (2 if first.activation == "pairwise" else 1)
    vectors = [_between(0, most, first.num_sides * width)]
    for layer in forward.layers:
        weight = tensors[layer.weight].reshape(-1, tensors[layer.weight].shape[-1])
        if weight.dtype.kind == "f":
            break
        low, high = np.concatenate([vectors[number] for number in layer.inputs], axis=1)
        weight = weight[:, : len(low)].astype(np.int64)
        positive, negative = np.maximum(weight, 0), np.minimum(weight, 0)
        bias = 0 if layer.factor is not None else tensors[layer.bias].reshape(-1).astype(np.int64)
        most, least = positive @ high + negative @ low, positive @ low + negative @ high
        highest, lowest = most // layer.divide + bias, bias - (-least // layer.divide)
        total, y = (int(max(upper.max(), -lower.min())) for upper, lower in ((most, least), (highest, lowest)))
        found[layer.weight] = SumBound(total, layer.divide, y)
        if layer.factor is not None:
            break  # all layers after it have floats
        vectors.append(_activations(layer, int(lowest.min()), int(highest.max())))
    return found


def _between(low: int, high: int, count: int) -> np.ndarray:
    """The smallest and the largest value of each input, int64 [2, count]."""
    return np.repeat(np.array([[low], [high]], np.int64), count, axis=1)


def _activations(layer: IntegerLayer, low: int, high: int) -> np.ndarray:
    """The smallest and the largest value of each activation of a layer whose sums are in low … high: int64 [2, n]."""
    shift = 2 * layer.shift + layer.square_shift
    clamped = min(max(high, 0) >> layer.shift, layer.clip)
    match layer.activation:
        case "none":
            least, most = (min(max(end >> layer.shift, INT16_MIN), INT16_MAX) for end in (low, high))
            return _between(least, most, layer.activated)
        case "screlu":
            return _between(0, min(max(high, 0), layer.clip << layer.shift) ** 2 >> shift, layer.activated)
        case "dual":
            squared = min(max(-low, high) ** 2 >> shift, layer.clip)
            return np.concatenate([_between(0, most, layer.activated) for most in (squared, clamped)], axis=1)
    return _between(0, clamped, layer.activated)


def _extremes(weight: np.ndarray, part: FeaturePart) -> tuple[np.ndarray, np.ndarray]:
    """The largest and the smallest sum of active rows, int64 [N] each."""
    if not part.bucket_size or outside_set(part.name) is not None:
        most = part.max_active
        return (
            np.maximum(weight.max(axis=0), 0).astype(np.int64) * most,
            np.minimum(weight.min(axis=0), 0).astype(np.int64) * most,
        )
    squares = 64
    high = np.zeros(weight.shape[1], np.int64)
    low = np.zeros(weight.shape[1], np.int64)
    for begin in range(0, part.num_features, part.bucket_size):
        bucket = weight[begin : begin + part.bucket_size]
        # Bucket sizes that are not a multiple of 64 begin with an unused slot.
        planes = bucket[part.bucket_size % squares :].reshape(-1, squares, weight.shape[1])
        best = np.sort(np.maximum(planes.max(axis=0), 0), axis=0)[-part.max_active :]
        worst = np.sort(np.minimum(planes.min(axis=0), 0), axis=0)[: part.max_active]
        high = np.maximum(high, best.sum(axis=0, dtype=np.int64))
        low = np.minimum(low, worst.sum(axis=0, dtype=np.int64))
    return high, low
