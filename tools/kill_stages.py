"""Kills a training of several stages again and again, and compares it with one that was never killed.

    python tools/kill_stages.py --kills 10 --l1 128

Trains a preset of several stages, scaled down to some dozens of steps on the bundled sample, in processes of its own.
Each is killed with SIGKILL after a random step, or between two stages, and continued. All tensors of the last
checkpoint, its state and the records of metrics must then equal those of the run that nothing ended. Exit status 1
where they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MEASURED = {"time", "positions_per_second", "run_positions_per_second", "peak_memory_bytes"}

SCALED = {
    "nettest": [
        "lambda.steps=40",
        "schedule.steps=52",
        "stages.main.training.epochs=4",
        "stages.half_batch.training.epochs=2",
        "stages.half_batch.data.batch_size=128",
    ],
    "nettest-threats": [
        f"stages.{name}.{change}"
        for name in ("first", "second", "third", "fourth")
        for change in ("training.epochs=2", "schedule.steps=14", "data.train=[samples/train.binpack]")
    ],
}
"""Overrides that scale a preset down to six and eight epochs."""

BORDERS = {"nettest": {"border0": 32.5}, "nettest-threats": {f"border{n}": 16 * (n + 1) + 0.5 for n in range(3)}}
"""The borders between stages, with their place among the steps."""


def overrides(preset: str, l1: int) -> list[str]:
    """Overrides with which a preset trains for seconds on the bundled sample: epochs of 8 steps of 256 positions."""
    return [
        f"model.l1={l1}",
        "data.train=[samples/train.binpack]",
        "data.validation=[samples/val.binpack]",
        "data.validation_positions=2000",
        "data.filters.random_skip=1",
        "data.batch_size=256",
        "data.shuffle_buffer=4096",
        "data.threads=1",
        "training.positions_per_epoch=2048",
        "training.validate_every=1",
        "training.checkpoint_every=1",
        "training.keep_last=1",
        "training.device=cpu",
        "logging={every_steps: 2, tensorboard: false}",
        *SCALED[preset],
    ]


def child(preset: str, l1: int, folder: Path, kill_at: str) -> None:
    """Trains, or continues, in this process, until step `kill_at`, or until the border after stage `borderN`."""
    import torch

    from nnue_trainer import config
    from nnue_trainer.files import presets
    from nnue_trainer.training import run
    from nnue_trainer.training.trainer import Trainer

    torch.set_num_threads(1)
    recipe = config.load(presets.path(preset), overrides(preset, l1))
    advance, border = Trainer.advance, run._border

    def dying(self: Trainer) -> None:
        advance(self)
        if str(self.step) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying_at_border(stage: Any, *rest: Any) -> Any:
        if kill_at == f"border{stage.index}":
            os.kill(os.getpid(), signal.SIGKILL)
        return border(stage, *rest)

    Trainer.advance, run._border = dying, dying_at_border  # type: ignore[method-assign, assignment]
    run.train(recipe, folder, resume="auto")


def outcome(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The tensors and the state of the last checkpoint, and the records without what is measured."""
    from nnue_trainer.files import checkpoint

    saved = checkpoint.load(folder / "checkpoints" / "last.safetensors")
    flat = {f"{group}/{name}": tensor for group, tensors in saved.tensors.items() for name, tensor in tensors.items()}
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [{k: v for k, v in json.loads(line).items() if k not in MEASURED} for line in lines]
    return flat | {"state": json.dumps(saved.state, sort_keys=True)}, records


def differences(one: Path, other: Path) -> list[str]:
    """The differences between two run folders."""
    import torch

    (a, records_a), (b, records_b) = outcome(one), outcome(other)
    found = [f"{name} is in one of them" for name in sorted(a.keys() ^ b.keys())]
    for name in sorted(a.keys() & b.keys()):
        same = torch.equal(a[name], b[name]) if isinstance(a[name], torch.Tensor) else a[name] == b[name]
        found += [] if same else [name]
    if len(records_a) != len(records_b):
        found.append(f"metrics.jsonl: {len(records_a)} and {len(records_b)} records")
    for one_record, other_record in zip(records_a, records_b, strict=False):
        keys = [key for key in one_record.keys() | other_record.keys() if one_record.get(key) != other_record.get(key)]
        found += [f"metrics.jsonl, step {one_record['step']}: {', '.join(sorted(keys))}"] if keys else []
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=sorted(SCALED), default="nettest")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--l1", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "KILL_AT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        folder, kill_at = arguments.child
        child(arguments.preset, arguments.l1, Path(folder), kill_at)
        return 0

    def trained(folder: Path, kill_at: str) -> int:
        command = [sys.executable, __file__, "--preset", arguments.preset, "--l1", str(arguments.l1)]
        done = subprocess.run(
            [*command, "--child", str(folder), kill_at], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, -signal.SIGKILL):
            sys.exit(f"the training failed:\n{done.stdout}{done.stderr}")
        return done.returncode

    random_numbers = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        whole, killed = Path(temporary) / "whole", Path(temporary) / "killed"
        trained(whole, "never")
        steps = json.loads(outcome(whole)[0]["state"])["step"]
        borders = list(BORDERS[arguments.preset])[: arguments.kills]
        moments = random_numbers.sample(range(1, steps), arguments.kills - len(borders))
        plan = sorted([*borders, *map(str, moments)], key=lambda at: BORDERS[arguments.preset].get(at, 0) or float(at))
        kills = sum(trained(killed, kill_at) != 0 for kill_at in plan)
        trained(killed, "never")
        found = differences(whole, killed)
        for name in found:
            print(f"differs: {name}")
        print(
            f"{arguments.preset}, l1 {arguments.l1}: {steps} steps, killed {kills} times "
            f"(at {', '.join(plan)}): {'differs' if found else 'equal'}"
        )
        return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
