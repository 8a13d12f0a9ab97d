"""The three roads of a feature set from outside, beside a built-in one: positions per second.

    python benchmarks/feature_roads.py --data FILE.binpack [--rounds 5]

Chess768 on every road (built in; declared in a recipe; in Python; in a C++ header), alone and behind HalfKAv2_hm: the
same features, so that the figures compare the roads. What is measured is the loader, which decodes, shuffles and
expands, with one thread; in CPU time, which a busy machine changes less than the clock's. The roads take turns, and the
best of the rounds counts. Prints a table and writes JSON into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

from nnue_trainer import _data
from nnue_trainer.data import Loader, feature_set
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "roads.py").write_text(PYTHON)
        (Path(folder) / "roads.h").write_text(HEADER)
        roads = {
            "built in": "Chess768",
            "declared": "PieceSquare(planes=12)",
            "Python": feature_set(f"{folder}/roads.py:Squares", may_import=True).name,
            "C++ header": feature_set(f"{folder}/roads.h:Squares", may_import=True).name,
        }
        names = roads | {f"HalfKAv2_hm + {road}": f"HalfKAv2_hm+{name}" for road, name in roads.items()}
        best = dict.fromkeys(names, float("inf"))
        for _ in range(arguments.rounds):
            for road, name in names.items():
                start = time.process_time()
                with Loader([arguments.data] * 8, name, BATCH, threads=1, repeat=True, reuse=True) as loader:
                    for _ in itertools.islice(loader, BATCHES):
                        pass
                best[road] = min(best[road], time.process_time() - start)
    rows = [{"road": road, "positions_per_second": round(BATCHES * BATCH / best[road])} for road in names]
    for row in rows:
        print(f"{row['road']:<28} {row['positions_per_second']:>12,} positions per second of CPU time")
    report = {"benchmark": "feature_roads", **environment(), "isa": _data.isa(), "batch_size": BATCH, "results": rows}
    write(arguments.out / "feature_roads.json", report)


if __name__ == "__main__":
    main()
