"""The whole way as one file: what runs, what is skipped, what is refused."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command import nnue

from nnue_trainer.base import system
from nnue_trainer.cli import pipeline
from nnue_trainer.errors import UserError

WAY = {
    "data": [{"run": "shuffle a.binpack {folder}/train.binpack --seed 1", "makes": "{folder}/train.binpack"}],
    "train": {"recipe": "recipe.yaml", "set": ["data.train={folder}/train.binpack"]},
    "permute": {"data": "val.binpack", "options": "--engine none"},
    "verify": {"engine": "stockfish", "options": "--positions 10"},
    "match": {"against": ["old.nnue"], "engine": "stockfish", "options": "--pairs 5"},
}
NAMES = ["data 1", "train", "export", "permute", "verify", "match"]


@pytest.fixture
def way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "find_engine", lambda _: "")
    Path("recipe.yaml").write_text("model: {kind: simple, hidden: 8}\ndata: {train: [a]}\nloss: {kind: sigmoid}\n")
    Path("way.yaml").write_text(yaml.safe_dump(WAY))
    return Path("way.yaml")


class Calls:
    """Takes the place of the commands, each of which makes its result; `fails` is the first word of one that does
    not."""

    def __init__(self, way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.way, self.fails, self.commands, self.lines = way, "", list[list[str]](), list[str]()
        self.left = ""
        monkeypatch.setattr(pipeline, "_remaining", lambda _: self.left)

    def __call__(self, command: list[str]) -> int:
        self.commands.append(command)
        if command[0] == self.fails:
            return 3
        for step in pipeline.steps_of(pipeline.load(self.way), self.way)[1]:
            if step.result is not None and command[: len(step.command)] == step.command:
                step.result.parent.mkdir(parents=True, exist_ok=True)
                step.result.write_text("done")
        return 0

    def run(self, *redo: str) -> tuple[int, list[str]]:
        """The exit status, and the commands' first words."""
        self.commands.clear()
        self.lines.clear()
        status = pipeline.run_way(self.way, redo=redo, say=self.lines.append, call=self)
        return status, [command[0] for command in self.commands]


def test_steps_run_in_order_and_once(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(way, monkeypatch)
    assert calls.run() == (0, ["data", "train", "export", "permute", "verify", "match"])
    assert calls.commands[1] == [
        "train", "recipe.yaml", "data.train=runs/way/train.binpack", "--run-dir", "runs/way/run", "--resume", "auto",
    ]  # fmt: skip
    net = "runs/way/permuted.nnue"
    assert calls.commands[5] == [
        "match", net, "old.nnue", "--engine", "stockfish", "-o", "runs/way/match", "--pairs", "5",
    ]  # fmt: skip
    assert calls.run() == (0, [])
    assert [line.split(": ")[1] for line in calls.lines] == ["done"] * len(NAMES)
    Path(net).unlink()
    assert calls.run() == (0, ["permute"])
    assert calls.run("permute") == (0, ["permute", "verify", "match"])
    assert calls.commands[0][-1] == calls.commands[2][-1] == "--overwrite"


def test_it_goes_on_where_it_failed(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(way, monkeypatch)
    calls.fails = "verify"
    assert calls.run() == (3, ["data", "train", "export", "permute", "verify"])
    calls.fails = ""
    assert calls.run() == (0, ["verify", "match"])


@pytest.mark.parametrize("engine", [None, "stockfish"])
def test_nets_play_in_an_engine_only_if_it_is_named(tmp_path: Path, engine: str | None) -> None:
    path = tmp_path / "way.yaml"
    path.write_text("train: {preset: buckets}\nmatch: {against: [old.nnue]" + f", engine: {engine}}}\n" * bool(engine))
    if engine is None:
        path.write_text(path.read_text() + "}\n")
    *_, match = pipeline.steps_of(pipeline.load(path), path)[1]
    assert match.command[:3] == ["match", str(Path("runs/way/net.nnue")), "old.nnue"]
    assert ("--engine" in match.command) == (engine is not None)


class Killed(Exception):
    pass


@pytest.mark.parametrize("redo", [(), ("train",)])
def test_a_kill_loses_no_decision(way: Path, monkeypatch: pytest.MonkeyPatch, redo: tuple[str, ...]) -> None:
    """Killed once in each step, when its result is already there: interrupted results are made anew, as are those that
    `redo` gave up, and a file of the user is never replaced."""
    calls = Calls(way, monkeypatch)
    if redo:
        calls.run()
    result = {step.name: step.result for step in pipeline.steps_of(pipeline.load(way), way)[1]}
    order = ["train", "export", "permute", "match"] if redo else ["data 1", "train", "export", "permute", "match"]
    made: list[tuple[str, bool]] = []
    for name in order:

        def call(command: list[str], name: str = name) -> int:
            file = result["data 1" if command[0] == "data" else command[0]]
            if file is None:
                return 0
            made.append((command[0], "--overwrite" in command))
            assert command[0] in ("train", "match") or not file.exists() or "--overwrite" in command
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            file.write_text("new")
            if command[0] == name.split()[0]:
                raise Killed
            return 0

        with pytest.raises(Killed):
            pipeline.run_way(way, redo=redo if name == "train" else (), say=lambda _: None, call=call)
    words = [name.split()[0] for name in order]
    if redo:  # given up, then interrupted: replaced once, and then continued or made anew
        expected = [(word, again) for word in words for again in (True, word in ("export", "permute"))]
    else:
        expected = [(word, again) for word in words for again in (False, word in ("data", "export", "permute"))]
    assert made == expected[:-1]
    assert calls.run() == (0, ["match"])
    Path("runs/way/steps.json").unlink()
    assert calls.run()[1][0] == "data"
    assert "--overwrite" not in calls.commands[0]


def test_one_at_a_time_also_after_a_kill(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that outlives its `nnue run` keeps others out of the folder."""
    calls = Calls(way, monkeypatch)
    with pipeline._alone(Path("runs/way")) as (lock, _):
        child = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    try:
        with pytest.raises(UserError, match=r"runs/way: another nnue run, or a command .* is using this folder"):
            calls.run()
    finally:
        child.kill()
        child.wait()
    assert calls.run()[0] == 0


def test_one_at_a_time_where_the_file_system_has_no_locks(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(system, "lock", fail)
    with pipeline._alone(Path("runs/way")), pytest.raises(UserError, match=r"runs/way: another nnue run \(pid "):
        Calls(way, monkeypatch).run()
    assert not Path("runs/way/.steps.lock.owner").exists()
    calls, owner = Calls(way, monkeypatch), Path("runs/way/.steps.lock.owner")

    def take_over(command: list[str]) -> int:
        """Another host takes the folder over while this one is suspended."""
        owner.write_text('{"pid": 1, "host": "elsewhere", "token": "1"}')
        Path("runs/way/steps.json").write_text("of the other")
        return calls(command)

    with pytest.raises(UserError, match="runs/way: another nnue run has taken it over, so this one ends"):
        pipeline.run_way(way, say=lambda _: None, call=take_over)
    assert len(calls.commands) == 1
    assert Path("runs/way/steps.json").read_text() == "of the other"
    assert owner.exists()


def test_a_training_that_ran_out_of_time_goes_on(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(way, monkeypatch)
    calls.left = "step 5 of 10"
    assert calls.run() == (0, ["data", "train"])
    assert "step 5 of 10; run the same command" in calls.lines[-1]
    calls.left = ""
    assert calls.run()[1][:2] == ["train", "export"]


def test_what_changed_is_not_replaced_unasked(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(way, monkeypatch)
    calls.run()
    recipe = Path("recipe.yaml")
    recipe.write_text(recipe.read_text() + "training: {epochs: 9}\n")
    with pytest.raises(UserError, match=r"step train, or one before it, has changed .*; --redo train repeats it"):
        calls.run()
    assert calls.run("train") == (0, ["train", "export", "permute", "verify", "match"])
    assert "--overwrite" in calls.commands[0]
    assert "--resume" not in calls.commands[0]
    # More games do not make a new match: the command continues from its journal.
    way.write_text(yaml.safe_dump(WAY | {"match": WAY["match"] | {"options": "--pairs 9"}}))  # type: ignore[operator]
    assert calls.run() == (0, ["match"])
    assert calls.commands[0][-2:] == ["--pairs", "9"]


def test_wrong_files(way: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(way, monkeypatch)
    Path("mine.py").touch()
    with pytest.raises(UserError, match="found no step 'fly', expected data 1, train, export"):
        calls.run("fly")
    for content, message in (
        ({"train": {}}, "train: expected either recipe or preset"),
        ({"export": {}}, "train"),
        ({"train": {"recipe": "r"}, "verify": {"motor": "x"}}, "verify.motor"),
        ([], "expected a section for each step"),
        ({"train": {"recipe": "r", "options": "'x"}}, "No closing quotation"),
        ({"train": {"recipe": "recipe.yaml", "set": ["optimizer.lr=fast"]}}, "optimizer.lr: found"),
        ({"train": {"recipe": "recipe.yaml", "set": ["seeds=[1, 2]"]}}, "the recipe has seeds, expected one net"),
        (
            {"train": {"recipe": "recipe.yaml", "set": ["model={kind: sfnnv5, l1: 64}"]}},
            "train: model.l1 is 64, which no Stockfish reads; .*; export: {options: --any-l1} writes it anyway",
        ),
        # A recipe with classes of the user's is checked as well.
        ({"train": {"recipe": "recipe.yaml", "options": "--plugin none.py"}}, "none.py"),
        (
            {"train": {"recipe": "recipe.yaml", "set": ["optimizer.lr=fast"], "options": "--plugin=mine.py"}},
            "optimizer.lr: found",
        ),
    ):
        way.write_text(yaml.safe_dump(content))
        with pytest.raises(UserError, match=message):
            calls.run()


@pytest.mark.slow
def test_the_commands_themselves(project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the sample to a match, and nothing the second time; the engine looks one move ahead."""
    monkeypatch.chdir(tmp_path)
    engine, example = tmp_path / "one_ply", project_root / "examples" / "notebook" / "one_ply_engine.py"
    engine.write_text(f"#!/bin/sh\nPYTHONPATH='{project_root}' exec '{sys.executable}' '{example}'\n")
    engine.chmod(0o755)
    sample = project_root / "samples" / "val.binpack"
    recipe = {
        "model": {"kind": "sfnnv5", "l1": 128},
        "data": {"train": ["none"], "batch_size": 64, "shuffle_buffer": 1000, "threads": 1},
        "loss": {"kind": "win_rate"},
        "training": {"epochs": 2, "positions_per_epoch": 128, "device": "cpu"},
        "logging": {"tensorboard": False},
    }
    way = {
        "data": [{"run": f"shuffle {sample} {{folder}}/train.binpack --seed 1", "makes": "{folder}/train.binpack"}],
        "train": {"recipe": "recipe.yaml", "set": ["data.train={folder}/train.binpack"]},
        "permute": {"data": str(sample), "options": "--engine none --positions 200"},
        "match": {
            "against": ["runs/way/run/checkpoints/epoch-0001.safetensors"],
            "engine": str(engine),
            "options": "--pairs 1 --nodes 1 --max-moves 2 -j 1",
        },
    }
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    Path("way.yaml").write_text(yaml.safe_dump(way))
    commands: list[str] = []

    def call(command: list[str]) -> int:
        commands.append(command[0])
        nnue(*command)
        return 0

    assert pipeline.run_way(Path("way.yaml"), redo=(), say=print, call=call) == 0
    assert commands == ["data", "train", "export", "permute", "match"]
    match = json.loads(Path("runs/way/match/match.json").read_text())
    assert match["complete"]
    assert not [game for game in match["games"] if "fault" in game]
    assert pipeline.run_way(Path("way.yaml"), redo=(), say=print, call=call) == 0
    assert len(commands) == 5


@pytest.mark.slow
def test_killed_in_earnest(project_root: Path) -> None:
    """The tool that kills whole ways again and again, once: in the training of a short one."""
    tool = project_root / "tools" / "kill_way.py"
    command = [sys.executable, str(tool), "--short", "--l1", "128", "--steps", "train", "--kills", "1"]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(": equal\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_command_that_runs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (
        f"import os, signal, time; signal.signal({int(number)}, lambda *_: os._exit(77));"
        f"os.kill(os.getppid(), {int(number)}); time.sleep(60)"
    )
    monkeypatch.setattr(system, "start_with", lambda lock, words: subprocess.Popen([sys.executable, "-c", command]))
    before = signal.getsignal(number)
    assert pipeline._call(["train"], 0) == 77
    assert signal.getsignal(number) is before
