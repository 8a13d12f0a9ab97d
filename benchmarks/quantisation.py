"""The accuracy and loss that quantisation-aware training gains, and the cost of its step.

    python benchmarks/quantisation.py [--steps 300] [--only sfnnv5,simple]

Trains nets on the bundled sample: in floating point, with the engine's rounding from the start, and with the rounding
from the middle of the run on. On held-out positions it compares the float, the fake-quantised and the integer
evaluation, and computes the validation loss with and without the engine's rounding. Then it measures the CPU time of
steps with and without rounding, in turns in this process. Prints the figures and writes
benchmarks/results/quantisation-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from nnue_trainer import config, nets
from nnue_trainer.config import Recipe
from nnue_trainer.data import Filters, Loader, RecordLoader
from nnue_trainer.export.comparison import FLOAT, INTEGER, ROUNDED, Comparison
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.losses import mean
from nnue_trainer.optim import Optimizer
from nnue_trainer.schedules import RunStep
from nnue_trainer.training.assembly import held_out as held_out_of
from nnue_trainer.training.memory import keep_freed_memory
from nnue_trainer.training.run import train
from report import RESULTS, ROOT, environment, write

SAMPLES = ROOT / "samples"
BATCH = 1024
# Smaller widths of the presets' nets, so that two cores train them in minutes.
NARROW = {
    "simple": {"hidden": 256},
    "buckets": {"hidden": 256},
    "layered": {"hidden": 128},
    "sfnnv5": {"l1": 256},
}
WARM_UP = ("simple", "sfnnv5")  # nets that are also trained with rounding from the middle on
WAYS: dict[str, dict[str, Any]] = {
    "float": {"qat": False},
    "qat": {"qat": True},
    "qat_from_half": {"qat": True, "qat_from": 0.5},
}


def recipe(preset: str, steps: int, quantisation: dict[str, Any]) -> Recipe:
    """A recipe with the preset's net and loss, for `steps` steps on the bundled sample."""
    data = yaml.safe_load((ROOT / "configs" / f"{preset}.yaml").read_text())
    data["model"] |= NARROW.get(preset, {})
    data["model"]["quantisation"] = data["model"].get("quantisation", {}) | quantisation
    data["data"] = {
        "train": [str(SAMPLES / "train.binpack")], "validation": [str(SAMPLES / "val.binpack")],
        "validation_positions": 10_000, "batch_size": BATCH, "shuffle_buffer": 1 << 19,
    }  # fmt: skip
    data["optimizer"] = {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.0}
    data["schedule"] = {"kind": "cosine", "final_lr": 1e-5, "warmup_steps": 20}
    data["training"] = {"epochs": 1, "positions_per_epoch": steps * BATCH, "device": "cpu", "keep_last": 1}
    data["logging"] = {"tensorboard": False}
    return config.parse(data)


@torch.no_grad()
def loss(chosen: Recipe, comparison: Comparison, rounding: bool) -> float:
    """The validation loss of the compared net, with or without the engine's rounding."""
    model, sums = comparison.model, torch.zeros(2, dtype=torch.float64)
    held_out = held_out_of(chosen, model, torch.device("cpu"))
    lam = chosen.lambda_.final_of(RunStep(1, 1, 1))
    with model.rounding(rounding):
        for batch in held_out():
            terms = chosen.loss.terms(model(batch) * model.score_scale, batch.score, batch.result, lam)
            sums += torch.stack(terms).double()
    held_out.close()
    return float(sums[0] / sums[1])


def trained(preset: str, steps: int, way: str, positions: int) -> dict[str, Any]:
    """Trains a net in one of `WAYS`, and compares its evaluations on `positions` held-out positions. Differences are in
    engine units."""
    chosen = recipe(preset, steps, WAYS[way])
    with tempfile.TemporaryDirectory() as folder:
        train(chosen, Path(folder) / "run")
        saved = checkpoints.load(Path(folder) / "run" / "checkpoints" / "last.safetensors")
    comparison, left = Comparison(saved, preset), positions
    options: dict[str, Any] = {"shuffle": False, "filters": Filters.none()}
    with RecordLoader([SAMPLES / "val.binpack"], 1024, **options) as loader:
        for block in loader:
            records = block.numpy()[:left]
            comparison.add(records)
            left -= len(records)
            if left <= 0:
                break
    float_integer, exact = comparison.differences[FLOAT, INTEGER], comparison.differences[ROUNDED, INTEGER]
    return {
        "trained_minus_integer_rms": round(comparison.trained.rms, 4),
        "float_minus_integer_rms": round(float_integer.rms, 3),
        "float_minus_integer_largest": float_integer.largest,
        "fake_quantised_minus_integer_largest": exact.largest,
        "validation_loss_float": round(loss(chosen, comparison, False), 7),
        "validation_loss_as_the_engine_computes": round(loss(chosen, comparison, True), 7),
    }


def step_times(preset: str, batch_size: int, turns: int) -> dict[str, float]:
    """Median CPU milliseconds of a step. Steps without and with rounding take turns, on the same batches and
    weights."""
    chosen = recipe(preset, 100, {})
    model = nets.build(chosen.model)
    optimizer = Optimizer(model, chosen.optimizer)
    with Loader([SAMPLES / "train.binpack"], model.feature_set, batch_size, seed=1, repeat=True, threads=1) as loader:
        batches = [batch.clone() for _, batch in zip(range(4), loader, strict=False)]
    times: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * turns + 4):
        rounding, batch = turn % 2 == 1, batches[turn // 2 % len(batches)]
        model.set_rounding(rounding)
        started = time.process_time()
        output = model(batch) * model.score_scale
        step_loss = mean(*chosen.loss.terms(output, batch.score, batch.result, 1.0))
        step_loss.backward()
        optimizer.step(step_loss)
        if turn >= 4:
            times[rounding].append(1e3 * (time.process_time() - started))
    plain, rounded = (statistics.median(times[rounding]) for rounding in (False, True))
    return {"float": round(plain, 1), "qat": round(rounded, 1), "ratio": round(rounded / plain, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--positions", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", default="simple,sfnnv5,buckets,layered")
    arguments = parser.parse_args()
    keep_freed_memory()
    report: dict[str, Any] = {"benchmark": "quantisation", **environment(), "batch_size": BATCH, "nets": {}}
    results = RESULTS / "quantisation-cpu.json"
    if results.exists():  # keep the results of nets that are not trained this time
        report["nets"] = json.loads(results.read_text())["nets"]
    for preset in arguments.only.split(","):
        chosen = [way for way in WAYS if way != "qat_from_half" or preset in WARM_UP]
        ways = {way: trained(preset, arguments.steps, way, arguments.positions) for way in chosen}
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # on a busy machine, the time of waiting threads would count as CPU time
        times = {size: step_times(preset, size, arguments.turns) for size in (2048, 16_384)}
        torch.set_num_threads(threads)
        kind = recipe(preset, 1, {}).model.architecture
        report["nets"][preset] = {
            "date": report["date"],
            "command": report["command"],
            "model": kind,
            "steps": arguments.steps,
            "positions": arguments.positions,
            "ways": ways,
            "cpu_milliseconds_per_step": times,
        }
        for way, found in ways.items():
            print(preset, way, found, flush=True)
        print(preset, times, flush=True)
        write(results, report)


if __name__ == "__main__":
    main()
