"""The feature transformer's operators against F.embedding_bag, forward and backward, in one run on one machine.

    python benchmarks/feature_transformer_op.py --data FILE.binpack [--features HalfKAv2_hm K32Q2]

It makes two comparisons. The plain operator, for one perspective, is compared with one embedding_bag.
`perspective_transformer`, for both perspectives with the pairwise activation, is compared with two embedding_bags and
torch's functions ("pair"; for GPUs feature_transformer/run.py has more). The batch is the first shuffled batch of the
file, of each of the feature sets with king buckets, or random rows with similar statistics if no file is given. Times
per active feature compare sets.

embedding_bag gets the input that suits it best: packed int32 indices without padding, and offsets made in advance. Ours
reads the padded rows. In the first comparison only ours adds a bias and computes its gradient. All backward passes go
through autograd and give a dense gradient of the weight. On CUDA our backward is the deterministic one, which is the
default; the classic kernel with atomics has its own row. Times are medians. Memory is the peak during a call, beyond
what is allocated before it. Prints a table and writes JSON to benchmarks/results/.
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
from nnue_trainer.data import feature_set
from nnue_trainer.ops.perspectives import perspective_transformer
from report import RESULTS, environment, write

HALF_KA = "HalfKAv2_hm"
BUCKET = 768  # features of a king bucket
LAUNCH_CYCLES = 6_000_000  # about 3 ms, longer than a busy host needs for the launches of one call


def real_rows(path: str, features: str, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """White's index rows, black's index rows, and `black_to_move`."""
    from nnue_trainer.data import Loader

    # The loader shuffles, because neighbouring positions in a file are from one game.
    loader = Loader(path, features, batch, seed=1, repeat=True, threads=1)
    found = next(iter(loader))
    rows = found.white.clone(), found.black.clone(), found.black_to_move.clone()
    loader.close()
    return rows


def random_rows(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random rows like those of HalfKAv2_hm, in the form of `real_rows`: 7 to 32 active features, 19.5 on average, and
    a quarter of the rows in the most frequent king bucket."""
    g = torch.Generator().manual_seed(1)

    def one() -> Tensor:
        bucket = torch.multinomial(0.75 ** torch.arange(32.0), batch, replacement=True, generator=g)
        count = torch.randint(7, 33, (batch,), generator=g)
        inside = torch.rand(batch, BUCKET, generator=g).topk(32).indices
        rows = (bucket[:, None] * BUCKET + inside).int()
        return torch.where(torch.arange(32)[None] < count[:, None], rows, -1)

    return one(), one(), torch.randint(0, 2, (batch,), generator=g, dtype=torch.uint8)


def time_once(step: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call. On CUDA those of the device: it waits until the host has launched all kernels, so that
    a busy host does not slow them down."""
    if device.type == "cuda":
        begin, finish = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(LAUNCH_CYCLES)
        begin.record()
        step()
        finish.record()
        finish.synchronize()
        return begin.elapsed_time(finish)
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def median_ms(steps: dict[str, Callable[[], object]], device: torch.device, seconds: float) -> dict[str, float]:
    """The median milliseconds of each step. The steps take turns, so that other work on the machine slows all of them
    down alike."""
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
    """A figure of /proc/self/status in bytes; 0 if there is none."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The peak memory during a call, beyond what is allocated before it: of torch on CUDA, otherwise resident
    memory."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak (VmHWM)
    before = proc_status("VmRSS")
    step()
    return max(proc_status("VmHWM") - before, 0)


def packed(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The input of embedding_bag: the indices without padding, and the offset of each row."""
    alive = rows != -1
    return rows[alive], F.pad(alive.sum(1).cumsum(0)[:-1], (1, 0)).int()


class Table:
    """Times and peak memory of steps, each compared with embedding_bag's step of the same direction."""

    def __init__(
        self, features: str, outputs: int, dtype: torch.dtype, batch: int, device: torch.device, seconds: float
    ) -> None:
        self.dtype, self.device, self.seconds = str(dtype).removeprefix("torch."), device, seconds
        self.result: dict[str, object] = {"features": features, "outputs": outputs, "dtype": self.dtype, "batch": batch}

    def add(self, steps: dict[str, Callable[[], object]], active: int) -> None:
        """`active`: active features of all rows that a step reads."""
        times = median_ms(steps, self.device, self.seconds)
        for name, step in steps.items():
            direction = "forward" if "forward" in name else "backward"
            base = next(times[n] for n in times if "embedding_bag" in n and direction in n)
            peak = peak_bytes(step, self.device)
            each, ratio = times[name] * 1e9 / active, base / times[name]
            self.result[name] = {
                "ms": round(times[name], 4),
                "ratio": round(ratio, 2),
                "ps_per_active": round(each, 1),
                "peak_bytes": peak,
            }
            print(f"{self.dtype:>9} N {self.result['outputs']:5d}  {name:30s} {times[name]:9.3f} ms  {ratio:6.2f}x  "
                  f"{each:8.1f} ps per active feature  peak {peak / 2**20:7.1f} MiB")  # fmt: skip


def assert_close(expected: Tensor, found: Tensor) -> None:
    error = ((expected.float() - found.float()).abs().max() / expected.abs().max()).item()
    assert error < (1e-5 if expected.dtype == torch.float32 else 3e-2), error


def measure_plain(table: Table, rows: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> None:
    indices, offsets = packed(rows)

    def bag() -> Tensor:
        return F.embedding_bag(indices, weight, offsets, mode="sum")

    def ours(deterministic: bool | None = None) -> Tensor:
        return ops.feature_transformer_forward(rows, weight, torch.zeros_like(bias), deterministic=deterministic)

    assert_close(bag(), ours())
    steps: dict[str, Callable[[], object]] = {"embedding_bag forward": bag, "nnue forward": ours}
    bag_out, out = bag(), ops.feature_transformer_forward(rows, weight, bias)
    steps["embedding_bag backward"] = lambda: torch.autograd.grad(bag_out, weight, grad, retain_graph=True)
    steps["nnue backward"] = lambda: torch.autograd.grad(out, (weight, bias), grad, retain_graph=True)
    if table.device.type == "cuda":
        atomic_out = ops.feature_transformer_forward(rows, weight, bias, deterministic=False)
        steps["nnue backward, atomics"] = lambda: torch.autograd.grad(
            atomic_out, (weight, bias), grad, retain_graph=True
        )
    table.add(steps, int((rows != -1).sum()))
    if table.device.type == "cuda":
        before = ops.set_index_check("async")
        for mode in ("sync", "async", "off"):
            ops.set_index_check(mode)
            name = f"nnue forward, index check {mode}"
            table.result[name] = {"ms": round(median_ms({name: ours}, table.device, table.seconds / 2)[name], 4)}
        ops.set_index_check(before)


def measure_pair(table: Table, rows: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor, grad: Tensor) -> None:
    white, black, black_to_move = rows
    bags = [packed(white), packed(black)]
    black_first = black_to_move.bool()[:, None]

    def bag() -> Tensor:
        clipped = [
            (F.embedding_bag(indices, weight, offsets, mode="sum") + bias).clamp(0, 1).chunk(2, 1)
            for indices, offsets in bags
        ]
        own, other = (first * second for first, second in clipped)
        return torch.cat([torch.where(black_first, other, own), torch.where(black_first, own, other)], 1)

    def ours() -> Tensor:
        return perspective_transformer(white, black, black_to_move, weight, bias, bucket_size=BUCKET)

    assert_close(bag(), ours())
    bag_out, out = bag(), ours()
    table.add(
        {
            "embedding_bag pair forward": bag,
            "nnue pair forward": ours,
            "embedding_bag pair backward": lambda: torch.autograd.grad(
                bag_out, (weight, bias), grad, retain_graph=True
            ),
            "nnue pair backward": lambda: torch.autograd.grad(out, (weight, bias), grad, retain_graph=True),
        },
        int((white != -1).sum() + (black != -1).sum()),
    )


def measure(
    features: str,
    rows: tuple[Tensor, Tensor, Tensor],
    outputs: int,
    dtype: torch.dtype,
    device: torch.device,
    seconds: float,
) -> dict[str, object]:
    g = torch.Generator().manual_seed(2)
    weight = (
        (torch.randn(feature_set(features).num_features, outputs, generator=g) / 10).to(device, dtype).requires_grad_()
    )
    bias = (torch.rand(outputs, generator=g) / 2).to(device, dtype).requires_grad_()
    white, black, black_to_move = (t.to(device) for t in rows)
    grad = torch.randn(len(white), outputs, generator=g).to(device, dtype)
    table = Table(features, outputs, dtype, len(white), device, seconds)
    measure_plain(table, white, weight, bias, grad)
    measure_pair(table, (white, black, black_to_move), weight, bias, grad)
    return table.result


def main() -> None:
    parser = argparse.ArgumentParser(description="The feature transformer's operators against F.embedding_bag")
    parser.add_argument("--data", help="a binpack file; random rows without one")
    parser.add_argument("--features", nargs="+", default=[HALF_KA], help="feature sets with 768 features per bucket")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--outputs", type=int, nargs="+", default=[1024])
    parser.add_argument("--dtype", nargs="+", default=["float32"], choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each row of the table is timed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    if any(feature_set(name).parts[0].bucket_size != BUCKET or "+" in name for name in args.features):
        parser.error(f"--features: expected sets with {BUCKET} features per king bucket")
    if args.data is None and args.features != [HALF_KA]:
        parser.error(f"--features: random rows are those of {HALF_KA}; pass --data")
    report: dict[str, object] = {
        "benchmark": "feature_transformer_op",
        **environment(device),
        "positions": "random, statistics of HalfKAv2_hm" if args.data is None else Path(args.data).name,
    }
    print(f"{report['device']}, torch {torch.__version__}, {report['positions']}")
    results = []
    for name in args.features:
        rows = random_rows(args.batch) if args.data is None else real_rows(args.data, name, args.batch)
        active = (rows[0] != -1).sum(1).float().mean().item()
        print(f"{name}: {active:.1f} active features")
        results += [
            measure(name, rows, outputs, getattr(torch, dtype), device, args.seconds)
            | {"mean_active": round(active, 2)}
            for outputs in args.outputs
            for dtype in args.dtype
        ]
    report["results"] = results
    write(args.out / f"feature_transformer_op-{device.type}.json", report)


if __name__ == "__main__":
    main()
