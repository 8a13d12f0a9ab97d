"""The whole way as one file: data → train → export → permute → verify → match, each step skipped if it is done.

A step is a command of `nnue`, run in a process of its own. What is done stands in `steps.json` in the folder: for each
step a key, the digest of the key before and of the step. So a step whose settings or predecessors changed is not taken
for done; it is an error that names it, since its old result would be replaced, until the user requests that (`redo`).
"""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from nnue_trainer import schema
from nnue_trainer.atomic import replacing
from nnue_trainer.config import read_yaml
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.schema import section

DONE = "steps.json"


@section
class DataStep:
    """A command of `nnue data` that makes a file."""

    run: str = Field(min_length=1)
    """the command without `nnue data`, such as shuffle a.binpack {folder}/train.binpack"""
    makes: str = Field(min_length=1)
    """the file that it writes"""


@section
class TrainStep:
    """`nnue train`: all stages of a recipe."""

    recipe: str | None = None
    """recipe file"""
    preset: str | None = None
    """recipe that comes with the package, instead"""
    set: list[str] = Field(default_factory=list)
    """fields to override, key=value"""
    options: str = ""
    """further options of the command"""


@section
class ExportStep:
    """`nnue export` of the best checkpoint."""

    options: str = ""
    """further options of the command"""


@section
class PermuteStep:
    """`nnue permute`: the same net with neurons in an order that engines are faster with."""

    data: str = Field(min_length=1)
    """data file"""
    options: str = ""
    """further options of the command"""


@section
class VerifyStep:
    """`nnue verify`: the engine must compute what this program computes."""

    engine: str = "stockfish"
    """UCI engine that reads the net"""
    options: str = ""
    """further options of the command"""


@section
class MatchStep:
    """`nnue match` of the net against others."""

    against: list[str] = Field(min_length=1)
    """nets or engines"""
    engine: str = "stockfish"
    """engine in which nets play"""
    options: str = ""
    """further options of the command"""


@section
class Way:
    """The steps, in this order. `{folder}` in any text is the folder of the way."""

    folder: str | None = None
    """folder for all results; null: runs/ and the name of the file"""
    data: list[DataStep] = Field(default_factory=list)
    train: TrainStep
    export: ExportStep = Field(default_factory=ExportStep)
    permute: PermuteStep | None = None
    verify: VerifyStep | None = None
    match: MatchStep | None = None


@dataclass(frozen=True)
class Step:
    """`command`: the arguments of `nnue`; `result`: what it makes, None for nothing but a verdict. `again`: arguments
    that make it replace its old result. `goes_on`: the command itself decides whether its result fits its options."""

    name: str
    command: list[str]
    result: Path | None
    again: tuple[str, ...] = ("--overwrite",)
    goes_on: bool = False


def load(path: Path) -> Way:
    """The way in a YAML file. UserError, one line, for a wrong one."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected the steps of a way: train, and others")
    return schema.validate(Way, data, lambda _: str(path))


def steps_of(way: Way, path: Path) -> tuple[Path, list[Step]]:
    """The folder of a way, and its steps."""
    folder = Path(way.folder) if way.folder else Path("runs") / path.stem

    def words(text: str) -> list[str]:
        try:
            return [filled(word) for word in shlex.split(text)]
        except ValueError as error:
            raise UserError(f"{path}: {quoted(text)}: {error}") from None

    def filled(text: str) -> str:
        return text.replace("{folder}", str(folder))

    steps = [
        Step(f"data {number}", ["data", *words(step.run)], Path(filled(step.makes)))
        for number, step in enumerate(way.data, 1)
    ]
    train = way.train
    if (train.recipe is None) == (train.preset is None):
        raise UserError(f"{path}: train: expected either recipe or preset")
    named = [filled(train.recipe)] if train.recipe is not None else ["--preset", str(train.preset)]
    run, net = folder / "run", folder / "net.nnue"
    steps.append(
        Step(
            "train",
            ["train", *named, *map(filled, train.set), "--run-dir", str(run), *words(train.options)],
            run / "checkpoints" / "last.safetensors",
        )
    )
    steps.append(Step("export", ["export", str(run), str(net), *words(way.export.options)], net))
    if way.permute is not None:
        permuted = folder / "permuted.nnue"
        permute = ["permute", str(net), str(permuted), "--data", filled(way.permute.data), *words(way.permute.options)]
        steps.append(Step("permute", permute, permuted))
        net = permuted
    if way.verify is not None:
        verify = ["verify", str(net), "--engine", way.verify.engine, *words(way.verify.options)]
        steps.append(Step("verify", verify, None, ()))
    if way.match is not None:
        others, result = map(filled, way.match.against), folder / "match"
        match = ["match", str(net), *others, "--engine", way.match.engine, "-o", str(result)]
        steps.append(Step("match", [*match, *words(way.match.options)], result / "match.json", goes_on=True))
    return folder, steps


def run_way(
    path: Path,
    *,
    redo: Sequence[str] = (),
    say: Callable[[str], None] = print,
    call: Callable[[list[str]], int] | None = None,
) -> int:
    """Runs the steps of a file that are not done, and returns the exit status of the first that failed, or 0. `redo`
    names steps to do again; those after them follow. UserError for a step whose settings changed."""
    call = call or _call
    folder, steps = steps_of(load(path), path)
    unknown = set(redo) - {step.name for step in steps}
    if unknown:
        raise UserError(f"{path}: found no step {quoted(min(unknown))}, expected {', '.join(s.name for s in steps)}")
    done = _read(folder / DONE)
    key, again = "", False
    for number, step in enumerate(steps, 1):
        key = hashlib.sha256(json.dumps([key, step.name, step.command, _inputs(step)]).encode()).hexdigest()
        head = f"step {number}/{len(steps)} {step.name}"
        again |= step.name in redo
        there = step.result is None or step.result.exists()
        if not again and done.get(step.name) == key and there:
            say(f"{head}: done")
            continue
        changed = step.name in done and done[step.name] != key
        if changed and there and not again and not step.goes_on:
            raise UserError(
                f"{path}: step {step.name}, or one before it, has changed since its result was made; "
                f"--redo {shlex.quote(step.name)} makes it and what follows anew"
            )
        replaces = again and there
        command = [*step.command, *(step.again if replaces else ())]
        if step.name == "train" and not replaces:
            command += ["--resume", "auto"]
        say(f"{head}: nnue {shlex.join(command)}")
        done.pop(step.name, None)
        _write(folder / DONE, done)
        status = call(command)
        if status:
            say(f"{head}: ended with exit status {status}; the same command goes on from here")
            return status
        if step.result is not None and not step.result.exists():
            raise UserError(f"{path}: step {step.name} did not make {step.result}")
        if step.name == "train" and (left := _left(step.result)):
            say(f"{head}: {left}; the same command goes on from here")
            return 0
        done[step.name] = key
        _write(folder / DONE, done)
    return 0


def _inputs(step: Step) -> str:
    """A digest of the recipes that a step reads: a changed recipe is another training."""
    digest = hashlib.sha256()
    for file in map(Path, step.command):
        if file.suffix in (".yaml", ".yml") and file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _left(last: Path | None) -> str:
    """Why a training that ended well is not complete; "" if it is."""
    from nnue_trainer.training.stages import left

    assert last is not None
    return left(last)


def _call(command: list[str]) -> int:
    """Runs a command of `nnue`; Ctrl-C reaches it as well, and it is waited for."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "nnue_trainer", *command],
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged, expected the steps that are done: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: damaged, expected the steps that are done")
    return data


def _write(path: Path, done: dict[str, Any]) -> None:
    with replacing(path) as output:
        output.write_text(json.dumps(done, indent=1) + "\n")
