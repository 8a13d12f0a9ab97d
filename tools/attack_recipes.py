"""Attacks the reader of recipes until stopped: `python tools/attack_recipes.py [SEED]`. Each round has a seed of its
own, and a failure prints it. tests/faults/test_recipes.py runs the first rounds."""

import itertools
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "faults"))

from recipe_attacks import attack

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for seed in itertools.count(int(sys.argv[1]) if len(sys.argv) > 1 else 0):
            print(f"seed {seed}:", end=" ", flush=True)
            print(dict(attack(seed, 1000, Path(folder))))
