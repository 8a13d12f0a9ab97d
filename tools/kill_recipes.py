"""Kills trainings of random recipes after random steps, and compares each with the same one that was never killed.

    python tools/kill_recipes.py --seed 1 --recipes 20

A recipe is drawn from all kinds of nets, losses, schedules of λ and of the learning rate, optimisers with groups,
averages, penalties, weights of positions and of files, filters, validation sets, shards and stages. It trains for some
dozens of steps on the bundled sample. At the end all tensors of the last checkpoint, its state and the records of
metrics must be the same. Exit status 1 where one differs or fails; its recipe is printed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from kill_stages import ROOT, differences

SAMPLE = str(ROOT / "samples" / "val.binpack")
TRAINING = str(ROOT / "samples" / "train.binpack")
Sections = dict[str, Any]


def drawn(rng: random.Random) -> Sections:
    """A recipe that trains for seconds."""
    size, epochs = rng.choice([64, 100]), rng.randint(2, 4)
    model, losses = _model(rng)
    recipe: Sections = {
        "model": model,
        "data": _data(rng) | {"batch_size": size, "threads": 1},
        "loss": _loss(rng, losses),
        "lambda": _schedule(rng, "lambda") | _jitter(rng),
        "optimizer": _optimizer(rng),
        "schedule": _schedule(rng, "schedule"),
        "validation": _validation(rng, losses),
        "training": {
            "epochs": epochs,
            "positions_per_epoch": size * rng.randint(3, 8),
            "validate_every": rng.randint(1, 2),
            "checkpoint_every": rng.randint(1, 2),
            "keep_last": rng.randint(1, 3),
            "keep_every": rng.choice([0, 2]),
            "seed": rng.randrange(1000),
            "device": "cpu",
        },
        "logging": {"every_steps": rng.randint(1, 5), "tensorboard": False},
    }
    if rng.random() < 0.5 and recipe["optimizer"]["kind"] != "schedule_free":
        recipe["average"] = _average(rng)
    if rng.random() < 0.3:
        recipe["training"]["penalties"] = [
            rng.choice([{"kind": "weights", "factor": 1e-4}, {"kind": "activations", "factor": 1e-3, "norm": "l2"}])
        ]
    if rng.random() < 0.3:
        knots = {"pieces": [[4, 0.5], [20, 1.0]], "ply": [[10, 0.1], [40, 1.0]], "score": [[0, 1.0], [900, 0.3]]}
        parts = [{"kind": "knots", "by": by, "knots": knots[by]} for by in rng.sample(sorted(knots), 2)]
        recipe["position_weight"] = rng.choice([{"kind": "product", "parts": parts}, parts[0]])
    if rng.random() < 0.6:
        recipe["stages"] = [_stage(rng, number, size, losses, recipe) for number in range(rng.randint(2, 3))]
    return recipe


def _model(rng: random.Random) -> tuple[Sections, list[str]]:
    """A net, and the losses that it can have."""
    points = ["sigmoid", "cross_entropy", "win_rate"]
    layered: Sections = {
        "kind": "layered",
        "inputs": [rng.choice(["HalfKAv2_hm", "Chess768"])],
        "hidden": 16,
        "activation": rng.choice(["crelu", "screlu", "pairwise"]),
        "psqt": rng.random() < 0.5,
        "output_buckets": {"count": rng.choice([1, 2, 4])},
        "layers": [{"outputs": 8, "activation": rng.choice(["crelu", "dual"])}],
    }
    return rng.choice(
        [
            ({"kind": "simple", "hidden": 16, "activation": rng.choice(["crelu", "screlu"])}, points),
            (layered, points),
            (layered | {"head": "wdl", "psqt": False}, ["wdl"]),
            ({"kind": "sfnnv5", "l1": 64}, points),
        ]
    )


def _loss(rng: random.Random, kinds: list[str]) -> Sections:
    return {"kind": rng.choice(kinds)}


def _data(rng: random.Random) -> Sections:
    files = rng.sample([TRAINING, SAMPLE, TRAINING], rng.randint(1, 3))
    data: Sections = {"train": files, "validation": [SAMPLE], "validation_positions": rng.choice([150, 333])}
    if rng.random() < 0.6:
        data["weights"] = [rng.choice([0.3, 2.5]) for _ in files[1:]] + [1]
    data["shards"] = rng.choice([1, 2]) if len(files) > 1 and "weights" not in data else 1
    data["filters"] = _filters(rng)
    in_order = "weights" not in data and data["shards"] == 1
    return data | {"shuffle_buffer": rng.choice([0, 700, 3000] if in_order else [700, 3000])}


def _filters(rng: random.Random) -> Sections:
    found: Sections = {}
    if rng.random() < 0.4:
        found |= {"soft_ply": 30, "soft_ply_knots": [[0, 0.025], [22, 0.05], [25.5, 0.2], [29.5, 0.8]]}
    if rng.random() < 0.5:
        found |= {"piece_counts": True, "piece_counts_curve": [-0.2, 0.45, 1.0, 0.95, 0.75]}
    for name, value in (("random_skip", 0.7), ("quiet", True), ("wdl", True), ("placeholder_zero", True)):
        if rng.random() < 0.3:
            found[name] = value
    if rng.random() < 0.2:
        found["extra"] = [{"kind": "pieces", "least": 5, "most": 31}]
    return found


def _validation(rng: random.Random, losses: list[str]) -> Sections:
    found: Sections = {
        "lambda": rng.choice(["end", "follow", 0.5]),
        "sample": rng.choice(["first", "spread"]),
        "filters": _filters(rng) if rng.random() < 0.4 else {},
        "sets": [
            {"name": f"set-{n}", "files": [TRAINING], "positions": 100 + n, "sample": rng.choice(["first", "spread"])}
            for n in range(rng.randint(0, 2))
        ],
    }
    if rng.random() < 0.3:
        found["loss"] = _loss(rng, losses)
    return found


def _average(rng: random.Random) -> Sections:
    return rng.choice(
        [
            {"kind": "ema", "half_life": 5, "every": rng.randint(1, 4), "warmup": False},
            {"kind": "ema", "decay": 0.9, "every": 1, "warmup": True},
            {"kind": "swa", "start_epoch": rng.randint(0, 2)},
        ]
    )


def _schedule(rng: random.Random, section: str) -> Sections:
    """A schedule of λ or of the learning rate, which have the same kinds."""
    share = section == "lambda"
    first, last = ({"start": 0.9}, {"end": 0.4}) if share else ({}, {"final_lr": 1e-4})
    kinds: list[Sections] = [
        {"kind": "constant"} | ({"value": 0.8} if share else {}),
        {"kind": "linear"} | first | last,
        {"kind": "cosine", "steps": rng.randint(3, 50)} | first | last,
        {"kind": "step", "epochs": 1, "gamma": 0.7} | first,
        {"kind": "drops", "epochs": [1, 3], "gamma": 0.5} | first,
        {"kind": "exponential", "gamma": 0.8} | first,
        {"kind": "cycle", "height": -0.3 if share else 1e-3, "peak": 0.2} | first | last,
        {"kind": "one_cycle", "steps": rng.choice([7, 500]), "rise": 0.3}
        | ({"start": 0.3, "top": 0.9, "end": 0.1} if share else {"start_lr": 1e-4, "final_lr": 1e-6}),
    ]
    found = rng.choice(kinds)
    if rng.random() < 0.2:
        found = {"kind": "sequence", "parts": [{"epochs": n + 1, section: rng.choice(kinds)} for n in range(2)]}
    if rng.random() < 0.3:
        found = found | {"warmup_steps": rng.randint(1, 9), "warmup": rng.choice(["linear", "hyperbola"])}
    return found | ({"stairs": rng.choice(["begin", "end"])} if rng.random() < 0.2 else {})


def _jitter(rng: random.Random) -> Sections:
    if rng.random() < 0.4:
        return {}
    return {
        "jitter": rng.choice([0, 0.02]),
        "jitter_law": rng.choice(["uniform", "normal"]),
        "batch_jitter": rng.choice([0, 0.05]),
        "batch_jitter_decay": rng.choice([0, 0.9, 0.999]),
        "scale_jitter": rng.random() < 0.5,
    }


def _optimizer(rng: random.Random) -> Sections:
    kind = rng.choice(["adamw", "radam", "ranger", "ranger_lite", "schedule_free", "lion", "muon", "torch"])
    found: Sections = {"kind": kind, "lr": 1e-3}
    if kind == "torch":
        found["name"] = "NAdam"
    if kind == "ranger_lite":
        found |= {"weight_decay": 1e-3}
        if rng.random() < 0.3:  # goes with fewer other fields
            return found | {"stable_decay": True}
    if kind == "schedule_free":
        found |= {"warmup_steps": rng.choice([0, 10])}
    if rng.random() < 0.4:
        found |= {"max_norm": 0.5, "max_value": rng.choice([None, 0.01])}
    if rng.random() < 0.5:
        found["groups"] = _groups(rng, kind)
    return found


def _groups(rng: random.Random, kind: str) -> list[Sections]:
    groups: list[Sections] = [{"match": "*.bias", "frozen": True}, {"match": "*.weight", "max_weight": 0.5}]
    if kind != "torch":
        groups.append({"match": "*.bias", "lr_factor": 0.3})
        groups.append({"match": "*.weight", "weight_decay": 0.1, "betas": [0.8, 0.9]})
    return rng.sample(groups, rng.randint(1, 2))


def _stage(rng: random.Random, number: int, size: int, losses: list[str], recipe: Sections) -> Sections:
    carry = rng.choice(["weights", "optimizer"]) if number else "weights"
    found: Sections = {"name": f"part{number}", "carry": carry, "training": {"epochs": rng.randint(1, 2)}}
    if number and carry == "weights":
        found["take"] = rng.choice(["last", "best"])
        if rng.random() < 0.4 and "average" not in recipe:
            found["optimizer"] = _optimizer(rng)
    if number and "average" in recipe and rng.random() < 0.3:
        found["take"] = "average"
    changes = {
        "data": lambda: {"batch_size": size // 2, "filters": _filters(rng)},
        "loss": lambda: _loss(rng, losses),
        "lambda": lambda: _schedule(rng, "lambda") | _jitter(rng),
        "schedule": lambda: _schedule(rng, "schedule"),
        "validation": lambda: {"lambda": rng.choice(["end", "follow"])},
    }
    if "average" in recipe:
        changes["average"] = lambda: _average(rng)
    for name in rng.sample(sorted(changes), rng.randint(0, 3)):
        found[name] = changes[name]()
    return found


def trained(recipe: Sections, folder: Path, kill_at: int) -> int:
    """Trains, or continues, in a child of this process until a step; its status, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = _train(recipe, folder, kill_at)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    status = os.waitpid(child, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _train(recipe: Sections, folder: Path, kill_at: int) -> int:
    import torch

    from nnue_trainer import config
    from nnue_trainer.errors import UserError
    from nnue_trainer.training import run
    from nnue_trainer.training.trainer import Trainer

    torch.set_num_threads(1)
    advance = Trainer.advance

    def dying(self: Trainer) -> None:
        advance(self)
        if self.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    Trainer.advance = dying  # type: ignore[method-assign]
    output = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        run.train(config.parse(recipe), folder, resume="auto")
    except UserError as error:
        print(f"UserError: {error}", flush=True)
        return 1
    return 0


def equal(recipe: Sections, rng: random.Random, folder: Path, kills: int) -> str:
    """How a recipe ended: "equal", "refused: …" or what is wrong."""
    from nnue_trainer.files import checkpoint

    whole, killed = folder / "whole", folder / "killed"

    def said(run: Path) -> str:
        return run.with_suffix(".log").read_text(errors="replace").strip()

    status = trained(recipe, whole, 0)
    if status:
        last = said(whole).splitlines()[-1]
        return f"refused: {last}" if status == 1 else f"failed with status {status}: {said(whole)}"
    state = checkpoint.load(whole / "checkpoints" / "last.safetensors").state
    for at in sorted(rng.sample(range(1, state["step"]), min(kills, state["step"] - 1))):
        if trained(recipe, killed, at) != -signal.SIGKILL:
            return f"was not killed at step {at}: {said(killed)}"
    if status := trained(recipe, killed, 0):
        return f"status {status} after the kills: {said(killed)}"
    found = differences(whole, killed)
    return f"differs: {'; '.join(found)}" if found else "equal"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", type=int, default=20)
    parser.add_argument("--kills", type=int, default=2, help="of each recipe; default: 2")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    import nnue_trainer.training.run  # noqa: F401  # once, before the children begin

    wrong = 0
    for number in range(arguments.seed, arguments.seed + arguments.recipes):
        rng = random.Random(number)
        recipe = drawn(rng)
        folder = Path(tempfile.mkdtemp())
        try:
            ended = equal(recipe, rng, folder, arguments.kills)
        finally:
            shutil.rmtree(folder)
        print(f"recipe {number}: {ended}", flush=True)
        if ended != "equal":
            print(recipe)
        wrong += ended != "equal" and not ended.startswith("refused")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
