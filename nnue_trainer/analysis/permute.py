"""Reorders the first layer's neurons so that their zeros form blocks, which engines skip. The net stays the same.

The net's integer forward states which columns of which tensors belong to the neurons
(`integer_forward.neuron_columns`); nothing here depends on a net.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nnue_trainer import _data
from nnue_trainer.analysis import neuron_order
from nnue_trainer.base.arrays import Records
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.errors import UserError
from nnue_trainer.export.evaluate import compiled_forward, evaluate
from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import Net
from nnue_trainer.nets.integer_forward import IntegerForward, neuron_columns
from nnue_trainer.stats import graph

_POSITIONS = 1 << 13  # at a time


@dataclass(frozen=True)
class ZeroBlocks:
    """Blocks of four first activations over some positions: `share` of them are zeros; `in_use` of `blocks` are not,
    on average over positions."""

    share: float
    in_use: float
    blocks: int


@dataclass(frozen=True)
class Permuted:
    """The result of `permute`. `neurons` counts those that the layers see of one side; `order[i]` is the neuron that
    moved to place i. Zero blocks are counted over `held_out` positions, which were not used for the order."""

    net: QuantizedNet
    order: npt.NDArray[np.int64]
    method: str
    positions: int
    held_out: int
    before: ZeroBlocks
    after: ZeroBlocks
    first: float
    """share of zero blocks on the positions of the order, before neurons were exchanged"""
    exchanges: int
    bits: Tensor = field(repr=False)
    """int64 [neurons, words]: the held-out positions at which each neuron is active, in the old order"""

    def as_dict(self) -> dict[str, Any]:
        found = {key: getattr(self, key) for key in ("method", "positions", "held_out", "exchanges")}
        return found | {
            "architecture": self.net.net.name,
            "neurons": len(self.order),
            "zero_blocks_before": asdict(self.before),
            "zero_blocks_after": asdict(self.after),
            "order": self.order.tolist(),
        }


def forward_to_permute(net: Net, where: str) -> IntegerForward:
    """The integer forward of a net whose first stack layer can skip zeros. UserError, which begins with `where`, for a
    net that has none."""
    forward = net.integer_forward()
    if forward is None:
        raise UserError(
            f"{where}: {net.name} has no integer_forward(), which shows where its neurons are (docs/own-nets.md)"
        )
    if len(forward.layers) < 2:
        raise UserError(f"{where}: {net.name} has no layer between the first and the output, so no zeros to skip")
    return forward


def columns_of(net: Net, where: str) -> dict[str, npt.NDArray[np.int64]]:
    """`neuron_columns` of a net. UserError as `forward_to_permute`, and where neurons do not come in fours."""
    forward = forward_to_permute(net, where)
    found = neuron_columns(forward, {tensor.name: tensor.shape[-1] for tensor in net.tensors()})
    count = int(found[forward.first.bias].max()) + 1
    if count % neuron_order.BLOCK:
        raise UserError(f"{where}: {net.name} has {count} activations for each side, expected a multiple of four")
    return found


def permuted(quantized: QuantizedNet, order: npt.NDArray[np.int64], where: str = "net") -> QuantizedNet:
    """The net in which place i has the neuron from place `order[i]`. It evaluates every position as before."""
    moved = reordered(columns_of(quantized.net, where), quantized.tensors, order)
    return replace(quantized, tensors=quantized.tensors | moved)


def reordered(
    columns: Mapping[str, npt.NDArray[np.int64]], tensors: Mapping[str, np.ndarray], order: npt.NDArray[np.int64]
) -> dict[str, np.ndarray]:
    """The `tensors` that have neurons, according to `neuron_columns`, with the neurons in the new order."""
    return {name: np.ascontiguousarray(tensors[name][..., _taken(neurons, order)]) for name, neurons in columns.items()}


def permuted_checkpoint(checkpoint: Checkpoint, net: Net, order: npt.NDArray[np.int64], where: str) -> Checkpoint:
    """The checkpoint with its neurons in the new order. It cannot be resumed from: the optimizer's state, which also
    has an order of neurons, is left out."""
    columns = columns_of(net, where)
    sources = {
        tensor.source_parameter: (columns[tensor.name], tensor) for tensor in net.tensors() if tensor.name in columns
    }
    model = dict(checkpoint.tensors["model"])
    for name, (neurons, tensor) in sources.items():
        taken = torch.from_numpy(_taken(neurons[: tensor.columns or len(neurons)], order))
        model[name] = model[name][..., taken].contiguous()
    tensors = {"model": model} | {group: checkpoint.tensors[group] for group in ("net",) if group in checkpoint.tensors}
    state = {"net": checkpoint.state["net"]} if "net" in checkpoint.state else {}
    return Checkpoint(checkpoint.architecture, tensors, checkpoint.recipe, state)


def _taken(neurons: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each column, the column from which it takes its values."""
    places = np.arange(len(neurons))
    # Columns of neurons lie side by side, so another neuron is as many columns away as their numbers differ.
    moved: npt.NDArray[np.int64] = np.where(neurons < 0, places, places - neurons + order[neurons])
    return moved


def permute(
    quantized: QuantizedNet,
    records: Records,
    method: str = neuron_order.DEFAULT,
    *,
    where: str = "net",
    seed: int = 1,
    threads: int = 0,
    tell: neuron_order.Tell = lambda *_: None,
) -> Permuted:
    """Orders the neurons by their activity at four of every five of `records` uint8 [B, 32], and measures zero blocks
    on the others. It also checks that the scores of all records stay the same.

    UserError for a net without a sparse layer, and for fewer than five positions.
    """
    columns_of(quantized.net, where)
    if len(records) < 5:
        raise UserError(f"{where}: found {len(records)} positions, expected 5 or more")
    held_out = np.arange(len(records)) % 5 == 4
    bits, samples = activity_bits(quantized, records[~held_out], where, threads)
    found = neuron_order.order(bits, samples, method, seed, tell)
    order = found.neurons.numpy()
    net = permuted(quantized, order, where)
    if not _same(quantized, net, records, threads):
        raise AssertionError(f"{where}: the order of neurons changed an evaluation")
    rest, rest_samples = activity_bits(quantized, records[held_out], where, threads)
    before, after = (_zero_blocks(b, rest_samples) for b in (rest, rest[found.neurons]))
    return Permuted(
        net,
        order,
        method,
        int((~held_out).sum()),
        int(held_out.sum()),
        before,
        after,
        found.first,
        found.exchanges,
        rest,
    )


def activity_bits(
    quantized: QuantizedNet, records: Records, where: str = "net", threads: int = 0
) -> tuple[Tensor, int]:
    """The samples at which each neuron is active, int64 [neurons, words], for both sides of each position, and the
    number of samples; further bits are 0."""
    net = quantized.net
    forward = forward_to_permute(net, where)
    evaluator = _data.Evaluator(compiled_forward(forward, net.integer_feature_set, quantized.tensors))
    parts = []
    for begin in range(0, len(records), _POSITIONS):
        active = evaluator.first_active(records[begin : begin + _POSITIONS], threads or usable_cpus())
        parts.append(graph.pack_bits(torch.from_numpy(active.reshape(2 * len(active), -1))))
    return torch.cat(parts, 1), 2 * len(records)


def _zero_blocks(bits: Tensor, samples: int) -> ZeroBlocks:
    share, blocks = neuron_order.zero_share(bits, samples), 2 * len(bits) // neuron_order.BLOCK
    return ZeroBlocks(share, (1 - share) * blocks, blocks)


def _same(a: QuantizedNet, b: QuantizedNet, records: Records, threads: int) -> bool:
    found = (evaluate(net, records, every_stack=False, threads=threads) for net in (a, b))
    first, second = (np.stack([e.psqt_raw[:, 0], e.positional_raw[:, 0], e.score]) for e in found)
    return np.array_equal(first, second)


@dataclass(frozen=True)
class EngineSpeed:
    """Nodes per second of an engine's `bench` with each net: median, least and most of `runs` runs each, which take
    turns. The bench has the same `nodes` with both nets."""

    engine: str
    nodes: int
    runs: int
    before: float
    after: float
    before_range: tuple[float, float]
    after_range: tuple[float, float]


def engine_speed(
    engine: str, before: Path, after: Path, runs: int, tell: neuron_order.Tell = lambda *_: None
) -> EngineSpeed:
    """Measures an engine with two net files. UserError for an engine that does not take them, or does not count the
    same nodes with both."""
    from nnue_trainer.export.engine_check import EngineWithNet, bench

    with EngineWithNet(engine, before) as running:
        name = running.name
    speeds: dict[Path, list[float]] = {before: [], after: []}
    nodes = set[int]()
    for run in range(runs):
        for net in (before, after) if run % 2 == 0 else (after, before):
            tell(sum(map(len, speeds.values())), 2 * runs)
            result = bench(engine, net)
            nodes.add(result.nodes)
            speeds[net].append(result.nodes_per_second)
    if len(nodes) != 1:
        raise UserError(
            f"engine {engine}: searched {' and '.join(map(str, sorted(nodes)))} nodes, expected the same number"
        )
    values = [speeds[net] for net in (before, after)]
    medians, ranges = [float(np.median(v)) for v in values], [(min(v), max(v)) for v in values]
    return EngineSpeed(name, nodes.pop(), runs, *medians, *ranges)  # type: ignore[arg-type]
