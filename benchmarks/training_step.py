"""Positions per second of whole training steps, as the recipe defines it: forward, loss, backward and optimiser.

    python benchmarks/training_step.py --config configs/reference_sfnnv5.yaml --data FILE.binpack [key=value …]

It measures two cases in one run: batches that are already on the device, and batches from the file through the loader,
as in training. With `--qat` it measures both again, with quantisation-aware rounding from the first step on, and with
`--also` everything again with another override of the recipe, such as `--also "loss={kind: cross_entropy}"`. Prints a
table and writes JSON into benchmarks/results/.

The loader needs much CPU time after its first batch, because it fills the next shuffle buffer. A few steps would
measure that and not the steady state. So the warm-up and the measurement are each as many steps as a fixed number of
positions takes. `--steps` replaces the number of measured steps, not that of the warm-up.

With `--ratio`, on a CPU, it measures instead what two optimisations gain: computing only the own layer stack of each
position, and updating rows late. Trainers with and without them take turns on the same batches in one process, so that
other work on the machine slows all of them down alike. CPU time is that of all threads together.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from nnue_trainer import nets
from nnue_trainer.config import Recipe
from nnue_trainer.data import Batch
from nnue_trainer.modules import stacked_linear
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.training.assembly import assemble, core, divide, training_batches
from nnue_trainer.training.assembly.rates import PRELOADED, Preloaded, copies, synchronize
from nnue_trainer.training.batches import BatchSource
from nnue_trainer.training.device import choose_device, set_up_torch
from nnue_trainer.training.metrics import peak_memory
from nnue_trainer.training.parallel.ranks import Ranks
from report import RESULTS, ROOT, environment, load_recipe, precision_suffix, recipe_data, wait_as_training_does, write

# Positions of a measurement by one process; its warm-up has a quarter of them. Both have at least 10 steps.
STEADY_POSITIONS = {"cpu": 400_000, "cuda": 50_000_000}


def steady_steps(recipe: Recipe, device: torch.device, processes: int = 1) -> tuple[int, int]:
    """How many steps a measurement of the steady state has before it, and how many it has."""
    steady = processes * STEADY_POSITIONS[device.type] // recipe.data.batch_size
    return max(10, steady // 4), max(10, steady)


def measure(
    recipe: Recipe,
    source: BatchSource,
    device: torch.device,
    warmup: int,
    steps: int,
    ranks: Ranks | None = None,
    *,
    seconds: float = 0.0,
    model: NnueModel | None = None,
) -> dict[str, Any]:
    """Milliseconds per step (wall-clock and CPU time) and positions per second over `steps` steps, after `warmup`
    steps. With `seconds`, another warm-up of a third of these seconds follows, and the measurement has as many steps as
    fill them, and at least `steps`. If several `ranks` train together, all of them must call this together, and CPU
    time is that of one. `model`: what is trained, if it has been built already; its weights change."""
    ranks = ranks or Ranks()
    set_up_torch(recipe.training, device)
    model = nets.build(recipe.model) if model is None else model
    sharding, words = divide(recipe, model, ranks, device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = assemble(recipe, model.to(device), source, None, Path(folder), sharding=sharding)

        def advance(count: int) -> float:
            """The seconds that `count` steps take on the slowest rank."""
            synchronize(device)
            ranks.any(False)
            started = time.perf_counter()
            for _ in range(count):
                trainer.advance()
            synchronize(device)
            ranks.any(False)
            return ranks.same(time.perf_counter() - started)

        advance(warmup)
        if seconds:
            advance(int(seconds / 3 / (advance(steps) / steps)))
            steps = max(steps, int(seconds / (advance(steps) / steps)))
        synchronize(device)
        ranks.any(False)
        started, cpu_started = time.perf_counter(), time.process_time()
        for _ in range(steps):
            trainer.advance()
        synchronize(device)
        elapsed, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    if ranks.any(trainer.optimizer.failed()):
        raise SystemExit("a step was not finite: nothing measured here would mean anything")
    return ({"sharding": words} if words else {}) | {
        "steps": steps,
        "milliseconds_per_step": round(1e3 * elapsed / steps, 3),
        # CPU time of all threads together. It changes little when other programs use the machine.
        "cpu_milliseconds_per_step": round(1e3 * cpu_seconds / steps, 3),
        "positions_per_second": round(steps * recipe.data.batch_size / elapsed),
    }


def ratio(recipe: Recipe, batches: list[Batch], rounds: int) -> dict[str, dict[str, Any]]:
    """Milliseconds per step of trainers with and without the optimisations for CPUs. The trainers take turns: in a
    round each of them trains once on all batches. The result is the least time of `rounds` rounds, after one that does
    not count."""
    device = torch.device("cpu")
    set_up_torch(recipe.training, device)
    fused = stacked_linear.is_fused
    ways = {  # (compute only the own stack, update rows late)
        "without": (False, False),
        "own stacks": (True, False),
        "own stacks, late rows": (True, True),
    }
    trainers = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (_, late) in ways.items():
            model = nets.build(recipe.model)
            with nullcontext() if late else patch.object(core, "why_not_late", lambda *_: "for comparison"):
                trainers[name] = assemble(recipe, model, Preloaded(batches), None, Path(folder))
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        wall: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, trainer in trainers.items():
                stacked_linear.is_fused = fused if ways[name][0] else lambda x, weight: False
                began, cpu_began = time.perf_counter(), time.process_time()
                for _ in batches:
                    trainer.advance()
                cpu[name].append(1e3 * (time.process_time() - cpu_began) / len(batches))
                wall[name].append(1e3 * (time.perf_counter() - began) / len(batches))
        stacked_linear.is_fused = fused
    return {
        name: {
            "milliseconds_per_step": round(min(wall[name][1:]), 3),
            "cpu_milliseconds_per_step": round(min(cpu[name][1:]), 3),
            "cpu_rounds": [round(value, 2) for value in cpu[name][1:]],
            "cpu_ratio": round(min(cpu["without"][1:]) / min(cpu[name][1:]), 3),
            "positions_per_second": round(1e3 * recipe.data.batch_size / min(wall[name][1:])),
        }
        for name in ways
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "reference_sfnnv5.yaml")
    parser.add_argument("--data", required=True, help="binpack file with at least 8 batches")
    parser.add_argument("--steps", type=int, default=0, help="default: 50 million positions on CUDA, 400,000 on a CPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    parser.add_argument("--name", help="of the recipe, in the file's name; default: that of the config")
    parser.add_argument("--ratio", action="store_true", help="measure what the optimisations for CPUs gain")
    parser.add_argument("--batches", type=int, default=32, help="with --ratio: how many different batches")
    parser.add_argument("--rounds", type=int, default=3, help="with --ratio: how many rounds")
    parser.add_argument("--qat", action="store_true", help="also with quantisation-aware rounding")
    parser.add_argument(
        "--also", action="append", default=[], metavar="KEY=VALUE", help="measure again with this field"
    )
    parser.add_argument("overrides", nargs="*", help="recipe fields, such as data.batch_size=4096")
    options = parser.parse_intermixed_args()
    wait_as_training_does()

    recipe = load_recipe(options.config, options.data, options.overrides)
    device = choose_device(recipe.training.device)
    machine = environment(device)
    warmup, steps = steady_steps(recipe, device)
    steps = options.steps or steps
    model = nets.build(recipe.model)
    results: dict[str, dict[str, Any]] = {}
    loader = training_batches(recipe, model, device)
    batches = copies(loader, device, model.feature_set, options.batches if options.ratio else PRELOADED)
    loader.close()
    if options.ratio:
        results = ratio(recipe, batches, options.rounds)
    cases = [(qat, also) for qat in ((False, True) if options.qat else (False,)) for also in ("", *options.also)]
    for qat, also in () if options.ratio else cases:
        rounds = ["model.quantisation.qat=true", "model.quantisation.qat_from=0"] if qat else []
        now = load_recipe(options.config, options.data, [*options.overrides, *rounds, *filter(None, [also])])
        name = ("qat, " if qat else "") + (f"{also}, " if also else "")
        results[name + "preloaded"] = measure(now, Preloaded(batches), device, warmup, steps)
        results[name + "from file"] = measure(now, training_batches(now, model, device), device, warmup, steps)

    report = {
        "benchmark": "training_step",
        **machine,
        "data": Path(options.data).name,
        "steps": options.rounds * options.batches if options.ratio else steps,
        "recipe": recipe_data(recipe),
        "peak_memory_bytes": peak_memory(device),
        "results": results,
    }
    print(f"{options.config.stem}, batch {recipe.data.batch_size:,}, {recipe.training.precision}, {machine['device']}")
    width = max(map(len, results))
    for case, figures in results.items():
        speed = figures["positions_per_second"]
        wall, cpu = figures["milliseconds_per_step"], figures["cpu_milliseconds_per_step"]
        print(f"{case:{width}}  {wall:10.3f} ms  {cpu:10.3f} CPU ms  {speed:12,.0f} pos/s")
    print(f"peak memory {report['peak_memory_bytes'] / 2**30:.2f} GiB")
    precision = precision_suffix(recipe)
    name = f"training_step-{options.name or options.config.stem}{precision}-{device.type}-{recipe.data.batch_size}"
    write(options.out / f"{name}{'-ratio' if options.ratio else ''}.json", report)


if __name__ == "__main__":
    main()
