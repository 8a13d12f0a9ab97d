"""The loader's cost in one of several processes, each of which gets a part of every batch, with one shard and with
eight.

    python benchmarks/loader_processes.py --data FILE.binpack [--processes 1,2,4,8]

It reports the process's CPU seconds per million positions of the whole batches, and the share of these positions that
the process decodes. CPU time depends little on other work on the machine. The file is listed often enough that the
files have about 20 million positions, but at least eight times. Writes benchmarks/results/loader-processes.json.
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path

from nnue_trainer.data import RecordLoader
from nnue_trainer.data.binpack import read_binpack
from report import RESULTS, environment, write

BATCH, BATCHES = 16_384, 640


def cost(files: list[Path], processes: int, shards: int) -> dict[str, float]:
    """The two figures for the process of rank 0."""
    loader = RecordLoader(
        files, BATCH, world_size=processes, shards=shards, repeat=True, reuse=True, threads=2, shuffle_buffer=1 << 20
    )
    try:
        batches = iter(loader)
        for _ in range(70):  # more positions than the shuffle buffer holds
            next(batches)
        before, read = resource.getrusage(resource.RUSAGE_SELF), loader.filter_counts().read
        for _ in range(BATCHES):
            next(batches)
        after = resource.getrusage(resource.RUSAGE_SELF)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        positions = BATCHES * BATCH
        return {
            "cpu_seconds_per_million": round(seconds / positions * 1e6, 4),
            "share_decoded": round((loader.filter_counts().read - read) / positions, 3),
        }
    finally:
        loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--processes", default="1,2,4,8")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    arguments = parser.parse_args()

    machine = environment()
    positions = len(read_binpack(arguments.data))
    files = [arguments.data] * max(8, 20_000_000 // positions)
    results = []
    for processes in map(int, arguments.processes.split(",")):
        for shards in (1, 8):
            results.append({"processes": processes, "shards": shards, **cost(files, processes, shards)})
            print(results[-1])
    data = {"file": arguments.data.name, "positions": positions, "times": len(files)}
    write(
        arguments.out / "loader-processes.json",
        {"benchmark": "loader_processes", **machine, "data": data, "batch_size": BATCH, "results": results},
    )


if __name__ == "__main__":
    main()
