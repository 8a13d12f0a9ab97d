"""Pictures of a graph and of walks on it: python examples/graph_pictures.py [--out FOLDER] [--nodes N] [--device cuda]

The graph has popular nodes and a hidden dense part, as the web has. Three PNG files:

- graph-adjacency.png: its edges as points, the nodes of the densest subgraph first. They are the dense block.
- graph-visits.png: random walks on a GPU, as a map of the visits that each thread of each block makes. Node v starts as
  many walks as it is popular. Before: a thread makes all walks of one node, so a block waits for its most popular one.
  After: nodes are sorted by their walks, and the threads of a block take the walks in turn.
- graph-layout.png: the densest subgraph, drawn by springs between its nodes.
"""

from __future__ import annotations

import argparse
import heapq
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import numpy.typing as npt
import torch
from matplotlib import pyplot
from torch import Tensor

from nnue_trainer.stats import graph
from nnue_trainer.stats.random import Philox

Numbers = npt.NDArray[np.float64]
THREADS, RESTART = 128, 0.15


def hidden_part(nodes: int, part: int, seed: int) -> graph.Graph:
    """An undirected graph with 8 edges for each node, most of them to popular nodes, and a part with many edges."""
    numbers, names = Philox(seed), Philox(seed, stream=1).uniform(nodes).argsort()
    sources = numbers.integers(0, nodes, 8 * nodes)
    targets = names[(numbers.uniform(8 * nodes, dtype=torch.float64) ** 3 * nodes).long()]
    dense = Philox(seed, stream=2).uniform(nodes).argsort()[:part]
    first, second = torch.triu_indices(part, part, 1)
    kept = Philox(seed, stream=3).bernoulli(0.6, len(first))
    sources = torch.cat([sources, dense[first[kept]]])
    targets = torch.cat([targets, dense[second[kept]]])
    lines = torch.stack([torch.minimum(sources, targets), torch.maximum(sources, targets)], 1).unique(dim=0)
    lines = lines[lines[:, 0] != lines[:, 1]]
    return graph.Graph.from_edges(nodes, lines[:, 0], lines[:, 1], undirected=True)


def adjacency(g: graph.Graph, dense: Tensor, path: Path) -> None:
    """The edges among the dense nodes and as many others again as there are in four such parts."""
    others = torch.ones(g.nodes, dtype=torch.bool)
    others[dense] = False
    order = torch.cat([dense, others.nonzero()[:, 0]])[: 5 * len(dense)]
    place = torch.full((g.nodes,), -1)
    place[order] = torch.arange(len(order))
    rows, columns = place[g.sources.cpu()], place[g.targets.cpu().long()]
    shown = (rows >= 0) & (columns >= 0)
    figure, axis = pyplot.subplots(figsize=(6, 6))
    axis.scatter(columns[shown], rows[shown], s=2, marker="s", linewidths=0, color="#1f4e79")
    axis.add_patch(pyplot.Rectangle((-1, -1), len(dense) + 1, len(dense) + 1, fill=False, color="#c0392b"))
    axis.set(xlabel="to node", ylabel="from node", title=f"Edges; the densest {len(dense)} nodes first", aspect="equal")
    axis.set(xlim=(-2, len(order)), ylim=(len(order), -2))
    figure.tight_layout()
    figure.savefig(path / "graph-adjacency.png", dpi=80)


def walk_lengths(g: graph.Graph, starts: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """The visits of a walk from each of these nodes."""
    offsets, targets = g.offsets.cpu().numpy(), g.targets.cpu().numpy()
    now, lengths, going = starts.copy(), np.zeros(len(starts), np.int64), np.arange(len(starts))
    step = 0
    while len(going):
        lengths[going] += 1
        u = Philox(seed, stream=step).uniform((2, len(starts)), dtype=torch.float64).numpy()[:, going]
        at = now[going]
        degree = offsets[at + 1] - offsets[at]
        on = (u[0] >= RESTART) & (degree > 0)
        going, at, degree = going[on], at[on], degree[on]
        now[going] = targets[offsets[at] + (u[1][on] * degree).astype(np.int64)]
        step += 1
    return lengths


def work_of_threads(g: graph.Graph, seed: int) -> tuple[Numbers, Numbers]:
    """The visits of each thread, [blocks, threads]: a thread for each node, and walks in turn in sorted blocks."""
    coupons = 1 + (g.offsets[1:] - g.offsets[:-1]).cpu().numpy() // 4
    starts = np.arange(g.nodes).repeat(coupons)
    lengths = walk_lengths(g, starts, seed)
    before: Numbers = np.bincount(starts, lengths, g.nodes).astype(np.float64).reshape(-1, THREADS)
    block_of = np.empty(g.nodes, np.int64)
    block_of[np.argsort(-coupons, kind="stable")] = np.arange(g.nodes) // THREADS
    after = np.zeros_like(before)
    for block, work in enumerate(after):
        ready = [(0, thread) for thread in range(THREADS)]
        for length in lengths[block_of[starts] == block]:
            made, thread = heapq.heappop(ready)
            heapq.heappush(ready, (made + int(length), thread))
        for made, thread in ready:
            work[thread] = made
    return before, after


def visits(before: Numbers, after: Numbers, path: Path) -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for axis, (title, work) in zip(axes, {"Before": before, "After": after}.items(), strict=True):
        busy = work.sum() / (work.max(1).sum() * THREADS)
        image = axis.imshow(work, cmap="inferno", aspect="auto", norm="log", vmin=1, vmax=before.max())
        axis.set(xlabel="thread", title=f"{title}: threads busy {100 * busy:.0f} % of the time")
    axes[0].set_ylabel("thread block")
    figure.colorbar(image, ax=axes, label="visits")
    figure.savefig(path / "graph-visits.png", dpi=80)


def springs(links: Numbers, rounds: int = 300) -> Numbers:
    """Places [n, 2] of nodes that repel each other and are pulled along `links`, 0/1 [n, n] (Fruchterman, Reingold)."""
    n = len(links)
    places = Philox(1).uniform((n, 2), -1, 1, torch.float64).numpy()
    ideal = 2 / np.sqrt(n)
    for step in range(rounds):
        apart = places[:, None] - places
        distance = np.maximum(np.linalg.norm(apart, axis=2), 1e-3)[..., None]
        force = (apart / distance * (ideal**2 / distance - links[..., None] * distance**2 / ideal)).sum(1)
        size = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-9)
        places += force / size * np.minimum(size, 0.2 * (1 - step / rounds))
    return places


def layout(g: graph.Graph, dense: Tensor, path: Path) -> None:
    inside = torch.zeros(g.nodes, dtype=torch.bool)
    inside[dense] = True
    place = inside.cumsum(0) - 1
    sources, targets = g.sources.cpu(), g.targets.cpu().long()
    among = inside[sources] & inside[targets]
    ends = torch.stack([place[sources[among]], place[targets[among]]]).numpy()
    links = np.zeros((len(dense), len(dense)))
    links[tuple(ends)] = 1
    at = springs(links)
    figure, axis = pyplot.subplots(figsize=(6, 6), layout="constrained")
    axis.plot(*at[ends].transpose(2, 0, 1), color="#1f4e79", linewidth=0.3, alpha=0.3)
    axis.scatter(at[:, 0], at[:, 1], c=links.sum(0), cmap="viridis", s=40, zorder=2)
    axis.set(title=f"The densest subgraph: {len(dense)} nodes, {int(links.sum()) // 2} edges", aspect="equal")
    axis.axis("off")
    figure.savefig(path / "graph-layout.png", dpi=80)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the pictures")
    parser.add_argument("--nodes", type=int, default=16384, help=f"a multiple of {THREADS}")
    parser.add_argument("--part", type=int, default=60, help="nodes of the hidden part")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args(arguments)
    if a.nodes <= 0 or a.nodes % THREADS:
        parser.error(f"--nodes: found {a.nodes}, expected a multiple of {THREADS}")
    a.out.mkdir(parents=True, exist_ok=True)
    g = hidden_part(a.nodes, a.part, seed=1).to(torch.device(a.device))
    found = graph.densest_subgraph(g, a.part)
    print(f"{g.nodes:,} nodes, {g.edges // 2:,} edges; {found.weight:.0f} edges among the densest {a.part} nodes")
    adjacency(g, found.nodes.cpu(), a.out)
    before, after = work_of_threads(g, seed=2)
    visits(before, after, a.out)
    layout(g, found.nodes.cpu(), a.out)
    print(f"a block's slowest thread makes {before.max(1).mean():.0f} visits before, {after.max(1).mean():.0f} after")
    print(f"pictures in {a.out}")


if __name__ == "__main__":
    main()
