"""Transposition and norms of rows against a copy, torch's `x.t().contiguous()` and `torch.linalg.vector_norm`.

    python benchmarks/matrix.py [--device cuda] [--shapes 4096x4096 ...] [--rounds 9] [--out FOLDER]

Several tensors of each shape are used in turn, `--bytes` together, and all outputs of a round are kept, so that caches
do not hold what is read or written. The calls that are compared take turns: each round times all of them, and a time is
the median of the rounds. On CUDA a round replays a CUDA graph. GB/s count each byte that is read and each that is
written. With `--clock cpu` times are the least CPU times of one thread.

A transposition is compared with `x.clone()` (`clone_share`), which needs new memory, too, and with a copy into memory
that is already there (`copy_share`). On the CPU the two differ much, because the system has to provide and clear the
pages. A norm writes next to nothing; its `copy_share` is its GB/s divided by those of the copy into memory that is
already there. Writes matrix-DEVICE.json.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnue_trainer.stats import matrix
from report import CLOCKS, RESULTS, add_clock, environment, write

BAR = 0.85
"""the goal: at least this share of the speed of a copy, for a transposition"""
SHAPES = ("4096x4096", "22528x1024", "1024x22528", "24576x3072", "4099x4093")
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ORDERS = {"l1": 1.0, "l2": 2.0, "max": math.inf}

Call = Callable[[Tensor], object]


class Timer:
    """Times calls of one tensor on a device."""

    def __init__(self, device: torch.device, rounds: int, clock: str) -> None:
        self.device, self.rounds, self.clock = device, rounds, CLOCKS[clock]
        # Other programs on the machine can only increase the CPU time, so the least one is the best estimate.
        self.middle: Callable[[list[float]], float] = min if clock == "cpu" else statistics.median

    def seconds(self, calls: dict[str, Call], tensors: list[Tensor]) -> dict[str, float]:
        """The seconds of each call on one of the tensors. The calls take turns."""
        once = {name: self._round(call, tensors) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.rounds):
            for name, run in once.items():
                times[name].append(run() / len(tensors))
        return {name: self.middle(found) for name, found in times.items()}

    def _round(self, call: Call, tensors: list[Tensor]) -> Callable[[], float]:
        """A function that calls with each tensor and returns the seconds; it has run once already."""
        if self.device.type == "cpu":

            def on_cpu() -> float:
                start = self.clock()
                kept = [call(x) for x in tensors]
                spent = self.clock() - start
                del kept
                return spent

            on_cpu()
            return on_cpu

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call(tensors[0])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [call(x) for x in tensors]

        def on_cuda() -> float:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            assert kept  # the outputs live as long as the graph
            return float(begin.elapsed_time(end)) / 1e3

        on_cuda()
        return on_cuda


def several(shape: tuple[int, int], dtype: torch.dtype, device: torch.device, size: int) -> list[Tensor]:
    """At least two tensors of this shape, and at least `size` bytes together."""
    count = max(math.ceil(size / (math.prod(shape) * dtype.itemsize)), 2)
    if dtype.is_floating_point:
        return [torch.randn(shape, device=device).to(dtype) for _ in range(count)]
    return [torch.randint(0, 100, shape, dtype=dtype, device=device) for _ in range(count)]


def into_existing(tensors: list[Tensor]) -> Call:
    """Copies each of these tensors into memory of its own that is already there."""
    to = {x.data_ptr(): torch.zeros_like(x) for x in tensors}
    return lambda x: to[x.data_ptr()].copy_(x)


def transpositions(timer: Timer, tensors: list[Tensor]) -> dict[str, Any]:
    x = tensors[0]
    if not torch.equal(matrix.transpose(x), x.t()):
        raise RuntimeError(f"transpose: wrong result for {tuple(x.shape)}, {x.dtype}")
    calls: dict[str, Call] = {
        "copy": into_existing(tensors),
        "clone": torch.clone,
        "ours": matrix.transpose,
        "torch": lambda x: x.t().contiguous(),
    }
    spent = timer.seconds(calls, tensors)
    case: dict[str, Any] = {"bytes_per_element": x.element_size(), "shape": list(x.shape), "tensors": len(tensors)}
    for name, seconds in spent.items():
        case[f"{name}_gb_per_second"] = round(2 * x.nbytes / seconds / 1e9, 2)
    for name in ("ours", "torch"):
        case |= {f"{name}_{to}_share": round(spent[to] / spent[name], 3) for to in ("clone", "copy")}
    return case


def torch_norms(x: Tensor) -> list[Tensor]:
    return [torch.linalg.vector_norm(x, order, dim=-1) for order in ORDERS.values()]


def norms(timer: Timer, tensors: list[Tensor]) -> dict[str, Any]:
    x = tensors[0]
    calls: dict[str, Call] = {"copy": into_existing(tensors), "ours all": matrix.norms, "torch all": torch_norms}
    for name, order in ORDERS.items():
        calls[f"ours {name}"] = partial(matrix.norm, order=order)
        calls[f"torch {name}"] = partial(torch.linalg.vector_norm, ord=order, dim=-1)
    spent = timer.seconds(calls, tensors)
    copy_speed = 2 * x.nbytes / spent.pop("copy")
    case: dict[str, Any] = {"dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape)}
    case |= {"tensors": len(tensors), "copy_gb_per_second": round(copy_speed / 1e9, 2)}
    for name, seconds in spent.items():
        speed = x.nbytes / seconds
        case[name] = {"gb_per_second": round(speed / 1e9, 2), "copy_share": round(speed / copy_speed, 3)}
    return case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="*", default=SHAPES, metavar="ROWSxCOLUMNS")
    parser.add_argument("--bytes", type=int, help="of all inputs of a round; default: 2^30 on CUDA, 2^27 on the CPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=("transpose", "norms"), help="default: both")
    add_clock(parser)
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    device = torch.device(a.device)
    if a.clock == "cpu":
        if device.type != "cpu":
            parser.error("--clock cpu: only with --device cpu")
        torch.set_num_threads(1)
    size = a.bytes or (1 << 30 if device.type == "cuda" else 1 << 27)
    report: dict[str, Any] = {"environment": environment(device), "clock": a.clock, "rounds": a.rounds}
    report |= {"bytes_of_inputs": size, "bar_of_transposition_on_h200": BAR, "transpose": [], "row_norms": []}
    timer = Timer(device, a.rounds, a.clock)
    for text in a.shapes:
        down, _, across = text.partition("x")
        shape = (int(down), int(across))
        for dtype in INTEGERS.values() if a.only != "norms" else ():
            report["transpose"].append(transpositions(timer, several(shape, dtype, device, size)))
            print(report["transpose"][-1], flush=True)
        for dtype in FLOATS if a.only != "transpose" else ():
            report["row_norms"].append(norms(timer, several(shape, dtype, device, size)))
            print(report["row_norms"][-1], flush=True)
    write(a.out / f"matrix-{device.type}.json", report)


if __name__ == "__main__":
    main()
