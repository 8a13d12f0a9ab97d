"""Sliding-window and exponentially weighted statistics against pandas, torch's `unfold` and a copy.

    python benchmarks/rolling.py [--device cuda] [--elements 100000000] [--window 3000] [--out FOLDER]

Times are medians in one process, per element. With `--clock cpu` they are the least CPU times instead. `copies` is the
time divided by that of a copy of the same tensor on the same device. "naive" is torch's `unfold` with a mean, in pieces
that fit into memory; its time grows with the window. pandas runs on fewer elements (--pandas-elements); its time per
element does not depend on their number. Writes rolling-DEVICE.json, and rolling-DEVICE.png with the time per element by
window length.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnue_trainer import stats
from report import CLOCKS, RESULTS, add_clock, environment, write

STATISTICS = ("sum", "mean", "std", "min", "max", "skew", "kurt", "median")
BARS = {"mean": 2, "max": 3, "std": 3, "ewm_mean": 3}
"""the goal: at most this many copies, for 10^8 float64 numbers and a window of 3000 on an H200"""
CURVES = ("mean", "std", "max", "median")


clock = CLOCKS["wall"]


def median_seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median seconds of a call, measured by events on CUDA; with `--clock cpu` on a CPU the least CPU time."""
    times = []
    for _ in range(repeats + 1):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            start = clock()
            call()
            times.append(clock() - start)
    # Other programs on the machine can only increase the CPU time, so the least one is the best estimate.
    return min(times[1:]) if clock is CLOCKS["cpu"] else statistics.median(times[1:])


def naive_mean(x: Tensor, window: int, at_a_time: int = 1 << 27) -> Tensor:
    """The mean of each window, by adding all its elements; about `at_a_time` elements of windows in one call."""
    out = torch.full_like(x, torch.nan)
    windows = x.unfold(0, window, 1)
    step = max(at_a_time // window, 1)
    for i in range(0, len(windows), step):
        out[window - 1 + i : window - 1 + i + step] = windows[i : i + step].mean(1)
    return out


def pandas_call(series: Any, name: str, window: int) -> Callable[[], object]:
    if name.startswith("ewm_"):
        return getattr(series.ewm(span=window), name.removeprefix("ewm_"))
    return getattr(series.rolling(window), name)


def our_call(x: Tensor, name: str, window: int) -> Callable[[], object]:
    if name.startswith("ewm_"):
        return getattr(stats.ewm(x, span=window), name.removeprefix("ewm_"))
    return getattr(stats.rolling(x, window), name)


def plot(path: Path, curves: dict[str, dict[int, float]], copy_ns: float, device: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, curve in curves.items():
        style = {"ours": "-", "pandas": "--", "naive": ":"}[name.split()[0]]
        axes.plot(list(curve), list(curve.values()), style, marker=".", label=name)
    axes.axhline(copy_ns, color="grey", linewidth=1, label="copy")
    axes.set(xscale="log", yscale="log", xlabel="window (elements)", ylabel="ns per element", title=device)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--elements", type=int, help="default: 10^8 on CUDA, 4·10^6 on the CPU")
    parser.add_argument("--pandas-elements", type=int, default=1_000_000)
    parser.add_argument("--window", type=int, default=3000)
    parser.add_argument("--windows", type=int, nargs="*", default=[3, 30, 300, 3000, 30_000, 300_000])
    parser.add_argument("--repeats", type=int, default=5)
    add_clock(parser)
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    global clock
    clock = CLOCKS[a.clock]
    if a.clock == "cpu":
        torch.set_num_threads(1)
    device = torch.device(a.device)
    n = a.elements or (10**8 if device.type == "cuda" else 4 * 10**6)
    report: dict[str, Any] = {"environment": environment(device), "elements": n, "dtype": "float64"}
    report |= {"window": a.window, "clock": a.clock}
    x = torch.randn(n, dtype=torch.float64, device=device)
    to = torch.empty_like(x)
    copy = median_seconds(lambda: to.copy_(x), device, a.repeats)
    report["copy_ns_per_element"] = round(copy / n * 1e9, 4)
    try:
        import pandas

        few = min(a.pandas_elements, n)
        series = pandas.Series(x[:few].cpu().numpy())
        report["pandas"] = {"version": pandas.__version__, "elements": few}
    except ImportError:
        series = None
    cases: list[dict[str, Any]] = []
    for name in (*STATISTICS, "ewm_mean", "ewm_var"):
        seconds = median_seconds(our_call(x, name, a.window), device, a.repeats)
        case = {"name": name, "ns_per_element": round(seconds / n * 1e9, 4), "copies": round(seconds / copy, 2)}
        if name in BARS:
            case["bar_on_h200"] = BARS[name]
        if series is not None:
            theirs = median_seconds(pandas_call(series, name, a.window), torch.device("cpu"), 1) / few
            case["pandas_ns_per_element"] = round(theirs * 1e9, 3)
            case["times_as_fast_as_pandas"] = round(theirs / (seconds / n), 1)
        if name == "mean":
            part = x[: min(n, a.window * 100 if device.type == "cpu" else n)]
            naive = median_seconds(lambda part=part: naive_mean(part, a.window), device, 1) / len(part)  # type: ignore[misc]
            case["naive_ns_per_element"] = round(naive * 1e9, 3)
        cases.append(case)
        print(case)
    report["cases"] = cases
    curves: dict[str, dict[int, float]] = {}
    for name in CURVES:
        for window in a.windows:
            seconds = median_seconds(our_call(x, name, window), device, max(a.repeats // 2, 1))
            curves.setdefault(f"ours {name}", {})[window] = round(seconds / n * 1e9, 4)
            if series is not None and window <= few and name in ("mean", "median"):
                theirs = median_seconds(pandas_call(series, name, window), torch.device("cpu"), 1) / few
                curves.setdefault(f"pandas {name}", {})[window] = round(theirs * 1e9, 3)
            if name == "mean" and window <= 3000:
                part = x[: min(n, 400_000 if device.type == "cpu" else n)]
                naive = median_seconds(lambda part=part, w=window: naive_mean(part, w), device, 1) / len(part)  # type: ignore[misc]
                curves.setdefault("naive mean", {})[window] = round(naive * 1e9, 3)
    report["ns_per_element_by_window"] = curves
    write(a.out / f"rolling-{device.type}.json", report)
    plot(a.out / f"rolling-{device.type}.png", curves, report["copy_ns_per_element"], report["environment"]["device"])


if __name__ == "__main__":
    main()
