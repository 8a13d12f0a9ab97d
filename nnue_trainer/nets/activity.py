"""The activity of a net on real positions: dead and saturated neurons, and how far weights are from their limits.

The trainer writes these figures down with every validation, and `nnue inspect` shows them per neuron. Measuring changes
no parameter, buffer or random generator. The counts stay on the device until they are requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch
from nnue_trainer.modules import PerspectiveTransformer, StackedLinear
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.ops import functional

OF_BATCH = 1024
"""Number of positions of a validation batch, spread over it, on which the neurons of a net are counted: at every
validation, and by `nnue inspect`. The figures of two samples would differ."""

_CHUNK_BYTES = 1 << 25  # of accumulators at a time
_ROWS_BYTES = 1 << 24  # of a weight at a time


@dataclass(frozen=True)
class FirstLayerActivity:
    """N neurons, over both perspectives of P positions. A share is a part of the 2 · P accumulators of a neuron.

    `dead` are neurons that are never above 0; `stuck` are neurons always at their upper limit. `largest` is the
    largest magnitude of an accumulator in units of the float model. `zeros` is the share of zeros among the values that
    the layers see, after activation and products.
    """

    positions: int
    positive: Tensor
    """float64 [N]: share above 0"""
    saturated: Tensor
    """float64 [N]: share at or above the upper limit"""
    largest: Tensor
    """fp32 [N]"""
    zeros: float

    @property
    def dead(self) -> Tensor:
        """bool [N]"""
        return self.positive == 0

    @property
    def stuck(self) -> Tensor:
        """bool [N]"""
        return self.saturated == 1


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of a layer after the first, over the positions of its stack: `zeros` and `at_top` are shares of all
    values. A value is at the top where it equals the largest value of the layer and several others do, as they do
    after a clamp only. `dead` counts (stack, input) pairs that are zero at every position, of `inputs` pairs in stacks
    that were used; `idle` has the first of them."""

    name: str
    zeros: float
    at_top: float
    dead: int
    inputs: int
    idle: tuple[tuple[int, int], ...] = ()


def spread_over(rows: Tensor, count: int = OF_BATCH) -> Tensor:
    """At most `count` rows, spread over all: neighbours are often of one game."""
    return rows[:: max(1, -(-len(rows) // count))]


class ActivityMeter:
    """Adds up what the first layer of `model` does, over at most `of_batch` positions of each batch that it is shown,
    spread over the batch."""

    def __init__(self, model: nn.Module, of_batch: int = OF_BATCH):
        self._layers = [module for module in model.modules() if isinstance(module, PerspectiveTransformer)]
        self._of_batch = of_batch
        self._seen = 0
        self._zeros: list[Tensor] = []
        self._values = 0
        self._counts: tuple[Tensor, Tensor, Tensor] | None = None

    def add(self, batch: Batch) -> None:
        """`batch` is on the device of the model."""
        if len(batch) == 0 or not self._layers:
            return
        size = len(spread_over(batch.score, self._of_batch))
        self._seen += size
        with torch.no_grad():
            layer = self._layers[0]  # a net has one
            step = max(1, _CHUNK_BYTES // (4 * layer.weight.shape[1]))
            for rows in (batch.white, batch.black):
                some = spread_over(rows, self._of_batch)
                for begin in range(0, size, step):
                    self._count(layer, some[begin : begin + step])

    def _count(self, layer: PerspectiveTransformer, rows: Tensor) -> None:
        sums = functional.feature_transformer(rows, layer.weight, layer.bias).float()
        largest = sums.abs().amax(0)
        clipped = sums.clamp(0.0, layer.bound)
        seen = clipped
        if layer.activation == "pairwise":
            first, second = clipped.chunk(2, dim=1)
            seen = first * second
        found = ((sums > 0).sum(0), (sums >= layer.bound).sum(0), largest)
        self._zeros.append((seen == 0).sum())
        self._values += seen.numel()
        if self._counts is not None:
            positive, saturated, most = self._counts
            found = (positive + found[0], saturated + found[1], torch.maximum(most, found[2]))
        self._counts = found

    def result(self, of_all: Callable[[Tensor], Tensor] | None = None) -> FirstLayerActivity | None:
        """The activity in all batches that were seen; None if there were none, or the model has no first layer of
        ours. Waits for the device. `of_all` stacks the tensors of several processes, each of which has seen some of
        the batches."""
        if not self._layers or (of_all is None and self._counts is None):
            return None
        weight = self._layers[0].weight
        none = torch.zeros(weight.shape[1], dtype=torch.int64, device=weight.device)
        counts = self._counts or (none, none, none.float())
        zeros = torch.stack(self._zeros).sum() if self._zeros else none[0]
        numbers = torch.stack([zeros, none[0] + self._seen, none[0] + self._values])
        parts = [*counts, numbers]
        every = [part.unsqueeze(0) if of_all is None else of_all(part) for part in parts]
        positive, saturated, zeros_and_more = (every[number].sum(0).cpu() for number in (0, 1, 3))
        zeros_seen, seen, values = zeros_and_more.tolist()
        if not seen:
            return None
        rows, largest = 2 * seen, every[2].amax(0).cpu()
        return FirstLayerActivity(
            seen, positive.double() / rows, saturated.double() / rows, largest, zeros_seen / values
        )

    def figures(self, of_all: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """The record of a validation: shares of neurons, of accumulators and of what the layers see."""
        found = self.result(of_all)
        if found is None:
            return {}
        return {
            "dead_neurons": found.dead.double().mean().item(),
            "stuck_neurons": found.stuck.double().mean().item(),
            "saturated": found.saturated.mean().item(),
            "zero_activations": found.zeros,
        }


@dataclass(frozen=True)
class Reach:
    """How close a range of rows of a parameter comes to its limits: `reach` is the largest magnitude in units of the
    limit on its side, `at_limit` is the share of values that are at the limit."""

    name: str
    reach: float
    at_limit: float


def weight_reach(model: NnueModel) -> list[Reach]:
    """The reach of every bounded range of rows of the model's parameters. Waits for the device once."""
    names: list[str] = []
    found: list[Tensor] = []
    with torch.no_grad():
        for bound in model.weight_bounds():
            rows = bound.parameter.detach()[bound.first_row :]
            rows = rows if bound.rows is None else rows[: bound.rows]
            if rows.numel() == 0:
                continue
            # A limit is rounded to the parameter's type where it clips, so a distance of one step is ignored.
            low, high = bound.low * (1 - 1e-6), bound.high * (1 - 1e-6)
            step = max(1, _ROWS_BYTES // (rows[0].numel() * rows.element_size() or 1))
            least, most, count = [], [], []
            for begin in range(0, len(rows), step):
                part = rows[begin : begin + step]
                smallest, largest = part.aminmax()
                least.append(smallest)
                most.append(largest)
                count.append(((part >= high) | (part <= low)).sum())
            smallest, largest = torch.stack(least).amin().double(), torch.stack(most).amax().double()
            share = torch.stack(count).sum().double() / rows.numel()
            found.append(torch.stack([torch.maximum(smallest / bound.low, largest / bound.high), share]))
            whole = bound.first_row == 0 and bound.rows is None
            first, last = bound.first_row, bound.first_row + len(rows)
            names.append(bound.name if whole else f"{bound.name}[{first}:{last}]")
    values = torch.stack(found).tolist() if found else []
    return [Reach(name, *pair) for name, pair in zip(names, values, strict=True)]


def reach_figures(model: NnueModel) -> dict[str, float]:
    """`weight_reach` as the record of a validation holds it."""
    figures: dict[str, float] = {}
    for found in weight_reach(model):
        figures[f"reach/{found.name}"] = found.reach
        figures[f"at_limit/{found.name}"] = found.at_limit
    return figures


class LayerMeter:
    """Adds up what the layers after the first one see while the model runs inside `watching`."""

    def __init__(self, model: nn.Module):
        self._layers = {
            name: module for name, module in model.named_modules() if isinstance(module, StackedLinear | nn.Linear)
        }
        self._values: dict[str, list[tuple[Tensor, Tensor | None]]] = {name: [] for name in self._layers}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, the meter records every call of a layer. It keeps all inputs: use a few thousand positions."""
        handles = [
            module.register_forward_pre_hook(lambda _, inputs, name=name: self._keep(name, inputs))
            for name, module in self._layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _keep(self, name: str, inputs: tuple[Any, ...]) -> None:
        bucket = inputs[1].detach().cpu() if len(inputs) > 1 else None
        self._values[name].append((inputs[0].detach().float().cpu(), bucket))

    def result(self) -> list[LayerInputs]:
        return [_layer_inputs(name, values) for name, values in self._values.items() if values]


_NAMED = 12  # the most idle inputs of a layer that are listed
_TIES = 8  # if at least this many values equal the largest one, that is where the values are clamped


def _layer_inputs(name: str, values: list[tuple[Tensor, Tensor | None]]) -> LayerInputs:
    x = torch.cat([part for part, _ in values])
    buckets = [bucket for _, bucket in values if bucket is not None]
    bucket = torch.cat(buckets) if buckets else torch.zeros(len(x), dtype=torch.long, device=x.device)
    top = x.max()
    ties = int((x == top).sum()) if top > 0 else 0
    idle: list[tuple[int, int]] = []
    dead = inputs = 0
    for used in sorted(set(bucket.tolist())):
        rows = x[bucket == used]
        never = (rows == 0).all(0).nonzero().flatten().tolist()
        dead += len(never)
        idle += [(int(used), number) for number in never[: _NAMED - len(idle)]]
        inputs += rows.shape[1]
    share = ties / x.numel() if ties >= _TIES else 0.0
    return LayerInputs(name, (x == 0).double().mean().item(), share, dead, inputs, tuple(idle))
