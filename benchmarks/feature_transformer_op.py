"""The plain feature transformer op against F.embedding_bag, forward and backward, on one machine in one run.

    python benchmarks/feature_transformer_op.py --data FILE.binpack

The batch is white's index rows of the first positions of a shuffled file (HalfKAv2_hm), or random rows with their
statistics where no file is given. embedding_bag gets what suits it best: packed int32 indices with offsets made ahead
of time, no padding, and no bias; ours reads the padded rows and adds the bias. Both backward passes go through autograd
and give a dense weight gradient, ours the bias gradient too. Times are medians; memory is the peak over what the inputs
and outputs of the step before hold. On CUDA our backward is the deterministic one, the default, and below it the
classic kernel with atomics. Prints a table and writes JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from nnue_trainer import ops
from report import RESULTS, environment, write

FEATURES = 24_576  # HalfKAv2_hm, 12 planes


def real_rows(path: str, batch: int) -> Tensor:
    from nnue_trainer.data import Loader

    # A shuffle buffer of the whole file at most: neighbours in a file are of one game.
    loader = Loader(path, "HalfKAv2_hm", batch, seed=1, repeat=True, threads=1)
    rows = next(iter(loader)).white.clone()
    loader.close()
    return rows


def random_rows(batch: int) -> Tensor:
    """Counts and concentration of HalfKAv2_hm: 7 to 32 active, mean 19.5; the busiest king bucket holds a quarter."""
    g = torch.Generator().manual_seed(1)
    bucket = torch.multinomial(0.75 ** torch.arange(32.0), batch, replacement=True, generator=g)
    count = torch.randint(7, 33, (batch,), generator=g)
    inside = torch.rand(batch, 768, generator=g).topk(32).indices
    rows = (bucket[:, None] * 768 + inside).int()
    return torch.where(torch.arange(32)[None] < count[:, None], rows, -1)


def time_once(step: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call."""
    if device.type == "cuda":
        begin, finish = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        finish.record()
        finish.synchronize()
        return begin.elapsed_time(finish)
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def median_ms(steps: dict[str, Callable[[], object]], device: torch.device, seconds: float) -> dict[str, float]:
    """Medians of each step, taken in turns: what else the machine does meets all of them alike."""
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds * len(steps)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, step in steps.items():
            times[name].append(time_once(step, device))
    return {name: statistics.median(values) for name, values in times.items()}


def proc_status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = proc_status("VmRSS")
    step()
    return max(proc_status("VmHWM") - before, 0)


def measure(rows: Tensor, outputs: int, dtype: torch.dtype, device: torch.device, seconds: float) -> dict[str, object]:
    g = torch.Generator().manual_seed(2)
    weight = (torch.randn(FEATURES, outputs, generator=g) / 100).to(device, dtype).requires_grad_()
    bias = torch.zeros(outputs, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(len(rows), outputs, generator=g).to(device, dtype)
    rows = rows.to(device)
    alive = rows != -1
    packed, lengths = rows[alive], alive.sum(1)
    offsets = F.pad(lengths.cumsum(0)[:-1], (1, 0)).int()

    def bag() -> Tensor:
        return F.embedding_bag(packed, weight, offsets, mode="sum")

    def ours(deterministic: bool | None = None) -> Tensor:
        return ops.feature_transformer_forward(rows, weight, bias, deterministic=deterministic)

    scale = bag().abs().max()
    assert ((bag() - ours()).abs().max() / scale).item() < (1e-5 if dtype == torch.float32 else 2e-2)
    steps: dict[str, Callable[[], object]] = {"embedding_bag forward": bag, "nnue forward": ours}
    bag_out, out, atomic_out = bag(), ours(), ours(deterministic=False)
    steps["embedding_bag backward"] = lambda: torch.autograd.grad(bag_out, weight, grad, retain_graph=True)
    steps["nnue backward"] = lambda: torch.autograd.grad(out, (weight, bias), grad, retain_graph=True)
    if device.type == "cuda":
        steps["nnue backward, atomics"] = lambda: torch.autograd.grad(
            atomic_out, (weight, bias), grad, retain_graph=True
        )
    result: dict[str, object] = {"outputs": outputs, "dtype": str(dtype).removeprefix("torch."), "batch": len(rows)}
    times = median_ms(steps, device, seconds)
    for name, step in steps.items():
        base = times["embedding_bag " + ("forward" if "forward" in name else "backward")]
        peak = peak_bytes(step, device)
        result[name] = {"ms": round(times[name], 4), "ratio": round(base / times[name], 2), "peak_bytes": peak}
        print(f"{result['dtype']:>9} N {outputs:5d}  {name:30s} {times[name]:9.3f} ms  "
              f"{base / times[name]:6.2f}x  peak {peak / 2**20:7.1f} MiB")  # fmt: skip
    if device.type == "cuda":
        before = ops.set_index_check("async")
        for mode in ("sync", "async", "off"):
            ops.set_index_check(mode)
            name = f"nnue forward, index check {mode}"
            result[name] = {"ms": round(median_ms({name: ours}, device, seconds / 2)[name], 4)}
        ops.set_index_check(before)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="The feature transformer op against F.embedding_bag")
    parser.add_argument("--data", help="a binpack file; random rows without one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--outputs", type=int, nargs="+", default=[1024])
    parser.add_argument("--dtype", nargs="+", default=["float32"], choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each row of the table")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    rows = random_rows(args.batch) if args.data is None else real_rows(args.data, args.batch)
    active = (rows != -1).sum(1).float().mean().item()
    report: dict[str, object] = {
        "benchmark": "feature_transformer_op",
        **environment(device),
        "positions": "random, statistics of HalfKAv2_hm" if args.data is None else Path(args.data).name,
        "mean_active": round(active, 2),
    }
    print(f"{report['device']}, torch {torch.__version__}, {report['positions']}, {active:.1f} active features")
    report["results"] = [
        measure(rows, outputs, getattr(torch, dtype), device, args.seconds)
        for outputs in args.outputs
        for dtype in args.dtype
    ]
    write(args.out / f"feature_transformer_op-{device.type}.json", report)


if __name__ == "__main__":
    main()
