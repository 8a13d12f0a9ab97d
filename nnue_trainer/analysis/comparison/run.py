"""A comparison from its plan to its files: nets are trained and exported, then they play a tournament.

The folder has a run for each net in `runs`, the nets and their figures in `nets`, and the games in `match`. Results are
made of `nets` and `match`, so only these must be copied between machines. Everything that is there is not made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nnue_trainer.analysis.comparison.plan import Plan
from nnue_trainer.analysis.comparison.recipes import positions
from nnue_trainer.analysis.runs import Run, read_run
from nnue_trainer.data.files import Part
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.files.atomic import replacing
from nnue_trainer.match.players import net_of
from nnue_trainer.match.run import MatchOptions
from nnue_trainer.training.seeds import train_seeds

NETS, RUNS, MATCH = "nets", "runs", "match"
_NO_FIGURES = ("step", "epoch", "best", "figure", "lambda")


@dataclass(frozen=True)
class TrainedNet:
    """A net and what its training gave. `file` is its name in the folder `nets`; `seconds` passed in steps; `figures`
    are those of its validation."""

    recipe: str
    seed: int
    file: str
    bytes: int
    sha256: str
    positions: int
    seconds: float
    figures: dict[str, float]


def trained(folder: Path, plan: Plan) -> dict[str, TrainedNet]:
    """The nets that are complete, by name and in the order of the plan. UserError for a damaged file."""
    found = {}
    for number, seed in plan.nets:
        name = plan.name(number, seed)
        path = folder / NETS / f"{name}.json"
        try:
            net = TrainedNet(**json.loads(path.read_bytes()))
            data = (folder / NETS / net.file).read_bytes()
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{path}: damaged, expected the figures of a net; without it, it is made again: {error}"
            ) from None
        if hashlib.sha256(data).hexdigest() != net.sha256:
            raise UserError(f"{folder / NETS / net.file}: not the net that {path.name} describes; copy both again")
        found[name] = net
    return found


def train_nets(folder: Path, plan: Plan, part: Part, say: Callable[[str], None], *, as_nnue: bool) -> int:
    """Trains the nets of a part that are missing, several at a time where there are several GPUs, and exports them,
    with `as_nnue` as .nnue files of any size. Returns the exit status of a training that a signal
    interrupted, or 0."""
    there = trained(folder, plan)
    own = plan.nets[part.number - 1 :: part.of]
    for number, entrant in enumerate(plan.entrants):
        missing = [seed for recipe, seed in own if recipe == number and plan.name(recipe, seed) not in there]
        if not missing:
            continue
        runs = folder / RUNS / entrant.label
        say(f"{entrant.label}: training with seed{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}")
        for run in train_seeds(entrant.recipe(f"seeds={missing}"), runs, resume="auto"):
            if run.interrupted:
                return run.status
            if run.left:
                raise UserError(f"{run.folder}: ended at {run.left}; the same command continues")
            _export(folder / NETS, plan, number, run.seed, run.folder, as_nnue)
    return 0


def _export(nets: Path, plan: Plan, number: int, seed: int, run: Path, as_nnue: bool) -> None:
    """Writes the net of a finished run, and what its training gave."""
    checkpoint = checkpoints.of_run(run)
    data, suffix = net_of(checkpoint, as_nnue=as_nnue)
    name = plan.name(number, seed)
    records = read_run(run)
    net = TrainedNet(
        recipe=plan.entrants[number].label,
        seed=seed,
        file=f"{name}{suffix}",
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        positions=positions(plan.entrants[number].recipe()),
        seconds=round(records.seconds(), 6),
        figures=_figures(records, checkpoint),
    )
    nets.mkdir(parents=True, exist_ok=True)
    with replacing(nets / net.file) as output:
        output.write_bytes(data)
    with replacing(nets / f"{name}.json") as output:  # the last file: with it the net is complete
        output.write_text(json.dumps(asdict(net), indent=1, ensure_ascii=False) + "\n")


def _figures(run: Run, checkpoint: Path) -> dict[str, float]:
    """The figures of the validation that a checkpoint was saved after."""
    step = checkpoints.load(checkpoint, ()).state.get("step")
    rows = [row for row, at in enumerate(run.validation["step"]) if at == step]
    names = [name for name in run.validation.columns if "/" not in name and name not in _NO_FIGURES]
    values = {name: float(run.validation[name][rows[-1]]) for name in names} if rows else {}
    return {name: value for name, value in values.items() if value == value}


def tournament(plan: Plan, options: MatchOptions, *, gauntlet: bool) -> MatchOptions:
    """The options of a match between the nets of a plan. `options.pairs` are those of each two recipes; each two nets
    play an equal part of them, rounded up. `gauntlet`: only those against the first recipe."""
    each = -(-options.pairs // len(plan.seeds) ** 2)
    return replace(options, pairs=each, teams=tuple(plan.teams), gauntlet=gauntlet)
