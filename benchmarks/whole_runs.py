"""Positions per second of whole runs of `nnue train`, with validation and checkpoints, and of their steps.

    python benchmarks/whole_runs.py --data FILE.binpack [--validation FILE.binpack] [--net sfnnv16 --net …] [key=value]

Each run is one command: three epochs with a checkpoint after each. The rate of the steps is the median of the records
in metrics.jsonl; the rate of the run includes everything between its first step and its last. Prints a line for each
run and writes JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nnue_trainer.training.device import choose_device
from report import RESULTS, ROOT, environment, load_recipe, precision_suffix, recipe_data, write

NETS = ("sfnnv16", "sfnnv17", "sfnnv18")


def fields(options: argparse.Namespace) -> list[str]:
    """The settings that are changed in each recipe."""
    return [
        f"data.validation={json.dumps([options.validation])}",
        "data.filters={}",
        "data.batch_size=16384",
        "training.precision=mixed",
        "training.epochs=3",
        "training.positions_per_epoch=50000000",
        "training.checkpoint_every=1",
        "training.keep_last=1",
        "logging.tensorboard=false",
        "logging.every_steps=500",
        *options.overrides,
    ]


def run(config: Path, data: str, words: list[str], folder: Path) -> dict[str, Any]:
    """Trains, and takes the figures out of the run's folder."""
    command = [sys.executable, "-m", "nnue_trainer", "train", str(config), f"data.train={json.dumps([data])}", *words]
    begin = time.monotonic()
    done = subprocess.run([*command, "--run-dir", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(f"{config.stem}: nnue train exits with status {done.returncode}\n{done.stdout}{done.stderr}")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "positions_per_second" in record]
    return {
        "steps_positions_per_second": statistics.median(record["positions_per_second"] for record in steps),
        "run_positions_per_second": steps[-1]["run_positions_per_second"],
        "peak_memory_bytes": steps[-1]["peak_memory_bytes"],
        "command_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="binpack file to train on")
    parser.add_argument("--validation", default=str(ROOT / "samples" / "val.binpack"), help="default: the bundled one")
    parser.add_argument("--net", action="append", help=f"recipe; may be repeated; default: {' '.join(NETS)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    parser.add_argument("overrides", nargs="*", help="recipe fields, such as training.epochs=1")
    options = parser.parse_intermixed_args()
    options.data, options.validation = (str(Path(file).resolve()) for file in (options.data, options.validation))
    words = fields(options)
    for net in options.net or NETS:
        config = ROOT / "configs" / f"{net}.yaml"
        recipe = load_recipe(config, options.data, words)
        device = choose_device(recipe.training.device)
        machine = environment(device)
        with tempfile.TemporaryDirectory(prefix="whole_runs-") as folder:
            figures = run(config, options.data, words, Path(folder) / net)
        of_steps, of_run = figures["steps_positions_per_second"], figures["run_positions_per_second"]
        print(f"{net:12} steps {of_steps:12,.0f} pos/s  run {of_run:12,.0f} pos/s  {of_run / of_steps:.3f}", flush=True)
        report = {"benchmark": "whole_runs", **machine, "data": Path(options.data).name, "recipe": recipe_data(recipe)}
        name = f"whole_runs-{net}{precision_suffix(recipe)}-{device.type}"
        write(options.out / f"{name}.json", report | {"results": figures})


if __name__ == "__main__":
    main()
