"""Attacks the operators until stopped: `python tools/attack_operators.py [SEED]`. Each wrong call has its own seed; the
last line before a crash names it. tests/faults/test_operators.py runs the first ones."""

import itertools
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "tests" / "faults" / "operator_attacks.py"
CALLS = 20_000  # of one process

if __name__ == "__main__":
    for first in itertools.count(int(sys.argv[1]) if len(sys.argv) > 1 else 0, CALLS):
        done = subprocess.run([sys.executable, SCRIPT, str(first), str(CALLS)], stdout=subprocess.PIPE, text=True)
        last = done.stdout.splitlines()[-1]
        print(f"seeds {first} to {first + CALLS - 1}: {last}", flush=True)
        if done.returncode != 0:
            sys.exit(f"ended with status {done.returncode}")
