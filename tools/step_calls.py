"""Counts the Python calls of a training step, and the files that they are in.

    python tools/step_calls.py [--preset sfnnv5] [--device cuda] [--most CALLS FILES] [key=value …]

It trains a few steps on the bundled sample, then counts the calls of the package's functions during one
`Trainer.advance()` (`sys.setprofile`), comprehensions included. Steps that a CUDA graph replays are counted as they are
without one. `--most`: fail if there are more calls or files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nnue_trainer import config, nets
from nnue_trainer.training.assembly import assemble, training_batches
from nnue_trainer.training.device import set_up_torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "nnue_trainer"
STEPS = 6  # before the one that is counted
SAMPLE = ["logging.tensorboard=false", "data.validation=[]", "data.filters={}", "data.shuffle_buffer=0"]


class Calls:
    """The package's calls while `sys.setprofile` has `count`."""

    def __init__(self) -> None:
        self.functions: Counter[tuple[str, str]] = Counter()
        self.depth = self.deepest = 0

    def count(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event not in ("call", "return") or not file.startswith(str(PACKAGE)):
            return
        if event == "return":
            self.depth -= 1
            return
        self.functions[str(Path(file).relative_to(PACKAGE)), frame.f_code.co_qualname] += 1
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)


def count(preset: str, device: torch.device, overrides: list[str]) -> Calls:
    """The calls of one step of a preset, on records of the sample."""
    sample = ROOT / "samples" / "train.binpack"
    recipe = config.load(
        ROOT / "nnue_trainer" / "presets" / f"{preset}.yaml",
        [f"data.train=[{sample}]", *SAMPLE, "training.cuda_graph=false", *overrides],
    )
    set_up_torch(recipe.training, device)
    model = nets.build(recipe.model).to(device)
    loader = training_batches(recipe, model, device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = assemble(recipe, model, loader, None, Path(folder))
        for _ in range(STEPS):
            trainer.advance()
        calls = Calls()
        sys.setprofile(calls.count)
        try:
            trainer.advance()
        finally:
            sys.setprofile(None)
        loader.close()
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="sfnnv5")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, nargs=2, metavar=("CALLS", "FILES"))
    parser.add_argument("--functions", action="store_true", help="also list the functions")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    given = parser.parse_intermixed_args()
    calls = count(given.preset, torch.device(given.device), given.overrides)
    files: Counter[str] = Counter()
    for (file, _), number in calls.functions.items():
        files[file] += number
    lines = sum(len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) for file in files)
    print(f"{files.total()} calls in {len(files)} files, {calls.deepest} deep; the files have {lines:,} lines")
    for file, number in files.most_common():
        print(f"{number:5} {file}")
    if given.functions:
        for (file, name), number in calls.functions.most_common():
            print(f"{number:5} {file}: {name}")
    if given.most and (files.total() > given.most[0] or len(files) > given.most[1]):
        raise SystemExit(f"found more than {given.most[0]} calls or {given.most[1]} files")


if __name__ == "__main__":
    main()
