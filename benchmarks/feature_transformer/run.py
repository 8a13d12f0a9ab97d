"""The feature transformer on a GPU: the fused operator for both perspectives against simpler ways, in one run.

    python benchmarks/feature_transformer/run.py [--data FILE.binpack] [--cases buckets:1024:16384] [--rungs]

The input is both perspectives of B shuffled positions of the file, or random rows with similar statistics if no file is
given. The feature sets are HalfKAv2_hm ("buckets"), the full input of SFNNv16 with threats and pawn pairs ("full") and
Chess768 ("chess768", without king buckets). The activation is pairwise. The rows of the table are:

- "fused": `perspectives.perspective_transformer` with the fastest kernels for the device;
- "portable": the same with the kernels that run on every supported GPU;
- "embedding_bag": `F.embedding_bag` with torch's activation;
- "plain": the plain operator with torch's activation, with the classic atomics or the deterministic backward;
- "rung": the simpler kernels of ladder.cu, only in fp32, without the activation; the first one is the plain pair;
- "floor": the time that the operator's inputs and outputs, each moved once, take at the copy bandwidth of this run.

A "step" is forward and backward, and includes the plan where there is one. Times are medians of the device's time:
before each timed call the L2 cache is overwritten, and the device is kept busy until the host has queued the call.
Prints a table, and writes JSON, a plot (PNG) and one of the rungs to benchmarks/results/. --rungs measures and draws
only the rungs and embedding_bag.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nnue_trainer import ops
from nnue_trainer.ops.capabilities import CudaKernels
from nnue_trainer.ops.perspectives import (
    PerspectivePlan,
    is_fused,
    perspective_plan,
    perspective_transformer,
    set_cuda_kernels,
)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import report  # noqa: E402 (a neighbour of this folder)

BUCKET, BUCKETED = 768, 24_576  # HalfKAv2_hm: features of a king bucket, and of all; later features have no bucket
FEATURES = {"HalfKAv2_hm": BUCKETED, "HalfKAv2_hm+Full_Threats_v16+PP_3Wide": 88_944, "Chess768": 768}
KING_BUCKETS, FULL, CHESS768 = FEATURES
SHORT = {"buckets": KING_BUCKETS, "full": FULL, "chess768": CHESS768}
CASES = [
    (name, n, batch)
    for batch in (16_384, 65_536)
    for name in FEATURES
    for n in ((512, 1024) if name == CHESS768 else (256, 512, 1024, 3072))
]
CHUNK = 768  # rows in a tile of the fifth backward rung
FORWARD_RUNGS = ((1, "plain pair"), (2, "scalar"), (3, "vector"), (4, "column slabs"))
BACKWARD_RUNGS = (
    *((1, "plain pair"), (2, "scalar"), (3, "vector"), (4, "bulk reduce"), (5, "shared-memory segments")),
    (6, "transposed lists"),
)


def real_rows(path: str, name: str, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """White's and black's index rows and `black_to_move` of shuffled positions of a file."""
    from nnue_trainer.data import Loader

    loader = Loader(path, name, batch, seed=1, repeat=True, threads=4)
    found = next(iter(loader))
    rows = found.white.clone(), found.black.clone(), found.black_to_move.clone()
    loader.close()
    return rows


def random_rows(name: str, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random rows with the statistics of real positions, in the form of `real_rows`. HalfKAv2_hm: 7 to 32 active
    features, 19.5 on average; the most frequent king bucket has a quarter of the rows. Chess768: the same with one
    bucket. Full input: also 10 to 54 features without king buckets, 32 on average; the 768 most frequent ones make up
    three quarters of their entries."""
    g = torch.Generator().manual_seed(1)

    def one() -> Tensor:
        buckets = 1 if name == CHESS768 else 32
        bucket = torch.multinomial(0.75 ** torch.arange(float(buckets)), batch, replacement=True, generator=g)
        count = torch.randint(7, 33, (batch,), generator=g)
        inside = torch.rand(batch, BUCKET, generator=g).topk(32).indices
        rows = (bucket[:, None] * BUCKET + inside).int()
        rows = torch.where(torch.arange(32)[None] < count[:, None], rows, -1)
        if name != FULL:
            return rows
        unbucketed = FEATURES[name] - BUCKETED
        frequency = 1 / (torch.arange(1.0, unbucketed + 1) + 30) ** 1.42
        order = torch.randperm(unbucketed, generator=g)
        picks = order[torch.multinomial(frequency, batch * 54, replacement=True, generator=g)].view(batch, 54)
        picks = picks.sort(1).values
        picks[:, 1:][picks[:, 1:] == picks[:, :-1]] = -1
        picks[torch.arange(54)[None] >= torch.randint(10, 55, (batch, 1), generator=g)] = -1
        picks = torch.where(picks >= 0, picks + BUCKETED, -1)
        rows = torch.nn.functional.pad(torch.cat([rows, picks.int()], 1), (0, 288 - 86), value=-1)
        return rows.gather(1, (rows < 0).byte().argsort(dim=1, stable=True))

    return one(), one(), torch.randint(0, 2, (batch,), generator=g, dtype=torch.uint8)


def buckets_of(name: str) -> tuple[int | None, int | None]:
    """The arguments bucket_size and num_bucketed for a feature set."""
    return (None, None) if name == CHESS768 else (BUCKET, BUCKETED)


class Timer:
    """Measures the device's time of a call, with a cold L2 cache."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")

    def __call__(self, step: Callable[[], object]) -> float:
        """The median milliseconds of `repeats` calls. It stops early, after at least five, when the calls together have
        taken 0.1 s."""
        times: list[float] = []
        for _ in range(3):
            step()
        for _ in range(self.repeats):
            self.flush.zero_()
            torch.cuda._sleep(4_000_000)  # about 2 ms, during which the host queues the whole step
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            step()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
            if len(times) >= 5 and sum(times) > 100:
                break
        return statistics.median(times)

    def copy_bandwidth(self) -> float:
        """The bytes that a large copy reads and writes per second."""
        half = len(self.flush) // 2
        ms = self(lambda: self.flush[:half].copy_(self.flush[half:]))
        return 2 * half / ms * 1e3


def build_ladder(folder: str) -> ctypes.CDLL | None:
    """Compiles ladder.cu for this GPU and loads it; None if that fails."""
    library = Path(folder) / "ladder.so"
    command = ["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden", "-cudart", "static"]
    try:
        capability = "".join(map(str, torch.cuda.get_device_capability()))
        subprocess.run([*command, f"-arch=sm_{capability}", str(HERE / "ladder.cu"), "-o", str(library)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no rungs of ladder.cu: {error}", file=sys.stderr)
        return None
    return ctypes.CDLL(str(library))


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def segments(feature: Tensor, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Cuts a sorted vector into segments of equal numbers with at most `most` elements each. Returns the number of each
    segment, and the index where each begins, with the length of the vector behind them."""
    first = torch.ones_like(feature, dtype=torch.bool)
    first[1:] = feature[1:] != feature[:-1]
    if most is not None:
        place = torch.arange(len(feature), device=feature.device)
        start = torch.where(first, place, 0).cummax(0).values
        first |= (place - start) % most == 0
    begin = first.nonzero().flatten()
    return feature[begin], F.pad(begin, (0, 1), value=len(feature)).int()


def rungs(
    ladder: ctypes.CDLL, timer: Timer, features: int, white: Tensor, black: Tensor, outputs: int
) -> dict[str, dict[str, float]]:
    """The times of the kernels of ladder.cu. Their results are compared with those of the first rungs."""
    rows = torch.cat([white, black])
    order = rows[:, 0].div(BUCKET, rounding_mode="floor").argsort(stable=True).int()
    weight, bias = torch.randn(features, outputs, device="cuda"), torch.randn(outputs, device="cuda")
    out, grad_weight = torch.empty(len(rows), outputs, device="cuda"), torch.empty_like(weight)
    values, grad_bias = torch.ones_like(rows, dtype=torch.float32), torch.empty_like(bias)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    found: dict[str, dict[str, float]] = {}

    # The lists that the last two backward rungs read; the time to make them is not measured.
    place_of = torch.empty_like(order)
    place_of[order.long()] = torch.arange(len(rows), dtype=torch.int32, device="cuda")
    row, column = (rows >= 0).nonzero().unbind(1)
    feature = rows[row, column].long()
    chunk = place_of[row].long() // CHUNK
    by_chunk = (chunk * features + feature).argsort(stable=True)
    keys, chunk_begins = segments((chunk * features + feature)[by_chunk])
    counts = torch.bincount(keys // features, minlength=-(-len(rows) // CHUNK))
    chunk_segments = F.pad(counts.cumsum(0), (1, 0)).int()
    by_feature = feature.argsort(stable=True)
    piece_features, piece_begins = segments(feature[by_feature], 64)
    lists = {
        5: ((keys % features).int(), chunk_begins, (place_of[row] % CHUNK)[by_chunk]),
        6: (piece_features.int(), piece_begins, row[by_feature].int()),
    }

    def forward(rung: int) -> None:
        arguments = map(pointer, (rows, values, order, weight, bias, out))
        assert ladder.forward(rung, *arguments, len(rows), rows.shape[1], outputs, stream) == 0

    def backward(rung: int) -> None:
        if rung in lists:
            arguments = (pointer(order), pointer(chunk_segments), *map(pointer, lists[rung]), len(lists[rung][0]))
            result = ladder.backward_by_lists(
                rung, *arguments, pointer(out), pointer(grad_weight), len(rows), features, outputs, stream
            )
        else:
            pointers = map(pointer, (rows, values, out, grad_weight, grad_bias))
            result = ladder.backward(rung, *pointers, len(rows), features, rows.shape[1], outputs, stream)
        assert result == 0, f"rung {rung}: CUDA error {result}"

    expected: dict[str, Tensor] = {}

    def check(name: str, direction: str, result: Tensor) -> None:
        first = expected.setdefault(direction, result.clone())
        assert ((result - first).norm() / first.norm()).item() < 1e-5, f"rung {name}, {direction}, is wrong"

    for rung, name in FORWARD_RUNGS:
        forward(rung)
        check(name, "forward", out)
        found[f"rung: {name}"] = {"forward": timer(lambda rung=rung: forward(rung))}  # type: ignore[misc]
    for rung, name in BACKWARD_RUNGS:
        backward(rung)
        check(name, "backward", grad_weight)
        found.setdefault(f"rung: {name}", {})["backward"] = timer(lambda rung=rung: backward(rung))  # type: ignore[misc]
    indices, offsets = pack(rows)
    weight.requires_grad_()

    def bag() -> Tensor:
        return F.embedding_bag(indices, weight, offsets, mode="sum") + bias

    sums = bag()
    backwards = functools.partial(torch.autograd.grad, sums, weight, out, retain_graph=True)
    found["embedding_bag alone"] = {"forward": timer(bag), "backward": timer(backwards)}
    return found


def parameters(features: int, outputs: int, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, bias and a gradient of the output: random, but the same in each call."""
    g = torch.Generator("cuda").manual_seed(2)
    weight = (torch.randn(features, outputs, generator=g, device="cuda") * 0.1).to(dtype).requires_grad_()
    bias = (torch.rand(outputs, generator=g, device="cuda") * 0.5).requires_grad_()
    return weight, bias, (torch.randn(batch, outputs, generator=g, device="cuda") * 1e-4).to(dtype)


def pack(indices: Tensor) -> tuple[Tensor, Tensor]:
    """The input of embedding_bag: the indices of all rows without padding, and the offset of each row."""
    alive = indices != -1
    return indices[alive], F.pad(alive.sum(1).cumsum(0)[:-1], (1, 0)).int()


def activated(accumulators: list[Tensor], black_first: Tensor) -> Tensor:
    """The pairwise activation of white's and black's accumulators [B, N], side to move first, in torch's operators."""
    clipped = [a.clamp(0, 1).chunk(2, 1) for a in accumulators]
    own, other = (c[0] * c[1] for c in clipped)
    return torch.cat([torch.where(black_first, other, own), torch.where(black_first, own, other)], 1)


def bags(packed: list[tuple[Tensor, Tensor]], black_first: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The output of the fused operator, computed by embedding_bag and torch's operators; differentiable."""
    return activated([F.embedding_bag(p, weight, o, mode="sum") + bias for p, o in packed], black_first)


def measure(
    timer: Timer, bandwidth: float, name: str, rows: tuple[Tensor, Tensor, Tensor], outputs: int, dtype: torch.dtype
) -> dict[str, Any]:
    """The milliseconds of plan, forward, backward and step of each way, for one case. The output of the fused operator
    is compared with that of embedding_bag."""
    features = FEATURES[name]
    white, black, black_to_move = (t.cuda() for t in rows)
    weight, bias, grad = parameters(features, outputs, len(white), dtype)
    buckets = buckets_of(name)
    assert is_fused(weight, *buckets), "no fused kernels for this device"
    packed = [pack(i) for i in (white, black)]
    black_first = black_to_move.bool()[:, None]

    def bag() -> Tensor:
        return bags(packed, black_first, weight, bias)

    def plain(deterministic: bool) -> Tensor:
        accumulators = [
            ops.feature_transformer_forward(i, weight, bias.to(dtype), deterministic=deterministic)
            for i in (white, black)
        ]
        return activated(accumulators, black_first)

    def fused(prepared: PerspectivePlan | None = None) -> Tensor:
        return perspective_transformer(
            white, black, black_to_move, weight, bias, bucket_size=buckets[0], num_bucketed=buckets[1], plan=prepared
        )  # fmt: skip

    make_plan = functools.partial(perspective_plan, white, black, black_to_move, features, *buckets, dtype)
    kernels: dict[str, CudaKernels] = {"fused": "auto", "portable": "portable"}
    plans = {}
    for row, choice in kernels.items():
        set_cuda_kernels(choice)
        plans[row] = make_plan()
    result: dict[str, Any] = {
        "features": name,
        "outputs": outputs,
        "batch": len(white),
        "dtype": str(dtype).removeprefix("torch."),
    }
    size = weight.element_size()
    values = len(white) * outputs
    indices = 4 * sum(len(p) for p, _ in packed)
    floor = {
        "forward": (weight.numel() * size + values * size + indices) / bandwidth * 1e3,
        "backward": (weight.numel() * size + values * size + indices) / bandwidth * 1e3,
    }
    forwards: dict[str, Callable[[], Tensor]] = {
        "embedding_bag": bag,
        "plain, classic atomics": lambda: plain(False),
        "plain, deterministic": lambda: plain(True),
        "fused": lambda: fused(plans["fused"]),
        "portable": lambda: fused(plans["portable"]),
    }
    for name, forward in forwards.items():
        set_cuda_kernels(kernels.get(name, "auto"))
        out = forward()
        times = {
            "forward": timer(forward),
            "backward": timer(lambda out=out: torch.autograd.grad(out, (weight, bias), grad, retain_graph=True)),  # type: ignore[misc]
        }
        if name in kernels:
            times["plan"] = timer(make_plan)
            times["step"] = timer(lambda: torch.autograd.grad(fused(), (weight, bias), grad))
        else:
            times["step"] = timer(lambda forward=forward: torch.autograd.grad(forward(), (weight, bias), grad))  # type: ignore[misc]
        result[name] = times
    set_cuda_kernels("auto")
    result["floor"] = {**floor, "step": sum(floor.values())}
    expected = bag().float()
    for row, plan in plans.items():
        error = ((expected - fused(plan).float()).abs().max() / expected.abs().max()).item()
        assert error < (1e-5 if dtype == torch.float32 else 3e-2), f"{row}: {error}"
    return result


def table(results: list[dict[str, Any]]) -> None:
    print(
        f"\n{'':38s}{'plan':>8s} {'forward':>8s} {'backward':>8s} {'step':>8s} "
        f"{'GB/s':>7s} {'of floor':>9s} {'vs bag':>7s}"
    )
    for result in results:
        print(f"{result['features']}, N {result['outputs']}, B {result['batch']}, {result['dtype']}")
        floor, bag = result["floor"]["step"], result["embedding_bag"]["step"]
        for name, times in result.items():
            if not isinstance(times, dict):
                continue
            cells = [f"{times[k]:8.3f}" if k in times else " " * 8 for k in ("plan", "forward", "backward", "step")]
            if "step" in times and name != "floor":
                rate = floor / times["step"] * result["copy_gb_per_s"]
                cells += [f"{rate:7.0f}", f"{times['step'] / floor:8.1f}x", f"{bag / times['step']:6.1f}x"]
            print(f"    {name:34s}" + " ".join(cells))


def plot(results: list[dict[str, Any]], path: Path, device: str) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = ["embedding_bag", "plain, classic atomics", "plain, deterministic", "portable", "fused", "floor"]
    figure, axes = pyplot.subplots(figsize=(max(8, 0.75 * len(results)), 6))
    for i, name in enumerate(names):
        axes.bar(
            [x + (i - 2.5) * 0.14 for x in range(len(results))], [r[name]["step"] for r in results], 0.14, label=name
        )
    short = {name: kind for kind, name in SHORT.items()}
    labels = [f"{short[r['features']]}\nN {r['outputs']}\nB {r['batch']}\n{r['dtype']}" for r in results]
    axes.set_xticks(range(len(results)), labels, fontsize=7)
    axes.set_yscale("log")
    axes.set_ylabel("forward + backward, ms")
    axes.set_title(f"Feature transformer, both perspectives, pairwise: {device}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def plot_rungs(results: list[dict[str, Any]], path: Path, device: str) -> None:
    """The rungs of the first case that has them, numbered, forward and backward."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    case = next((r for r in results if f"rung: {FORWARD_RUNGS[0][1]}" in r), None)
    if case is None:
        return
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 3.6))
    for axis, direction, of in zip(axes, ("forward", "backward"), (FORWARD_RUNGS, BACKWARD_RUNGS), strict=True):
        bars = {f"{number} {name}": case[f"rung: {name}"][direction] for number, name in of}
        bars |= {name: case[name][direction] for name in ("fused", "embedding_bag alone") if name in case}
        names = list(bars)[::-1]
        drawn = axis.barh(names, [bars[name] for name in names])
        axis.bar_label(drawn, [f"{bars[name]:.3g}" for name in names], padding=2)
        axis.set(xscale="log", xlabel="ms", title=f"feature transformer, {direction}")
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
        axis.margins(x=0.2)
    figure.suptitle(f"{device}: {case['features']}, N {case['outputs']}, B {case['batch']}, fp32")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def parse_case(text: str) -> tuple[str, int, int]:
    kind, outputs, batch = text.split(":")
    return SHORT[kind], int(outputs), int(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description="The feature transformer on a GPU")
    parser.add_argument("--data", help="a binpack file; random rows without one")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder for the JSON and the plot")
    parser.add_argument("--cases", nargs="+", metavar="SET:N:B", help="for example buckets:1024:16384 full:1024:16384")
    parser.add_argument("--rungs", action="store_true", help="only the rungs of ladder.cu, and embedding_bag")
    args = parser.parse_args()
    if not args.rungs:
        ops.set_index_check("off")  # only the kernels are timed; training checks index rows where they are made
    cases = [parse_case(c) for c in args.cases] if args.cases else CASES
    record = {
        "benchmark": "feature_transformer",
        **report.environment("cuda"),
        "data": Path(args.data).name if args.data else "random",
    }
    timer = Timer(args.repeats)
    bandwidth = timer.copy_bandwidth()
    record["copy_gb_per_s"] = round(bandwidth / 1e9)
    print(f"copy {record['copy_gb_per_s']} GB/s")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        ladder = build_ladder(folder)
        for name, outputs, batch in cases:
            rows = real_rows(args.data, name, batch) if args.data else random_rows(name, batch)
            for dtype in (torch.float32, torch.bfloat16):
                result: dict[str, Any] = {"features": name, "outputs": outputs, "batch": batch, "dtype": str(dtype)[6:]}
                if not args.rungs:
                    result = measure(timer, bandwidth, name, rows, outputs, dtype)
                    result["copy_gb_per_s"] = bandwidth / 1e9
                if ladder is not None and dtype == torch.float32 and outputs % 128 == 0:
                    result |= rungs(ladder, timer, FEATURES[name], rows[0].cuda(), rows[1].cuda(), outputs)
                results.append(result)
                shown = f"{result['fused']['step']:.3f} ms" if "fused" in result else result
                print(f"{name}, N {outputs}, B {batch}, {result['dtype']}: {shown}", flush=True)
    plot_rungs(results, args.out / "ladder-feature_transformer-cuda.png", record["device"])
    if args.rungs:
        report.write(args.out / "ladder-feature_transformer-cuda.json", record | {"results": results})
        return
    table(results)
    report.write(args.out / "feature_transformer-cuda.json", record | {"results": results})
    plot(results, args.out / "feature_transformer-cuda.png", record["device"])


if __name__ == "__main__":
    main()
