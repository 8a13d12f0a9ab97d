"""Translates a recipe of nettest, Stockfish's chain of nnue-pytorch trainings, into one of ours.

docs/from-nnue-pytorch.md has the meaning of each option. Of a YAML file of nettest only `training.steps` counts; what
has no counterpart becomes a note.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from nnue_trainer.errors import UserError, quoted, shown

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
"""The defaults of nnue-pytorch that differ from those of our fields."""

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

_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_REPEAT = "<repeat_last>"


def translate(data: Any, origin: str) -> tuple[dict[str, Any], list[str]]:
    """(the recipe as plain data, one note for each thing that it lacks). UserError for something else than a recipe of
    nettest."""
    training = data.get("training") if isinstance(data, dict) else None
    steps = training.get("steps") if isinstance(training, dict) else None
    if not isinstance(steps, list) or not steps:
        raise UserError(f"{origin}: training.steps: found nothing, expected the steps of a nettest recipe")
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
            raise UserError(
                f"{origin}: step {number}: the net differs from step 1's, expected the same net in all steps"
            )
        carried = run.resume == "previous_checkpoint"
        if number > 1 and not run.resume.startswith("previous_"):
            notes.append(f"{run.where}: resume {shown(run.resume)}: begins from new weights; here from the last step's")
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
        binpacks = run.get("binpacks", before.binpacks if before else [])
        if isinstance(binpacks, str):
            binpacks = [binpacks]
        if not isinstance(binpacks, list) or not all(isinstance(name, str) for name in binpacks):
            raise UserError(f"{where}: binpacks: found {quoted(binpacks)}, expected a list of files")
        self.binpacks: list[str] = binpacks
        self.max_epochs: Any = run.get("max_epochs", before.max_epochs if before else 800)
        self.resume: str = str(run.get("resume", before.resume if before else "none"))
        own = _options(run.get("other_options", run.get("options", {})), where)
        self.options: dict[str, Any] = (before.options if before else {}) | own

    def sections(self, notes: list[str]) -> dict[str, Any]:
        """The sections of our recipe."""
        given = _Options(_DEFAULTS | self.options, self.where)
        features = str(given.take("features"))
        of_kinds = {l2: kind for (f, l2), kind in _KINDS.items() if f == features}
        l2, l3 = given.integer("l2", min(of_kinds, default=0)), given.integer("l3", _L3)
        usual = l2 if l2 in of_kinds else next(iter(of_kinds), None)
        if usual is None:
            known = ", ".join(sorted({f for f, _ in _KINDS}))
            raise UserError(f"{self.where}: features {quoted(features)}, expected one of {known}")
        batch, size = given.integer("batch-size", above=0), given.integer("epoch-size", above=0)
        optimizer = str(given.take("optimizer-name"))
        if optimizer not in _OPTIMIZERS:
            notes.append(f"{self.where}: optimizer-name {optimizer}: not available, read as ranger_lite")
        lr = given.number("lr")
        found: dict[str, Any] = {
            "model": {"kind": of_kinds[usual], "l1": given.integer("l1")}
            | ({} if l2 == usual else {"l2": l2 + usual % 2})  # 15 and 31 are without the output that skips
            | ({} if l3 == _L3 else {"l3": l3}),
            "data": {
                "train": self.binpacks or ["data/train.binpack"],
                "validation": [str(name) for name in [given.take("validation-data")] if name],
                "validation_positions": given.integer("validation-size"),
                "batch_size": batch,
                "filters": _filters(given),
            },
            "loss": {"kind": "win_rate"}
            | {ours: given.number(theirs) for theirs, ours in _LOSS.items() if theirs in given.left},
            "lambda": _lambda(given),
            "optimizer": {"kind": _OPTIMIZERS.get(optimizer, "ranger_lite"), "lr": lr, "weight_decay": 0.0}
            | _decay(given, optimizer),
            "schedule": _schedule(given, lr),
            "training": {
                "epochs": _Options({"max_epochs": self.max_epochs}, self.where).integer("max_epochs", above=0),
                "positions_per_epoch": size // batch * batch,
                "seed": given.integer("seed"),
            },
        }
        if "swa-start-epoch" in given.left:
            found["average"] = {"kind": "swa", "start_epoch": given.integer("swa-start-epoch")}
        notes += [
            f"{self.where}: {shown(name)} {shown(value)}: has no counterpart here"
            for name, value in sorted(given.left.items())
            if name not in _IGNORED
        ]
        if not found["data"]["validation"]:
            notes.append(f"{self.where}: names no validation data; set data.validation")
        return found


class _Options:
    """The options of a step, each of which is taken once; what is left has no counterpart."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.left, self._where = dict(values), where

    def take(self, name: str, default: Any = None) -> Any:
        return self.left.pop(name, default)

    def number(self, name: str, default: float | None = None, *, above: float = -math.inf) -> float:
        found = self.take(name, default)
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if not isinstance(found, bool) and math.isfinite(value := float(found)) and value > above:
                return value
        more = f" above {above:g}" if above > -math.inf else ""
        raise UserError(f"{self._where}: {name}: found {quoted(found)}, expected a number{more}")

    def integer(self, name: str, default: int | None = None, *, above: float = -math.inf) -> int:
        found = self.left.get(name, default)
        value = self.number(name, default, above=above)
        if value != int(value):
            raise UserError(f"{self._where}: {name}: found {value:g}, expected an integer")
        with contextlib.suppress(ValueError):
            return int(str(found))  # a float has 53 bits
        return int(value)

    def count(self, name: str) -> int | None:
        """A positive number; None if the option is not given."""
        return self.integer(name, above=0) if name in self.left else None

    def flag(self, name: str) -> bool:
        found = self.take(name, False)
        if (value := _FLAGS.get(str(found).lower())) is None:
            raise UserError(f"{self._where}: {name}: found {quoted(found)}, expected true or false")
        return value


def _options(given: Any, where: str) -> dict[str, Any]:
    """Options by name, of a list of flags or a mapping. As for the parser there, the last of a name in sorted order
    counts, and - and _ are the same. A flag and its value may be two entries of the list, or one with a blank."""
    if isinstance(given, list):
        found: dict[str, Any] = {}
        name = ""
        for entry in map(str, given):
            if entry.startswith("--"):
                flag, equals, value = entry[2:].replace(" ", "=", "=" not in entry).partition("=")
                name = flag.replace("_", "-")
                found[name] = value if equals else True
                name = "" if equals else name
            elif name:
                found[name] = entry
                name = ""
            else:
                raise UserError(f"{where}: options: found {quoted(entry)}, expected a flag, such as --lr=0.001")
        return found
    if isinstance(given, Mapping):
        return {
            str(name).replace("_", "-"): value for name, value in sorted(given.items(), key=lambda pair: str(pair[0]))
        }
    raise UserError(f"{where}: options: found {quoted(given)}, expected a list of flags or a section of keys")


def _filters(given: _Options) -> dict[str, Any]:
    return {
        "no_score": True,
        "placeholder_zero": True,
        "min_ply": given.integer("early-fen-skipping"),
        "random_skip": given.number("random-fen-skipping"),
        "quiet": not given.flag("no-filtered"),
        "wdl": not given.flag("no-wld-filtered"),
        "min_material": max(given.integer("simple-eval-skipping", 0), 0),
        "soft_ply": max(given.integer("soft-early-fen-skipping"), 0),
        "soft_ply_knots": [
            [given.number(f"ply-x{n}", x), given.number(f"ply-y{n}", y)] for n, (x, y) in enumerate(_PLY, 1)
        ],
        "piece_counts": True,
        "piece_counts_curve": [given.number(f"pc-y{n}", y) for n, y in enumerate(_PIECES)],
    }


def _lambda(given: _Options) -> dict[str, Any]:
    one = given.number("lambda", 1.0)
    start, end = given.number("start-lambda", one), given.number("end-lambda", one)
    steps, delta = given.count("lambda-schedule-steps"), given.number("lambda-cycle-delta", 0.0)
    peak, scaled = given.number("lambda-cycle-warmup-pct", 0.3), given.flag("lambda-cycle-jitter")
    sample, batch = given.number("jitter-lambda-sample", 0.0), given.number("jitter-lambda-batch", 0.0)
    decay = given.number("jitter-lambda-decay", 0.999)
    found: dict[str, Any]
    if steps is not None and (delta or scaled):
        found = {"kind": "cycle", "start": start, "end": end, "height": delta, "peak": peak, "steps": steps}
    elif start == end:
        found = {"kind": "constant", "value": start}
    else:
        found = {"kind": "linear", "start": start, "end": end, "steps": steps}
    if sample:
        found |= {"jitter": sample, "jitter_law": "normal"}
    if batch:
        found |= {"batch_jitter": batch, "batch_jitter_decay": decay}
    return found | ({"scale_jitter": True} if scaled else {})


def _decay(given: _Options, optimizer: str) -> dict[str, Any]:
    groups = []
    for option, names in _DECAYS.items():
        if decay := given.number(option, 0.0):
            groups += [{"match": name, "weight_decay": decay} for name in names]
    if not groups:
        return {}
    return {"groups": groups} | ({"stable_decay": True} if optimizer not in ("adamw", "schedulefree") else {})


def _schedule(given: _Options, lr: float) -> dict[str, Any]:
    gamma, steps = given.number("gamma"), given.count("one-cycle-steps")
    rise, divisor = given.number("one-cycle-warmup-pct", 0.2), given.number("one-cycle-start-div", 25, above=0)
    final = given.number("one-cycle-final-div", 50, above=0)
    if steps is None:
        return {"kind": "exponential", "gamma": gamma}
    start = lr / divisor
    return {"kind": "one_cycle", "start_lr": start, "final_lr": start / final, "rise": rise, "steps": steps}


def _changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The changes of a section; all of it if it has another kind or lacks keys."""
    if before.get("kind") != now.get("kind") or before.keys() - now.keys():
        return dict(now)
    return {
        key: _changes(before[key], value) if isinstance(value, dict) and key in before else value
        for key, value in now.items()
        if value != before.get(key)
    }
