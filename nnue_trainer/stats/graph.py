"""Graphs of neurons: which ones are active together, which matter (PageRank), and which belong together (dense parts).

    bits = graph.pack_bits(active)                    # [positions, neurons] flags as rows of bits
    counts = graph.bit_counts(bits)                   # positions at which both neurons of a pair are active
    g = graph.Graph.from_counts(counts, top=32)
    graph.pagerank(g)                                 # by power iteration
    graph.pagerank_walks(g, rounds=1024, seed=1)      # by random walks, with standard errors
    graph.densest_subgraph(g, k=16)

Three operators do the work, on CPU and CUDA: `nnue::pack_bits`, `bit_counts` and `random_walks` (csrc/graph.h). They
count, so their results are exact, and walks depend only on their seed. They have no derivative.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from nnue_trainer.stats import _plain
from nnue_trainer.stats._given import dense, flag, number, whole
from nnue_trainer.stats.random import Philox, signed

__all__ = [
    "Graph",
    "bit_counts",
    "densest_subgraph",
    "pack_bits",
    "pagerank",
    "pagerank_walks",
    "peel",
]

PACK = "nnue::pack_bits"
COUNTS = "nnue::bit_counts"
WALKS = "nnue::random_walks"

RESTART = 0.15
_LEAST_RESTART = 2.0**-14  # kLeastRestart of csrc/graph.h
_MOST_NODES = 2**31 - 1
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_AT_A_TIME = 1 << 24  # numbers of a temporary matrix
_PART = 1 << 17  # edges, at least

# ---- counts ----------------------------------------------------------------------------------------------------------


def pack_bits(active: Tensor) -> Tensor:
    """Rows of bits, int64 [N, ceil(P / 64)], of columns of flags.

    Bit p % 64 of word p // 64 in row n is set where active[p, n] is not 0; `active` is bool or uint8 [P, N].
    """
    return cast(Tensor, torch.ops.nnue.pack_bits(dense("pack_bits: active", active)))


def bit_counts(a: Tensor, b: Tensor | None = None) -> Tensor:
    """int32 [N, M]: the number of bits that each row of a, int64 [N, W], shares with each row of b, int64 [M, W].

    Without b, a is compared with itself, and each pair is computed only once.
    """
    return cast(Tensor, torch.ops.nnue.bit_counts(dense("bit_counts: a", a), b))


# ---- graphs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """A directed graph in compressed rows: the edges of node v lead to targets[offsets[v] : offsets[v + 1]].

    offsets: int64 [n + 1]. targets: int32 [edges]. weights: float64 [edges], above 0; None: all are 1. Undirected
    graphs have each edge in both directions. ValueError for arrays that are not a graph. All are on one device.
    """

    offsets: Tensor
    targets: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        _check("offsets", self.offsets, torch.int64, None)
        _check("targets", self.targets, torch.int32, None)
        edges = len(self.targets)
        if not 1 <= len(self.offsets) <= _MOST_NODES + 1:
            raise ValueError(f"graph: offsets: found {len(self.offsets)} numbers, expected 1 … 2^31")
        ends = self.offsets[[0, -1]].tolist()
        if ends != [0, edges] or bool((self.offsets[1:] < self.offsets[:-1]).any()):
            found = "a number below the one before it" if ends == [0, edges] else f"{ends[0]} … {ends[1]}"
            raise ValueError(f"graph: offsets: found {found}, expected numbers that rise from 0 to {edges}, the edges")
        _check_nodes("targets", self.targets, self.nodes)
        if self.weights is not None:
            _check("weights", self.weights, torch.float64, edges)
            _check_weights(self.weights)
        devices = {str(tensor.device) for tensor in (self.offsets, self.targets, self.weights) if tensor is not None}
        if len(devices) > 1:
            raise ValueError(f"graph: found arrays on {' and '.join(sorted(devices))}, expected one device")

    @classmethod
    def from_edges(
        cls, nodes: int, sources: Tensor, targets: Tensor, weights: Tensor | None = None, undirected: bool = False
    ) -> Graph:
        """The graph of a list of edges, in any order. An edge that occurs several times is one edge, and its weights
        add up.

        nodes: their number. sources, targets: integers [edges]. weights: numbers [edges] above 0; None: 1 for each.
        undirected: each edge also leads back, unless it leads to its own node; an edge that is given in both directions
        counts twice. ValueError for anything else.
        """
        nodes = whole("graph: nodes", nodes)
        if nodes > _MOST_NODES:
            raise ValueError(f"graph: nodes: found {nodes}, expected at most 2^31 - 1")
        sources, targets = _ends("sources", sources), _ends("targets", targets)
        if len(sources) != len(targets) or (weights is not None and len(weights) != len(sources)):
            numbers = [len(each) for each in (sources, targets, weights) if each is not None]
            raise ValueError(f"graph: sources, targets, weights: found lengths {numbers}, expected one length")
        for name, ends in (("sources", sources), ("targets", targets)):
            _check_nodes(name, ends, nodes)
        if weights is not None:
            _check_weights(weights)
        if flag("graph: undirected", undirected):
            # Each pair in one direction first: sums of weights in another order could differ in their last bits.
            edge, weights = _added_up(
                torch.minimum(sources, targets) * nodes + torch.maximum(sources, targets), weights
            )
            sources, targets = edge // max(nodes, 1), edge % max(nodes, 1)
            back = sources != targets
            sources, targets = torch.cat([sources, targets[back]]), torch.cat([targets, sources[back]])
            weights = None if weights is None else torch.cat([weights, weights[back]])
        edge, weights = _added_up(sources * nodes + targets, weights)
        first = torch.searchsorted(edge, torch.arange(nodes + 1, device=edge.device) * nodes)
        return cls(first, (edge % max(nodes, 1)).int(), weights)

    @classmethod
    def from_counts(cls, counts: Tensor, least: float = 1, top: int | None = None) -> Graph:
        """The undirected graph of a symmetric matrix [n, n] such as `bit_counts` gives; the diagonal is left out.

        least: there is an edge where the count is at least this number (and above 0). top: only the `top` largest edges
        of each node stay; an edge stays if it is among them for one of its ends. Weights are the counts. ValueError for
        another matrix.
        """
        if dense("graph: counts", counts).dim() != 2 or counts.shape[0] != counts.shape[1]:
            raise ValueError(f"graph: counts: found shape {list(counts.shape)}, expected [n, n]")
        if counts.is_complex() or not torch.equal(counts, counts.mT):
            raise ValueError(
                "graph: counts: found NaN or a matrix that differs from its transpose, expected a symmetric one"
            )
        top, least = None if top is None else whole("graph: top", top), number("graph: least", least)
        keep = (counts >= least) & (counts > 0)
        keep.fill_diagonal_(False)
        n = len(counts)
        if top is not None and top < n:
            order = counts.masked_fill(~keep, 0).sort(dim=1, descending=True, stable=True).indices[:, :top]
            among = torch.zeros_like(keep).scatter_(1, order, True)
            keep &= among | among.mT
        places = keep.nonzero()
        offsets = torch.cat([places.new_zeros(1), keep.sum(1).cumsum(0)])
        return cls(offsets, places[:, 1].int(), counts[keep].double())

    @property
    def nodes(self) -> int:
        """The number of nodes, n."""
        return len(self.offsets) - 1

    @property
    def edges(self) -> int:
        """The number of edges; an undirected graph has each in both directions."""
        return len(self.targets)

    @property
    def device(self) -> torch.device:
        """The device of all arrays."""
        return self.offsets.device

    def to(self, device: torch.device | str) -> Graph:
        """A copy of the graph on `device`."""
        return Graph(*(None if t is None else t.to(device) for t in (self.offsets, self.targets, self.weights)))  # type: ignore[arg-type]

    def multiply(self, x: Tensor) -> Tensor:
        """Σ weight · x[target] over the edges of each node, in their order: float64 [n, …], as x is."""
        gathered = x[self.targets.long()]
        if self.weights is not None:
            gathered = gathered * self.weights.view(-1, *(1 for _ in x.shape[1:]))
        return torch.segment_reduce(gathered, "sum", offsets=self.offsets, axis=0, unsafe=True, initial=0)

    @cached_property
    def sources(self) -> Tensor:
        """int64 [edges]: the node that each edge belongs to."""
        return torch.arange(self.nodes, device=self.device).repeat_interleave(self.offsets.diff())

    @cached_property
    def degrees(self) -> Tensor:
        """float64 [n]: the sum of the weights of each node's edges."""
        return self.multiply(torch.ones(self.nodes, dtype=torch.float64, device=self.device))

    @cached_property
    def loops(self) -> Tensor:
        """float64 [n]: the weight of each node's edges to itself."""
        own = self.sources == self.targets
        weights = own.double() if self.weights is None else torch.where(own, self.weights, 0.0)
        return torch.zeros(self.nodes, dtype=torch.float64, device=self.device).index_add_(0, self.sources, weights)

    @property
    def shares(self) -> Tensor:
        """float64 [edges]: the share of each edge in the weights of its node, however large or small these are."""
        counts = self.offsets.diff()
        if self.weights is None:
            return (1 / counts.double()).repeat_interleave(counts)
        parts = _parts(self.offsets)
        top, sums = (torch.zeros(self.nodes, dtype=torch.float64, device=self.device) for _ in range(2))
        for first, last, begin, end in parts:
            ends = _ends_inside(self.offsets, first, last, begin, end)
            most = torch.segment_reduce(self.weights[begin:end], "max", offsets=ends, unsafe=True, initial=0)
            torch.maximum(top[first:last], most, out=top[first:last])
        # To a power of two, so that no digit is lost where the sum would not have overflown.
        scale = torch.ldexp(torch.ones_like(top), torch.frexp(top).exponent - 1)
        shares = torch.empty(self.edges, dtype=torch.float64, device=self.device)
        for first, last, begin, end in parts:
            ends = _ends_inside(self.offsets, first, last, begin, end)
            scaled = self.weights[begin:end] / scale[first:last].repeat_interleave(ends.diff())
            shares[begin:end] = scaled
            sums[first:last] += torch.segment_reduce(scaled, "sum", offsets=ends, unsafe=True, initial=0)
        for first, last, begin, end in parts:
            ends = _ends_inside(self.offsets, first, last, begin, end)
            shares[begin:end] /= sums[first:last].repeat_interleave(ends.diff())
        return shares

    @cached_property
    def reversed(self) -> Graph:
        """The graph with all edges reversed."""
        return Graph(*_reversed(self, self.weights))

    @cached_property
    def thresholds(self) -> Tensor | None:
        """The thresholds by which `nnue::random_walks` chooses edges: int32 [edges], or None if all weights are
        equal.

        They are made on the CPU, so that they are the same on every device.
        """
        if self.weights is None:
            return None
        cpu = self.to("cpu")
        shares = cpu.shares.cumsum(0)
        before = torch.cat([shares.new_zeros(1), shares])[cpu.offsets[:-1]]
        chosen = ((shares - before[cpu.sources]) * 2.0**32).long().clamp_(0, 2**32 - 1)
        return torch.where(chosen >= 2**31, chosen - 2**32, chosen).int().to(self.device)


def _added_up(edges: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The different numbers of edges in order, with the sum of the weights of each; None: all are 1."""
    edge, order = edges.sort(stable=True)
    edge, counts = torch.unique_consecutive(edge, return_counts=True)
    if weights is None:
        return edge, counts.double() if len(edge) < len(order) else None
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return edge, torch.segment_reduce(weights.double()[order], "sum", offsets=ends, unsafe=True)


def _parts(offsets: Tensor) -> list[tuple[int, int, int, int]]:
    """(first node, last node, first edge, last edge), the last ones excluded, of parts of `_PART` edges, or of 1/256 of
    a large graph. Work in parts needs little memory beside the graph. The edges of a node may be in several parts."""
    edges = int(offsets[-1])
    size = max(_PART, edges >> 8)
    begins = torch.arange(0, edges, size, device=offsets.device)
    ends = (begins + size).clamp_max(edges)
    firsts = torch.searchsorted(offsets, begins, right=True) - 1
    lasts = torch.searchsorted(offsets, ends)
    return list(zip(*(each.tolist() for each in (firsts, lasts, begins, ends)), strict=True))


def _ends_inside(offsets: Tensor, first: int, last: int, begin: int, end: int) -> Tensor:
    """The offsets of a part's nodes among its edges."""
    return (offsets[first : last + 1] - begin).clamp_(0, end - begin)


def _reversed(graph: Graph, values: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Offsets, targets and a value for each edge, in the order of the graph with all edges reversed."""
    counts = torch.bincount(graph.targets, minlength=graph.nodes) if graph.edges else graph.offsets.diff()
    offsets = counts.new_zeros(graph.nodes + 1)
    torch.cumsum(counts, 0, out=offsets[1:])
    sources, moved = torch.empty_like(graph.targets), None if values is None else torch.empty_like(values)
    places = counts.copy_(offsets[:-1])  # of the next edge to each node
    for first, last, begin, end in _parts(graph.offsets):
        own = torch.arange(first, last, dtype=torch.int32, device=graph.device)
        own = own.repeat_interleave(_ends_inside(graph.offsets, first, last, begin, end).diff())
        targets, order = graph.targets[begin:end].sort(stable=True)
        nodes, counts = torch.unique_consecutive(targets, return_counts=True)
        nodes = nodes.long()
        shift = (places[nodes] - (counts.cumsum(0) - counts)).repeat_interleave(counts)
        to = torch.arange(end - begin, device=graph.device) + shift
        sources[to] = own[order]
        if values is not None and moved is not None:
            moved[to] = values[begin:end][order]
        places[nodes] += counts
    return offsets, sources, moved


def _check(name: str, tensor: Tensor, dtype: torch.dtype, size: int | None) -> None:
    if dense(f"graph: {name}", tensor).dim() != 1 or tensor.dtype != dtype or not tensor.is_contiguous():
        kind = "contiguous " * (not tensor.is_contiguous())
        raise ValueError(f"graph: {name}: found {tensor.dtype} {list(tensor.shape)}, expected {kind}{dtype} [n]")
    if size is not None and len(tensor) != size:
        raise ValueError(f"graph: {name}: found {len(tensor)} numbers, expected one for each of {size} edges")


def _check_weights(weights: Tensor) -> None:
    is_complex = dense("graph: weights", weights).is_complex()
    wrong = weights.flatten() if is_complex else weights[~((weights > 0) & weights.isfinite())]
    if len(wrong):
        raise ValueError(f"graph: weights: found {wrong[0].item()}, expected finite numbers above 0")


def _ends(name: str, ends: Tensor) -> Tensor:
    """Nodes as int64. An empty tensor may have any dtype, since torch.tensor([]) has float32."""
    if dense(f"graph: {name}", ends).dim() != 1 or (len(ends) and ends.dtype not in _INTEGERS):
        raise ValueError(f"graph: {name}: found {ends.dtype} {list(ends.shape)}, expected integers [edges]")
    return ends.long()


def _check_nodes(name: str, nodes: Tensor, count: int) -> None:
    if len(wrong := nodes[(nodes < 0) | (nodes >= count)]):
        raise ValueError(f"graph: {name}: found node {int(wrong[0])}, expected 0 … {count - 1}")


# ---- PageRank --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def pagerank(
    graph: Graph,
    restart: float = RESTART,
    tolerance: float = 1e-12,
    most: int = 10_000,
    start: Tensor | None = None,
) -> Tensor:
    """PageRank by power iteration, float64 [n] with sum 1.

    A walker restarts at a random node with probability `restart` after every visit, and otherwise follows a random edge
    in proportion to its weight; from a node without edges it goes to a random node. The rank of a node is the share of
    time that the walker spends there.

    tolerance: the iteration ends when the sum of changes is not above it; ArithmeticError if `most` iterations are not
    enough. start: numbers [n] of at least 0, in proportion to which "a random node" is chosen, for personalised
    PageRank; None: all nodes are equally likely. ValueError for other numbers.

    Beside a large graph, with six or more edges for each node, it needs less than twice the memory of the graph. It has
    no derivative.
    """
    _check_restart(restart)
    if number("pagerank: tolerance", tolerance) < 0:
        raise ValueError(f"pagerank: tolerance: found {tolerance!r}, expected a number, at least 0")
    most = whole("pagerank: most", most)
    n = graph.nodes
    if n == 0:
        return torch.empty(0, dtype=torch.float64, device=graph.device)
    jump = None if start is None else _start(graph, start)
    offsets, sources, shares = _reversed(graph, None if graph.weights is None else graph.shares)
    parts = _parts(offsets)
    rank = torch.full((n,), 1 / n, dtype=torch.float64, device=graph.device) if jump is None else jump.clone()
    # The same memory for each part: the allocator may keep that of tensors that are made anew.
    gathered = rank.new_empty(max((end - begin for _, _, begin, end in parts), default=0))
    moving = torch.zeros_like(rank)
    lost, _ = _leave(graph, rank, moving)
    change = math.inf
    for _ in range(most):
        rank.zero_()
        for first, last, begin, end in parts:
            found = torch.index_select(moving, 0, sources[begin:end], out=gathered[: end - begin])
            if shares is not None:
                found *= shares[begin:end]
            ends = _ends_inside(offsets, first, last, begin, end)
            rank[first:last] += torch.segment_reduce(found, "sum", offsets=ends, unsafe=True, initial=0)
        if jump is None:
            rank.add_(lost / n).mul_(1 - restart).add_(restart / n)
        else:
            rank.addcmul_(lost, jump).mul_(1 - restart).add_(jump, alpha=restart)
        lost, changes = _leave(graph, rank, moving)
        change = changes.item()
        if change <= tolerance:
            return rank
    raise ArithmeticError(
        f"pagerank: found changes of {change:.3g} after {most} iterations, expected below {tolerance:.3g}; raise most"
    )


def _leave(graph: Graph, rank: Tensor, moving: Tensor) -> tuple[Tensor, Tensor]:
    """Writes to `moving` what follows each edge of a node, or all edges of one if these have weights. Returns the rank
    of nodes without edges, and the sum of the changes of `moving` over all edges."""
    lost, change = (torch.zeros((), dtype=torch.float64, device=graph.device) for _ in range(2))
    step = max(_PART, graph.nodes >> 4)  # some nodes at a time, for little memory
    for first in range(0, graph.nodes, step):
        part, to = rank[first : first + step], moving[first : first + step]
        counts = graph.offsets[first : first + step + 1].diff()
        lost += (part * (counts == 0)).sum()
        if graph.weights is None:
            part = part / counts.clamp_min_(1)
            change += (to.sub_(part).abs_() * counts).sum()
        else:
            change += to.sub_(part).abs_().sum()
        to.copy_(part)
    return lost, change


def _start(graph: Graph, start: Tensor) -> Tensor:
    n = graph.nodes
    if dense("pagerank: start", start).shape != (n,) or start.is_complex():
        raise ValueError(
            f"pagerank: start: found {start.dtype} {list(start.shape)}, expected [{n}], a number for each node"
        )
    numbers = start.to(graph.device, torch.float64)
    if len(wrong := numbers[~((numbers >= 0) & numbers.isfinite())]):
        raise ValueError(f"pagerank: start: found {wrong[0].item()}, expected finite numbers, at least 0")
    if not bool((top := numbers.max()) > 0):
        raise ValueError("pagerank: start: found only zeros, expected a number above 0")
    return numbers / top / (numbers / top).sum()


class WalkedRank(NamedTuple):
    """PageRank by random walks: `rank` float64 [n] and its standard error, `error` float64 [n]; `steps` in all."""

    rank: Tensor
    error: Tensor
    steps: int


def pagerank_walks(
    graph: Graph, rounds: int, restart: float = RESTART, seed: int = 0, stream: int = 0, groups: int = 16
) -> WalkedRank:
    """PageRank by `rounds` walks from each node. It has no bias, and its standard error falls as 1 / √rounds.

    A seed gives the same result on every device. restart: as for `pagerank`, but at least 2⁻¹⁴: walks end at 2²⁰
    visits, and with longer ones there would be a bias. groups: `rounds` is a multiple of this
    number. The standard errors come from the differences between these groups of rounds, and have a relative error of
    about 1 / √(2 · groups). ValueError for a `restart` or `rounds` outside these limits.
    """
    _check_restart(restart)
    if restart < _LEAST_RESTART:
        raise ValueError(
            f"pagerank_walks: restart: found {restart!r}, expected 2^-14 or more, as walks end at 2^20 visits; "
            "`pagerank` accepts any above 0"
        )
    rounds, groups = whole("pagerank_walks: rounds", rounds), whole("pagerank_walks: groups", groups)
    if groups < 2 or rounds < groups or rounds % groups:
        raise ValueError(f"pagerank_walks: rounds: found {rounds}, expected a multiple of groups, {groups} (2 or more)")
    n, each = graph.nodes, rounds // groups
    total = torch.zeros(n, dtype=torch.float64, device=graph.device)
    squares, steps = torch.zeros_like(total), 0
    place = signed("seed", seed), signed("stream", stream)
    for group in range(groups):
        visits = torch.ops.nnue.random_walks(
            graph.offsets, graph.targets, graph.thresholds, group * each, each, restart, *place
        )
        steps += int(visits.sum())
        total += visits
        squares += visits.double() ** 2
    scale = restart / max(n * each, 1)
    mean = total / groups
    variance = (squares / groups - mean**2).clamp_min(0) / (groups - 1)
    return WalkedRank(mean * scale, variance.sqrt() * scale, steps)


def _check_restart(restart: float) -> None:
    if not 0 < number("pagerank: restart", restart, nan=True) <= 1:
        raise ValueError(f"pagerank: restart: found {restart!r}, expected a number above 0, at most 1")


# ---- dense parts -----------------------------------------------------------------------------------------------------


class Subgraph(NamedTuple):
    """`nodes` int64 [k], rising, and `weight`, the sum of the weights of the edges among them (each once, those from a
    node to itself too)."""

    nodes: Tensor
    weight: float


@torch.no_grad()
def densest_subgraph(
    graph: Graph, k: int | None = None, rank: int = 4, directions: int = 32, seed: int = 0, rounds: int = 16
) -> Subgraph:
    """k nodes of an undirected graph with as much weight among them as can be found (to find the most is NP-hard).

    Without k, any number of nodes, with as much weight for each of them as can be found: the best set that remains
    while nodes are removed as by `peel` (Charikar; it has at least half of the largest possible weight per node).

    With k, by low-rank bilinear optimisation. With A ≈ V Λ Vᵀ of rank r, a densest set is the support of the k largest
    entries of V c for some direction c, so such sets are tried: along the axes and `directions` random directions of
    the span of the `rank` leading eigenvectors and of the vector of PageRank by `rounds` random walks. From each the
    bilinear form x A y is raised in turns, x being the k best nodes for y and the other way round; then single nodes
    of the best sets, and of the set that `peel` finds, are exchanged while that helps. So the result never weighs less
    than that of `peel`. All randomness comes from `seed`.
    """
    if k is None:
        return _densest_of_any_size(graph)
    with _one_thread() if graph.edges <= _FEW_EDGES else contextlib.nullcontext():
        n, k = graph.nodes, _check_part("densest_subgraph", graph, k)
        if k in (0, n):
            nodes = torch.arange(k, device=graph.device)
            return Subgraph(nodes, float((graph.degrees + graph.loops).sum()) / 2 if k else 0.0)
        candidates = _candidates(graph, k, rank, directions, seed, rounds)
    with _one_thread():
        return max((_exchange(graph, each.clone(), k) for each in candidates), key=lambda found: found.weight)


def _candidates(graph: Graph, k: int, rank: int, directions: int, seed: int, rounds: int) -> list[Tensor]:
    """Sets of k nodes, 0/1 [n], in which nodes are to be exchanged; that of `peel` is the first."""
    vectors = _leading(graph, min(rank, graph.nodes), seed)
    walked = pagerank_walks(graph, -(-rounds // 16) * 16, seed=seed).rank
    basis = torch.cat([vectors, (walked / walked.norm())[:, None]], 1)
    turns = Philox(seed, stream=_DIRECTIONS).normal((basis.shape[1], directions), dtype=torch.float64).to(graph.device)
    sets = _best_nodes(torch.cat([basis, -basis, basis @ turns], 1), k)
    sums = _sums(graph, sets)
    best, weights = sets, _weights(graph, sets, sums)
    for _ in range(_TURNS):
        sets = _best_nodes(sums + graph.loops[:, None] * sets, k)
        sums = _sums(graph, sets)
        found = _weights(graph, sets, sums)
        better = found > weights
        if not bool(better.any()):
            break
        best, weights = torch.where(better, sets, best), torch.maximum(found, weights)
    columns = weights.sort(descending=True, stable=True).indices[:_EXCHANGED]
    candidates: list[Tensor] = []
    for each in (_peeled(graph, k), *best[:, columns].unbind(1)):
        if not any(torch.equal(each, other) for other in candidates):
            candidates.append(each)
    return candidates


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """For steps so short that torch's threads would spend most of their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def peel(graph: Graph, k: int) -> Subgraph:
    """k nodes of an undirected graph. It removes, one by one, the node with the least remaining weight (the first of
    equals), in O(n √n + edges), on the CPU."""
    left = _peeled(graph, _check_part("peel", graph, k))
    return Subgraph(left.nonzero()[:, 0], _weight(graph, left))


def _densest_of_any_size(graph: Graph) -> Subgraph:
    n = graph.nodes - _check_part("densest_subgraph", graph, 0)
    removed, degrees = _peeling(graph, n)
    weights = float((graph.degrees + graph.loops).sum()) / 2 - np.concatenate([[0.0], degrees.cumsum()])[:-1]
    first = int((weights / np.arange(n, 0, -1)).argmax()) if n else 0
    nodes = torch.from_numpy(np.sort(removed[first:])).to(graph.device)
    inside = torch.zeros(n, dtype=torch.float64, device=graph.device).index_fill_(0, nodes, 1.0)
    return Subgraph(nodes, _weight(graph, inside))


def _peeled(graph: Graph, k: int) -> Tensor:
    """The k nodes that `peel` leaves, as 0/1 [n]."""
    removed, _ = _peeling(graph, graph.nodes - k)
    left = torch.ones(graph.nodes, dtype=torch.float64, device="cpu")
    left[torch.from_numpy(removed)] = 0.0
    return left.to(graph.device)


def _peeling(graph: Graph, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The `count` nodes that `peel` removes first, int64, and the weight that each takes away, float64."""
    n, offsets, targets = graph.nodes, graph.offsets.tolist(), graph.targets.cpu().long().numpy()
    weights = np.ones(graph.edges) if graph.weights is None else graph.weights.detach().cpu().numpy()
    # The least degree of each block of nodes leads to the node with the least degree of all.
    width = max(math.isqrt(n), 1)
    blocks = np.full((-(-n // width), width), math.inf)
    degrees = blocks.reshape(-1)
    degrees[:n] = graph.degrees.detach().cpu().numpy()
    least = blocks.min(1)
    removed, taken = np.empty(count, np.int64), np.empty(count)
    for i in range(count):
        block = int(least.argmin())
        node = block * width + int(blocks[block].argmin())
        removed[i], taken[i] = node, degrees[node]
        part = slice(offsets[node], offsets[node + 1])
        np.subtract.at(degrees, targets[part], weights[part])
        degrees[node] = math.inf
        np.minimum.at(least, targets[part] // width, degrees[targets[part]])
        least[block] = blocks[block].min()
    return removed, taken


def _check_part(name: str, graph: Graph, k: Any) -> int:
    n = graph.nodes
    if isinstance(k, bool) or not hasattr(k, "__index__") or not 0 <= k.__index__() <= n:
        raise ValueError(f"{name}: k: found {k!r}, expected 0 … {n}")
    back = graph.reversed
    same = torch.equal(graph.offsets, back.offsets) and torch.equal(*(_ordered(g) for g in (graph, back)))
    if not same:
        raise ValueError(f"{name}: found a directed graph, expected each edge in both directions")
    if not bool(graph.degrees.sum().isfinite()):
        raise ValueError(
            f"{name}: found weights with an infinite sum, expected a finite one; divide the weights by a number"
        )
    return int(k)


_DIRECTIONS = 1 << 32  # streams of the random numbers that are not walks
_STARTS = _DIRECTIONS + 1
_TURNS, _EXCHANGED, _POWERS, _SMALL = 30, 8, 40, 512
_CONVERGED = 1e-2  # relative change of eigenvalues
_FEW_EDGES = 1 << 21  # up to which one thread is as fast as several
_COMPARED = 256  # nodes to exchange that are compared first; at most _MOST_COMPARED
_MOST_COMPARED = 4096


def _ordered(graph: Graph) -> Tensor:
    """All edges with their weights in one order, [edges, 3]; integers of 31 bits are exact in float64."""
    key = (graph.sources * graph.nodes + graph.targets).sort(stable=True)
    weights = torch.ones_like(key.values) if graph.weights is None else graph.weights
    return torch.stack(
        [(key.values // graph.nodes).double(), (key.values % graph.nodes).double(), weights[key.indices].double()], 1
    )


def _multiply(graph: Graph, x: Tensor) -> Tensor:
    """`Graph.multiply` of many columns, some at a time."""
    step = max(_AT_A_TIME // max(graph.edges, 1), 1)
    return torch.cat([graph.multiply(x[:, i : i + step]) for i in range(0, x.shape[1], step)], 1)


def _edges_of(graph: Graph, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The edges of some nodes: the place of the node in `nodes`, the target, and the weight of each, int64 and
    float64."""
    counts = graph.offsets[nodes + 1] - graph.offsets[nodes]
    place = torch.arange(len(nodes), device=graph.device).repeat_interleave(counts)
    first = (graph.offsets[nodes] - (counts.cumsum(0) - counts))[place]
    edges = torch.arange(len(place), device=graph.device) + first
    weights = torch.ones(len(edges), dtype=torch.float64, device=graph.device)
    return place, graph.targets[edges].long(), weights if graph.weights is None else graph.weights[edges]


def _sums(graph: Graph, sets: Tensor) -> Tensor:
    """The weight from each node into each set, [n, columns], of 0/1 columns [n, columns]. It follows the edges of the
    nodes in the sets only: the graph is undirected."""
    found = torch.zeros_like(sets, memory_format=torch.contiguous_format)
    step = max(_AT_A_TIME // max(graph.edges, 1), 1)
    for i in range(0, sets.shape[1], step):
        nodes, columns = sets[:, i : i + step].nonzero().unbind(1)
        place, targets, weights = _edges_of(graph, nodes)
        if found.is_cuda:  # in a fixed order there
            found.index_put_((targets, columns[place] + i), weights, accumulate=True)
        else:  # a third of the time, in the same order
            found.view(-1).scatter_add_(0, targets * sets.shape[1] + (columns + i)[place], weights)
    return found


def _weights(graph: Graph, sets: Tensor, sums: Tensor) -> Tensor:
    """The weight inside each set, [columns], from `_sums`."""
    return (sets * (sums + graph.loops[:, None])).sum(0) / 2


def _weight(graph: Graph, chosen: Tensor) -> float:
    """The weight inside a set, 0/1 [n]."""
    sets = chosen[:, None]
    return float(_weights(graph, sets, _sums(graph, sets))[0])


def _best_nodes(values: Tensor, k: int) -> Tensor:
    """The k largest entries of each column as 1, the others 0; of equal ones the first."""
    rows = values.mT.contiguous()
    least = rows.topk(k, dim=1).values[:, -1:]
    above, equal = rows > least, rows == least
    first = equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True))
    return (above | first).mT.to(values.dtype).contiguous()


def _leading(graph: Graph, rank: int, seed: int) -> Tensor:
    """Eigenvectors of the `rank` largest eigenvalues by magnitude, [n, rank]; of large graphs about, by subspace
    iteration."""
    if graph.nodes <= _SMALL:
        basis: Tensor = torch.eye(graph.nodes, dtype=torch.float64, device=graph.device)
    else:
        start = Philox(seed, stream=_STARTS).normal((graph.nodes, rank), dtype=torch.float64).to(graph.device)
        basis = torch.linalg.qr(start).Q
        sizes = torch.zeros(rank, dtype=torch.float64, device=graph.device)
        for _ in range(_POWERS):
            before = sizes
            basis, triangle = torch.linalg.qr(_multiply(graph, basis))
            sizes = triangle.diagonal().abs()
            if bool((sizes - before).abs().max() <= _CONVERGED * sizes.max()):
                break
    values, rotation = torch.linalg.eigh(basis.mT @ _multiply(graph, basis))
    vectors: Tensor = (basis @ rotation)[:, values.abs().argsort(descending=True)[:rank]]
    return vectors


def _exchange(graph: Graph, chosen: Tensor, k: int) -> Subgraph:
    """Exchanges a node of the set for another one, always the best pair, while weight is gained. `chosen` is 0/1 [n].

    The nodes that add least to the set are paired with those that would add most. More of them are compared where a
    pair with another node could gain more, up to `_MOST_COMPARED` of each.
    """
    n, compared = graph.nodes, _COMPARED
    column = torch.full((n,), -1, dtype=torch.int64, device=graph.device)
    inside = _sums(graph, chosen[:, None])[:, 0]  # weight from each node into the set
    while True:
        members = chosen.nonzero()[:, 0]
        leave = inside[members].topk(min(compared, k), largest=False)
        come = torch.where(chosen > 0, -math.inf, inside + graph.loops).topk(min(compared, n - k))
        out = members[leave.indices]
        place, targets, weights = _edges_of(graph, out)
        column[come.indices] = torch.arange(len(come.indices), device=graph.device)
        among = column[targets] >= 0
        gains = come.values - leave.values[:, None]
        gains.index_put_((place[among], column[targets[among]]), -weights[among], accumulate=True)
        column[come.indices] = -1
        best = int(gains.argmax())
        gain, least = gains.view(-1)[best].item(), 1e-12 * float(inside.max())
        others = [(come.values[-1] - leave.values[0]).item()] if compared < n - k else []
        others += [(come.values[0] - leave.values[-1]).item()] if compared < k else []
        if compared < _MOST_COMPARED and any(other > max(gain, least) for other in others):
            compared *= 2
            continue
        if not gain > least:
            break
        pair = torch.stack([out[best // gains.shape[1]], come.indices[best % gains.shape[1]]])
        chosen[pair] = 1 - chosen[pair]
        place, targets, weights = _edges_of(graph, pair)
        inside.index_put_((targets,), torch.where(place == 0, -weights, weights), accumulate=True)
    return Subgraph(chosen.nonzero()[:, 0], _weight(graph, chosen))


# ---- registration ----------------------------------------------------------------------------------------------------


def _packed(active: Tensor) -> Tensor:
    return active.new_empty((active.shape[1], -(-active.shape[0] // 64)), dtype=torch.int64)


def _counted(a: Tensor, b: Tensor | None = None) -> Tensor:
    return a.new_empty((len(a), len(a if b is None else b)), dtype=torch.int32)


def _visits(offsets: Tensor, *args: object, **kwargs: object) -> Tensor:
    return offsets.new_empty(offsets.shape[0] - 1)


_plain.register(PACK, _packed)
_plain.register(COUNTS, _counted)
_plain.register(WALKS, _visits)
