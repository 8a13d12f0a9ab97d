"""Whether mixed precision makes the validation loss worse: trains a recipe in fp32 and mixed, with several seeds each.

    python benchmarks/precision.py [--config configs/quickstart.yaml] [--seeds 3] [--name NAME] [key=value …]

Writes the validation losses of all runs as JSON, and their curves as a picture, into benchmarks/results/. A seed
decides the initial weights and the order of positions; both are the same for the two precisions. So the last losses are
compared in pairs of runs with the same seed: the mean of their differences (mixed − fp32) with its standard error. The
noise to compare it with is the standard deviation of the fp32 losses over the seeds. In both precisions validation uses
the fp32 weights."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from nnue_trainer import config
from nnue_trainer.training.device import choose_device
from nnue_trainer.training.run import train
from report import RESULTS, ROOT, environment, recipe_data, write

PRECISIONS = ("fp32", "mixed")


def run(path: Path, overrides: list[str], precision: str, seed: int) -> dict[str, Any]:
    """Trains once, and returns the validation losses with the number of positions trained on before each."""
    recipe = config.load(path, [*overrides, f"training.precision={precision}", f"training.seed={seed}"])
    if not recipe.data.validation:
        raise SystemExit("data.validation: found no files, expected held-out positions to compare losses on")
    with tempfile.TemporaryDirectory() as folder:
        summary = train(recipe, Path(folder))
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    if summary.interrupted:
        raise SystemExit("interrupted")
    records = [record for record in map(json.loads, lines) if record["event"] == "validation"]
    return {
        "precision": precision,
        "seed": seed,
        "positions": [record["step"] * recipe.data.batch_size for record in records],
        "losses": [record["loss"] for record in records],
        "seconds": round(summary.seconds, 1),
    }


def compared(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Compares the last losses of the two precisions: means, mean difference of the pairs, and spread of the seeds."""
    last = {p: [r["losses"][-1] for r in runs if r["precision"] == p] for p in PRECISIONS}
    means = {p: statistics.mean(losses) for p, losses in last.items()}
    pairs = [mixed - fp32 for fp32, mixed in zip(last["fp32"], last["mixed"], strict=True)]
    result: dict[str, Any] = {"last_losses": last, "means": means, "difference": statistics.mean(pairs)}
    if len(pairs) > 1:
        result["standard_error"] = statistics.stdev(pairs) / math.sqrt(len(pairs))
        result["spread_of_seeds"] = statistics.stdev(last["fp32"])
    return result


def picture(report: dict[str, Any], path: Path) -> None:
    """Draws the validation losses of all runs over the positions."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    colours = dict(zip(PRECISIONS, ("#3b6fb6", "#c98a2b"), strict=True))
    for number, each in enumerate(report["runs"]):
        label = each["precision"] if each["seed"] == report["runs"][0]["seed"] else None
        millions = [positions / 1e6 for positions in each["positions"]]
        style = "-" if each["precision"] == "fp32" else "--"
        axes.plot(millions, each["losses"], style, color=colours[each["precision"]], lw=1, label=label, zorder=number)
    axes.set_xlabel("million positions")
    axes.set_ylabel("validation loss")
    axes.set_title(report["title"], fontsize=10)
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(f"written to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "quickstart.yaml")
    parser.add_argument("--seeds", type=int, default=3, help="runs in each precision")
    parser.add_argument("--name", default="", help="added to the file names, behind net and device")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and picture")
    parser.add_argument("overrides", nargs="*", help="recipe fields, such as training.epochs=5")
    options = parser.parse_intermixed_args()
    if options.seeds < 1:
        parser.error(f"--seeds: found {options.seeds}, expected at least 1")

    recipe = config.load(options.config, options.overrides)
    device = choose_device(recipe.training.device)
    machine = environment(device)
    # The precisions take turns, so that other work on the machine affects their times alike.
    runs = [
        run(options.config, options.overrides, precision, recipe.training.seed + number)
        for number in range(options.seeds)
        for precision in PRECISIONS
    ]
    positions = f"{runs[0]['positions'][-1]:,} positions"
    report = {
        "benchmark": "precision",
        **machine,
        "title": f"{recipe.model.kind}, batch {recipe.data.batch_size:,}, {positions}, {machine['device']}",
        "recipe": recipe_data(recipe),
        "runs": runs,
        **compared(runs),
    }
    print(report["title"])
    for precision in PRECISIONS:
        losses = ", ".join(f"{loss:.6f}" for loss in report["last_losses"][precision])
        print(f"{precision:6} {losses}  mean {report['means'][precision]:.6f}")
    if "standard_error" in report:
        print(f"difference {report['difference']:+.2e}, standard error {report['standard_error']:.1e}; ", end="")
        print(f"standard deviation of fp32 over seeds {report['spread_of_seeds']:.1e}")
    name = f"precision-{recipe.model.kind}-{device.type}{'-' if options.name else ''}{options.name}"
    write(options.out / f"{name}.json", report)
    picture(report, options.out / f"{name}.png")


if __name__ == "__main__":
    main()
