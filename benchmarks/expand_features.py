"""Positions per second of feature expansion: the operator alone, and the whole way from a file to index rows.

    python benchmarks/expand_features.py --data FILE.binpack [--threads 16] [--copies 20]

"operator" expands records that are already on the device into the rows of both perspectives, in memory that is already
allocated. There are more different batches than any cache holds. "file to rows" is the whole way, as in
training (`DeviceBatches`): the loader reads the file into page-locked memory, and the records are copied and expanded
on a separate stream. For this the file is first rewritten as a shuffled binpack (chains of one position), and read
through --copies links to it, so that there are enough positions; it is in the page cache then. Prints a table and
writes JSON into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import report
from nnue_trainer import ops
from nnue_trainer.data import Batch, Loader, LoaderOptions, RecordLoader, feature_set
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.data.features import BASIC_FEATURE_SETS
from nnue_trainer.training.batches import DeviceBatches

SMALL, FULL = "HalfKAv2_hm", "HalfKAv2_hm+Full_Threats_v16+PP_3Wide"  # the inputs of SFNNv5 and of SFNNv16


def seconds_of(step: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median seconds of `repeats` calls, after three that do not count."""
    times = []
    for _ in range(3):
        step()
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            step()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            started = time.perf_counter()
            step()
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def operator(records: Tensor, name: str, batch_size: int, device: torch.device) -> dict[str, float]:
    """The speed of the operator on `records`, uint8 [n, 32] on the device, in batches: positions per second, and the
    bytes of records and rows per second."""
    batches = records.split(batch_size)
    outs = []
    for part in batches:
        batch = Batch.allocate(len(part), feature_set(name).max_active, device=device)
        outs.append(ops.Expanded(*(getattr(batch, field) for field in ops.Expanded._fields)))

    def step() -> None:
        for part, out in zip(batches, outs, strict=True):
            ops.expand_features_into(part, name, out, check_records=False)

    launch: Callable[[], object] = step
    if device.type == "cuda":  # a graph, so that the time is the device's and not that of the launches in Python
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        launch = graph.replay
    seconds = seconds_of(launch, device, 20)
    per_position = 32 + 2 * 4 * feature_set(name).max_active + 7
    return {
        "positions_per_second": round(len(records) / seconds),
        "gigabytes_per_second": round(len(records) * per_position / seconds / 1e9, 1),
    }


def file_to_rows(
    files: list[str], name: str, batch_size: int, threads: int, device: torch.device, seconds: float
) -> float:
    """Positions per second from files to rows on the device, after the first two shuffle buffers."""
    loader = RecordLoader(
        files,
        batch_size,
        repeat=True,
        reuse=True,
        shuffle_buffer=1 << 21,
        threads=threads,
        pin_memory=device.type == "cuda",
    )
    rate = measure_stream(DeviceBatches(loader, device, name).__next__, batch_size, device, seconds)
    loader.close()
    return rate


def loader_alone(files: list[str], name: str | None, batch_size: int, threads: int, seconds: float) -> float:
    """Positions per second of a loader of records, or of rows of the feature set `name`, in host memory."""
    options: LoaderOptions = {"repeat": True, "reuse": True, "shuffle_buffer": 1 << 21, "threads": threads}
    loader = RecordLoader(files, batch_size, **options) if name is None else Loader(files, name, batch_size, **options)
    rate = measure_stream(iter(loader).__next__, batch_size, torch.device("cpu"), seconds)
    loader.close()
    return rate


def measure_stream(fetch: Callable[[], object], batch_size: int, device: torch.device, seconds: float) -> float:
    """Positions per second of a stream of batches, after the first two shuffle buffers."""
    for _ in range((2 << 21) // batch_size):
        fetch()
    synchronize(device)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for _ in range(16):
            fetch()
        count += 16
    synchronize(device)
    return round(count * batch_size / (time.perf_counter() - started))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description="Feature expansion: the operator, and the way from a file to rows")
    parser.add_argument("--data", default=str(report.ROOT / "samples" / "train.binpack"), help="binpack file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[16_384, 65_536])
    parser.add_argument("--threads", type=int, nargs="+", default=[os.cpu_count() or 1], help="of the loader")
    parser.add_argument("--positions", type=int, default=0, help="on the device; default 4 Mi on CUDA, 256 Ki on CPU")
    parser.add_argument("--copies", type=int, default=1, help="how often the file is listed, through links to it")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement from the file")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder for the JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    positions = options.positions or (1 << 22 if cuda else 1 << 18)
    results: dict[str, object] = {}
    environment = report.environment(device)

    def show(key: str, figures: dict[str, float]) -> None:
        results[key] = figures
        rest = "".join(f"  {value:,} {unit}" for unit, value in figures.items() if unit != "positions_per_second")
        print(f"{key:84} {figures['positions_per_second'] / 1e6:10,.1f} M pos/s{rest}", flush=True)

    loader = RecordLoader(options.data, 1 << 16, repeat=True, shuffle_buffer=1 << 20)
    stream = iter(loader)
    records = torch.cat([next(stream).clone() for _ in range(max(1, positions >> 16))])
    loader.close()
    on_device = records.to(device)
    for name in [*BASIC_FEATURE_SETS, FULL]:
        sizes = [*options.batch, len(records)] if name in (SMALL, FULL) else options.batch[:1]
        for batch in sizes:
            show(f"operator, {name}, batch {batch:,}", operator(on_device, name, batch, device))

    with tempfile.TemporaryDirectory() as folder:
        shuffled = Path(folder) / "0.binpack"
        write_binpack(shuffled, records.numpy(), join_chains=False)
        for copy in range(1, options.copies):
            os.link(shuffled, Path(folder) / f"{copy}.binpack")
        files = [str(Path(folder) / f"{copy}.binpack") for copy in range(options.copies)]
        for threads in options.threads:
            for batch in options.batch:
                what = f"batch {batch:,}, {threads} threads"
                seconds = options.seconds
                show(f"pipeline alone, records, {what}", {
                    "positions_per_second": loader_alone(files, None, batch, threads, seconds)})  # fmt: skip
                for name in (SMALL, FULL):
                    show(f"file to rows on {device.type}, {name}, {what}", {
                        "positions_per_second": file_to_rows(files, name, batch, threads, device, seconds),
                    })  # fmt: skip
                    show(f"pipeline alone, rows of {name}, {what}", {
                        "positions_per_second": loader_alone(files, name, batch, threads, seconds)})  # fmt: skip

    result = {
        "benchmark": "expand_features",
        **environment,
        "data": Path(options.data).name,
        "positions": len(records),
        "mean_pieces": round(ops.expand_features(on_device, SMALL).piece_count.float().mean().item(), 2),
        "results": results,
    }
    report.write(options.out / f"expand_features-{device.type}.json", result)


if __name__ == "__main__":
    main()
