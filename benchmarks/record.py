"""Checks a record (docs/comparing-recipes.md): the seconds from random weights to a net as strong as the baseline.

    python benchmarks/record.py [RECIPE] [KEY=VALUE …] --data TRAIN --validation HELD_OUT --out FOLDER

RECIPE is a file or a preset, by default `sfnnv16`; the fields of `RUN` are set before the overrides. The clock runs
from the start of `nnue train` to the end of `nnue export`. The baseline is trained in the same way, without the clock.
Then both play until two sequential tests are decided. Everything that is in FOLDER is not made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nnue_trainer.files import presets

BASELINE = "reference_sfnnv16"
RUN = (
    "data.filters={}", "lambda={kind: constant}", "training.epochs=9", "training.positions_per_epoch=4996000",
    "training.precision=mixed", "training.validate_every=9", "training.checkpoint_every=9", "training.keep_last=1",
    "logging.tensorboard=false",
)  # fmt: skip
TESTS = ("-10,0", "0,10")
NODES, PAIRS = 1000, 20_000


def nnue(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "nnue_trainer", *map(str, arguments)], check=True)


def make(recipe: str, changes: list[str], data: list[str], folder: Path, name: str) -> dict[str, Any]:
    """The net of a recipe, folder/name.nnue, and its seconds."""
    net, about = folder / f"{name}.nnue", folder / f"{name}.json"
    if not about.exists():
        path = presets.path(recipe) if recipe in presets.names() else recipe
        began = time.monotonic()
        nnue("train", path, *RUN, *data, *changes, "--run-dir", folder / f"run-{name}", "--overwrite")
        trained = time.monotonic()
        nnue("export", folder / f"run-{name}", net, "--overwrite", "--any-l1")
        found = {
            "recipe": recipe,
            "changes": changes,
            "seconds": round(time.monotonic() - began, 2),
            "of which export": round(time.monotonic() - trained, 2),
            "sha256": hashlib.sha256(net.read_bytes()).hexdigest(),
            "bytes": net.stat().st_size,
        }
        about.write_text(json.dumps(found, indent=1) + "\n")
    read: dict[str, Any] = json.loads(about.read_text())
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe", nargs="?", default="sfnnv16")
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--data", required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="of the openings")
    options = parser.parse_intermixed_args()
    if "=" in options.recipe:
        options.recipe, options.changes = "sfnnv16", [options.recipe, *options.changes]
    options.out.mkdir(parents=True, exist_ok=True)
    data = [f"data.train=[{options.data}]", f"data.validation=[{options.validation}]"]
    record = make(options.recipe, options.changes, data, options.out, "record")
    print(json.dumps(record), flush=True)
    baseline = make(BASELINE, ["schedule.gamma=0.68"], data, options.out, "baseline")
    print(json.dumps(baseline), flush=True)
    results = []
    match = options.out / "match"
    for test in TESTS:
        nets = (options.out / "record.nnue", options.out / "baseline.nnue")
        fixed = ("--nodes", NODES, "--pairs", PAIRS, "--seed", options.seed, "-o", match)
        nnue("match", *nets, *fixed, "--sprt", test)
        results.append(json.loads((match / "match.json").read_text())["pairings"][0])
    decided = [result["sprt"]["verdict"] for result in results]
    done = {
        "seconds": record["seconds"],
        "as strong": decided[0] == "accepted" and decided[1] is not None,
        "tests": dict(zip(TESTS, decided, strict=True)),
        "elo": results[1]["statistics"]["elo"],
        "elo_error": results[1]["statistics"]["elo_error"],
        "pairs": results[1]["pairs"],
        "cpu": platform.processor() or platform.machine(),
        "record": record,
        "baseline": baseline,
    }
    (options.out / "result.json").write_text(json.dumps(done, indent=1) + "\n")
    print(json.dumps(done, indent=1))


if __name__ == "__main__":
    main()
