"""The long version of tests/engine: nets through `nnue.h`, compiled for every instruction set that this machine runs or
emulates. Scores are compared with `nnue eval`, and updated accumulators with refreshed ones in random games.

    python tools/check_inference.py [--positions 10000] [--games 1000] [--hidden N] [--only SET] [NET ...]

NET is a net of tests/engine/engine_nets.py, `all` of them, or a preset with its suffix (`simple.yaml`). Minutes: most
of it is the games.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engine"))

from engine_nets import IN_HEADERS, INCLUDES, NETS, SEES_THROUGH
from inference_support import built, exported, positions, program_scores, scores

from nnue_trainer import config
from nnue_trainer.files import presets

# Instruction set → flags, compiler, emulator, and what the CPU must have.
SETS: dict[str, tuple[str, str, str | None, str]] = {
    "AVX2": ("-mavx2", "g++", None, "avx2"),
    "AVX-512": ("-mavx512f -mavx512bw -mavx512vl", "g++", None, "avx512bw"),
    "AVX-512 with VNNI": ("-mavx512f -mavx512bw -mavx512vl -mavx512vnni", "g++", None, "avx512_vnni"),
    "plain": ("-DNNUE_PLAIN", "g++", None, ""),
    "NEON": ("-static", "aarch64-linux-gnu-g++", "qemu-aarch64", ""),
    "NEON with dot products": ("-static -march=armv8.2-a+dotprod", "aarch64-linux-gnu-g++", "qemu-aarch64", ""),
}
STATES_IN_A_HEADER = "states in a header"


def architecture_of(net: str, hidden: int | None, folder: Path) -> dict[str, Any]:
    if net == STATES_IN_A_HEADER:
        (folder / "sees.h").write_text(SEES_THROUGH)
        found: dict[str, Any] = {"kind": "layered", "inputs": f"{folder}/sees.h:SeesThrough + Chess768", "psqt": True}
    else:
        known = NETS | IN_HEADERS
        found = dict(known[net]) if net in known else config.load(presets.path(net[:-5])).model.architecture
    if hidden is not None:
        found["l1" if "l1" in found else "hidden"] = hidden
    return found


def missing(compiler: str, emulator: str | None, needed: str) -> str | None:
    """The compiler, emulator or CPU feature that this machine lacks; None if it has all of them."""
    for program in (compiler, emulator):
        if program and shutil.which(program) is None:
            return program
    return needed if needed not in Path("/proc/cpuinfo").read_text() else None


def check(net: str, options: argparse.Namespace, folder: Path) -> bool:
    """Whether all scores and games of a net agree."""
    file = exported(architecture_of(net, options.hidden, folder), folder)
    fens = positions("train.binpack", options.positions, folder / "fens.txt")
    expected = scores(folder / "net.nnue", fens)
    agree = True
    for name, (flags, compiler, emulator, needed) in SETS.items():
        if options.only and name not in options.only:
            continue
        if (lacking := missing(compiler, emulator, needed)) is not None:
            print(f"{net}, {name}: left out, as this machine lacks {lacking}")
            continue
        flags = f"{flags} {INCLUDES}"
        program = built("eval", file, flags, compiler)
        begin = time.perf_counter()
        found = program_scores(program, file, fens, emulator)
        seconds = time.perf_counter() - begin
        differ = sum(a != b for a, b in zip(expected, found, strict=True))
        speed = "" if emulator else f"; {len(found) / seconds:,.0f} refreshed per second"
        print(f"{net}, {name}: {differ} of {len(found)} scores differ{speed}", flush=True)
        agree &= differ == 0
        if options.games:
            command = [*([emulator] if emulator else []), str(built("games", file, flags, compiler)), str(file)]
            games = subprocess.run([*command, str(options.games)], capture_output=True, text=True, check=False)
            print(f"{net}, {name}: {(games.stdout or games.stderr).strip()}", flush=True)
            agree &= games.returncode == 0
    return agree


def main() -> None:
    every = [*NETS, *IN_HEADERS, STATES_IN_A_HEADER]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", metavar="NET", default=["simple.yaml", "buckets.yaml", "layered.yaml"])
    parser.add_argument("--positions", type=int, default=10_000)
    parser.add_argument("--games", type=int, default=1_000)
    parser.add_argument("--hidden", type=int, help="outputs of the feature transformer, in place of the net's own")
    parser.add_argument("--only", action="append", choices=SETS, metavar="SET", help=f"one of {', '.join(SETS)}")
    options = parser.parse_intermixed_args()
    for net in options.nets:
        if net not in (*every, "all") and not net.endswith(".yaml"):
            parser.error(f"NET is {net}, expected all, a preset with .yaml, or one of {', '.join(every)}")
    agree = True
    for net in every if options.nets == ["all"] else options.nets:
        with tempfile.TemporaryDirectory() as folder:
            agree &= check(net, options, Path(folder))
    if not agree:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
