"""How long a training loop waits for the loader, where each step takes as long as the one before.

    python benchmarks/loader_waits.py --data FILE.binpack [--every 2500] [--threads 2,4] [--batch-size 32768]

A caller takes a batch of packed records at regular intervals, as a GPU does in training. The benchmark measures how
long it then waits. A loader may be fast enough on average (`loader.py`) and still make the caller wait: while its
threads are all busy with something else, no batches are made. Prints quantiles of the waits for each number of
threads, and what a batch costs: CPU time, and how often threads waited (voluntary context switches). Writes JSON into
benchmarks/results/. Choose a pace that the machine can keep; the first figure, positions per second, reports whether it
did.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from nnue_trainer.data import RecordLoader
from report import RESULTS, environment, write

QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "longest": 1.0}
WARMUP = 0.25  # of the measured batches, before them and at the same pace


def waits(loader: RecordLoader, seconds: float, batches: int) -> tuple[np.ndarray, float]:
    """The waits for `batches` batches, in seconds, and the seconds of all of it. A batch is due `seconds` after the one
    before; a caller that is late for that begins anew, as a step does."""
    stream = iter(loader)
    warmup = round(WARMUP * batches)
    found = np.empty(warmup + batches)
    began = due = time.perf_counter()
    for number in range(warmup + batches):
        if number == warmup:
            began = time.perf_counter()
        due = max(due + seconds, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))
        asked = time.perf_counter()
        next(stream)
        found[number] = time.perf_counter() - asked
    return found[warmup:], time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--every", type=float, default=2500, help="microseconds from a batch to the next")
    parser.add_argument("--threads", default="2,4")
    parser.add_argument("--batch-size", type=int, default=32_768)
    parser.add_argument("--batches", type=int, default=1200)
    parser.add_argument("--shuffle-buffer", type=int, default=1 << 24)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    arguments = parser.parse_args()

    machine = environment()
    rows = []
    for threads in map(int, arguments.threads.split(",")):
        loader = RecordLoader(
            [arguments.data],
            arguments.batch_size,
            repeat=True,
            reuse=True,
            threads=threads,
            shuffle_buffer=arguments.shuffle_buffer,
        )
        before = resource.getrusage(resource.RUSAGE_SELF)
        try:
            found, seconds = waits(loader, 1e-6 * arguments.every, arguments.batches)
        finally:
            loader.close()
        used = resource.getrusage(resource.RUSAGE_SELF)
        row = {"threads": threads, "positions_per_second": round(arguments.batches * arguments.batch_size / seconds)}
        row["mean_microseconds"] = round(1e6 * found.mean())
        row |= {f"{name}_microseconds": round(1e6 * np.quantile(found, q)) for name, q in QUANTILES.items()}
        made = round((1 + WARMUP) * arguments.batches)
        cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        row["cpu_microseconds_per_batch"] = round(1e6 * cpu / made)
        row["switches_per_batch"] = round((used.ru_nvcsw - before.ru_nvcsw) / made, 1)
        rows.append(row)
        figures = "  ".join(f"{name} {row[f'{name}_microseconds']:,}" for name in ("mean", *QUANTILES))
        print(f"{threads} threads  {row['positions_per_second'] / 1e6:.1f} M positions/s; waits in us: {figures}")
        print(f"{row['cpu_microseconds_per_batch']:,} us of CPU and {row['switches_per_batch']} switches per batch")
    report = {
        "benchmark": "loader_waits",
        **machine,
        "data": arguments.data.name,
        "batch_size": arguments.batch_size,
        "every_microseconds": arguments.every,
        "batches": arguments.batches,
        "shuffle_buffer": arguments.shuffle_buffer,
        "results": rows,
    }
    write(arguments.out / "loader-waits.json", report)


if __name__ == "__main__":
    main()
