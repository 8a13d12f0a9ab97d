"""Builds, checks and times the ladders of kernels in benchmarks/ladders on a GPU: docs/learning-cuda.md explains them.

    python benchmarks/ladders.py [--only NAME] [--elements 100000000] [--built FOLDER] [--out FOLDER]
    python benchmarks/ladders.py --plot FOLDER/ladders-cuda.json

Each rung is checked before it is timed: moving averages against sums of whole windows, transposes against torch's, and
the visits of walks against those of the first rung. Times are medians of CUDA events. The operators of this project,
torch, pandas and polars (one core; if installed) stand beside the rungs. Writes ladders-cuda.json, and a plot for each
ladder if matplotlib is installed. The ladder of the feature transformer is in benchmarks/feature_transformer.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnue_trainer import stats
from nnue_trainer.stats import graph, matrix
from nnue_trainer.stats.random import Philox
from report import RESULTS, environment, write

HERE = Path(__file__).resolve().parent / "ladders"

RUNGS = {
    "moving_average": (
        "1 naive",
        "2 shared memory",
        "3 tile of 9 outputs",
        "4 running sum, 48 outputs",
        "5 running sum, 49 outputs",
        "6 written together",
    ),
    "transpose": ("1 naive", "2 tile", "3 padded tile"),
    "visits": ("1 thread per node", "2 nodes sorted", "3 walks in turn in a block", "4 walks in turn on the GPU"),
}
DOCUMENT = {("4", 3000): 1.12, ("1", 3000): 17.3, ("2", 3000): 5.2, ("4", 4): 0.048}
"""seconds of the document on a node with a P100, by rung and window"""


def library(name: str, built: Path | None, folder: Path) -> ctypes.CDLL:
    """NAME.cu as a library for this GPU: from `built`, or compiled now."""
    path = (built or folder) / f"{name}.so"
    if built is None:
        capability = "".join(map(str, torch.cuda.get_device_capability()))
        command = ["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden", "-cudart", "static"]
        subprocess.run([*command, f"-arch=sm_{capability}", str(HERE / f"{name}.cu"), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def called(result: int) -> None:
    """RuntimeError if a launch failed."""
    if result:
        raise RuntimeError(f"CUDA error {result}")


def seconds(call: Callable[[], object], rounds: int = 5) -> float:
    """The median seconds of a call, from rounds of about 5 ms or one call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def round_of(calls: int) -> float:
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / calls

    call()
    calls = max(1, min(100, int(5e-3 / max(round_of(1), 1e-6))))
    return statistics.median(round_of(calls) for _ in range(rounds))


def on_one_core(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def moving_average(ladder: ctypes.CDLL, elements: int) -> list[dict[str, Any]]:
    x = Philox(1).normal(elements, dtype=torch.float64, device="cuda")
    out, rows = torch.empty_like(x), []
    for window in (4, 3000):
        exact = stats.rolling(x, window).mean()
        some = slice(max(elements - 50_000 - window, 0), elements)
        whole = x[some].unfold(0, window, 1).mean(1)
        torch.testing.assert_close(exact[-len(whole) :], whole, rtol=1e-9, atol=1e-12)
        for number, name in enumerate(RUNGS["moving_average"], 1):

            def run(number: int = number, window: int = window) -> None:
                called(
                    ladder.moving_average(number, pointer(x), pointer(out), ctypes.c_int64(elements), window, stream())
                )

            out.zero_()
            run()
            torch.testing.assert_close(out, exact, rtol=1e-9, atol=1e-12, equal_nan=True)
            theirs = DOCUMENT.get((name[0], window))
            rows.append({"kernel": name, "window": window, "seconds": seconds(run, 3), "document": theirs})
        del whole
        rolling = stats.rolling(x, window)
        rows.append({"kernel": "ours", "window": window, "seconds": seconds(rolling.mean), "document": None})
        slow = seconds(lambda window=window: x.unfold(0, window, 1).mean(1), 1)  # type: ignore[misc]
        rows.append({"kernel": "torch, unfold", "window": window, "seconds": slow, "document": None})
        rows += on_cpu(x, window)
    rows.append({"kernel": "copy", "window": None, "seconds": seconds(lambda: out.copy_(x)), "document": None})
    return rows


def on_cpu(x: Tensor, window: int) -> list[dict[str, Any]]:
    """pandas and polars, where they are installed."""
    rows: list[dict[str, Any]] = []
    numbers = x.cpu().numpy()
    try:
        import pandas

        spent, theirs = on_one_core(pandas.Series(numbers).rolling(window).mean), 7.7 if window == 3000 else None
        rows.append({"kernel": "pandas", "window": window, "seconds": spent, "document": theirs})
    except ImportError:
        pass
    try:
        polars = importlib.import_module("polars")
        series = polars.Series(numbers)
        spent = on_one_core(lambda: series.rolling_mean(window))
        rows.append({"kernel": "polars", "window": window, "seconds": spent, "document": None})
    except ImportError:
        pass
    return rows


def transpose(ladder: ctypes.CDLL, _: int) -> list[dict[str, Any]]:
    rows = []
    for n in (1024, 16384):
        x = Philox(2).bits((n, n), torch.int32, "cuda")
        out, expected = torch.empty_like(x), x.t().contiguous()
        for number, name in enumerate(RUNGS["transpose"], 1):

            def run(number: int = number, n: int = n, x: Tensor = x, out: Tensor = out) -> None:
                called(ladder.transpose(number, pointer(x), pointer(out), ctypes.c_int64(n), stream()))

            out.zero_()
            run()
            if not torch.equal(out, expected):
                raise RuntimeError(f"transpose: rung {name} is wrong")
            rows.append({"kernel": name, "size": n, "seconds": seconds(run)})
        others: dict[str, Callable[[], object]] = {
            "ours": lambda x=x: matrix.transpose(x),  # type: ignore[misc]
            "torch": lambda x=x: x.t().contiguous(),  # type: ignore[misc]
            "copy": lambda x=x, out=out: out.copy_(x),  # type: ignore[misc]
        }
        rows += [{"kernel": name, "size": n, "seconds": seconds(call)} for name, call in others.items()]
    return rows


def popular_graph(nodes: int, edges: int) -> tuple[Tensor, Tensor]:
    """Sources and targets of random edges; a few nodes are the targets of many."""
    numbers = Philox(3)
    sources = numbers.integers(0, nodes, edges)
    popular = (numbers.uniform(edges, dtype=torch.float64) ** 4 * nodes).long()
    names = Philox(4).uniform(nodes).argsort()  # popular nodes lie anywhere
    return sources, names[popular]


def visits(ladder: ctypes.CDLL, _: int) -> list[dict[str, Any]]:
    nodes, edges, restart = 1 << 18, 1 << 22, 0.15
    sources, targets = popular_graph(nodes, edges)
    coupons = 1 + torch.bincount(targets, minlength=nodes) // 4
    order = coupons.argsort(descending=True).int().cuda()
    first = torch.nn.functional.pad(coupons.cumsum(0), (1, 0)).cuda()
    by_source = sources.argsort(stable=True)
    offsets = torch.nn.functional.pad(torch.bincount(sources, minlength=nodes).cumsum(0), (1, 0)).int().cuda()
    ends = targets[by_source].int().cuda()
    found, steps = torch.empty(nodes, dtype=torch.int32, device="cuda"), torch.zeros(nodes, dtype=torch.int32).cuda()
    rows: list[dict[str, Any]] = []
    expected = None
    for number, name in enumerate(RUNGS["visits"], 1):

        def run(number: int = number) -> None:
            found.zero_()
            pointers = map(pointer, (offsets, ends, first, order))
            made = pointer(found), pointer(steps), stream()
            called(ladder.visits(number, *pointers, nodes, ctypes.c_double(restart), ctypes.c_uint64(1), *made))

        run()
        expected = found.clone() if expected is None else expected
        total = int(steps.sum())
        if not torch.equal(found, expected) or total != int(found.sum()):
            raise RuntimeError(f"visits: rung {name} is wrong")
        warps = steps.view(-1, 32)
        busy = float(warps.sum() / (32 * warps.max(1).values.sum()))
        spent = seconds(run)
        heat = steps.view(-1, 128)[:128].tolist() if number in (1, 3) else None
        rows.append(
            {"kernel": name, "seconds": spent, "steps_per_second": total / spent, "busy_lanes": busy, "heat": heat}
        )
    chain = graph.Graph.from_edges(nodes, sources, targets).to(torch.device("cuda"))
    rounds = 16 * max(1, round(int(coupons.sum()) / nodes / 16))  # a multiple of the groups of pagerank_walks
    made = int(graph.pagerank_walks(chain, rounds, seed=1).steps)
    spent = seconds(lambda: graph.pagerank_walks(chain, rounds, seed=1))
    rows.append({"kernel": "ours (as many walks from each node)", "seconds": spent, "steps_per_second": made / spent})
    return rows


MEASURES = {"moving_average": moving_average, "transpose": transpose, "visits": visits}


def plot(report: dict[str, Any], folder: Path) -> None:
    """A plot for each ladder: seconds, on a logarithmic scale; for walks also the steps of each thread."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    for name, rows in report["ladders"].items():
        key = next((k for k in ("window", "size") if k in rows[0]), None)
        groups = [None] if key is None else sorted({row[key] for row in rows if row[key] is not None})
        figure, axes = pyplot.subplots(1, len(groups), figsize=(6 * len(groups), 3.6), squeeze=False)
        for axis, group in zip(axes[0], groups, strict=True):
            shown = [row for row in rows if key is None or row[key] in (group, None)][::-1]
            bars = axis.barh([row["kernel"] for row in shown], [row["seconds"] * 1e3 for row in shown])
            axis.bar_label(bars, [f"{row['seconds'] * 1e3:.3g}" for row in shown], padding=2)
            axis.set(xscale="log", xlabel="ms", title=name.replace("_", " ") + (f", {key} {group}" if key else ""))
            narrow = max(bars.datavalues) < 100 * min(bars.datavalues)
            axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if narrow else (1,)))
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter(ticker.NullFormatter())
            axis.margins(x=0.2)
        figure.suptitle(report["environment"]["device"])
        figure.tight_layout()
        figure.savefig(folder / f"ladder-{name}-cuda.png", dpi=110)
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MEASURES, help="default: all")
    parser.add_argument("--elements", type=int, default=100_000_000, help="of moving averages")
    parser.add_argument("--built", type=Path, help="folder of NAME.so, compiled before; default: nvcc compiles them")
    parser.add_argument("--plot", type=Path, metavar="JSON", help="only make the plots of these results again")
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    if a.plot:
        return plot(json.loads(a.plot.read_text()), a.plot.parent)
    report: dict[str, Any] = {"environment": environment("cuda"), "ladders": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in MEASURES if a.only is None else (a.only,):
            rows = MEASURES[name](library(name, a.built, Path(folder)), a.elements)
            report["ladders"][name] = rows
            for row in rows:
                print(name, {k: v for k, v in row.items() if k != "heat"}, flush=True)
    write(a.out / "ladders-cuda.json", report)
    try:
        plot(report, a.out)
    except ImportError:
        print("no matplotlib, so no plots: run again with --plot where it is installed")
    return None


if __name__ == "__main__":
    main()
