"""The speed of the three ways to define a user's feature set, compared with a built-in set.

    python benchmarks/own_feature_sets.py --data FILE.binpack [--device cuda] [--rounds 5]

All measured sets have the features of Chess768: the built-in set, and the same set declared in a recipe, written in
Python and written in a C++ header; each alone and behind HalfKAv2_hm. They take turns, and the best round of each
counts.

On the CPU it measures positions per second of CPU time of a loader with one thread, which decodes, shuffles and
expands. CPU time changes less on a busy machine than wall-clock time. With --device cuda it measures positions per
second of wall-clock time of `nnue_trainer.ops.expand.Expander`: records in page-locked memory are copied to the GPU
and expanded there; the rows of a set in Python are made on the CPU, in one thread, and copied. Prints a table and
writes JSON into benchmarks/results/."""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from nnue_trainer import _data
from nnue_trainer.data import Loader, RecordLoader, feature_set
from nnue_trainer.ops.expand import Expander
from report import RESULTS, environment, write

PYTHON = """
import numpy as np
from nnue_trainer.data.feature_sets import Features
from nnue_trainer.schema import section

@section
class Squares(Features):
    num_features, max_active, bucket_size = 768, 32, 768

    def indices(self, view):
        plane = (view.piece >> 1) + 6 * (view.piece & 1)
        return np.where(view.present, 64 * plane + view.square, -1)
"""
HEADER = """
#include "features/general_set.h"
using namespace nnue::data;

struct Squares {
    static constexpr int kNumFeatures = 768, kMaxActive = 32, kBucketSize = 768, kNumVirtual = 0;
    NNUE_HOST_DEVICE static int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static int offset(int, int) { return 0; }
    NNUE_HOST_DEVICE static Bitboard partners(const CodePlanes&, int, int square) { return bit(square); }
    NNUE_HOST_DEVICE static int index(int piece, int from, int, int) {
        return 64 * (piece / 2 + 6 * (piece % 2)) + from;
    }
};
"""
BATCH, BATCHES = 16_384, 32


def cpu_seconds(file: Path, name: str) -> float:
    """The CPU time that a loader with one thread needs to make `BATCHES` batches."""
    start = time.process_time()
    with Loader([file] * 8, name, BATCH, threads=1, repeat=True, reuse=True) as loader:
        for _ in itertools.islice(loader, BATCHES):
            pass
    return time.process_time() - start


def device_seconds(records: Tensor, name: str, device: torch.device) -> float:
    """The wall-clock time that it takes to turn `records` in host memory, batch by batch, into index rows on the
    device."""
    expander = Expander(name, device)
    expander(records[:BATCH])  # the first batch compiles a C++ header and allocates memory
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for part in records.split(BATCH):
        expander(part)
    torch.cuda.synchronize(device)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu", help="cpu, or a CUDA device")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    records = torch.empty(0)
    if device.type == "cuda":
        with RecordLoader([arguments.data] * 8, BATCH, repeat=True) as loader:
            records = torch.cat([batch.clone() for batch in itertools.islice(loader, BATCHES)]).pin_memory()

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "own.py").write_text(PYTHON)
        (Path(folder) / "own.h").write_text(HEADER)
        ways = {
            "built in": "Chess768",
            "declared": "PieceSquare(planes=12)",
            "Python": feature_set(f"{folder}/own.py:Squares", may_import=True).name,
            "C++ header": feature_set(f"{folder}/own.h:Squares", may_import=True).name,
        }
        names = ways | {f"HalfKAv2_hm + {way}": f"HalfKAv2_hm+{name}" for way, name in ways.items()}
        best = dict.fromkeys(names, float("inf"))
        for _ in range(arguments.rounds):
            for way, name in names.items():
                if device.type == "cuda":
                    seconds = device_seconds(records, name, device)
                else:
                    seconds = cpu_seconds(arguments.data, name)
                best[way] = min(best[way], seconds)
    rows = [{"features": way, "positions_per_second": round(BATCHES * BATCH / best[way])} for way in names]
    for row in rows:
        of = " on the device" if device.type == "cuda" else " of CPU time"
        print(f"{row['features']:<28} {row['positions_per_second']:>12,} positions per second{of}")
    report = {"benchmark": "own_feature_sets", **environment(device), "isa": _data.isa(), "batch_size": BATCH}
    name = "own_feature_sets-cuda.json" if device.type == "cuda" else "own_feature_sets.json"
    write(arguments.out / name, report | {"results": rows})


if __name__ == "__main__":
    main()
