"""Co-activation, walks and dense parts of graphs: against plain definitions, brute force and exact linear algebra."""

from __future__ import annotations

import ctypes
import itertools
import math
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from nnue_trainer.stats import graph
from nnue_trainer.stats.graph import Graph
from nnue_trainer.stats.random import Philox

SHAPES = [(1, 1), (64, 3), (65, 300), (1000, 70), (0, 5), (5, 0), (4099, 33), (700, 130)]


def flags(positions: int, neurons: int, seed: int = 1) -> Tensor:
    """Each neuron is active at its own share of positions."""
    numbers = Philox(seed)
    return numbers.uniform((positions, neurons)) < numbers.uniform(neurons)


def rows_of_bits(active: Tensor) -> Tensor:
    """The counts by their definition, in Python's integers."""
    words = -(-len(active) // 64)
    out = torch.zeros(active.shape[1], words, dtype=torch.int64)
    for position, neuron in active.nonzero().tolist():
        word, bit = out[neuron, position // 64].item() % 2**64 | 1 << position % 64, position // 64
        out[neuron, bit] = word - 2**64 * (word >> 63)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_bits(device: torch.device, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        active = flags(*shape)
        given = (active * 5).to(dtype) if dtype == torch.uint8 else active
        assert torch.equal(graph.pack_bits(given.to(device)).cpu(), rows_of_bits(active))
        assert torch.equal(graph.pack_bits(given.to(device).mT.contiguous().mT).cpu(), rows_of_bits(active))


def test_counts(device: torch.device) -> None:
    for positions, neurons in SHAPES:
        a, b = flags(positions, neurons), flags(positions, neurons + 7, seed=2)
        found = graph.bit_counts(graph.pack_bits(a.to(device)))
        assert torch.equal(found.cpu().long(), a.long().T @ a.long())
        other = graph.bit_counts(graph.pack_bits(a.to(device)), graph.pack_bits(b.to(device)))
        assert torch.equal(other.cpu().long(), a.long().T @ b.long())


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_counts_of_every_bit_pattern(isa: str) -> None:
    """Long rows, in which all adders carry, and rows that are all ones; in a separate process for each level."""
    import subprocess
    import sys

    program = """
import torch
from nnue_trainer.stats import graph
from nnue_trainer.stats.random import Philox
for words in (1, 63, 64, 65, 511, 1500, 4099):
    bits = Philox(words).bits((5, words))
    bits[0] = -1
    expected = [[sum(bin(int(w) % 2**64).count("1") for w in (a & b).tolist()) for b in bits] for a in bits]
    assert graph.bit_counts(bits).tolist() == expected, words
    assert graph.bit_counts(bits, bits.clone()).tolist() == expected, words
"""
    import os

    environment = os.environ | {"NNUE_CPU_ISA": isa}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def random_graph(nodes: int, edges: int, seed: int, weighted: bool, undirected: bool = False) -> Graph:
    numbers = Philox(seed)
    # The last nodes have no edges of their own.
    sources, targets = (numbers.integers(0, most, edges) for most in (max(nodes - 3, 1), nodes))
    return Graph.from_edges(nodes, sources, targets, numbers.uniform(edges, 0.1, 2) if weighted else None, undirected)


def matrix(g: Graph) -> Tensor:
    out = torch.zeros(g.nodes, g.nodes, dtype=torch.float64)
    for node in range(g.nodes):
        for edge in range(int(g.offsets[node]), int(g.offsets[node + 1])):
            out[node, g.targets[edge]] += 1.0 if g.weights is None else g.weights[edge]
    return out


def exact_pagerank(g: Graph, restart: float) -> Tensor:
    """The linear system solved."""
    a, n = matrix(g), g.nodes
    total = a.sum(1, keepdim=True)
    step = torch.where(total > 0, a / total, torch.full_like(a, 1 / n))
    return torch.linalg.solve(
        torch.eye(n, dtype=torch.float64) - (1 - restart) * step.T, torch.full((n,), restart / n, dtype=torch.float64)
    )


def test_graph_of_edges() -> None:
    """Sorted, merged, and the other way round."""
    s, t, w = torch.tensor([2, 0, 2, 0, 1]), torch.tensor([1, 2, 1, 0, 2]), torch.tensor([1.0, 2, 3, 4, 5])
    g = Graph.from_edges(4, s, t, w)
    assert g.offsets.tolist() == [0, 2, 3, 4, 4]
    assert g.targets.tolist() == [0, 2, 2, 1]
    assert g.weights is not None
    assert g.weights.tolist() == [4, 2, 5, 4]
    assert torch.equal(matrix(g.reversed), matrix(g).T)
    both = Graph.from_edges(4, s, t, undirected=True)
    expected = torch.zeros(4, 4)
    expected.index_put_((torch.cat([s, t]), torch.cat([t, s])), torch.ones(10), accumulate=True)
    assert torch.equal(matrix(both) > 0, expected > 0)
    x = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(g.multiply(x), matrix(g) @ x)
    assert g.degrees.tolist() == matrix(g).sum(1).tolist()


def test_graph_of_counts() -> None:
    counts = torch.tensor([[9, 5, 1, 0], [5, 9, 2, 3], [1, 2, 9, 4], [0, 3, 4, 9]])
    off = counts.double().fill_diagonal_(0)
    assert torch.equal(matrix(Graph.from_counts(counts)), off)
    assert torch.equal(matrix(Graph.from_counts(counts, least=3)), off * (off >= 3))
    # The largest of each: 0-1, 1-0, 2-3, 3-2; of two more each but 0-3, which is 0.
    assert torch.equal(matrix(Graph.from_counts(counts, top=1)), off * (off >= 4))
    assert torch.equal(matrix(Graph.from_counts(counts, top=2)), off)
    assert Graph.from_counts(counts, top=0).edges == 0


def walk_by_definition(g: Graph, rounds: range, restart: float, seed: int, stream: int) -> list[int]:
    """csrc/graph.h in Python, with the numbers of `Philox`."""
    visits = [0] * g.nodes
    thresholds = None if g.thresholds is None else [t % 2**32 for t in g.thresholds.tolist()]
    offsets, targets = g.offsets.tolist(), g.targets.tolist()
    for coupon in range(rounds.start * g.nodes, rounds.stop * g.nodes):
        node, step = coupon % g.nodes, 0
        while True:
            visits[node] += 1
            bits = Philox(seed, stream, (coupon << 20) + step).bits(1).tolist()[0] % 2**64
            if bits % 2**32 < round(restart * 2**32):
                break
            step, bits = step + 1, bits >> 32
            begin, end = offsets[node : node + 2]
            if begin == end:
                node = bits * g.nodes >> 32
            elif thresholds is None:
                node = targets[begin + (bits * (end - begin) >> 32)]
            else:
                node = targets[next((e for e in range(begin, end - 1) if bits < thresholds[e]), end - 1)]
    return visits


def walks(g: Graph, first: int, rounds: int, restart: float, seed: int, stream: int = 0) -> Tensor:
    visits: Tensor = torch.ops.nnue.random_walks(
        g.offsets, g.targets, g.thresholds, first, rounds, restart, seed, stream
    )
    return visits


@pytest.mark.parametrize("weighted", [False, True])
def test_walks(device: torch.device, weighted: bool) -> None:
    """Each step is the one of the contract, also in parts and with another restart, seed and stream."""
    g = random_graph(37, 150, 1, weighted)
    on = g.to(device)
    for first, rounds, restart, seed, stream in ((0, 5, 0.15, 1, 0), (3, 2, 0.5, -7, 9), (0, 1, 1.0, 2, 0)):
        expected = walk_by_definition(g, range(first, first + rounds), restart, seed, stream)
        assert walks(on, first, rounds, restart, seed, stream).tolist() == expected
    assert torch.equal(walks(on, 0, 2, 0.2, 5) + walks(on, 2, 3, 0.2, 5), walks(on, 0, 5, 0.2, 5))
    assert walks(on, 0, 0, 0.2, 5).sum() == 0


def test_walks_do_not_depend_on_threads() -> None:
    g = random_graph(3001, 20_000, 3, weighted=True)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(walks(g, 0, 20, 0.15, 1))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_weights_of_any_size() -> None:
    """A node's edges are taken by its own weights, however large those of others are."""
    numbers = torch.tensor([1e300, 1e-300, 3e-300, 2.0, 6.0], dtype=torch.float64)
    g = Graph(torch.tensor([0, 1, 3, 5]), torch.tensor([1, 0, 2, 0, 1], dtype=torch.int32), numbers)
    assert g.thresholds is not None
    assert [t % 2**32 for t in g.thresholds.tolist()][1::2] == [2**30, 2**30]
    torch.testing.assert_close(graph.pagerank(g), exact_pagerank(g, graph.RESTART))


@pytest.mark.cuda
def test_cuda_has_the_cpu_visits(cuda: torch.device) -> None:
    for weighted in (False, True):
        g = random_graph(10_007, 80_000, 3, weighted)
        assert torch.equal(walks(g.to(cuda), 1, 40, 0.15, 1).cpu(), walks(g, 1, 40, 0.15, 1))


def test_memory_is_safe_for_what_is_no_graph(device: torch.device) -> None:
    offsets = torch.tensor([0, -5, 2**40, 3], device=device)
    targets = torch.tensor([7, -1, 1], dtype=torch.int32, device=device)
    visits = torch.ops.nnue.random_walks(offsets, targets, None, 0, 50, 0.1, 1)
    assert 150 <= visits.sum() <= 150 * 1000


@pytest.mark.parametrize("weighted", [False, True])
def test_pagerank(device: torch.device, weighted: bool) -> None:
    """Power iteration equals the solution, and walks equal it within their standard errors."""
    g = random_graph(200, 1200, 5, weighted)
    for restart in (0.15, 0.6):
        exact = exact_pagerank(g, restart)
        found = graph.pagerank(g.to(device), restart)
        torch.testing.assert_close(found.cpu(), exact, rtol=1e-9, atol=1e-14)
        walked = graph.pagerank_walks(g.to(device), 1600, restart, seed=3)
        off = ((walked.rank.cpu() - exact) / walked.error.cpu()).square()
        # Student's t with 15 degrees of freedom has variance 15/13.
        assert abs(off.mean().item() - 15 / 13) < 5 * math.sqrt(2 * 2.0 / 200)
        assert walked.steps == pytest.approx(200 * 1600 / restart, rel=0.02)
        assert walked.error.max() < 0.02 * exact.max()


@pytest.mark.parametrize("weighted", [False, True])
def test_personalised_pagerank(device: torch.device, weighted: bool) -> None:
    """The walker restarts, and leaves nodes without edges, in proportion to `start`; edges are taken in parts."""
    g = random_graph(60, 90, 4, weighted)
    assert bool((g.offsets.diff() == 0).any())
    start = (torch.arange(60) % 3).double()
    share, jump, restart = matrix(g), start / start.sum(), 0.2
    steps = share / share.sum(1, keepdim=True).clamp_min(1e-300)
    steps[share.sum(1) == 0] = jump
    exact = torch.linalg.solve(torch.eye(60, dtype=torch.float64) - (1 - restart) * steps.T, restart * jump)
    found = graph.pagerank(g.to(device), restart, start=start.to(device))
    torch.testing.assert_close(found.cpu(), exact, rtol=1e-9, atol=1e-12)
    alike = graph.pagerank(g, start=torch.full((60,), 1e300, dtype=torch.float64))
    torch.testing.assert_close(alike, graph.pagerank(g), rtol=1e-11, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
def test_parts_of_edges(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts smaller than the edges of a node, and nodes without edges. Sums of a node's parts round differently."""
    g = random_graph(50, 200, 7, weighted)
    whole = g.reversed, g.shares, graph.pagerank(g)
    monkeypatch.setattr(graph, "_PART", 5)
    parts = Graph(g.offsets, g.targets, g.weights)
    assert len(graph._parts(g.offsets)) == -(-g.edges // 5)
    assert int(g.offsets.diff().max()) > 5
    assert torch.equal(parts.reversed.offsets, whole[0].offsets)
    assert torch.equal(parts.reversed.targets, whole[0].targets)
    if whole[0].weights is not None and parts.reversed.weights is not None:
        assert torch.equal(parts.reversed.weights, whole[0].weights)
    torch.testing.assert_close(parts.shares, whole[1], rtol=1e-15, atol=0)
    torch.testing.assert_close(graph.pagerank(parts), whole[2], rtol=1e-13, atol=0)
    torch.testing.assert_close(matrix(parts.reversed), matrix(g).T, rtol=0, atol=0)


def test_weights_of_repeated_edges_are_equal_in_both_directions() -> None:
    """Also in their last bits, or the graph would be taken for a directed one."""
    numbers = Philox(5)
    sources, targets = (numbers.integers(0, 9, 600) for _ in range(2))
    weights = numbers.uniform(600, 0.1, 9, torch.float64)
    g = Graph.from_edges(9, sources, targets, weights, undirected=True)
    found = matrix(g)
    assert torch.equal(found, found.T)
    once = torch.zeros(9, 9, dtype=torch.float64).index_put_((sources, targets), weights, accumulate=True)
    torch.testing.assert_close(found, once + once.T - once.diag().diag())
    assert graph.densest_subgraph(g, 3).weight >= graph.peel(g, 3).weight


_MEMORY = """
import sys, torch
from nnue_trainer.stats import graph
from nnue_trainer.stats.random import Philox

def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))

torch.set_num_threads(1)
nodes, edges, numbers = 1 << 19, 1 << 22, Philox(1)
power, weighted = int(sys.argv[1]), sys.argv[2] == "True"
targets = (numbers.uniform(edges, dtype=torch.float64) ** power * nodes).int()
counts = torch.bincount(numbers.integers(0, nodes, edges, torch.int32), minlength=nodes)
offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
weights = numbers.uniform(edges, 0.1, 1, torch.float64) if weighted else None
g = graph.Graph(offsets, targets, weights)
size = sum(each.nbytes for each in (offsets, targets, weights) if each is not None)
small = graph.Graph(offsets[:2], torch.zeros(int(offsets[1]), dtype=torch.int32))
graph.pagerank(small)
del counts
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
graph.pagerank(g, tolerance=1e-2)
print((status("VmHWM") - before) / size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("power", "weighted"), [(1, False), (4, True), (64, False)])
def test_memory_of_pagerank(power: int, weighted: bool) -> None:
    """Less than twice that of the graph, also where a node has most of the edges."""
    command = [sys.executable, "-c", _MEMORY, str(power), str(weighted)]
    assert float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) < 2


@pytest.mark.parametrize("compared", [1, 256])
def test_no_exchange_of_two_nodes_gains(compared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only one node of each side is compared first."""
    monkeypatch.setattr(graph, "_COMPARED", compared)
    for seed in range(3):
        g = random_graph(70, 300, seed, weighted=seed != 1, undirected=True)
        a, start = matrix(g), torch.zeros(70, dtype=torch.float64)
        start[:12] = 1
        found = graph._exchange(g, start.clone(), 12)
        chosen = torch.zeros(70, dtype=torch.bool).index_fill_(0, found.nodes, True)
        assert found.weight == pytest.approx(float((a[chosen][:, chosen].sum() + a.diag()[chosen].sum()) / 2))
        inside = a @ chosen.double()
        gains = (inside + a.diag())[None, :] - inside[:, None] - a
        assert gains[chosen][:, ~chosen].max() < 1e-9


def test_emulated(emulator: ctypes.CDLL) -> None:
    """The CUDA kernels, several thread blocks at a time."""
    ops = torch.ops.nnue_emulated
    for at_a_time in (1, 3):
        emulator.emulator_configure(at_a_time, 1)
        for positions, neurons in ((1, 1), (65, 33), (700, 130), (0, 5), (1300, 259)):
            a, b = flags(positions, neurons), flags(positions, neurons + 7, seed=2)
            bits = ops.pack_bits(a)
            assert torch.equal(bits, graph.pack_bits(a))
            assert torch.equal(ops.bit_counts(bits), graph.bit_counts(bits))
            assert torch.equal(ops.bit_counts(bits, ops.pack_bits(b)).long(), a.long().T @ b.long())
        for weighted in (False, True):
            for nodes in (1, 37, 1000):
                g = random_graph(nodes, 4 * nodes, 1, weighted)
                found = ops.random_walks(g.offsets, g.targets, g.thresholds, 2, 3, 0.3, 5, 7)
                assert torch.equal(found, walks(g, 2, 3, 0.3, 5, 7))


EDGES = [(0, 0), (0, 1), (1, 2), (2, 2), (1, 2), (3, 0)]  # two lead to their own node, one comes twice


@pytest.mark.parametrize("undirected", [False, True])
def test_no_weights_are_weights_of_1(device: torch.device, undirected: bool) -> None:
    """This includes repeated edges, and edges to their own node, which count once."""
    sources, targets = torch.tensor(EDGES, device=device).T
    plain = Graph.from_edges(4, sources, targets, undirected=undirected)
    ones = Graph.from_edges(4, sources, targets, torch.ones(len(EDGES), device=device), undirected=undirected)
    a = torch.zeros(4, 4, dtype=torch.float64)
    for i, j in EDGES:
        a[i, j] += 1
        a[j, i] += undirected and i != j
    shares = a / a.sum(1, keepdim=True)
    for g in (plain, ones):
        assert torch.equal(g.multiply(torch.eye(4, dtype=torch.float64, device=device)).cpu(), a)
        assert torch.equal(g.loops.cpu(), a.diag())
        system = torch.eye(4, dtype=torch.float64) - 0.85 * shares.T
        exact = torch.linalg.solve(system, torch.full((4,), 0.15 / 4, dtype=torch.float64))
        torch.testing.assert_close(graph.pagerank(g).cpu(), exact, rtol=1e-9, atol=0)
        if undirected:
            for k in range(5):
                best = max(
                    sum(i in nodes and j in nodes for i, j in EDGES) for nodes in itertools.combinations(range(4), k)
                )
                assert graph.densest_subgraph(g, k).weight == best
                found = graph.peel(g, k)
                nodes = found.nodes.tolist()
                assert found.weight == sum(i in nodes and j in nodes for i, j in EDGES)
        else:
            assert torch.equal(walks(g, 0, 9, 0.15, 1), walks(ones, 0, 9, 0.15, 1))


def test_two_nodes_and_an_edge_to_the_own_one() -> None:
    g = Graph.from_edges(2, torch.tensor([0, 0]), torch.tensor([0, 1]), undirected=True)
    assert graph.pagerank(g).tolist() == pytest.approx([0.925 / 1.425, 0.5 / 1.425])
    assert graph.densest_subgraph(g, 2).weight == 2


@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e307, 1.7e308])
def test_only_ratios_of_weights_matter_to_walkers(scale: float) -> None:
    g = random_graph(30, 200, 1, weighted=True)
    assert g.weights is not None
    weights = 2.0 ** (torch.arange(g.edges) % 3).double()
    plain = Graph(g.offsets, g.targets, weights)
    huge = Graph(g.offsets, g.targets, weights * (scale / 4))
    torch.testing.assert_close(
        graph.pagerank(huge), graph.pagerank(plain), rtol=1e-9 if scale > 1e-310 else 1e-2, atol=0
    )
    assert graph.pagerank(huge).sum().item() == pytest.approx(1)
    if scale > 1e-310:
        assert torch.equal(walks(huge, 0, 9, 0.15, 1), walks(plain, 0, 9, 0.15, 1))
    sources, targets = torch.tensor([0, 1]), torch.tensor([1, 2])
    most = torch.tensor([1.7e308] * 2, dtype=torch.float64)
    both = Graph.from_edges(3, sources, targets, most, undirected=True)
    with pytest.raises(ValueError, match="densest_subgraph: found weights with an infinite sum, expected a finite"):
        graph.densest_subgraph(both, 2)


def dense_weight(a: Tensor, nodes: Tensor) -> float:
    return float(a[nodes][:, nodes].sum() / 2)


@pytest.mark.slow
def test_densest_subgraph_of_small_graphs() -> None:
    """Against all subsets: the best nearly always, and never far from it."""
    missed, worst = 0, 1.0
    for seed in range(40):
        numbers, n = Philox(seed), 12
        a = numbers.uniform((n, n), dtype=torch.float64) * numbers.bernoulli(0.3 + 0.4 * (seed % 2), (n, n))
        a = a.triu(1) + a.triu(1).T
        g = Graph.from_counts(a, least=0)
        for k in (3, 6):
            best = max(dense_weight(a, torch.tensor(c)) for c in itertools.combinations(range(n), k))
            found = graph.densest_subgraph(g, k)
            assert found.weight == pytest.approx(dense_weight(a, found.nodes))
            assert len(found.nodes) == k
            missed += found.weight < best - 1e-9
            worst = min(worst, found.weight / best)
    assert missed <= 4
    assert worst > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_densest_subgraph_of_large_graphs(device: torch.device, seed: int) -> None:
    """Never below greedy peeling, and a planted part is found."""
    n, k, numbers = 3000, 40, Philox(seed)
    ends = [numbers.integers(0, n, 20_000) for _ in range(2)]
    planted = torch.from_numpy(np.random.default_rng(seed).permutation(n)[:k].copy())
    i, j = torch.triu_indices(k, k, 1)
    chosen = numbers.bernoulli(0.4, len(i))
    g = Graph.from_edges(
        n, torch.cat([ends[0], planted[i[chosen]]]), torch.cat([ends[1], planted[j[chosen]]]), undirected=True
    )
    found, peeled = graph.densest_subgraph(g.to(device), k), graph.peel(g, k)
    assert found.weight >= peeled.weight - 1e-9
    assert len(set(found.nodes.tolist()) & set(planted.tolist())) >= k - 2


def heavy_tailed(n: int, k: int, seed: int, weighted: bool) -> Graph:
    """A graph whose degrees fall with a power, with k nodes of which 60 % of all pairs are connected."""
    rng = np.random.default_rng(seed)
    share = np.arange(1, n + 1) ** -0.6
    ends = [rng.choice(n, 8 * n, p=share / share.sum()) for _ in range(2)]
    planted, (a, b) = rng.choice(n, k, replace=False), np.triu_indices(k, 1)
    chosen = rng.random(len(a)) < 0.6
    edges = np.stack([np.r_[ends[0], planted[a[chosen]]], np.r_[ends[1], planted[b[chosen]]]], 1)
    edges = np.unique(np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1), axis=0)
    weights = torch.from_numpy(rng.random(len(edges)) + 0.5) if weighted else None
    sources, targets = torch.from_numpy(edges).unbind(1)
    return Graph.from_edges(n, sources, targets, weights, undirected=True)


@pytest.mark.parametrize(("n", "k", "weighted"), [(3000, 25, True), (4000, 30, False), (6000, 35, False)])
def test_densest_subgraph_is_never_below_peel_in_graphs_with_hubs(
    device: torch.device, n: int, k: int, weighted: bool
) -> None:
    """With few directions, which alone often find less."""
    g = heavy_tailed(n, k, 0, weighted)
    found = graph.densest_subgraph(g.to(device), cast(Any, np.int64(k)), rank=1, directions=1, rounds=16)
    assert len(found.nodes) == k
    assert found.weight >= graph.peel(g, k).weight * (1 - 1e-12)


def test_densest_subgraph_does_not_depend_on_the_unit_of_weights() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sources, targets = torch.from_numpy(rng.integers(14, size=(2, 40)))
        weights = torch.from_numpy(rng.random(40) + 0.01)
        found, small = (
            graph.densest_subgraph(Graph.from_edges(14, sources, targets, weights * unit, undirected=True), 6)
            for unit in (1, 2.0**-60)
        )
        assert small.nodes.equal(found.nodes)
        assert small.weight == found.weight * 2.0**-60


def test_densest_subgraph_leaves_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It exchanges nodes in one thread, and gives torch its threads back, also after an error."""
    g = heavy_tailed(300, 10, 0, False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        graph.densest_subgraph(g, 10)
        assert torch.get_num_threads() == 3
        monkeypatch.setattr(graph, "_exchange", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            graph.densest_subgraph(g, 10)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_densest_subgraph_of_any_size(n: int) -> None:
    """At least half of the best weight per node, and the best where one part is much denser than the rest."""
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        sources, targets = (torch.randint(0, n, (2 * n,), generator=rng) for _ in range(2))
        g = Graph.from_edges(n, sources, targets, undirected=True)
        a = g.multiply(torch.eye(n, dtype=torch.float64)) + g.loops.diag()
        sets = (list(nodes) for k in range(1, n + 1) for nodes in itertools.combinations(range(n), k))
        best = max(float(a[nodes][:, nodes].sum()) / 2 / len(nodes) for nodes in sets)
        found = graph.densest_subgraph(g)
        nodes = found.nodes.tolist()
        assert found.weight == pytest.approx(float(a[nodes][:, nodes].sum()) / 2)
        assert best / 2 <= found.weight / len(nodes) <= best + 1e-9
    assert graph.densest_subgraph(Graph.from_edges(0, torch.empty(0), torch.empty(0))).weight == 0


def test_a_planted_clique_is_found_without_its_size() -> None:
    clique = torch.combinations(torch.arange(20) * 7 + 3)
    rng = torch.Generator().manual_seed(1)
    edges = torch.cat([clique, torch.randint(0, 400, (800, 2), generator=rng)])
    edges = edges[edges[:, 0] != edges[:, 1]]
    found = graph.densest_subgraph(Graph.from_edges(400, edges[:, 0], edges[:, 1], undirected=True))
    assert found.nodes.tolist() == (torch.arange(20) * 7 + 3).tolist()


def by_definition(g: Graph, k: int) -> list[int]:
    """Nodes that `peel` should leave, by a plain search for the least degree."""
    a = g.multiply(torch.eye(g.nodes, dtype=torch.float64))
    left = list(range(g.nodes))
    while len(left) > k:
        degrees = a[left][:, left].sum(1)
        del left[int(degrees.argmin())]
    return left


@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_peel_by_its_definition(n: int) -> None:
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        sources, targets = (torch.randint(0, n, (5 * n,), generator=rng) for _ in range(2))
        g = Graph.from_edges(
            n, sources, targets, undirected=True
        )  # with edges to the own node, and several between two
        for k in {0, 1, n // 3, n}:
            assert graph.peel(g, k).nodes.tolist() == by_definition(g, k)


def test_peel_takes_the_least_first() -> None:
    """A triangle with a tail keeps the triangle."""
    g = Graph.from_edges(5, torch.tensor([0, 1, 2, 2, 3]), torch.tensor([1, 2, 0, 3, 4]), undirected=True)
    assert graph.peel(g, 3).nodes.tolist() == [0, 1, 2]
    assert graph.peel(g, 3).weight == 3
    assert graph.peel(g, 0).weight == 0
    assert graph.densest_subgraph(g, 5).weight == 5
    assert graph.densest_subgraph(g, 0).nodes.tolist() == []


ONE, PAIR = torch.tensor([1]), torch.tensor([1, 1])
FRACTION: Any = 3.5
NO: Any = "no"


def test_weights_of_a_model_that_require_grad() -> None:
    """They are numbers here. `multiply` has a derivative."""
    weights = torch.tensor([1.0, 2, 3], dtype=torch.float64, requires_grad=True)
    ends = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    own, plain = (Graph.from_edges(4, *ends, each, undirected=True) for each in (weights, weights.detach()))
    start = torch.tensor([1.0, 2, 0, 1], requires_grad=True)
    found = graph.pagerank(own, start=start)
    assert torch.equal(found, graph.pagerank(plain, start=start.detach()))
    assert not found.requires_grad
    for call in (lambda g: graph.peel(g, 2), lambda g: graph.densest_subgraph(g, 2), graph.densest_subgraph):
        assert torch.equal(call(own).nodes, call(plain).nodes)
        assert call(own).weight == call(plain).weight
    own.multiply(torch.ones(4, dtype=torch.float64)).sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [2, 2, 2]


def test_errors() -> None:
    g = random_graph(10, 30, 1, weighted=False)
    offsets, targets = g.offsets, g.targets
    for call, message in (
        (lambda: graph.pack_bits(torch.ones(3, 4)), "nnue::pack_bits: active: found float32, expected bool or uint8"),
        (
            lambda: graph.pack_bits(torch.ones(3, dtype=torch.bool)),
            r"active: found shape \[3\], expected shape \[P, N\]",
        ),
        (lambda: graph.bit_counts(torch.ones(3, 4)), "nnue::bit_counts: a: found float32, expected int64"),
        (lambda: graph.bit_counts(torch.ones(3, 4).long(), torch.ones(3, 5).long()), r"b: found shape \[3, 5\]"),
        (lambda: graph.pagerank(g, cast(Any, "a")), "pagerank: restart: found 'a', expected a number"),
        (lambda: graph.pagerank(g, tolerance=-1), "pagerank: tolerance: found -1, expected a number, at least 0"),
        (lambda: graph.pagerank(g, most=-1), "pagerank: most: found -1, expected a whole number, at least 0"),
        (lambda: walks(g, 0, 1, 0.0, 1), "restart: found 0, expected a probability from 2.-14 on"),
        (lambda: walks(g, -1, 1, 0.5, 1), "first_round, rounds: found -1, 1, expected 0 or more"),
        (lambda: walks(g, 0, 1 << 42, 0.5, 1), "at most 2.42 coupons"),
        (lambda: Graph(offsets[:5], targets), "offsets: found 0 … .*, expected numbers that rise from 0"),
        (lambda: Graph(offsets.flip(0), targets), "offsets: found .* … 0, expected numbers that rise from 0"),
        (lambda: Graph(offsets, targets + 5), r"targets: found node 1., expected 0 … 9"),
        (lambda: Graph(offsets, targets.long()), r"targets: found torch.int64 .*, expected torch.int32"),
        (
            lambda: Graph(offsets, targets, torch.zeros(len(targets)).double()),
            "weights: found .*, expected finite numbers above 0",
        ),
        (lambda: Graph(offsets, targets, torch.ones(1).double()), "weights: found 1 numbers"),
        (lambda: Graph.from_edges(3, torch.tensor([3]), torch.tensor([0])), "sources: found node 3, expected 0 … 2"),
        (lambda: Graph.from_counts(torch.ones(2, 3)), r"counts: found shape \[2, 3\]"),
        (lambda: graph.densest_subgraph(g, 3), "found a directed graph"),
        (lambda: graph.densest_subgraph(g, 11), "k: found 11, expected 0 … 10"),
        (lambda: graph.peel(g, 3), "peel: found a directed graph"),
        (lambda: graph.peel(g, 11), "peel: k: found 11, expected 0 … 10"),
        (lambda: graph.peel(g, -1), "peel: k: found -1, expected 0 … 10"),
        (lambda: graph.peel(g, True), "peel: k: found True, expected 0 … 10"),
        (lambda: graph.pagerank_walks(g, 16, 1e-7), "restart: found 1e-07, expected 2.-14 or more, as walks end"),
        (lambda: walks(g, 0, 1, 1e-5, 1), "restart: found 1e-05, expected a probability from 2.-14 on"),
        (lambda: graph.pagerank(g, 0), "restart: found 0, expected a number above 0, at most 1"),
        (
            lambda: graph.pagerank(g, start=torch.ones(9)),
            r"start: found torch.float32 \[9\], expected \[10\], a number for each",
        ),
        (lambda: graph.pagerank(g, start=-torch.ones(10)), "start: found -1.0, expected finite numbers, at least 0"),
        (lambda: graph.pagerank(g, start=torch.zeros(10)), "start: found only zeros, expected a number above 0"),
        (lambda: graph.pagerank(g, start=torch.full((10,), 1j)), r"start: found torch.complex64 \[10\]"),
        (
            lambda: Graph.from_edges(3, torch.tensor([0.7]), ONE),
            r"sources: found torch.float32 \[1\], expected integers",
        ),
        (lambda: Graph.from_edges(3, ONE, ONE[:, None]), r"targets: found torch.int64 \[1, 1\], expected integers"),
        (lambda: Graph.from_edges(3, ONE.bool(), ONE), r"sources: found torch.bool \[1\], expected integers"),
        (
            lambda: Graph.from_edges(3, cast(Any, ONE.numpy()), ONE),
            "sources: found ndarray, expected a tensor; make one with",
        ),
        (lambda: Graph.from_edges(FRACTION, ONE, ONE), "nodes: found 3.5, expected a whole number"),
        (
            lambda: Graph.from_edges(3, PAIR, PAIR, torch.tensor([-1.0, 3])),
            "weights: found -1.0, expected finite numbers",
        ),
        (lambda: Graph.from_edges(3, PAIR, PAIR, torch.tensor([1j, 3])), "weights: found 1j, expected finite numbers"),
        (lambda: Graph.from_edges(3, ONE, ONE, undirected=NO), "undirected: found 'no', expected True or False"),
        (lambda: Graph.from_counts(torch.ones(3, 3).triu()), "counts: found NaN or a matrix that differs"),
        (lambda: Graph.from_counts(torch.full((2, 2), math.nan)), "counts: found NaN or a matrix that differs"),
        (lambda: Graph.from_counts(torch.ones(3, 3), top=-5), "top: found -5, expected a whole number"),
        (lambda: Graph.from_counts(torch.ones(3, 3), least=math.nan), "least: found nan, expected a number"),
        (lambda: graph.pack_bits(cast(Any, np.eye(2, dtype=bool))), "active: found ndarray, expected a tensor"),
        (lambda: graph.pagerank_walks(g, 17), "rounds: found 17, expected a multiple of groups, 16"),
        (lambda: graph.pagerank_walks(g, FRACTION), "rounds: found 3.5, expected a whole number"),
        (lambda: Graph.from_edges(2**31, ONE, ONE), "nodes: found 2147483648, expected at most 2.31 - 1"),
        (lambda: Graph.from_edges(2**60, ONE, ONE), "nodes: found 1152921504606846976, expected at most"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            call()
    with pytest.raises(ArithmeticError, match="found changes of inf after 0 iterations"):
        graph.pagerank(g, most=0)


def test_opcheck_and_no_derivative(device: torch.device) -> None:
    bits = graph.pack_bits(flags(70, 5).to(device))
    g = random_graph(10, 30, 1, weighted=True).to(device)
    torch.library.opcheck(torch.ops.nnue.pack_bits.default, (flags(70, 5).to(device),))
    torch.library.opcheck(torch.ops.nnue.bit_counts.default, (bits, bits))
    torch.library.opcheck(torch.ops.nnue.bit_counts.default, (bits,))
    torch.library.opcheck(torch.ops.nnue.random_walks.default, (g.offsets, g.targets, g.thresholds, 0, 2, 0.3, 1))
