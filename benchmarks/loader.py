"""Positions per second of the loader, while nothing else runs in the process: the most that a training loop can get.

    python benchmarks/loader.py --data FILE.binpack [--threads 1,2] [--seconds 3] [--rounds 3]

It measures five streams for each number of threads: index rows without filters, index rows with the filters of
production runs, packed records, and packed records from a shuffled copy of the file (chains of one position) and from
its positions as viriformat. The file is listed several times, so that an epoch rarely ends during a measurement. The
streams take turns, `--rounds` times, and each row is the median round, so that two streams are compared under the same
load. What the benchmark writes is on the disk before the first measurement: the kernel would write it with these CPUs
during the last ones. For the stream with filters it also reports the positions read per second, dropped ones included.
Prints a table and writes JSON into benchmarks/results/. The figures depend on the load of the machine; those of
benchmarks/loader_instructions.py do not.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from nnue_trainer import _data
from nnue_trainer.data import Batch, Filters, Loader, RecordLoader
from nnue_trainer.data.binpack import read_binpack, write_binpack
from nnue_trainer.data.transform import convert
from report import RESULTS, environment, write

FEATURES = "HalfKAv2_hm"
PRODUCTION = Filters(no_score=True, placeholder_zero=True, quiet=True, wdl=True, soft_ply=20, piece_counts=True)


def measure(make: Callable[[], Loader | RecordLoader], seconds: float) -> tuple[float, float]:
    """Positions per second that the loader yields, and that it reads from the file; after the first 16 batches."""
    loader = make()
    try:
        batches: Iterator[Batch | Tensor] = iter(loader)
        for _ in range(16):
            next(batches)
        before = loader.filter_counts().read
        positions, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            positions += len(next(batches))
        return positions / elapsed, (loader.filter_counts().read - before) / elapsed
    finally:
        loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batch-size", type=int, default=16_384)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    arguments = parser.parse_args()

    machine = environment()
    records = read_binpack(arguments.data)
    repeat = max(1, 20_000_000 // len(records))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        shuffled = Path(folder) / "shuffled.binpack"
        write_binpack(shuffled, np.random.default_rng(0).permutation(records), join_chains=False)
        games = Path(folder) / "games.vf"
        convert([arguments.data], games)
        os.sync()
        files, size = [arguments.data] * repeat, arguments.batch_size
        streams: dict[str, Callable[..., Loader | RecordLoader]] = {
            f"{FEATURES} rows": partial(Loader, files, FEATURES, size),
            f"{FEATURES} rows, production filters": partial(Loader, files, FEATURES, size, filters=PRODUCTION),
            "records": partial(RecordLoader, files, size),
            "records, shuffled file": partial(RecordLoader, [shuffled] * repeat, size),
            "records, viriformat": partial(RecordLoader, [games] * repeat, size),
        }
        for threads in map(int, arguments.threads.split(",")):
            load = os.getloadavg()[0]
            rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in streams}
            for _ in range(arguments.rounds):
                for name, make in streams.items():
                    loader = partial(make, threads=threads, repeat=True, reuse=True)
                    rounds[name].append(measure(loader, arguments.seconds))
            for name, measured in rounds.items():
                rates = sorted(rate for rate, _ in measured)
                rate, read = sorted(measured)[len(measured) // 2]
                row = {"stream": name, "threads": threads, "positions_per_second": round(rate), "load_before": load}
                row["lowest"], row["highest"] = round(rates[0]), round(rates[-1])
                note = f"   ({rates[0] / 1e6:.2f} to {rates[-1] / 1e6:.2f}"
                if "filters" in name:
                    row["read_per_second"] = round(read)
                    note += f", {read / 1e6:.2f} M read"
                rows.append(row)
                print(f"{name:<40} {threads} threads {rate / 1e6:8.2f} M positions/s{note}, load {load:.1f})")
    report = {
        "benchmark": "loader",
        **machine,
        "isa": _data.isa(),
        "data": {"file": arguments.data.name, "positions": len(records), "times": repeat},
        "batch_size": arguments.batch_size,
        "rounds": arguments.rounds,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * 1024,  # the whole process, including torch
        "results": rows,
    }
    write(arguments.out / "loader.json", report)


if __name__ == "__main__":
    main()
