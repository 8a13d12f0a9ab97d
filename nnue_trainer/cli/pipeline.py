"""All steps from data to Elo in one file: data → train → export → permute → verify → match. Finished steps are skipped.

A step is a command of `nnue`, run in a separate process. `steps.json` in the folder lists the finished steps, each with
a key, the digest of the previous key and of the step. So if the settings or predecessors of a finished step change, its
key differs. That is an error that names the step, because its old result would be replaced, unless `redo` is given. The
file also lists the steps that were begun and the results that the user gave up, so a kill loses no such decision.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from nnue_trainer import config, schema
from nnue_trainer.base import system
from nnue_trainer.base.programs import RUNS
from nnue_trainer.base.status import InUse
from nnue_trainer.cli.outputs import note
from nnue_trainer.engines.uci import find_engine
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.files import lease, presets
from nnue_trainer.files.atomic import refusing, replacing
from nnue_trainer.registry import load_plugin
from nnue_trainer.schema import section

Decision = Literal["done", "make", "replace", "continue", "refuse"]

DONE = "steps.json"
_LOCK = ".steps.lock"


@section
class DataStep:
    """A command of `nnue data` that makes a file."""

    run: Annotated[str, RUNS] = Field(min_length=1)
    """the command without `nnue data`, such as shuffle a.binpack {folder}/train.binpack"""
    makes: str = Field(min_length=1)
    """the file that it writes"""


@section
class TrainStep:
    """`nnue train`: all stages of a recipe."""

    recipe: Annotated[str | None, RUNS] = None
    """recipe file"""
    preset: str | None = None
    """recipe that comes with the package, instead"""
    set: Annotated[list[str], RUNS] = Field(default_factory=list)
    """fields to override, key=value"""
    options: Annotated[str, RUNS] = ""
    """further options of the command"""


@section
class ExportStep:
    """`nnue export` of the best checkpoint."""

    options: Annotated[str, RUNS] = ""
    """further options of the command"""


@section
class PermuteStep:
    """`nnue permute`: the same net with neurons in an order that engines are faster with."""

    data: str = Field(min_length=1)
    """data file"""
    options: Annotated[str, RUNS] = ""
    """further options of the command"""


@section
class VerifyStep:
    """`nnue verify`: the engine must compute what this program computes."""

    engine: Annotated[str, RUNS] = "stockfish"
    """UCI engine that reads the net"""
    options: Annotated[str, RUNS] = ""
    """further options of the command"""


@section
class MatchStep:
    """`nnue match` of the net against others."""

    against: Annotated[list[str], RUNS] = Field(min_length=1)
    """nets or engines"""
    engine: Annotated[str | None, RUNS] = None
    """engine in which nets play; null: the player of nnue match"""
    options: Annotated[str, RUNS] = ""
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
    that make it replace its old result; `onward`: others, with which it continues or begins. `goes_on`: the command
    itself decides whether its result fits its options. `resumes`: interrupted, the command continues; other commands
    make their result anew. `remaining`: why the result is not complete though the command ended well, "" if it is."""

    name: str
    command: list[str]
    result: Path | None
    again: tuple[str, ...] = ("--overwrite",)
    onward: tuple[str, ...] = ()
    goes_on: bool = False
    resumes: bool = False
    remaining: Callable[[Path], str] = lambda _: ""

    def there(self) -> list[int]:
        """Inode, time in ns and size of the result, [] if there is none. They change with every write."""
        if self.result is None or not self.result.exists():
            return []
        status = self.result.stat()
        return [status.st_ino, status.st_mtime_ns, status.st_size]


@dataclass
class Progress:
    """The content of `steps.json`. Each field has the names of steps as keys."""

    done: dict[str, str] = field(default_factory=dict)
    """key of a step whose result is complete"""
    begun: dict[str, str] = field(default_factory=dict)
    """key of a step that was begun when its result did not exist, or was to be replaced"""
    replaced: dict[str, list[int]] = field(default_factory=dict)
    """the results that the user gave up and that are still there, `Step.there`"""


def load(path: Path) -> Way:
    """The way in a YAML file, which may name programs: the user names it to run its steps. UserError, one line, for a
    wrong one."""
    data = config.read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a section for each step, at least train")
    return schema.validate(Way, data, lambda _: str(path), trusted=True)


def steps_of(way: Way, path: Path) -> tuple[Path, list[Step]]:
    """The folder of a way, and its steps."""
    folder = Path(way.folder) if way.folder else Path("runs") / path.stem

    def words(text: str) -> list[str]:
        try:
            return [filled(word) for word in shlex.split(text)]
        except ValueError as error:
            raise UserError(f"{path}: {quoted(text)}: {error}") from None

    def filled(text: str) -> str:
        return _filled(text, folder)

    steps = [
        Step(f"data {number}", ["data", *words(step.run)], Path(filled(step.makes)))
        for number, step in enumerate(way.data, 1)
    ]
    train = way.train
    if (train.recipe is None) == (train.preset is None):
        raise UserError(f"{path}: train: expected either recipe or preset")
    named = [filled(train.recipe)] if train.recipe is not None else ["--preset", str(train.preset)]
    run, net = folder / "run", folder / "net.nnue"
    command = ["train", *named, *map(filled, train.set), "--run-dir", str(run), *words(train.options)]
    last = run / "checkpoints" / "last.safetensors"
    steps.append(Step("train", command, last, onward=("--resume", "auto"), resumes=True, remaining=_remaining))
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
        engine = [] if way.match.engine is None else ["--engine", way.match.engine]
        match = ["match", str(net), *others, *engine, "-o", str(result)]
        steps.append(
            Step("match", [*match, *words(way.match.options)], result / "match.json", goes_on=True, resumes=True)
        )
    return folder, steps


def _filled(text: str, folder: Path) -> str:
    return text.replace("{folder}", str(folder))


def run_way(
    path: Path,
    *,
    redo: Sequence[str] = (),
    say: Callable[[str], None] = print,
    call: Callable[[list[str]], int] | None = None,
) -> int:
    """Runs the steps of a file that are not done, and returns the exit status of the first that failed, or 0. `redo`
    names steps to do again; those after them follow. UserError for a step whose settings changed."""
    way = load(path)
    folder, steps = steps_of(way, path)
    unknown = set(redo) - {step.name for step in steps}
    if unknown:
        raise UserError(f"{path}: found no step {quoted(min(unknown))}, expected {', '.join(s.name for s in steps)}")
    _check(way, path, folder)
    with _alone(folder) as (lock, check):
        return _run_steps(path, folder, steps, redo, say, call or (lambda command: _call(command, lock)), check)


def _check(way: Way, path: Path, folder: Path) -> None:
    """UserError if something is missing that the last steps need, after hours of training."""
    engines = {part.engine for part in (way.verify, way.match) if part is not None}
    for engine in engines - {None}:
        find_engine(engine)
    train = way.train
    words = shlex.split(_filled(train.options, folder).replace("--plugin=", "--plugin "))
    for option, file in pairwise(words):
        if option == "--plugin":
            load_plugin(file)
    recipe = Path(_filled(train.recipe, folder)) if train.recipe is not None else presets.path(str(train.preset))
    trained = config.load(recipe, [_filled(change, folder) for change in train.set])
    if trained.seeds:
        raise UserError(f"{path}: train: the recipe has seeds, expected one net")
    if trained.model.unreadable is not None and "--any-l1" not in way.export.options:
        raise UserError(
            f"{path}: train: model.{trained.model.unreadable}; export: {{options: --any-l1}} writes it anyway"
        )


def _decide(step: Step, key: str, progress: Progress) -> Decision:
    """The action for a step: "done": nothing; "make": it has no result; "replace": its result is to be replaced;
    "continue": the command continues from its result; "refuse": the result has other settings and was not given
    up."""
    there, done = step.there(), progress.done.get(step.name)
    if done == key and (there or step.result is None):
        return "done"
    if not there:
        return "make"
    if progress.replaced.get(step.name) == there:
        return "replace"
    if done not in (None, key) and not step.goes_on:
        return "refuse"
    return "replace" if progress.begun.get(step.name) == key and not step.resumes else "continue"


def _run_steps(
    path: Path,
    folder: Path,
    steps: Sequence[Step],
    redo: Sequence[str],
    say: Callable[[str], None],
    call: Callable[[list[str]], int],
    check: Callable[[], None],
) -> int:
    progress = _read(folder / DONE)
    first = min((number for number, step in enumerate(steps) if step.name in redo), default=len(steps))
    for step in steps[first:]:
        progress.done.pop(step.name, None)
        progress.begun.pop(step.name, None)
        if there := step.there():
            progress.replaced[step.name] = there
    if first < len(steps):
        _write(folder / DONE, progress, check)
    key = ""
    for number, step in enumerate(steps, 1):
        key = hashlib.sha256(json.dumps([key, step.name, step.command, _inputs(step)]).encode()).hexdigest()
        head = f"step {number}/{len(steps)} {step.name}"
        decision = _decide(step, key, progress)
        if decision == "done":
            say(f"{head}: done")
            continue
        if decision == "refuse":
            raise UserError(
                f"{path}: step {step.name}, or one before it, has changed since its result was made; "
                f"--redo {shlex.quote(step.name)} repeats it and the steps after it"
            )
        command = [*step.command, *(step.again if decision == "replace" else step.onward)]
        say(f"{head}: nnue {shlex.join(command)}")
        progress.done.pop(step.name, None)
        if decision != "continue":
            progress.begun[step.name] = key
        _write(folder / DONE, progress, check)
        status = call(command)
        if status:
            say(f"{head}: ended with exit status {status}; run the same command to continue")
            return status
        if step.result is not None and not step.result.exists():
            raise UserError(f"{path}: step {step.name} did not write {step.result}")
        progress.replaced.pop(step.name, None)
        if step.result is not None and (remaining := step.remaining(step.result)):
            _write(folder / DONE, progress, check)
            say(f"{head}: {remaining}; run the same command to continue")
            return 0
        progress.begun.pop(step.name, None)
        progress.done[step.name] = key
        _write(folder / DONE, progress, check)
    return 0


@contextmanager
def _alone(folder: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """Holds the lock on a folder. The commands inherit it, so one that outlives a killed `nnue run` keeps it. The
    function, called before `steps.json` is replaced, raises UserError if another `nnue run` has taken the lease over.
    """
    with refusing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        without_locks = lease.lock(lock, folder / f"{_LOCK}.owner", lambda text: note(f"{folder}: {text}"))
    except BlockingIOError:
        os.close(lock)
        raise InUse(
            f"{folder}: another nnue run, or a command that it started, is using this folder; wait until it ends"
        ) from None
    except lease.Held as held:
        os.close(lock)
        raise InUse(f"{folder}: another nnue run ({held.owner}) is using this folder; wait until it ends") from None
    except OSError as error:
        os.close(lock)
        raise UserError(f"{folder / _LOCK}: cannot be locked: {error.strerror or error}") from None

    def check() -> None:
        if without_locks is not None and without_locks.lost():
            raise UserError(f"{folder}: another nnue run has taken it over, so this one ends")

    try:
        yield lock, check
    finally:
        if without_locks is not None:
            without_locks.release()
        os.close(lock)


def _inputs(step: Step) -> str:
    """A digest of the recipes that a step reads: a changed recipe is another training."""
    digest = hashlib.sha256()
    for file in map(Path, step.command):
        if file.suffix in (".yaml", ".yml") and file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _remaining(last: Path) -> str:
    """The reason why a training that ended well is not complete; "" if it is."""
    from nnue_trainer.training.assembly import left

    return left(last)


def _call(command: list[str], lock: int) -> int:
    """Runs a command of `nnue`, hands signals on to it, and waits for it; Ctrl-C reaches it by itself."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals before there was a process

    def hand_on(number: int, _: object) -> None:
        if number != signal.SIGINT:
            (early.append if process is None else process.send_signal)(number)

    before = {number: signal.signal(number, hand_on) for number in system.stop_signals()}
    try:
        process = system.start_with(lock, [sys.executable, "-m", "nnue_trainer", *command])
        for number in early:
            process.send_signal(number)
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _read(path: Path) -> Progress:
    try:
        data = json.loads(path.read_bytes())
        progress = Progress(**data)
    except FileNotFoundError:
        return Progress()
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: damaged, expected the list of finished steps: {error}") from None
    if not all(isinstance(part, dict) for part in vars(progress).values()):
        raise UserError(f"{path}: damaged, expected the list of finished steps")
    return progress


def _write(path: Path, progress: Progress, check: Callable[[], None]) -> None:
    with replacing(path, check) as output:
        output.write_text(json.dumps(asdict(progress), indent=1) + "\n")
