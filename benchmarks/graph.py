"""Speed and errors of the analysis of neuron graphs: co-activation counts, random walks and densest subgraphs.

    python benchmarks/graph.py [--device cuda] [--positions 1000000] [--neurons 3072] [--nodes 1000000] [--out FOLDER]

Times are medians in one process, after one call that does not count. Co-activation is compared with torch's products of
8-bit integers (`torch._int_mm`, on CUDA) and of float32. The walks run on three random graphs: "even", where all nodes
have about as many edges; "hubs", where a large part of the edges leads to few nodes; and "weighted", which is like
"hubs", with random weights of the edges. PageRank by walks is compared with power iteration: the mean square of
(difference / standard error) should be about 15 / 13 = 1.15, because the standard errors come from 16 groups of walks.
On CUDA some walks are repeated on the CPU, and the report states whether the visits are the same. Writes
graph-DEVICE.json and graph-DEVICE.png.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnue_trainer.files.pages import plots
from nnue_trainer.stats import graph
from nnue_trainer.stats.graph import Graph
from nnue_trainer.stats.random import Philox
from report import RESULTS, environment, write

# The goals on an H200.
BARS = {"co-activation": "1 s for 10^6 positions and 3072 neurons", "walks": "10^9 steps/s"}
SAMPLE = 1 << 17  # the number of positions for which activations are held as bytes, for packing and the baselines


def seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median wall-clock seconds of `repeats` calls, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def coactivation(device: torch.device, positions: int, neurons: int, repeats: int) -> list[dict[str, Any]]:
    """Times of the co-activation counts of random flags, of packing flags into bits, and of torch's products. Times on
    fewer positions are scaled to `positions`."""
    words = -(-positions // 64)
    numbers = Philox(1)
    # A quarter of the bits is 1 in the odd words, and an eighth in the even ones.
    bits = numbers.bits((neurons, words), device=device) & numbers.bits((neurons, words), device=device)
    bits[:, ::2] &= numbers.bits((neurons, -(-words // 2)), device=device)
    counts = graph.bit_counts(bits)
    spent = seconds(lambda: graph.bit_counts(bits), device, repeats)
    pairs = neurons * (neurons + 1) / 2
    cases = [
        {
            "name": "co-activation",
            "positions": positions,
            "neurons": neurons,
            "seconds": round(spent, 5),
            "pair_bits_per_second": float(f"{pairs * positions / spent:.4g}"),
        }
    ]
    few = min(SAMPLE, positions)
    active = numbers.uniform((few, neurons), device=device) < 0.15
    scale = positions / few
    spent = seconds(lambda: graph.pack_bits(active), device, repeats)
    cases.append({"name": "packing flags", "seconds_of_as_many": round(spent * scale, 5), "positions": few})
    bytes_per_second = active.numel() / spent
    cases[-1]["gigabytes_per_second"] = round(bytes_per_second / 1e9, 1)
    expected = graph.bit_counts(graph.pack_bits(active))
    baselines: dict[str, Callable[[], Tensor]] = {}
    if device.type == "cuda":
        whole = active.to(torch.int8)
        baselines["torch._int_mm"] = lambda: torch._int_mm(whole.T, whole)
    few_floats = min(few, 1 << 14) if device.type == "cpu" else few
    floats = active[:few_floats].float()
    baselines["float32 product"] = lambda: floats.T @ floats
    for name, call in baselines.items():
        try:
            found = call()
        except RuntimeError as error:
            cases.append({"name": name, "error": str(error).splitlines()[0]})
            continue
        if name == "torch._int_mm":
            assert torch.equal(found, expected), "the product of integers counts otherwise"
        size = few if name == "torch._int_mm" else few_floats
        spent = seconds(call, device, repeats)
        cases.append({"name": name, "seconds_of_as_many": round(spent * positions / size, 4), "positions": size})
    assert torch.equal(counts, counts.T)
    return cases


def random_graph(kind: str, nodes: int, edges: int, device: torch.device) -> Graph:
    """A random graph of a kind: "even", "hubs" or "weighted"."""
    numbers = Philox(2)
    sources = numbers.integers(0, nodes, edges)
    if kind == "even":
        targets = numbers.integers(0, nodes, edges)
    else:  # the first fraction x of the nodes gets the fraction x^(1/4) of the edges
        targets = (numbers.uniform(edges, dtype=torch.float64) ** 4 * nodes).long().clamp_max(nodes - 1)
    weights = numbers.uniform(edges, 0.1, 1.0) if kind == "weighted" else None
    return Graph.from_edges(nodes, sources, targets, weights).to(device)


def walks(device: torch.device, nodes: int, edges: int, rounds: int, repeats: int) -> list[dict[str, Any]]:
    """Times and errors of PageRank by walks on the random graphs, and times of power iteration."""
    cases = []
    for kind in ("even", "hubs", "weighted"):
        g = random_graph(kind, nodes, edges, device)
        g.reversed, g.thresholds, g.degrees  # noqa: B018 (these are cached; make them before the times are taken)
        each = max(rounds // 16, 1)

        def walk(count: int, g: Graph = g) -> Tensor:
            visits: Tensor = torch.ops.nnue.random_walks(g.offsets, g.targets, g.thresholds, 0, count, graph.RESTART, 1)
            return visits

        steps = int(walk(each).sum())
        spent = seconds(partial(walk, each), device, repeats)
        exact = graph.pagerank(g)
        power = seconds(partial(graph.pagerank, g), device, max(repeats // 2, 1))
        error_by_rounds = {}
        for count in (16, 64, 256, 1024):
            if count <= rounds:
                found = graph.pagerank_walks(g, count)
                error_by_rounds[count] = float(f"{((found.rank - exact).abs().sum()).item():.4g}")
        found = graph.pagerank_walks(g, each * 16)
        start = time.perf_counter()
        found = graph.pagerank_walks(g, each * 16)
        synchronize(device)
        whole = time.perf_counter() - start
        known = found.error > 0
        off = ((found.rank - exact) / found.error)[known]
        case = {
            "name": f"walks, {kind}",
            "nodes": g.nodes,
            "edges": g.edges,
            "largest_in_degree": int(torch.bincount(g.targets).max()),
            "steps": steps,
            "seconds": round(spent, 5),
            "steps_per_second": float(f"{steps / spent:.4g}"),
            "pagerank_walks_rounds": each * 16,
            "pagerank_walks_seconds": round(whole, 4),
            "power_iteration_seconds": round(power, 4),
            "mean_square_of_standard_errors_off": round(off.square().mean().item(), 4),
            "sum_of_errors_by_rounds": error_by_rounds,
        }
        if device.type == "cuda":
            count = max(min(each, 2), 1)
            on_cpu = torch.ops.nnue.random_walks(
                *(None if t is None else t.cpu() for t in (g.offsets, g.targets, g.thresholds)),
                0,
                count,
                graph.RESTART,
                1,
            )
            case["same_visits_as_on_cpu"] = torch.equal(walk(count).cpu(), on_cpu)
        cases.append(case)
        print(case)
    return cases


def densest(device: torch.device, nodes: int, k: int) -> dict[str, Any]:
    """Looks for a dense subgraph of `k` nodes that was planted in a random graph: times, and how much was found."""
    numbers = Philox(3)
    ends = [numbers.integers(0, nodes, 10 * nodes) for _ in range(2)]
    planted = Philox(4).uniform(nodes).argsort()[:k]
    i, j = torch.triu_indices(k, k, 1)
    chosen = numbers.bernoulli(0.4, len(i))
    sources, targets = (torch.cat([end, planted[side[chosen]]]) for end, side in zip(ends, (i, j), strict=True))
    g = Graph.from_edges(nodes, sources, targets, undirected=True)
    on_device = g.to(device)
    start = time.perf_counter()
    found = graph.densest_subgraph(on_device, k)
    synchronize(device)
    spent, start = time.perf_counter() - start, time.perf_counter()
    peeled = graph.peel(g, k)
    peeling = time.perf_counter() - start
    return {
        "name": "densest subgraph",
        "nodes": nodes,
        "edges": g.edges // 2,
        "k": k,
        "weight": found.weight,
        "seconds": round(spent, 3),
        "peeling_weight": peeled.weight,
        "peeling_seconds": round(peeling, 3),
        "of_the_planted_found": len(set(found.nodes.tolist()) & set(planted.tolist())),
    }


def picture(measured: Path) -> None:
    """Draws the results in the JSON file `measured`, into a PNG file beside it. Without matplotlib it only prints how
    to draw it elsewhere."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no matplotlib, so no picture; where there is: python benchmarks/graph.py --draw {measured}")
        return
    report = json.loads(measured.read_text())
    walked = [case for case in report["cases"] if case["name"].startswith("walks")]

    def errors(axes: Any) -> None:
        for color, case in zip(plots.SERIES, walked, strict=False):
            curve = {int(rounds): error for rounds, error in case["sum_of_errors_by_rounds"].items()}
            axes.plot(list(curve), list(curve.values()), marker=".", color=color)
        axes.set(xscale="log", yscale="log", xlabel="walks from each node", ylabel="sum of errors")

    def speed(axes: Any) -> None:
        names = [case["name"].removeprefix("walks, ") for case in walked]
        axes.barh(names, [case["steps_per_second"] / 1e9 for case in walked], color=plots.SERIES[0])
        axes.set(xlabel="billion steps per second")

    legend = [(case["name"], color) for color, case in zip(plots.SERIES, walked, strict=False)]
    drawn = [
        plots.Plot("PageRank by walks: error against power iteration", errors, legend=legend),
        plots.Plot("Speed of walks", speed),
    ]
    plots.save_png(drawn, measured.with_suffix(".png"), report["environment"]["device"], columns=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--positions", type=int, help="default: 10^6 on CUDA, 10^5 on the CPU")
    parser.add_argument("--neurons", type=int, default=3072)
    parser.add_argument("--nodes", type=int, help="default: 10^6 on CUDA, 10^5 on the CPU; ten edges each")
    parser.add_argument("--rounds", type=int, help="walks from each node; default: 1024 on CUDA, 64 on the CPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--draw", type=Path, metavar="JSON", help="only draw the results in this file")
    a = parser.parse_args()
    if a.draw is not None:
        picture(a.draw)
        return
    device = torch.device(a.device)
    cuda = device.type == "cuda"
    positions, nodes = a.positions or (10**6 if cuda else 10**5), a.nodes or (10**6 if cuda else 10**5)
    report: dict[str, Any] = {"environment": environment(device), "bars_on_h200": BARS}
    cases = coactivation(device, positions, a.neurons, a.repeats)
    for case in cases:
        print(case)
    cases += walks(device, nodes, 10 * nodes, a.rounds or (1024 if cuda else 64), a.repeats)
    cases.append(densest(device, min(nodes, 30_000), 60))
    print(cases[-1])
    measured = a.out / f"graph-{device.type}.json"
    write(measured, report | {"cases": cases})
    picture(measured)


if __name__ == "__main__":
    main()
