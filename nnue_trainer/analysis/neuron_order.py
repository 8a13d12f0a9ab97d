"""Orders of neurons in which zeros come in blocks.

Engines multiply the first activations by the weights of the next layer four at a time, and skip a block of four that is
all zeros. Any order of the neurons gives the same evaluation, so the one to take is that in which the four of a block
are active at the same positions. What is made small is the number of blocks that are not zero, Σ |A ∪ B ∪ C ∪ D| over
the blocks, a neuron being the set of positions at which it is active.

A method makes a first order; then neurons of two blocks change places while that helps, which is exact and the same for
all methods. Sets are rows of bits (`analysis.graph`), so all counts are population counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from nnue_trainer.files.pages.plots import BAD, GOOD, Draw, Plot
from nnue_trainer.stats import graph

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLOCK = 4
DEFAULT = "pagerank"
_ROUNDS = 500  # of exchanges; a few dozen are usual
_WALKS = 64

Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Order:
    """`neurons` int64 [N]: place i gets neuron `neurons[i]`. `first` is the share of zero blocks before neurons were
    exchanged, `zeros` that after it; `exchanges` is the number of exchanged pairs."""

    neurons: Tensor
    first: float
    zeros: float
    exchanges: int


def order(bits: Tensor, samples: int, method: str = DEFAULT, seed: int = 1, tell: Tell = lambda *_: None) -> Order:
    """An order of N neurons (a multiple of four), by their `bits` int64 [N, W] over `samples` samples.

    method: one of `METHODS`. `tell`: called with how much is done and what there is. ValueError for another method.
    """
    if method not in METHODS:
        raise ValueError(f"method: found {method!r}, expected one of {', '.join(METHODS)}")
    first = METHODS[method](bits, seed)
    neurons, exchanges = _exchange(bits, first, tell)
    return Order(neurons, zero_share(bits[first], samples), zero_share(bits[neurons], samples), exchanges)


def zero_share(bits: Tensor, samples: int) -> float:
    """The share of blocks of four consecutive rows that are 0, over all blocks and samples."""
    blocks = len(bits) // BLOCK
    return 1 - int(_sizes(_union(bits.view(blocks, BLOCK, -1))).sum()) / max(blocks * samples, 1)


def _sizes(bits: Tensor) -> Tensor:
    """int64 [rows]: set bits of each row."""
    return torch.from_numpy(np.bitwise_count(bits.numpy().view(np.uint64)).sum(1, dtype=np.int64))


def _union(sets: Tensor) -> Tensor:
    """[a, words] of [a, n, words]."""
    whole = sets[:, 0].clone()
    for i in range(1, sets.shape[1]):
        whole |= sets[:, i]
    return whole


def plots(bits: Tensor, samples: int, neurons: Tensor) -> list[Plot]:
    """How often blocks are in use before and after the order `neurons`, and which neurons are active together."""
    orders = {"as they were": torch.arange(len(bits), device="cpu"), "in order": neurons}
    colors = dict(zip(orders, (BAD, GOOD), strict=True))

    def blocks(axes: Axes) -> None:
        for name, order in orders.items():
            used = _sizes(_union(bits[order].view(len(bits) // BLOCK, BLOCK, -1))).double() / max(samples, 1)
            axes.plot(np.arange(len(used)), 100 * used.sort(descending=True).values.numpy(), color=colors[name])
        axes.set(xlabel="blocks of four, the most used first", ylabel="in use (%)", ylim=(0, 100))

    counts = graph.bit_counts(bits)

    def together(order: Tensor) -> Draw:
        shared = counts[order][:, order].double()
        sizes = shared.diagonal()
        common = shared / (sizes[:, None] + sizes - shared).clamp_min(1)
        blocks = common.view(len(order) // BLOCK, BLOCK, len(order) // BLOCK, BLOCK).mean((1, 3))

        def draw(axes: Axes) -> None:
            axes.imshow(blocks.sqrt().numpy(), cmap="magma", vmin=0, vmax=1, interpolation="nearest")

        return draw

    legend = tuple(colors.items())
    pictures = [Plot(f"Blocks active together, {name}", together(order), plain=True) for name, order in orders.items()]
    return [Plot("Blocks in use", blocks, legend=legend), *pictures]


# ---- first orders ----------------------------------------------------------------------------------------------------


def _greedy(bits: Tensor, seed: int) -> Tensor:
    """Block by block: the most active neuron that is left, then three times the one that has most in common with the
    block, |A ∩ B| / |A ∪ B|."""
    sizes = _sizes(bits)
    left = torch.ones(len(bits), dtype=torch.bool, device="cpu")
    chosen: list[int] = []
    block = bits[0]
    for place in range(len(bits)):
        if place % BLOCK == 0:
            best = int(sizes.masked_fill(~left, -1).argmax())
            block = bits[best].clone()
        else:
            shared = graph.bit_counts(block[None], bits)[0].double()
            union = _sizes(block[None]) + sizes - shared
            best = int((shared / union.clamp_min(1)).masked_fill(~left, -1).argmax())
            block |= bits[best]
        left[best] = False
        chosen.append(best)
    return torch.tensor(chosen, device="cpu")


def _pagerank(bits: Tensor, seed: int) -> Tensor:
    """Uses only the graph of co-activations. In the order of PageRank, each neuron begins a block; the three
    remaining neurons that have most in common with the block join it."""
    counts = graph.bit_counts(bits)
    rank = graph.pagerank_walks(graph.Graph.from_counts(counts), _WALKS, seed=seed).rank
    shared, sizes = counts.double(), counts.diagonal().double()
    common = shared / (sizes[:, None] + sizes - shared).clamp_min(1)
    left = torch.ones(len(bits), dtype=torch.bool, device="cpu")
    chosen: list[int] = []
    for best in rank.sort(descending=True, stable=True).indices.tolist():
        if not left[best]:
            continue
        with_block = torch.zeros_like(sizes)
        for _ in range(BLOCK):
            left[best] = False
            chosen.append(best)
            with_block += common[best]
            best = int(with_block.masked_fill(~left, -1).argmax())
    return torch.tensor(chosen, device="cpu")


def _densest(bits: Tensor, seed: int) -> Tensor:
    """By halves: first comes the half of the neurons that are active together most, the densest subgraph of
    co-activations; and so on in each half down to blocks."""
    counts = graph.bit_counts(bits)

    def halves(neurons: Tensor) -> list[Tensor]:
        if len(neurons) <= BLOCK:
            return [neurons]
        k = -(-len(neurons) // (2 * BLOCK)) * BLOCK
        among = graph.Graph.from_counts(counts[neurons][:, neurons])
        inside = torch.zeros(len(neurons), dtype=torch.bool, device="cpu")
        inside[graph.densest_subgraph(among, k, directions=8, seed=seed).nodes] = True
        return halves(neurons[inside]) + halves(neurons[~inside])

    return torch.cat(halves(torch.arange(len(bits), device="cpu")))


METHODS: dict[str, Callable[[Tensor, int], Tensor]] = {"pagerank": _pagerank, "greedy": _greedy, "densest": _densest}


# ---- exchanges -------------------------------------------------------------------------------------------------------


def _exchange(bits: Tensor, neurons: Tensor, tell: Tell) -> tuple[Tensor, int]:
    """Neurons of two blocks change places, the pairs that gain most first and each block once in a round, until no
    pair gains. Returns the order and the number of exchanges."""
    n, blocks = len(neurons), len(neurons) // BLOCK
    neurons, bits = neurons.clone(), bits[neurons]
    sizes = _sizes(bits)
    block = torch.arange(n, device="cpu") // BLOCK
    # replaced[i, j]: the size of place i's block if neuron j stood there.
    replaced = torch.empty(n, n, dtype=torch.int64, device="cpu")
    touched, exchanges, first_left = torch.arange(blocks, device="cpu"), 0, 0
    for _ in range(_ROUNDS):
        places = (touched[:, None] * BLOCK + torch.arange(BLOCK, device="cpu")).flatten()
        members = bits[places].view(len(touched), BLOCK, -1)
        others = torch.stack([_union(members[:, [k for k in range(BLOCK) if k != i]]) for i in range(BLOCK)], 1)
        others = others.view(len(places), -1)
        replaced[places] = _sizes(others)[:, None] + sizes - graph.bit_counts(others, bits)
        now = replaced.diagonal()
        gains = now[:, None] + now - replaced - replaced.T
        gains[block[:, None] == block] = 0
        pairs = _disjoint_pairs(gains)
        if not pairs:
            break
        to = torch.arange(n, device="cpu")
        one, other = torch.tensor(pairs, device="cpu").T
        to[one], to[other] = other, one
        neurons, bits, sizes, replaced = neurons[to], bits[to], sizes[to], replaced[:, to]
        exchanges += len(pairs)
        first_left = max(first_left, len(pairs))
        touched = torch.tensor(sorted({place // BLOCK for pair in pairs for place in pair}), device="cpu")
        tell(first_left - len(pairs), first_left)
    return neurons, exchanges


def _disjoint_pairs(gains: Tensor) -> list[tuple[int, int]]:
    """For each place its best partner; of those pairs the best first, as far as their blocks are still free."""
    best, partner = gains.max(1)
    pairs, used = [], set[int]()
    for i in best.sort(descending=True, stable=True).indices.tolist():
        j = int(partner[i])
        if best[i] <= 0:
            break
        if not used & {i // BLOCK, j // BLOCK}:
            used |= {i // BLOCK, j // BLOCK}
            pairs.append((i, j))
    return pairs
