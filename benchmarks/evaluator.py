"""Speed of the integer evaluator in positions per second, by CPU time and by wall-clock time.

    python benchmarks/evaluator.py [--positions 65536] [--threads 0] [NET ...]

NET is a preset or the kind of a net, such as `buckets` or `small128`, with random weights. Each position is evaluated
from its record, with a full refresh of the accumulators. CPU time is that of all threads together, so an idle machine
should reach about (positions per CPU second) · (number of CPUs).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import yaml

from nnue_trainer import data, nets
from nnue_trainer.export import Evaluator, QuantizedNet

ROOT = Path(__file__).resolve().parents[1]


def net_of(name: str) -> QuantizedNet:
    """The net of a preset, or of a kind, with random integers."""
    preset = ROOT / "nnue_trainer" / "presets" / f"{name}.yaml"
    model = yaml.safe_load(preset.read_text())["model"] if preset.exists() else {"kind": name}
    net = nets.parse(model, name)
    generator = np.random.default_rng(1)
    tensors = {}
    for tensor in net.tensors():
        bound = min(tensor.limit, 30 if tensor.name.startswith("feature") else 127)
        tensors[tensor.name] = generator.integers(-bound, bound, tensor.shape, tensor.dtype, endpoint=True)
    return QuantizedNet(net, b"", tensors, "own")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nets", nargs="*", metavar="NET", default=["sfnnv16", "buckets", "layered"])
    parser.add_argument("--positions", type=int, default=65536)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa", help="one of nnue_trainer._data.isas()")
    options = parser.parse_intermixed_args()
    with data.PositionReader(ROOT / "samples" / "train.binpack") as reader:
        records = np.concatenate([block for _, block in zip(range(4), reader, strict=False)])
    records = np.random.default_rng(1).permutation(records)[: options.positions]
    for name in options.nets:
        evaluator = Evaluator(net_of(name), threads=options.threads, isa=options.isa)
        evaluator.evaluate(records[:4096], every_stack=False)
        best_cpu = best_wall = float("inf")
        for _ in range(3):
            cpu, wall = time.process_time(), time.perf_counter()
            evaluator.evaluate(records, every_stack=False)
            best_cpu = min(best_cpu, time.process_time() - cpu)
            best_wall = min(best_wall, time.perf_counter() - wall)
        n = len(records)
        print(
            f"{name}: {n / best_cpu:,.0f} per CPU second, {n / best_wall:,.0f} per second; best of 3, {n:,} positions"
        )


if __name__ == "__main__":
    main()
