"""Attacks run folders and checkpoints for as long as you like: `python tools/attack_runs.py MINUTES [SEED]`.

Continues what tests/faults/ begins: mutated checkpoints (seed after seed), a whole run that is killed at every
single call that changes files, and pairs of `nnue train` that are started at once in one folder. Ends at the first
finding.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "faults"
sys.path.insert(0, str(FAULTS))

from mutate_checkpoint import RECIPE, mutate  # noqa: E402


def kill_everywhere(folder: Path) -> str:
    """How many kills of a whole run were mended."""
    shim = folder / "kill_at_call.so"
    source = str(FAULTS / "kill_at_call.cpp")
    subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", "-O1", "-o", str(shim), source], check=True)
    environment = os.environ | {"LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(FAULTS / "kill_driver.py"), "run", str(folder), "1"]
    return subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout.strip()


def start_two(folder: Path) -> None:
    """Two at once, for a fresh run or both to continue it: one trains, and the other reports it in one line."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE | {"training": RECIPE["training"] | {"epochs": 2_000}}))
    run = folder / "run"
    for extra in ([], ["--resume", "auto"]):
        command = [sys.executable, str(ROOT / "train.py"), "--config", str(recipe), "--run-dir", str(run), *extra]
        pair = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
        while all(process.poll() is None for process in pair):
            time.sleep(0.05)
        loser, winner = sorted(pair, key=lambda process: process.poll() is None)
        said = loser.communicate()[1]
        assert loser.returncode == 1, said
        assert f"another process (pid {winner.pid} on host" in said, said
        assert said.count("\n") == 1, said
        while not (run / "checkpoints" / "last.safetensors").exists():
            assert winner.poll() is None, winner.communicate()[1]
            time.sleep(0.05)
        winner.terminate()
        said = winner.communicate()[1]
        assert winner.returncode in (0, 75), said


def main(minutes: float, seed: int) -> None:
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "kills").mkdir()
        print("kills:", kill_everywhere(Path(temporary) / "kills"), flush=True)
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as temporary:
            start_two(Path(temporary))
        with tempfile.TemporaryDirectory() as temporary:
            print(f"two at once; seed {seed}:", mutate(Path(temporary), seed, 2_000), flush=True)
        seed += 1


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
