"""Counts the loader's instructions per position by callgrind. The counts do not depend on the load of the machine.

    python benchmarks/loader_instructions.py --data FILE.binpack

It compiles data_loader's data_bench (Release, into build/bench) and runs it under valgrind (apt-get install valgrind).

"streams" are whole pipelines with one worker thread, and all that the worker does is counted: index rows without
filters, index rows with the filters of production runs, and packed records from a shuffled copy of the file (chains of
one position). A count is that of three epochs minus that of one epoch, so that the costs of starting and of reading
ahead cancel. "loops" are the hot loops alone, in the build for each instruction set.

Takes about two minutes. Writes benchmarks/results/loader-instructions.json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from loader import FEATURES
from nnue_trainer.data.binpack import read_binpack, write_binpack
from report import RESULTS, ROOT, environment, write

CHUNKS = 20  # chunks of the rewritten file: many small ones, so that little is read ahead


def build() -> Path:
    """Compiles data_bench, and returns its path."""
    folder, tools = ROOT / "build" / "bench", Path(sys.executable).parent
    cmake = [str(tools / "cmake"), "-S", str(ROOT / "data_loader"), "-B", str(folder), "-G", "Ninja"]
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    subprocess.run([*cmake, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([str(tools / "cmake"), "--build", str(folder), "--target", "data_bench"], check=True)
    return folder / "data_bench"


def callgrind(arguments: list[str], out: Path, *options: str) -> tuple[int, str]:
    """Runs a program under callgrind. Returns the number of instructions, and what the program printed."""
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options, *arguments]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    match = re.search(r"Collected *: *(\d+)", run.stderr)
    assert match, run.stderr
    return int(match[1]), run.stdout


def stream(bench: Path, data: Path, name: str, positions: int, folder: Path) -> dict[str, float]:
    """The instructions of a pipeline per position that it reads and per position that it yields, and the share of the
    positions that it yields."""
    counts, taken = [], []
    for epochs in ("1", "3"):
        count, text = callgrind(
            [str(bench), str(data), FEATURES, "--stream", name, epochs],
            folder / "callgrind",
            "--toggle-collect=nnue::data::Pipeline::work()",
        )
        counts.append(count)
        taken.append(int(text.split()[1]))
    instructions = counts[1] - counts[0]
    given = taken[1] - taken[0]
    return {
        "per_position_read": round(instructions / (2 * positions), 1),
        "per_position_given": round(instructions / given, 1),
        "share_given": round(given / (2 * positions), 4),
    }


def loops(bench: Path, data: Path, folder: Path) -> dict[str, dict[str, float]]:
    """The instructions per position of each loop, by the instruction set of the build. Each loop runs once over the
    first chunk of the file."""
    counts: dict[str, dict[str, float]] = {}
    out = folder / "callgrind"
    _, text = callgrind([str(bench), str(data), FEATURES, "--once"], out)
    match = re.search(r"(\d+) positions", text)
    assert match
    positions = int(match[1])
    best = [line.split()[0] for line in text.splitlines() if " decode " in line][-1]
    annotate = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)]
    listing = subprocess.run(annotate, check=True, capture_output=True, text=True).stdout
    # data_bench decodes once at its start, with the best instruction set, and then twice with each: with and without
    # flags.
    for line in listing.splitlines():
        found = re.match(
            r"\s*([\d,]+) .*nnue::data::(?:(\w+)::)?(decode_chains|expand_batch|permute|gather|filter_records)", line
        )
        if found:
            isa, loop = found[2] or "any", found[3]
            runs = 1 if loop != "decode_chains" else 3 if isa == best else 2
            counts.setdefault(isa, {}).setdefault(loop, round(int(found[1].replace(",", "")) / positions / runs, 1))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    arguments = parser.parse_args()

    machine = environment()
    bench = build()
    records = read_binpack(arguments.data)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chains, shuffled, part = folder / "chains.binpack", folder / "shuffled.binpack", folder / "part"
        with chains.open("wb") as file:
            for some in np.array_split(records, CHUNKS):
                write_binpack(part, some)
                file.write(part.read_bytes())
        write_binpack(shuffled, np.random.default_rng(0).permutation(records), join_chains=False)
        streams = {}
        for title, data, kind in (
            (f"{FEATURES} rows", chains, "rows"),
            (f"{FEATURES} rows, production filters", chains, "filtered"),
            ("records, shuffled file", shuffled, "records"),
        ):
            streams[title] = stream(bench, data, kind, len(records), folder)
            print(f"{title:<40} {streams[title]}")
        kernels = loops(bench, arguments.data, folder)
    print(json.dumps(kernels, indent=2))
    report = {
        "benchmark": "loader_instructions",
        **machine,
        "valgrind": subprocess.run(["valgrind", "--version"], capture_output=True, text=True).stdout.strip(),
        "data": {"file": arguments.data.name, "positions": len(records)},
        "instructions_per_position": {"streams": streams, "loops": kernels},
    }
    write(arguments.out / "loader-instructions.json", report)


if __name__ == "__main__":
    main()
