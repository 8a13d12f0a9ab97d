"""The kernels of a training step on a time line: when each runs, on which stream, and what lies between.

    python benchmarks/step_timeline.py --config configs/reference_sfnnv5.yaml --data FILE.binpack [key=value …]
    torchrun --nproc-per-node 2 benchmarks/step_timeline.py …    # the first of two GPUs that train together

CUDA only. Steps run as in training: from the file, and replayed from CUDA graphs. So the time line shows what the sums
of step_profile.py cannot: kernels that wait for the host, work on the stream that prepares the next batch beside the
step, and small launches one after the other. The profiler slows the host down, so gaps between graphs look longer than
they are. Prints the kernels of one step, and microseconds per step of each kernel; writes both as JSON, and the step as
a picture, into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from nnue_trainer import nets
from nnue_trainer.training.assembly import assemble, divide, training_batches
from nnue_trainer.training.device import choose_device, set_up_torch
from nnue_trainer.training.parallel.ranks import Ranks, joined
from nnue_trainer.training.trainer import Trainer
from report import RESULTS, ROOT, environment, load_recipe, precision_suffix, recipe_data, wait_as_training_does, write

WARMUP, STEPS = 60, 24  # the first steps run eagerly and are recorded
LAST = "optimizer_step::update"  # the kernel that ends a step

Kernel = dict[str, Any]  # name, stream, microseconds: start and duration


def kernels_of(trainer: Trainer) -> list[Kernel]:
    """All kernels and copies of STEPS steps, by their start."""
    for _ in range(WARMUP):
        trainer.advance()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            trainer.advance()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    found = [
        {
            "name": event["name"].removeprefix("void "),
            "stream": event["args"]["stream"],
            "start": event["ts"],
            "duration": event["dur"],
        }
        for event in events
        if event.get("cat") in kinds
    ]
    return sorted(found, key=lambda kernel: kernel["start"])


def per_step(kernels: list[Kernel]) -> list[dict[str, Any]]:
    """Microseconds and launches of each kernel, per step, the longest first."""
    sums: dict[tuple[str, int], list[float]] = defaultdict(list)
    for kernel in kernels:
        sums[kernel["name"], kernel["stream"]].append(kernel["duration"])
    rows = [
        {"name": name, "stream": stream, "microseconds": sum(all_) / STEPS, "launches": len(all_) / STEPS}
        for (name, stream), all_ in sums.items()
    ]
    return sorted(rows, key=lambda row: -row["microseconds"])


def one_step(kernels: list[Kernel]) -> list[Kernel]:
    """The kernels between the ends of two steps in the middle; times count from the first of the two."""
    ends = [kernel["start"] + kernel["duration"] for kernel in kernels if LAST in kernel["name"]]
    updates = len(ends) // STEPS  # of a step, which ends with the last of them
    if updates == 0:
        raise SystemExit(f"found no kernel {LAST!r} in each step: expected one of the project's own optimizers")
    ends = ends[updates - 1 :: updates]
    begin, end = ends[len(ends) // 2 - 1], ends[len(ends) // 2]
    return [{**k, "start": round(k["start"] - begin, 1)} for k in kernels if begin <= k["start"] < end]


def short(name: str) -> str:
    """The name of a kernel without namespaces and template arguments; of NCCL's only the exchange."""
    if name.startswith("nccl"):
        return name.split("_")[1]
    return name.replace("(anonymous namespace)::", "").split("(")[0].split("<")[0].split("::")[-1]


def picture(step: list[Kernel], title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    streams = sorted({kernel["stream"] for kernel in step})
    figure, axes = plt.subplots(figsize=(13, 1.5 + 0.9 * len(streams)), layout="constrained")
    for row, stream in enumerate(streams):
        own = [kernel for kernel in step if kernel["stream"] == stream]
        for number, kernel in enumerate(own):
            colour = ("#3b6fb6", "#7fa6d6")[number % 2]
            axes.barh(row, kernel["duration"], left=kernel["start"], height=0.5, color=colour)
            if kernel["duration"] > 12:
                middle = kernel["start"] + kernel["duration"] / 2
                axes.text(middle, row + 0.3, short(kernel["name"]), rotation=20, fontsize=7, ha="left", va="bottom")
    axes.set_yticks(range(len(streams)), [f"stream {stream}" for stream in streams])
    axes.set_ylim(-0.5, len(streams) + 0.1)
    axes.set_xlim(left=0)
    axes.set_xlabel("microseconds")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    print(f"written to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "reference_sfnnv5.yaml")
    parser.add_argument("--data", required=True, help="binpack file")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and picture")
    parser.add_argument("overrides", nargs="*", help="recipe fields, such as data.batch_size=65536")
    options = parser.parse_intermixed_args()
    wait_as_training_does()
    with joined() as ranks:
        look(options, ranks)


def look(options: argparse.Namespace, ranks: Ranks) -> None:
    recipe = load_recipe(options.config, options.data, options.overrides)
    device = choose_device(recipe.training.device, ranks)
    if device.type != "cuda":
        raise SystemExit(f"found device {device}, expected a CUDA device: step_profile.py also measures CPUs")
    set_up_torch(recipe.training, device)
    machine = environment(device)
    with tempfile.TemporaryDirectory() as folder:
        model = nets.build(recipe.model)
        sharding, words = divide(recipe, model, ranks, device)
        source = training_batches(recipe, model, device, ranks)
        kernels = kernels_of(assemble(recipe, model.to(device), source, None, Path(folder), sharding=sharding))
    if not ranks.writes:
        return
    step, sums = one_step(kernels), per_step(kernels)
    for kernel in step:
        print(f"{kernel['start']:9.1f} +{kernel['duration']:7.1f}  stream {kernel['stream']:<4} {kernel['name'][:90]}")
    print()
    for row in sums:
        print(f"{row['microseconds']:9.1f}  {row['launches']:5.1f}x  stream {row['stream']:<4} {row['name'][:90]}")
    precision = precision_suffix(recipe)
    processes = f"{ranks.size}x" if ranks.several else ""
    each = recipe.data.batch_size // ranks.size
    name = f"step_timeline-{options.config.stem}{precision}-cuda-{processes}{each}"
    report = {
        "benchmark": "step_timeline",
        **machine,
        "data": Path(options.data).name,
        "sharding": words or "one process",
        "recipe": recipe_data(recipe),
        "step": step,
        "per_step": sums,
    }
    write(options.out / f"{name}.json", report)
    batch = f"batch {each:,}" + (f" for each of {ranks.size} processes" if ranks.several else "")
    title = f"{options.config.stem}, {batch}, {recipe.training.precision}, {machine['device']}"
    picture(step, title, options.out / f"{name}.png")


if __name__ == "__main__":
    main()
