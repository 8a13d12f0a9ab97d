"""Callbacks: when they are called, what they remember, the built-in ones, and what ends a run early."""

import contextlib
import importlib.machinery
import json
import shlex
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up import trainer

from nnue_trainer import registry
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.match import run as matches
from nnue_trainer.match.journal import MatchJournal
from nnue_trainer.match.play import PlayedGame
from nnue_trainer.training import Run, Summary
from nnue_trainer.training.resuming import resume
from nnue_trainer.training.trainer import Trainer

LISTENER = '''
from pathlib import Path
from nnue_trainer.callbacks import Callback
from nnue_trainer.schema import section

@section
class Listener(Callback):
    """Records its calls."""

    log: str
    """file"""

    def _note(self, text):
        self.memory["heard"] = self.memory.get("heard", 0) + 1
        with Path(self.log).open("a") as file:
            file.write(f"{self.memory['heard']} {text}\\n")

    def start(self, trainer):
        self._note(f"start {trainer.step}")

    def step(self, trainer):
        if trainer.step % 10 == 0:
            self._note(f"step {trainer.step}")

    def validation(self, trainer, loss, figures):
        self._note(f"validation {loss == trainer.validation_loss}")

    def save(self, trainer, checkpoint, epoch):
        self._note(f"save {checkpoint.name} {checkpoint.exists()} {epoch}")

    def epoch(self, trainer, epoch):
        self._note(f"epoch {epoch}")

    def metrics(self, trainer, event, values):
        if event != "train":
            self._note(f"metrics {event} {'loss' in values}")

    def end(self, trainer, summary):
        self._note(f"end {summary.step} {summary.interrupted}")
'''


@pytest.fixture(autouse=True)
def _forget() -> object:
    yield
    registry.forget_plugins()


def training(folder: Path, callbacks: object, *overrides: str) -> Trainer:
    return trainer(folder, f"training.callbacks={json.dumps(callbacks)}", *overrides)


def test_every_hook_in_order_and_memory_over_a_resume(tmp_path: Path) -> None:
    plugin, log = tmp_path / "listener.py", tmp_path / "log"
    plugin.write_text(LISTENER)
    registry.load_plugin(plugin)
    callbacks = [{"kind": f"{plugin}:Listener", "log": str(log)}]
    # Callbacks of a file are found where it was loaded.
    run = training(tmp_path / "run", callbacks, "training.epochs=2")
    assert not run.train().interrupted
    heard = log.read_text().splitlines()
    epoch = ["metrics validation True", "validation True"]
    assert [line.split(" ", 1)[1] for line in heard] == [
        "start 0", "step 10", *epoch, "save epoch-0001.safetensors True 1", "epoch 1",
        "step 20", *epoch, "save epoch-0002.safetensors True 2", "epoch 2", "end 20 False",
    ]  # fmt: skip
    assert [int(line.split()[0]) for line in heard] == list(range(1, len(heard) + 1))

    path = tmp_path / "run/checkpoints/epoch-0001.safetensors"
    saved = checkpoint.load(path)
    again = training(tmp_path / "run", callbacks, "training.epochs=2")
    resume(again, saved, path)
    again.train()
    rest = log.read_text().splitlines()[len(heard) :]
    # The checkpoint of epoch 1 was made after the validation, before the call of `save`.
    assert rest[0] == "5 start 10"
    assert rest[-1].endswith("end 20 False")


def test_early_stop_is_no_interruption_and_is_in_the_checkpoint(tmp_path: Path) -> None:
    run = training(tmp_path, [{"kind": "early_stop", "patience": 2, "min_delta": 1}], "training.epochs=9")
    summary = run.train()
    assert (summary.step, summary.interrupted) == (30, False)  # one best, two without
    assert "no validation loss below" in summary.stopped
    last = checkpoint.load(tmp_path / "checkpoints/last.safetensors")
    assert last.state["stopped"] == summary.stopped
    assert last.state["callbacks"][0]["memory"]["waited"] == 2


def test_max_time_and_keep_every(tmp_path: Path) -> None:
    summary = trainer(tmp_path / "a", "training.max_time=1e-9").train()
    assert (summary.step, summary.interrupted) == (1, False)
    assert "training.max_time" in summary.stopped
    assert summary.status == 76
    assert 0 < summary.step_seconds <= summary.seconds  # although there is no record of metrics yet
    assert checkpoint.load(tmp_path / "a/checkpoints/last.safetensors").state["stopped"] == ""
    trainer(tmp_path / "b", "training.epochs=7", "training.keep_every=3", "training.keep_last=1").train()
    kept = sorted(path.name for path in (tmp_path / "b/checkpoints").glob("epoch-*"))
    assert kept == [f"epoch-000{n}.safetensors" for n in (3, 6, 7)]


def test_a_command_gets_what_it_names(tmp_path: Path) -> None:
    out = tmp_path / "a b"
    script = "import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + '\\n')"
    command = shlex.join([sys.executable, "-c", script, str(out)]) + " {epoch} {step} {checkpoint} '{loss}'"
    run = training(tmp_path / "run", [{"run": command, "every": 2}])  # the short form
    full = training(tmp_path / "full", [{"kind": "run", "command": command, "every": 2}])
    assert run.run.recipe.training.callbacks == full.run.recipe.training.callbacks
    run.train()
    folder = tmp_path / "run/checkpoints"
    lines = [line.rsplit(" ", 1) for line in out.read_text().splitlines()]
    assert [line[0] for line in lines] == [f"{n} {10 * n} {folder}/epoch-000{n}.safetensors" for n in (2, 4)]
    assert float(lines[1][1]) == checkpoint.load(folder / "last.safetensors").state["validation_loss"]


@pytest.mark.parametrize("at", ["save", "epoch", "validation"])
def test_every_second_moment_also_after_a_resume(tmp_path: Path, at: str) -> None:
    out = tmp_path / "epochs"
    script = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"
    command = shlex.join([sys.executable, "-c", script, str(out)]) + " {epoch}"
    callbacks = [{"run": command, "every": 2, "at": at}]
    training(tmp_path / "run", callbacks, "training.keep_last=9").train()
    assert out.read_text() == "24"
    for resumed, rest in ((1, "24"), (2, "4"), (3, "4")):
        out.write_text("")
        path = tmp_path / f"run/checkpoints/epoch-000{resumed}.safetensors"
        again = training(tmp_path / f"again-{resumed}", callbacks)
        resume(again, checkpoint.load(path), path)
        again.train()
        assert out.read_text() == rest


def test_early_stop_begins_anew_with_another_loss(tmp_path: Path) -> None:
    callbacks = [{"kind": "early_stop", "patience": 2, "min_delta": 1}]
    training(tmp_path, callbacks, "training.epochs=2").train()
    path = tmp_path / "checkpoints/last.safetensors"
    for change, step in (("training.epochs=9", 30), ("validation.lambda=0.9", 50)):
        run = training(tmp_path / change, callbacks, "training.epochs=9", change)
        resume(run, checkpoint.load(path), path)
        assert run.train().step == step


def test_a_command_that_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = shlex.join([sys.executable, "-c", "import sys; sys.exit('no space')"])
    training(tmp_path / "a", [{"kind": "run", "command": command, "at": "end"}]).train()
    assert "exit status 1: no space" in capfd.readouterr().err
    with pytest.raises(UserError, match="exit status 1: no space"):
        training(tmp_path / "b", [{"kind": "run", "command": command, "must_succeed": True}]).train()
    for wrong, message in (
        ("x {net}", "{net}"),
        ("x 'y", "No closing quotation"),
        (5, r"found .*5.*, expected a valid string"),
    ):
        for given in ({"kind": "run", "command": wrong}, {"run": wrong}, {"kind": "run", "run": wrong}):
            with pytest.raises(UserError, match=message):
                training(tmp_path / "c", [given])
    with pytest.raises(UserError, match="kind: missing"):
        training(tmp_path / "c", [{"run": "a", "command": "b"}])


@pytest.mark.slow
def test_a_match_that_a_kill_broke_off_goes_on(
    tmp_path: Path, fake_engine: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is older than the match of its net. Killed in the match, behind it, or at the end of the run, a
    run ends with the same records, memory and files, and no game is played twice."""
    entry = {"kind": "match", "engine": fake_engine(), "every": 1, "pairs": 2, "nodes": 1, "net_option": "Hash"}
    options = ([entry], "export.kind=raw", "training.epochs=3")
    training(tmp_path / "whole", *options).train()

    class Killed(BaseException):
        pass

    def resumed_run() -> Trainer:
        run, last = training(tmp_path / "run", *options), tmp_path / "run/checkpoints/last.safetensors"
        if last.exists():
            resume(run, checkpoint.load(last), last)
        return run

    add, record = MatchJournal.add, Trainer.record
    kill_in, games, played = "", 0, 0

    def counted(self: MatchJournal, game: PlayedGame) -> None:
        nonlocal games, played
        add(self, game)
        games, played = games + 1, played + 1
        if kill_in == "game" and games == 2:
            raise Killed

    def recorded(self: Trainer, event: str, values: dict[str, float]) -> None:
        if (kill_in, event) == ("before record", "match"):
            raise Killed
        record(self, event, values)
        if (kill_in, event) == ("after record", "match"):
            raise Killed

    monkeypatch.setattr(MatchJournal, "add", counted)
    monkeypatch.setattr(Trainer, "record", recorded)
    for kill_in in ("game", "before record", "after record", "game", ""):
        games = 0
        with pytest.raises(Killed) if kill_in else contextlib.nullcontext():
            resumed_run().train()
    resumed_run().train()  # finished already
    assert played == 2 * 4
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "match"] == [10, 20, 30]
    for file in ("checkpoints/last.safetensors", "matches/passed.json", "matches/step-000000030/match.json"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["other match", "changed", "locked", "no journal"])
def test_only_the_games_of_another_match_are_replaced(
    tmp_path: Path, fake_engine: Callable[..., str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    entry = {"kind": "match", "engine": fake_engine(), "every": 1, "pairs": 2, "nodes": 1, "net_option": "Hash"}
    options = ([entry], "export.kind=raw", "training.epochs=2")

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("nnue_trainer.data.journal._SYNC_SECONDS", 0)  # each game is on disk before the next
        patched.setattr(matches, "write_files", killed)
        with pytest.raises(Killed):
            training(tmp_path / "run", *options).train()
    journal = tmp_path / "run/matches/step-000000020" / matches.JOURNAL
    games = journal.read_bytes()
    head, _, entries = games.partition(b"\n")
    message = "the journal was changed after it was written"
    with contextlib.ExitStack() as stack:
        if fault == "other match":
            journal.write_bytes(head.replace(b'"nodes": 1', b'"nodes": 9') + b"\n" + entries)
        elif fault == "changed":
            journal.write_bytes(head + b"\n" + entries[:40] + bytes([entries[40] ^ 1]) + entries[41:])
        elif fault == "locked":
            message = "another run is writing it"
            stack.enter_context(MatchJournal(journal, json.loads(head)))
        else:
            message = "belongs to a run with other options"
            journal.write_bytes(b"somebody's own notes\n" * 3)
        before = journal.read_bytes()
        resumed, last = training(tmp_path / "run", *options), tmp_path / "run/checkpoints/last.safetensors"
        resume(resumed, checkpoint.load(last), last)
        if fault == "other match":
            resumed.train()
            assert journal.read_bytes().partition(b"\n")[0] == head
        else:
            with pytest.raises(UserError, match=message):
                resumed.train()
            assert journal.read_bytes() == before


@pytest.mark.slow
@pytest.mark.compiler
def test_matches_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the player of this project, whatever the format of the recipe's export; weights for it are not kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    training(tmp_path / "run", [{"kind": "match", "every": 2, "pairs": 2, "nodes": 50}], "export.kind=raw").train()
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["games"] for line in lines if line["event"] == "match" and "games" in line] == [4]
    assert {path.suffix for path in (tmp_path / "run/matches").iterdir()} == {".nnue", ".json", ""}
    assert not (tmp_path / "run/matches/step-000000040/nets").exists()


@pytest.mark.parametrize("key", ["against", "openings"])
def test_files_of_a_match_are_read_before_the_first_step(tmp_path: Path, key: str) -> None:
    (tmp_path / "notes.txt").write_text("neither a net nor a position\n")
    run = training(tmp_path / "run", [{"kind": "match", key: str(tmp_path / "notes.txt")}])
    with pytest.raises(UserError, match=r"^training\.callbacks: match: .*notes\.txt"):
        run.train()
    assert run.step == 0


def test_matches_against_the_last_net_that_passed(tmp_path: Path, fake_engine: Callable[..., str]) -> None:
    from nnue_trainer.analysis.report import build

    entry = {
        "kind": "match",
        "engine": fake_engine(),
        "every": 2,
        "pairs": 1,
        "nodes": 1,
        "los": 0,
        "net_option": "Hash",
    }
    run = training(tmp_path / "run", [entry], "export.kind=raw")
    run.train()
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["event"] == "match"]
    assert [(line["step"], line["epoch"]) for line in found] == [(20, 2), (40, 4)]
    assert found[0]["elo"] == 0
    assert found[1]["games"] == 2
    # One engine with both nets: a pair of equal games.
    assert found[1]["elo"] == found[1]["difference"]
    passed = json.loads((tmp_path / "run/matches/passed.json").read_text())
    assert passed[0]["step"] == 20
    assert (tmp_path / "run/matches/step-000000040/match.html").is_file()
    assert "Matches" in [section.title for section in build([tmp_path / "run"]).sections]
    with pytest.raises(UserError, match="no such program"):
        training(tmp_path / "other", [entry | {"engine": str(tmp_path / "none")}]).train()
    with pytest.raises(UserError, match=r"every: found 3, expected a multiple of training.checkpoint_every, 2"):
        training(tmp_path / "other", [entry | {"every": 3}], "training.checkpoint_every=2").train()


@pytest.mark.parametrize(
    ("mode", "model", "message"),
    [
        (
            "dies",
            "simple",
            "match: engine .*fakedies: ended at 'go nodes 1' .*out of cheese; it had a net of this recipe",
        ),
        ("", "sfnnv5", "match: model.l1 is 64, which no Stockfish reads"),
    ],
)
def test_an_engine_that_cannot_play_is_found_before_the_first_step(
    tmp_path: Path, fake_engine: Callable[..., str], mode: str, model: str, message: str
) -> None:
    entry = {"kind": "match", "engine": fake_engine(mode), "pairs": 1, "net_option": "Hash"}
    sizes = {"simple": {"hidden": 16}, "sfnnv5": {"l1": 64}}
    with pytest.raises(UserError, match=f"^training.callbacks: {message}"):
        training(tmp_path / "run", [entry], f"model={json.dumps({'kind': model} | sizes[model])}").train()
    assert not (tmp_path / "run/checkpoints").exists()


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'torch-nnue\[wandb\]'"):
        training(tmp_path / "a", [{"kind": "wandb"}]).train()
    calls: list[Any] = []
    axes: list[tuple[str, str]] = []
    sent = -1

    def init(**options: object) -> object:
        calls.append(options)
        return types.SimpleNamespace(
            id="abc",
            log=calls.append,
            finish=lambda: calls.append("finished"),
            define_metric=lambda name, step_metric: axes.append((name, step_metric)),
            summary={"step": sent},
        )

    package = types.SimpleNamespace(init=init, __spec__=importlib.machinery.ModuleSpec("wandb", None))
    monkeypatch.setitem(sys.modules, "wandb", package)
    training(tmp_path / "b", [{"kind": "wandb", "project": "p"}]).train()
    options = calls[0]
    assert isinstance(options, dict)
    assert (options["project"], options["name"]) == ("p", "b")
    assert options["config"]["model"]["hidden"] == 16
    assert {"train/loss", "step"} <= set(calls[1])
    assert calls[-1] == "finished"
    assert axes == [("*", "step")]

    # The environment gives what the recipe does not, and the server has the records of an earlier part of the run.
    calls.clear()
    sent = 20
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_NAME", "its name")
    monkeypatch.setenv("WANDB_MODE", "offline")
    training(tmp_path / "c", [{"kind": "wandb"}]).train()
    assert (calls[0]["project"], calls[0]["mode"]) == ("mine", None), "wandb itself reads WANDB_MODE"
    assert calls[0]["name"] == "its name"
    assert min(record["step"] for record in calls[1:-1]) > 20
    calls.clear()
    in_recipe = {"project": "p", "mode": "disabled", "name": "n"}
    training(tmp_path / "d", [{"kind": "wandb", **in_recipe}]).train()
    assert {key: calls[0][key] for key in in_recipe} == in_recipe


def test_public_names() -> None:
    assert Run.__doc__
    assert Summary.__doc__
