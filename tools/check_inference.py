"""The long version of tests/engine: nets of full size against `nnue eval` on 10,000 positions, and 1,000 random games.

    python tools/check_inference.py [--positions 10000] [--games 1000] [PRESET ...]

Minutes: most of it is the evaluator in NumPy.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine"))

from inference_support import built, exported, positions, program_scores, scores

from nnue_trainer import config, presets

# Path through nnue.h → flags, compiler, emulator.
PATHS: dict[str, tuple[str, str, str | None]] = {
    "AVX2": ("-mavx2", "g++", None),
    "plain": ("-DNNUE_PLAIN", "g++", None),
    "NEON": ("-static", "aarch64-linux-gnu-g++", "qemu-aarch64"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=["simple", "buckets", "layered"])
    parser.add_argument("--positions", type=int, default=10_000)
    parser.add_argument("--games", type=int, default=1_000)
    options = parser.parse_args()
    for preset in options.presets:
        architecture = config.load(presets.path(preset)).model.architecture
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            net = exported(architecture, folder)
            fens = positions("train.binpack", options.positions, folder / "fens.txt")
            expected = scores(folder / "net.nnue", fens)
            wrong = 0
            for path, (flags, compiler, emulator) in PATHS.items():
                if shutil.which(compiler) is None or not (emulator is None or shutil.which(emulator)):
                    print(f"{preset}, {path}: left out, as there is no {compiler} or no {emulator}")
                    continue
                program = built("eval", net, flags, compiler)
                begin = time.perf_counter()
                found = program_scores(program, net, fens, emulator)
                seconds = time.perf_counter() - begin
                differ = sum(a != b for a, b in zip(expected, found, strict=True))
                wrong += differ
                speed = "" if emulator else f"; {len(found) / seconds:,.0f} refreshed per second"
                print(f"{preset}, {path}: {differ} of {len(found)} scores differ{speed}", flush=True)
            games = subprocess.run(
                [built("games", net, "-march=native"), net, str(options.games)],
                capture_output=True,
                text=True,
                check=False,
            )
            print(f"{preset}: {(games.stdout or games.stderr).strip()}", flush=True)
            if wrong or games.returncode:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
