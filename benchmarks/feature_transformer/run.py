"""The feature transformer on a GPU: the fused operator for both perspectives against everything below it, in one run.

    python benchmarks/feature_transformer/run.py --data FILE.binpack

Both perspectives of B positions (HalfKAv2_hm; shuffled positions of the file, or random rows with their statistics
without one) through `perspectives.perspective_transformer`, pairwise activation, against `F.embedding_bag` with torch's
activation, the plain operator with the classic atomics and with its deterministic backward, and the bare rungs of
ladder.cu (fp32; they leave the activation out). Building the rows' groups and bitmaps is part of "step". The L2 cache
is overwritten before each timed call, and the device kept busy until the host has queued the call, so that times
(medians) are the device's. "floor" is the time that the bytes of the operator's inputs and outputs, each moved once,
take at the copy bandwidth measured here. Prints a table, and writes JSON and a plot (PNG) to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import ctypes
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
from nnue_trainer.perspectives import is_fused, perspective_rows, perspective_transformer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import report  # noqa: E402 (a neighbour of this folder)

FEATURES, BLOCK = 24_576, 768  # HalfKAv2_hm, 12 planes
CASES = ((256, 16_384), (512, 16_384), (1024, 16_384), (3072, 16_384), (1024, 65_536))


def real_rows(path: str, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    from nnue_trainer.data import Loader

    loader = Loader(path, "HalfKAv2_hm", batch, seed=1, repeat=True, threads=1)
    found = next(iter(loader))
    rows = found.white.clone(), found.black.clone(), found.black_to_move.clone()
    loader.close()
    return rows


def random_rows(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Counts and concentration of HalfKAv2_hm: 7 to 32 active, mean 19.5; the busiest king bucket holds a quarter."""
    g = torch.Generator().manual_seed(1)

    def one() -> Tensor:
        bucket = torch.multinomial(0.75 ** torch.arange(32.0), batch, replacement=True, generator=g)
        count = torch.randint(7, 33, (batch,), generator=g)
        inside = torch.rand(batch, BLOCK, generator=g).topk(32).indices
        rows = (bucket[:, None] * BLOCK + inside).int()
        return torch.where(torch.arange(32)[None] < count[:, None], rows, -1)

    return one(), one(), torch.randint(0, 2, (batch,), generator=g, dtype=torch.uint8)


class Timer:
    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")

    def __call__(self, step: Callable[[], object]) -> float:
        """Median milliseconds, caches cold."""
        times = []
        for _ in range(3):
            step()
        for _ in range(self.repeats):
            self.flush.zero_()
            torch.cuda._sleep(4_000_000)  # about 2 ms: the host queues the whole step meanwhile
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            step()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return statistics.median(times)

    def copy_bandwidth(self) -> float:
        """Bytes read and written per second by a large copy."""
        half = len(self.flush) // 2
        ms = self(lambda: self.flush[:half].copy_(self.flush[half:]))
        return 2 * half / ms * 1e3


def build_ladder(folder: str) -> ctypes.CDLL | None:
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


def rungs(ladder: ctypes.CDLL, timer: Timer, white: Tensor, black: Tensor, outputs: int) -> dict[str, dict[str, float]]:
    rows = torch.cat([white, black])
    order = rows[:, 0].div(BLOCK, rounding_mode="floor").argsort(stable=True).int()
    weight, bias = torch.randn(FEATURES, outputs, device="cuda"), torch.randn(outputs, device="cuda")
    out, grad_weight = torch.empty(len(rows), outputs, device="cuda"), torch.empty_like(weight)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    found: dict[str, dict[str, float]] = {}

    def forward(rung: int) -> None:
        arguments = (pointer(rows), pointer(order), pointer(weight), pointer(bias), pointer(out))
        assert ladder.forward(rung, *arguments, len(rows), rows.shape[1], outputs, stream) == 0

    def backward(rung: int) -> None:
        arguments = (pointer(rows), pointer(out), pointer(grad_weight), len(rows), FEATURES, rows.shape[1], outputs)
        assert ladder.backward(rung, *arguments, stream) == 0

    for rung, name in ((1, "scalar"), (2, "vector"), (3, "column slabs")):
        found[f"rung: {name}"] = {"forward": timer(lambda rung=rung: forward(rung))}  # type: ignore[misc]
    for rung, name in ((1, "scalar"), (2, "vector")):
        found[f"rung: {name}"]["backward"] = timer(lambda rung=rung: backward(rung))  # type: ignore[misc]
    return found


def measure(
    timer: Timer, bandwidth: float, rows: tuple[Tensor, Tensor, Tensor], outputs: int, dtype: torch.dtype
) -> dict[str, Any]:
    white, black, black_to_move = (t.cuda() for t in rows)
    g = torch.Generator("cuda").manual_seed(2)
    weight = (torch.randn(FEATURES, outputs, generator=g, device="cuda") * 0.1).to(dtype).requires_grad_()
    bias = (torch.rand(outputs, generator=g, device="cuda") * 0.5).requires_grad_()
    grad = (torch.randn(len(white), outputs, generator=g, device="cuda") * 1e-4).to(dtype)
    assert is_fused(weight, BLOCK), "no fused kernels for this device"
    alive = [(i != -1) for i in (white, black)]
    packed = [i[a] for i, a in zip((white, black), alive, strict=True)]
    offsets = [F.pad(a.sum(1).cumsum(0)[:-1], (1, 0)).int() for a in alive]
    black_first = black_to_move.bool()[:, None]

    def activated(accumulators: list[Tensor]) -> Tensor:
        clipped = [a.clamp(0, 1).chunk(2, 1) for a in accumulators]
        own, other = (c[0] * c[1] for c in clipped)
        return torch.cat([torch.where(black_first, other, own), torch.where(black_first, own, other)], 1)

    def bag() -> Tensor:
        return activated(
            [F.embedding_bag(p, weight, o, mode="sum") + bias for p, o in zip(packed, offsets, strict=True)]
        )

    def plain(deterministic: bool) -> Tensor:
        return activated(
            [
                ops.feature_transformer_forward(i, weight, bias.to(dtype), deterministic=deterministic)
                for i in (white, black)
            ]
        )

    def fused(prepared: Tensor | None = None) -> Tensor:
        return perspective_transformer(
            white, black, black_to_move, weight, bias, block_size=BLOCK, rows=prepared
        )  # fmt: skip

    prepared = perspective_rows(white, black, black_to_move, FEATURES, BLOCK)
    result: dict[str, Any] = {"outputs": outputs, "batch": len(white), "dtype": str(dtype).removeprefix("torch.")}
    size = weight.element_size()
    values = len(white) * outputs
    indices = 2 * white.numel() * 4
    floor = {
        "forward": (weight.numel() * size + values * size + indices) / bandwidth * 1e3,
        "backward": (weight.numel() * size + values * size + indices) / bandwidth * 1e3,
    }
    forwards: dict[str, Callable[[], Tensor]] = {
        "embedding_bag": bag,
        "plain, classic atomics": lambda: plain(False),
        "plain, deterministic": lambda: plain(True),
        "fused": lambda: fused(prepared),
    }
    for name, forward in forwards.items():
        out = forward()
        times = {
            "forward": timer(forward),
            "backward": timer(lambda out=out: torch.autograd.grad(out, (weight, bias), grad, retain_graph=True)),  # type: ignore[misc]
        }
        if name == "fused":
            times["lists"] = timer(lambda: perspective_rows(white, black, black_to_move, FEATURES, BLOCK))
            times["step"] = timer(lambda: torch.autograd.grad(fused(), (weight, bias), grad))
        else:
            times["step"] = timer(lambda forward=forward: torch.autograd.grad(forward(), (weight, bias), grad))  # type: ignore[misc]
        result[name] = times
    result["floor"] = {**floor, "step": sum(floor.values())}
    scale = bag().float().abs().max()
    assert ((bag().float() - fused().float()).abs().max() / scale).item() < (1e-5 if dtype == torch.float32 else 3e-2)
    return result


def table(results: list[dict[str, Any]]) -> None:
    print(
        f"\n{'':38s}{'lists':>8s} {'forward':>8s} {'backward':>8s} {'step':>8s} "
        f"{'GB/s':>7s} {'of floor':>9s} {'vs bag':>7s}"
    )
    for result in results:
        print(f"N {result['outputs']}, B {result['batch']}, {result['dtype']}")
        floor, bag = result["floor"]["step"], result["embedding_bag"]["step"]
        for name, times in result.items():
            if not isinstance(times, dict):
                continue
            cells = [f"{times[k]:8.3f}" if k in times else " " * 8 for k in ("lists", "forward", "backward", "step")]
            if "step" in times and name != "floor":
                rate = floor / times["step"] * result["copy_gb_per_s"]
                cells += [f"{rate:7.0f}", f"{times['step'] / floor:8.1f}x", f"{bag / times['step']:6.1f}x"]
            print(f"    {name:34s}" + " ".join(cells))


def plot(results: list[dict[str, Any]], path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = ["embedding_bag", "plain, classic atomics", "plain, deterministic", "fused", "floor"]
    figure, axes = pyplot.subplots(figsize=(11, 5))
    for i, name in enumerate(names):
        axes.bar(
            [x + (i - 2) * 0.16 for x in range(len(results))], [r[name]["step"] for r in results], 0.16, label=name
        )
    axes.set_xticks(
        range(len(results)), [f"N {r['outputs']}\nB {r['batch']}\n{r['dtype']}" for r in results], fontsize=8
    )
    axes.set_yscale("log")
    axes.set_ylabel("forward + backward, ms")
    axes.set_title(f"Feature transformer, both perspectives, pairwise: {torch.cuda.get_device_name()}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="The feature transformer on a GPU")
    parser.add_argument("--data", help="a binpack file; random rows without one")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder for the JSON and the plot")
    parser.add_argument("--cases", nargs="+", help="N:B pairs, for example 1024:16384")
    args = parser.parse_args()
    ops.set_index_check("off")  # a training loop checks batches where they are made; here only kernels are timed
    cases = [tuple(map(int, c.split(":"))) for c in args.cases] if args.cases else CASES
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
        for outputs, batch in cases:
            rows = real_rows(args.data, batch) if args.data else random_rows(batch)
            for dtype in (torch.float32, torch.bfloat16):
                result = measure(timer, bandwidth, rows, outputs, dtype)
                result["copy_gb_per_s"] = bandwidth / 1e9
                if ladder is not None and dtype == torch.float32 and outputs % 128 == 0:
                    result |= rungs(ladder, timer, rows[0].cuda(), rows[1].cuda(), outputs)
                results.append(result)
                print(f"N {outputs}, B {batch}, {result['dtype']}: {result['fused']['step']:.3f} ms", flush=True)
    table(results)
    report.write(args.out / "feature_transformer-cuda.json", record | {"results": results})
    plot(results, args.out / "feature_transformer-cuda.png")


if __name__ == "__main__":
    main()
