"""The plan of a comparison, which decides everything about its nets; it is written once, so that a comparison continues
with the same nets in another process or on another machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nnue_trainer import schema
from nnue_trainer.analysis.comparison.recipes import Entrant, positions
from nnue_trainer.base import system
from nnue_trainer.base.status import PREEMPTED, Preempted
from nnue_trainer.config.outline import outline
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import replacing

Equal = Literal["positions", "time", "none"]

PLAN = "plan.json"
_REHEARSAL = 3.0  # seconds of training that a speed is measured in
_REHEARSAL_BUFFER = 1 << 17  # positions; a larger one would take longer to fill than the rehearsal


@dataclass(frozen=True)
class Plan:
    """`seeds`: of each recipe that is not a copy (`seeds_of`); `speeds`: positions per second of each recipe, as
    measured before the first net was trained."""

    entrants: tuple[Entrant, ...]
    seeds: tuple[int, ...]
    equal: Equal
    speeds: tuple[float, ...]

    @property
    def nets(self) -> list[tuple[int, int]]:
        """(number of the recipe, seed) of each net. The nets of one recipe follow each other."""
        return [(number, seed) for number in range(len(self.entrants)) for seed in self.seeds_of(number)]

    def seeds_of(self, number: int) -> list[int]:
        """The seeds of a recipe. Copies of a recipe have the following ones: 1, 2, 3, then 4, 5, 6."""
        step = max(self.seeds) - min(self.seeds) + 1
        return [seed + step * self.entrants[number].copy for seed in self.seeds]

    @property
    def teams(self) -> list[int]:
        return [number for number, _ in self.nets]

    def name(self, number: int, seed: int) -> str:
        """The name of a net, and of its file."""
        return f"{self.entrants[number].label}-seed-{seed}"

    def seconds(self, number: int) -> float:
        """The expected time of training one net."""
        return positions(self.entrants[number].recipe()) / self.speeds[number]


def make_plan(
    folder: Path,
    entrants: Sequence[Entrant],
    seeds: Sequence[int],
    equal: Equal,
    *,
    first: bool,
    say: Callable[[str], None],
) -> Plan:
    """The plan in a folder, or a new one, whose speeds are measured. `first`: whether this process may make a new plan
    with --equal time. UserError if the folder has a plan of other recipes, seeds or data."""
    asked = {
        "recipes": [{"label": each.label, "recipe": schema.to_data(each.recipe())} for each in entrants],
        "seeds": list(seeds),
        "equal": equal,
    }
    path = folder / PLAN
    saved = _read(path)
    if saved is None:
        with _turn(folder, say):
            saved = _read(path)
            if saved is None:
                if equal == "time" and not first:
                    raise UserError(
                        f"{path}: no such file yet: with --equal time, start part 1 first, which measures the speeds"
                    )
                # In turns, and the fastest of each counts: other work on the machine only slows a rehearsal down.
                rounds = [[_speed(each, say) for each in entrants] for _ in range(2 if equal == "time" else 1)]
                saved = {"digest": _digest(asked), **asked, "speeds": [max(each) for each in zip(*rounds, strict=True)]}
                with replacing(path) as output:
                    output.write_text(json.dumps(saved, indent=1, ensure_ascii=False) + "\n")
    if saved["digest"] != _digest(asked):
        raise UserError(
            f"{folder}: holds a comparison of other recipes, seeds or data; -o DIR starts another one, "
            "--overwrite replaces it"
        )
    speeds = [float(speed) for speed in saved["speeds"]]
    found = list(entrants)
    if equal == "time":
        seconds = positions(found[0].recipe()) / speeds[0]
        found = [found[0], *(_for(each, seconds, speed) for each, speed in zip(found[1:], speeds[1:], strict=True))]
    return Plan(tuple(found), tuple(seeds), equal, tuple(speeds))


@contextlib.contextmanager
def _turn(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One part measures the speeds, while the others that were started with it wait for its plan. A folder that is made
    goes again if it stays empty."""
    tell = functools.cache(lambda: say(f"{folder}: another part measures the speeds"))
    while True:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            system.wait_for_lock(descriptor, tell)
            if not system.is_named(descriptor, folder, follow_symlinks=True):  # a part that failed has removed it
                continue
            try:
                yield
            finally:
                if is_new:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            return
        finally:
            os.close(descriptor)


def _for(entrant: Entrant, seconds: float, speed: float) -> Entrant:
    """The recipe with as many positions as it trains on in these seconds."""
    found = outline(entrant.recipe())
    if found.has_stages:
        raise UserError(f"compare: {entrant.label}: --equal time takes recipes without stages")
    per_epoch = seconds * speed / found.epochs
    batches = max(1, round(per_epoch / found.batch_size))
    return entrant.with_overrides(f"training.positions_per_epoch={batches * found.batch_size}")


def _speed(entrant: Entrant, say: Callable[[str], None]) -> float:
    """Positions per second in the steps of a short training, of which nothing is kept."""
    from nnue_trainer.training.run import train

    buffer = outline(entrant.recipe()).shuffle_buffer
    short = entrant.recipe(
        f"training.max_time={_REHEARSAL / 3600}",
        "training.callbacks=[]",
        "data.validation=[]",
        "data.implausible=ignore",
        f"data.shuffle_buffer={min(buffer, _REHEARSAL_BUFFER)}",
        "logging.tensorboard=false",
        "logging.every_steps=5",
    )
    with tempfile.TemporaryDirectory() as folder:
        say(f"{entrant.label}: measuring the speed of its training")
        began = time.monotonic()
        summary = train(short, Path(folder) / "run")
        seconds = time.monotonic() - began
    if summary.interrupted:
        raise Preempted if summary.status == PREEMPTED else KeyboardInterrupt
    return summary.positions / (summary.step_seconds or seconds)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
        return {"digest": str(data["digest"]), "speeds": list(data["speeds"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: damaged, expected the plan of a comparison: {error}") from None


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
