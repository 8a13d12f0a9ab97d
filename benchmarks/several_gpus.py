"""Compares training on one GPU with training on several: positions per second of whole training steps.

    torchrun --nproc-per-node 2 benchmarks/several_gpus.py --config configs/sfnnv5.yaml --data FILE.binpack [key=value]

With B = `data.batch_size` it measures three cases: the first process alone, with batches of B positions; all processes
together, with batches of B positions for each process; all processes together, with batches of B positions in all. The
batches are on the device before the measurement; with --from-file each case is measured again through the loader. The
exchanges of a step of the second case are also measured alone. Prints a table; the first process writes JSON into
benchmarks/results/. A run on CPUs, where the exchanges go through gloo, only shows that the program works.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import nets
from nnue_trainer.config import Recipe
from nnue_trainer.parallel.ranks import Ranks, joined
from nnue_trainer.training.batches import BatchSource
from nnue_trainer.training.metrics import peak_memory
from nnue_trainer.training.run import choose_device, training_batches
from report import RESULTS, ROOT, environment, load_recipe, precision_suffix, recipe_data, wait_as_training_does, write
from training_step import PRELOADED, Preloaded, copies, measure, steady_steps, synchronize


def exchanges(ranks: Ranks, positions: int, outputs: int, device: torch.device) -> dict[str, float]:
    """Wall-clock microseconds of each of the two exchanges in a step of `Columns`, launched without a CUDA graph. The
    sums are fp32 [positions, outputs]. The gradients are those of a rank's positions, with PSQT, and 10,000 more for
    the parameters that all ranks have."""
    sums = torch.ones(positions, outputs, device=device)
    part = torch.ones(positions // ranks.size * (outputs + 1) + 10_000, device=device)
    found = {}

    def reduce_scatter() -> None:
        with ranks.reduce_scatter(sums):
            pass

    cases: dict[str, Callable[[], object]] = {
        "reduce-scatter of the sums": reduce_scatter,
        "all-gather of the gradients": lambda: ranks.all_gather(part),
    }
    for name, run in cases.items():
        for _ in range(10):
            run()
        synchronize(device)
        ranks.any(False)
        started, repeats = time.perf_counter(), 200 if device.type == "cuda" else 20
        for _ in range(repeats):
            run()
        synchronize(device)
        found[name] = round(1e6 * (time.perf_counter() - started) / repeats, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "sfnnv5.yaml")
    parser.add_argument("--data", required=True, help="binpack file with at least 8 batches for all processes")
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        help="of each case; default: for each process as many positions as training_step.py",
    )
    parser.add_argument("--from-file", action="store_true", help="measure through the loader, too")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    parser.add_argument("--name", help="of the recipe, in the file's name; default: that of the config")
    parser.add_argument("overrides", nargs="*", help="recipe fields, such as data.batch_size=4096")
    options = parser.parse_args()
    wait_as_training_does()
    with joined() as ranks:
        compare(options, ranks)


def compare(options: argparse.Namespace, ranks: Ranks) -> None:
    def recipe_for(batch: int | None = None) -> Recipe:
        more = [] if batch is None else [f"data.batch_size={batch}"]
        return load_recipe(options.config, options.data, [*options.overrides, *more])

    recipe = recipe_for()
    one = recipe.data.batch_size
    device = choose_device(recipe.training.device, ranks)
    machine = environment(device)
    features = nets.build(recipe.model).feature_set

    def sources(chosen: Recipe, among: Ranks) -> dict[str, Callable[[], BatchSource]]:
        """For the training that `among` share. Batches that are preloaded are whole ones in each process."""
        model = nets.build(chosen.model)
        loader = training_batches(chosen, model, device)
        batches = copies(loader, device, features)
        loader.close()
        found: dict[str, Callable[[], BatchSource]] = {"preloaded": lambda: Preloaded(batches)}
        if options.from_file:
            found["from file"] = lambda: training_batches(chosen, model, device, among)
        return found

    def measured(chosen: Recipe, among: Ranks, source: BatchSource) -> dict[str, Any]:
        warmup, steps = steady_steps(chosen, device, among.size)
        steps = options.steps or steps
        found = measure(chosen, source, device, warmup, steps, among)
        what = {"processes": among.size, "division": "one process", "batch": chosen.data.batch_size, "steps": steps}
        return what | found

    results: dict[str, dict[str, Any]] = {}
    if ranks.writes:
        for way, source in sources(recipe, Ranks()).items():
            results[f"one, {way}"] = measured(recipe, Ranks(), source())
    ranks.any(False)
    for name, batch in (("each", ranks.size * one), ("between them", one)):
        chosen = recipe_for(batch)
        for way, source in sources(chosen, ranks).items():
            found = measured(chosen, ranks, source())
            if ranks.writes:
                alone = results[f"one, {way}"]["positions_per_second"]
                results[f"{ranks.size}, the batch {name}, {way}"] = found | {
                    "times_one": round(found["positions_per_second"] / alone, 3)
                }
    wires = exchanges(ranks, ranks.size * one, 16, device)
    if not ranks.writes:
        return
    print(f"{options.config.stem}, batch {one:,} a process, {recipe.training.precision}, {machine['device']}")
    for case, figures in results.items():
        speed, times = figures["positions_per_second"], figures.get("times_one", 1.0)
        print(f"{case:36}  {figures['milliseconds_per_step']:10.3f} ms  {speed:12,.0f} pos/s  {times:6.3f} x")
    for case, microseconds in wires.items():
        print(f"{case:36}  {microseconds:10.1f} us")
    precision = precision_suffix(recipe)
    report = {
        "benchmark": "several_gpus",
        **machine,
        "processes": ranks.size,
        "data": Path(options.data).name,
        "preloaded_batches": PRELOADED,
        "recipe": recipe_data(recipe),
        "peak_memory_bytes": peak_memory(device),
        "results": results,
        "exchange_microseconds": wires,
    }
    name = options.name or options.config.stem
    write(options.out / f"several_gpus-{name}{precision}-{device.type}-{ranks.size}x{one}.json", report)


if __name__ == "__main__":
    main()
