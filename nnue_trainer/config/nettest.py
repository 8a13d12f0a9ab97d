"""Translates a recipe of nettest, Stockfish's chain of nnue-pytorch trainings, into one of ours.

docs/from-nnue-pytorch.md has the meaning of each option. Of a YAML file of nettest only `training.steps` counts; what
has no counterpart becomes a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnue_trainer.errors import UserError, quoted

_DEFAULTS: dict[str, Any] = {
    "features": "Full_Threats+PP_3Wide+HalfKAv2_hm^",
    "l1": 1024,
    "batch-size": 16_384,
    "epoch-size": 100_000_000,
    "validation-size": 1_000_000,
    "lr": 8.75e-4,
    "gamma": 0.992,
    "random-fen-skipping": 3,
    "early-fen-skipping": -1,
    "soft-early-fen-skipping": 20,
    "optimizer-name": "rangerlite",
    "seed": 42,
}
"""What nnue-pytorch does without an option, where this differs from the defaults of our fields."""

_KINDS = {
    ("Full_Threats+PP_3Wide+HalfKAv2_hm^", 32): "sfnnv16",
    ("Full_Threats+HalfKAv2_hm^", 32): "sfnnv15",
    ("Full_Threats+HalfKAv2_hm^", 31): "sfnnv14.1",
    ("HalfKAv2_hm^", 15): "sfnnv9",
}
"""The kind of net by features and l2."""
_L3 = 32

_LOSS = {
    "in-scaling": "in_scaling",
    "in-offset": "in_offset",
    "out-scaling": "out_scaling",
    "out-offset": "out_offset",
    "pow-exp": "power",
    "qp-asymmetry": "qp_asymmetry",
    "w1": "weight_boost",
    "w2": "weight_power",
}
_OPTIMIZERS = {"rangerlite": "ranger_lite", "adamw": "adamw", "schedulefree": "schedule_free"}
_DECAYS = {"ft-weight-decay": ["feature_transformer.weight"], "dense-weight-decay": ["fc*.weight"],
           "factorized-weight-decay": ["fc0.weight"]}  # fmt: skip
"""The weights that each decay is of; that of the shared layer is one of its sum with the stacks' own here."""
_PLY = ((0, 0.1), (6, 0.15), (10, 0.25), (18, 0.75))
_PIECES = (0.0, 0.4, 1.0, 1.0, 0.75)
_IGNORED = {
    "threads", "num-workers", "gpus", "default-root-dir", "compile-backend", "network-save-period",
    "save-last-network", "save-top-k", "check-val-every-n-epoch",
}  # fmt: skip
"""Options that change no net, or that the kind of net decides."""

_REPEAT = "<repeat_last>"


def translate(data: Any, origin: str) -> tuple[dict[str, Any], list[str]]:
    """(the recipe as plain data, one note for each thing that it lacks). UserError for something else than a recipe of
    nettest."""
    training = data.get("training") if isinstance(data, dict) else None
    steps = training.get("steps") if isinstance(training, dict) else None
    if not isinstance(steps, list) or not steps:
        raise UserError(f"{origin}: training.steps: found nothing, expected the steps of a recipe of nettest")
    runs: list[_Step] = []
    for number, step in enumerate(steps, 1):
        runs.append(_Step(step, runs[-1] if runs else None, f"{origin}: step {number}"))
    notes: list[str] = []
    sections = [run.sections(notes) for run in runs]
    first = sections[0]
    if len(runs) == 1:
        return first, notes
    stages = []
    epochs = 0  # of the chain that the last new start has begun
    for number, (run, found) in enumerate(zip(runs, sections, strict=True), 1):
        if found["model"] != first["model"]:
            raise UserError(f"{origin}: step {number}: the net is another one than in step 1, expected the same in all")
        carried = run.resume == "previous_checkpoint"
        own = found["training"]["epochs"] - (epochs if carried else 0)
        if own <= 0:
            raise UserError(f"{origin}: step {number}: max_epochs {run.max_epochs}, expected more than {epochs}")
        epochs = found["training"]["epochs"]
        stage: dict[str, Any] = {"name": f"step-{number}"}
        if carried and number > 1:
            stage["carry"] = "optimizer"
            found = found | {
                "schedule": sections[number - 2]["schedule"],
                "optimizer": sections[number - 2]["optimizer"],
            }
            sections[number - 1] = found  # of the step before, whose stored schedule goes on
        before = {name: section for name, section in first.items() if name != "average"}
        changes = {name: _changes(before.get(name, {}), found[name]) for name in found if name != "model"}
        changes["training"] = changes["training"] | {"epochs": own}
        stages.append(stage | {name: change for name, change in changes.items() if change})
    whole = {name: section for name, section in first.items() if name != "average"}  # which each stage names
    return whole | {"stages": stages}, notes


class _Step:
    """One step of a recipe, with what it takes over from the step before."""

    def __init__(self, step: Any, before: _Step | None, where: str):
        if isinstance(step, dict) and _REPEAT in step:
            if before is None:
                raise UserError(f"{where}: {_REPEAT}, but there is no step before it")
            step = step[_REPEAT] or {}
        else:
            before = None
        run = step.get("run", {}) if isinstance(step, dict) else None
        if not isinstance(run, dict):
            raise UserError(f"{where}: run: found {quoted(run)}, expected a section of keys")
        self.where = where
        self.binpacks: list[str] = run.get("binpacks", before.binpacks if before else [])
        self.max_epochs: Any = run.get("max_epochs", before.max_epochs if before else 800)
        self.resume: str = str(run.get("resume", before.resume if before else "none"))
        own = _options(run.get("other_options", run.get("options", {})), where)
        self.options: dict[str, Any] = (before.options if before else {}) | own

    def sections(self, notes: list[str]) -> dict[str, Any]:
        """The sections of our recipe."""
        left = _DEFAULTS | self.options
        take: Callable[..., Any] = left.pop
        features = str(take("features"))
        of_kinds = {l2: kind for (f, l2), kind in _KINDS.items() if f == features}
        l2, l3 = int(take("l2", min(of_kinds, default=0))), int(take("l3", _L3))
        usual = l2 if l2 in of_kinds else next(iter(of_kinds), None)
        if usual is None:
            known = ", ".join(sorted({f for f, _ in _KINDS}))
            raise UserError(f"{self.where}: features {quoted(features)}, expected one of {known}")
        batch, size = int(take("batch-size")), int(take("epoch-size"))
        optimizer = str(take("optimizer-name"))
        if optimizer not in _OPTIMIZERS:
            notes.append(f"{self.where}: optimizer-name {optimizer}: not there, read as ranger_lite")
        lr = float(take("lr"))
        found: dict[str, Any] = {
            "model": {"kind": of_kinds[usual], "l1": int(take("l1"))}
            | ({} if l2 == usual else {"l2": l2 + usual % 2})  # 15 and 31 are without the output that skips
            | ({} if l3 == _L3 else {"l3": l3}),
            "data": {
                "train": [str(name) for name in self.binpacks] or ["data/train.binpack"],
                "validation": [str(name) for name in [take("validation-data", None)] if name],
                "validation_positions": int(take("validation-size")),
                "batch_size": batch,
                "filters": _filters(take),
            },
            "loss": {"kind": "win_rate"}
            | {ours: float(left.pop(theirs)) for theirs, ours in _LOSS.items() if theirs in left},
            "lambda": _lambda(take),
            "optimizer": {"kind": _OPTIMIZERS.get(optimizer, "ranger_lite"), "lr": lr, "weight_decay": 0.0}
            | _decay(take, optimizer),
            "schedule": _schedule(take, lr),
            "training": {
                "epochs": int(self.max_epochs),
                "positions_per_epoch": size // batch * batch,
                "seed": int(take("seed")),
            },
        }
        if (swa := take("swa-start-epoch", None)) is not None:
            found["average"] = {"kind": "swa", "start_epoch": int(swa)}
        notes += [
            f"{self.where}: {name} {left[name]}: has no counterpart here" for name in sorted(left.keys() - _IGNORED)
        ]
        if not found["data"]["validation"]:
            notes.append(f"{self.where}: names no validation data; set data.validation")
        return found


def _options(given: Any, where: str) -> dict[str, Any]:
    """Options by name, of a list of flags or a mapping. As for the parser there, the last of a name in sorted order
    counts, and - and _ are the same."""
    if isinstance(given, list):
        pairs = [str(flag).removeprefix("--").partition("=") for flag in given]
        return {name.replace("_", "-"): value if equals else True for name, equals, value in pairs}
    if isinstance(given, Mapping):
        return {
            str(name).replace("_", "-"): value for name, value in sorted(given.items(), key=lambda pair: str(pair[0]))
        }
    raise UserError(f"{where}: options: found {quoted(given)}, expected a list of flags or a section of keys")


def _filters(take: Callable[..., Any]) -> dict[str, Any]:
    return {
        "no_score": True,
        "placeholder_zero": True,
        "min_ply": int(take("early-fen-skipping")),
        "random_skip": float(take("random-fen-skipping")),
        "quiet": not take("no-filtered", False),
        "wdl": not take("no-wld-filtered", False),
        "min_material": max(int(take("simple-eval-skipping", 0)), 0),
        "soft_ply": max(int(take("soft-early-fen-skipping")), 0),
        "soft_ply_knots": [
            [float(take(f"ply-x{n}", x)), float(take(f"ply-y{n}", y))] for n, (x, y) in enumerate(_PLY, 1)
        ],
        "piece_counts": True,
        "piece_counts_curve": [float(take(f"pc-y{n}", y)) for n, y in enumerate(_PIECES)],
    }


def _lambda(take: Callable[..., Any]) -> dict[str, Any]:
    one = float(take("lambda", 1.0))
    start, end = float(take("start-lambda", one)), float(take("end-lambda", one))
    steps, delta = take("lambda-schedule-steps", None), float(take("lambda-cycle-delta", 0.0))
    peak, scaled = float(take("lambda-cycle-warmup-pct", 0.3)), bool(take("lambda-cycle-jitter", False))
    sample, batch = float(take("jitter-lambda-sample", 0.0)), float(take("jitter-lambda-batch", 0.0))
    decay = float(take("jitter-lambda-decay", 0.999))
    found: dict[str, Any]
    if steps is not None and (delta or scaled):
        found = {"kind": "cycle", "start": start, "end": end, "height": delta, "peak": peak, "steps": int(steps)}
    elif start == end:
        found = {"kind": "constant", "value": start}
    else:
        found = {"kind": "linear", "start": start, "end": end, "steps": None if steps is None else int(steps)}
    if sample:
        found |= {"jitter": sample, "jitter_law": "normal"}
    if batch:
        found |= {"batch_jitter": batch, "batch_jitter_decay": decay}
    return found | ({"scale_jitter": True} if scaled else {})


def _decay(take: Callable[..., Any], optimizer: str) -> dict[str, Any]:
    groups = []
    for option, names in _DECAYS.items():
        if decay := float(take(option, 0.0)):
            groups += [{"match": name, "weight_decay": decay} for name in names]
    if not groups:
        return {}
    return {"groups": groups} | ({"stable_decay": True} if optimizer not in ("adamw", "schedulefree") else {})


def _schedule(take: Callable[..., Any], lr: float) -> dict[str, Any]:
    gamma, steps = float(take("gamma")), take("one-cycle-steps", None)
    rise, divisor = float(take("one-cycle-warmup-pct", 0.2)), float(take("one-cycle-start-div", 25))
    final = float(take("one-cycle-final-div", 50))
    if steps is None:
        return {"kind": "exponential", "gamma": gamma}
    start = lr / divisor
    return {"kind": "one_cycle", "start_lr": start, "final_lr": start / final, "rise": rise, "steps": int(steps)}


def _changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What a section changes; all of it where it is of another kind or lacks keys."""
    if before.get("kind") != now.get("kind") or before.keys() - now.keys():
        return dict(now)
    return {
        key: _changes(before[key], value) if isinstance(value, dict) and key in before else value
        for key, value in now.items()
        if value != before.get(key)
    }
