"""Positions per second of reading and writing each data format, of shuffling, and of the statistics of `nnue data
info`.

    python benchmarks/data_formats.py --data FILE.binpack [--times 4] [--folder FOLDER]

The positions of the file, repeated --times times, are written in each format into FOLDER and read back; FOLDER should
be in memory. The best of three runs counts. It reports positions per second of wall-clock time and of CPU time. CPU
time changes less when other programs use the machine. Prints a table and writes benchmarks/results/data_formats.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from nnue_trainer import _data
from nnue_trainer.data import PositionWriter
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.files import FORMATS
from report import RESULTS, environment
from report import write as write_report

BLOCK = 1 << 16


def read_through(reader: _data.PositionReader | _data.ExternalShuffle) -> None:
    while len(reader.read(BLOCK)):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--times", type=int, default=4, help="how often the file's positions are repeated")
    parser.add_argument("--folder", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    arguments = parser.parse_args()
    report = environment()
    records = np.tile(read_binpack(arguments.data), (arguments.times, 1))
    results: list[dict[str, object]] = []

    def measure(name: str, work: Callable[[], object]) -> None:
        best_clock = best_processor = float("inf")
        for _ in range(3):
            clock, processor = time.perf_counter(), time.process_time()
            work()
            best_clock = min(best_clock, time.perf_counter() - clock)
            best_processor = min(best_processor, time.process_time() - processor)
        rates = [len(records) / best_clock, len(records) / best_processor]
        print(f"{name:32} {rates[0] / 1e6:8.2f} M/s  {rates[1] / 1e6:8.2f} M/s of CPU time")
        results.append(
            {
                "work": name,
                "positions_per_second": round(rates[0]),
                "positions_per_processor_second": round(rates[1]),
                "load_before": os.getloadavg()[0],
            }
        )

    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:

        def write(format: str, join_chains: bool) -> None:
            with PositionWriter(f"{folder}/{format}", format, join_chains=join_chains) as writer:
                for begin in range(0, len(records), BLOCK):
                    writer.write(records[begin : begin + BLOCK])

        def read(format: str) -> None:
            read_through(_data.PositionReader(f"{folder}/{format}", None, "", False))

        def shuffle(memory: int) -> None:
            shuffler = _data.ExternalShuffle(1, memory, folder)
            for begin in range(0, len(records), BLOCK):
                shuffler.add(records[begin : begin + BLOCK])
            read_through(shuffler)

        def count(counter: _data.Statistics | _data.DuplicateEstimator | _data.Validator) -> None:
            for begin in range(0, len(records), BLOCK):
                counter.add(records[begin : begin + BLOCK])

        for format, join_chains, name in [
            *((format, True, format) for format in FORMATS),
            ("binpack", False, "binpack, chains of one position"),
        ]:
            measure(f"write {name}", partial(write, format, join_chains))
            measure(f"read {name}", partial(read, format))
        measure("shuffle in memory", lambda: shuffle(1 << 33))
        measure("shuffle, four fifths on disk", lambda: shuffle(len(records) * 11))
        measure("statistics", lambda: count(_data.Statistics()))
        measure("duplicates", lambda: count(_data.DuplicateEstimator()))
        measure("validate", lambda: count(_data.Validator()))

    report |= {"data": {"file": arguments.data.name, "positions": len(records)}, "results": results}
    write_report(RESULTS / "data_formats.json", report)


if __name__ == "__main__":
    main()
