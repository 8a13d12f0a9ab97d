"""The numbers of the documents that the statistics grew out of, beside ours on this machine.

    python benchmarks/documents.py [--device cuda] [--elements 10000000] [--edges 480000] [--repeats 5]

The documents: a moving average in Numba, kernel by kernel (000); windows and weights for cuDF (001); PageRank by random
walks and densest subgraphs (003); random numbers, transposition and generalised ufuncs (004). Their numbers are from a
node with a P100 (000) and from a Tesla K20 (003). 002 is about the trainer's first kernels and has no number that does
not depend on its net: benchmarks/feature_transformer/ladder.cu has its kernels.

Times are medians. "scaled" means that a smaller problem was measured, and that its time was multiplied by the ratio of
the sizes. Columns of this machine are the same work by this project, and by pandas or torch on the same device (pandas
always on one core of the CPU).
"""

from __future__ import annotations

import argparse
import math
from typing import Any, NamedTuple

import torch

from graph import seconds
from nnue_trainer import stats
from nnue_trainer.stats import graph, matrix
from nnue_trainer.stats.random import Philox
from report import environment

ELEMENTS, EDGES, NODES = 100_000_000, 623_000_000, 43_000_000  # of 000 and 003
POINTS = 64 * 24 * 10_000  # of 004


class Row(NamedTuple):
    """A line of the table."""

    document: str
    work: str
    theirs: str
    ours: float
    other: str
    note: str = ""


def shown(number: float) -> str:
    """Seconds in a unit that fits."""
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number * 1e9:.3g} ns"


def series_of_pandas(x: torch.Tensor) -> Any:
    """The numbers as a Series, or None without pandas."""
    try:
        import pandas
    except ImportError:
        return None
    return pandas.Series(x.cpu().numpy())


def windows(device: torch.device, elements: int, repeats: int) -> list[Row]:
    """Documents 000 and 001."""
    x = Philox(1).normal(elements, dtype=torch.float64, device=device)
    series, rows, scale = series_of_pandas(x), [], ELEMENTS / elements
    theirs = {
        3000: "naive 17.3 s, shared memory 5.2 s, running sum 1.12 s; pandas 7.7 s",
        4: "0.048 s without compilation, 1.38 s in chunks",
    }
    scaled = "" if elements == ELEMENTS else f"scaled from {elements:,} elements"
    for window, numbers in theirs.items():
        rolling = stats.rolling(x, window)
        other = "" if series is None else f"pandas {shown(seconds(series.rolling(window).mean, device, 1) * scale)}"
        ours = seconds(rolling.mean, device, repeats) * scale
        rows.append(Row("000", f"mean of 10^8 float64, window {window}", numbers, ours, other, scaled))
    few = x[:10_000].contiguous()
    short = series_of_pandas(few)
    for name in ("mean", "max", "min", "sum", "std", "var"):
        other = ""
        if short is not None:
            other = f"pandas {shown(seconds(getattr(short.rolling(300), name), device, repeats))}"
        ours = seconds(getattr(stats.rolling(few, 300), name), device, repeats)
        rows.append(Row("001", f"{name} of {len(few):,}, window 300", "–", ours, other))
    other = "" if short is None else f"pandas {shown(seconds(short.ewm(span=300).mean, device, repeats))}"
    ours = seconds(stats.ewm(few, span=300).mean, device, repeats)
    rows.append(Row("001", f"ewm mean of {len(few):,}, span 300", "its weights end after 10 spans", ours, other))
    return rows


def graphs(device: torch.device, edges: int, repeats: int) -> list[Row]:
    """Document 003, on a random graph with as many edges for each node as that of the document has."""
    nodes, numbers = max(round(edges * NODES / EDGES), 2), Philox(2)
    sources, targets = (numbers.integers(0, nodes, edges, device=device) for _ in range(2))
    g = graph.Graph.from_edges(nodes, sources, targets)
    g = graph.Graph(g.offsets, g.targets)  # edges that occur twice count once, as in the document
    del sources, targets
    scale = EDGES / edges
    note = f"{nodes:,} nodes, random edges" + ("" if edges == EDGES else f"; scaled from {edges:,} edges")
    walk = seconds(lambda: graph.pagerank_walks(g, 16, seed=1), device, repeats) * scale
    power = seconds(lambda: graph.pagerank(g), device, repeats) * scale
    few = min(edges, 480_000)
    numbers = Philox(2, 1)
    parts = max(few // 8, 2)
    sources, targets = (numbers.integers(0, parts, few) for _ in range(2))
    dense = graph.Graph.from_edges(parts, sources, targets, undirected=True).to(device)
    k = min(100, parts)
    return [
        Row("003", "PageRank of 6.23 · 10^8 edges, 16 walks a node", "163 s", walk, "", note),
        Row("003", "the same by power iteration to 10^-12", "did not scale", power, "", note),
        Row(
            "003", f"densest {k} of {parts:,} nodes, {few:,} edges", "–",
            seconds(lambda: graph.densest_subgraph(dense, k), device, 1), "",
        ),
    ]  # fmt: skip


def extras(device: torch.device, repeats: int) -> list[Row]:
    """Document 004."""

    def pi() -> float:
        x, y = (Philox(1, stream).uniform(POINTS, dtype=torch.float64, device=device) for stream in (0, 1))
        return 4 * float((x * x + y * y < 1).double().mean())

    def pi_of_torch() -> float:
        x, y = (torch.rand(POINTS, dtype=torch.float64, device=device) for _ in range(2))
        return 4 * float((x * x + y * y < 1).double().mean())

    error = abs(pi() - math.pi)
    square = Philox(3).integers(-1000, 1000, (1024, 1024), torch.int32, device)
    vectors = Philox(4).normal((1 << 20, 2), device=device)
    own = stats.RowFunction("return sqrt(x[0] * x[0] + x[1] * x[1]);")
    others = {
        "π": pi_of_torch,
        "transpose": lambda: square.t().contiguous(),
        "norm": lambda: torch.linalg.vector_norm(vectors, dim=1),
    }
    beside = {name: f"torch {shown(seconds(call, device, repeats))}" for name, call in others.items()}
    length = "L2 norm of 2^20 vectors of 2 float32"
    return [
        Row(
            "004", f"π from {POINTS:,} points", "–",
            seconds(pi, device, repeats), beside["π"], f"off by {error:.1e}",
        ),
        Row(
            "004", "transpose of 1024 × 1024 int32", "tile 15 % faster than naive",
            seconds(lambda: matrix.transpose(square), device, repeats), beside["transpose"],
        ),
        Row(
            "004", f"{length}, built in", "–",
            seconds(lambda: matrix.norm(vectors), device, repeats), beside["norm"],
        ),
        Row(
            "004", f"{length}, as your own function", "–",
            seconds(lambda: own(vectors), device, repeats), beside["norm"], "compiled before, once",
        ),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--elements", type=int, help="of moving averages (default: 10^8 on CUDA, 10^7 on the CPU)")
    parser.add_argument("--edges", type=int, help="of the graph (default: all 6.23 · 10^8 on CUDA, 480,000 on the CPU)")
    parser.add_argument("--repeats", type=int, default=5, help="calls that count (default 5)")
    a = parser.parse_args(arguments)
    device = torch.device(a.device)
    where = environment(device)
    on_cuda = device.type == "cuda"
    print(f"{where['device']}, {where['cpu']['torch_threads']} threads of {where['cpu']['name']}")
    print(f"{where['date']}, commit {where['commit']}, torch {where['torch']}, load {where['load_average']}")
    print("The documents' numbers: 000 on a node with a Tesla P100, 003 on a Tesla K20; 001 and 004 have no times.\n")
    print("| document | work | its number | ours | beside | note |\n|---|---|---|---|---|---|")
    for rows in (
        lambda: windows(device, a.elements or (ELEMENTS if on_cuda else ELEMENTS // 10), a.repeats),
        lambda: graphs(device, a.edges or (EDGES if on_cuda else 480_000), a.repeats),
        lambda: extras(device, a.repeats),
    ):
        for row in rows():
            cells = (row.document, row.work, row.theirs, shown(row.ours), row.other, row.note)
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
