"""Code that users bring: what is wrong in it is named by file, class and method, and it cannot hold up the program."""

import importlib
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import SECONDS, wait_for

import nnue_trainer
from nnue_trainer import config, registry, schema
from nnue_trainer.base import foreign
from nnue_trainer.errors import UserError
from nnue_trainer.registry import _registries as registries

RECIPE = """
model: {kind: simple, hidden: 16}
data: {train: [train.binpack], validation: [val.binpack], batch_size: 250, shuffle_buffer: 1000,
       validation_positions: 250, threads: 1}
loss: {kind: sigmoid}
training: {epochs: 1, positions_per_epoch: 1000, device: cpu}
logging: {every_steps: 5, tensorboard: false}
"""
HEAD = """
import signal, sys, threading, time
from dataclasses import replace
import numpy as np
import torch
from nnue_trainer.optim.averages import Average
from nnue_trainer.callbacks import Callback
from nnue_trainer.data.feature_sets import Features
from nnue_trainer.data.filters import Filter
from nnue_trainer.data.formats import DataFormat
from nnue_trainer.schedules import LambdaSchedule
from nnue_trainer.losses import Loss
from nnue_trainer.nets.simple import Simple, SimpleModel
from nnue_trainer.nnue_file.formats import NetFormat
from nnue_trainer.optim import OptimizerConfig, Rule
from nnue_trainer.optim.penalties import Penalty
from nnue_trainer.losses.position_weights import PositionWeight
from nnue_trainer.schedules import Schedule
from nnue_trainer.schema import section

class BadModel(SimpleModel):
    def __init__(self, net): super().__init__(net)

def show_signals():  # creates the file `heard` when the program has taken a first Ctrl-C
    handler = signal.getsignal(signal.SIGINT)
    def watch():
        while signal.getsignal(signal.SIGINT) is handler:
            time.sleep(0.01)
        open("heard", "w").close()
    threading.Thread(target=watch, daemon=True).start()

"""


@dataclass(frozen=True)
class Place:
    """How a class of a registry is named (`{}`: KIND), the class it derives from, and a method."""

    override: str
    base: str
    head: str
    needed: str = ""
    """what the class has to define as well"""
    command: tuple[str, ...] = ("train", "recipe.yaml", "{override}", "--run-dir", "run")

    @property
    def method(self) -> str:
        return self.head.split()[1].partition("(")[0]


KIND = "bad.py:Bad"
LAYERED = "model={{kind: layered, inputs: '{}', hidden: 16}}"
# By what the registry calls one of its classes.
PLACES = {
    "net": Place("model={{kind: {}}}", "Simple", "def model(self):"),
    "loss": Place("loss={{kind: {}}}", "Loss", "def per_position(self, net, score, result, lam):"),
    "λ schedule": Place("lambda={{kind: {}}}", "LambdaSchedule", "def at(self, now):"),
    "schedule": Place("schedule={{kind: {}}}", "Schedule", "def at(self, now, lr):"),
    "optimizer": Place("optimizer={{kind: {}}}", "OptimizerConfig", "def rule(self, work):"),
    "average": Place("average={{kind: {}}}", "Average", "def share(self, now):"),
    "weight of positions": Place("position_weight={{kind: {}}}", "PositionWeight", "def of(self, batch):"),
    "penalty": Place("training.penalties=[{{kind: {}}}]", "Penalty", "def of(self, model, activations):"),
    "filter": Place("data.filters.extra=[{{kind: {}}}]", "Filter", "def keep(self, records):"),
    "callback": Place("training.callbacks=[{{kind: {}}}]", "Callback", "def step(self, trainer):"),
    "feature set": Place(LAYERED, "Features", "def indices(self, view):", "num_features = 8; max_active = 2"),
    "data format": Place(
        "{}",
        "DataFormat",
        "def read(self, file):",
        command=("data", "convert", "train.binpack", "x.bin", "--from", KIND),
    ),
    "net format": Place(
        "{}",
        "NetFormat",
        "def to_bytes(self, net, where):",
        command=("export", "run", "x.bin", "--format", KIND, "--plugin", "bad.py"),
    ),
}


@pytest.fixture
def folder(project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("train.binpack", "val.binpack"):
        (tmp_path / name).symlink_to(project_root / "samples" / name)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plugin(folder: Path, place: str, body: str) -> list[str]:
    """Writes bad.py, whose class does `body` in its method; the command that comes to it."""
    at = PLACES[place]
    text = f'{HEAD}@section\nclass Bad({at.base}):\n    """Wrong."""\n    {at.needed}\n    {at.head}\n        {body}\n'
    (folder / "bad.py").write_text(text)
    return [word.replace("{override}", at.override.format(KIND)) for word in at.command]


def error_of(nnue, command: list[str]) -> str:
    """The error of a command: one line, exit status 1."""
    if command[0] == "export":
        assert nnue("train", "recipe.yaml", "training.positions_per_epoch=250", "--run-dir", "run").returncode == 0
    done = nnue(*command)
    assert done.returncode == 1, done
    errors = [line for line in done.stderr.splitlines() if line.startswith("nnue: error: ")]
    assert len(errors) == 1
    assert "internal" not in errors[0]
    return errors[0]


def trained(nnue, override: str) -> str:
    return error_of(nnue, ["train", "recipe.yaml", override, "--run-dir", "run"])


def test_every_registry_has_its_place():
    package = Path(nnue_trainer.__file__).parent
    for file in package.rglob("*.py"):
        if re.search(r": Registry\[\w+\] = Registry\(", file.read_text(encoding="utf-8")):
            importlib.import_module(".".join(("nnue_trainer", *file.relative_to(package).with_suffix("").parts)))
    ours = [registry for registry in registries if registry.package.startswith("nnue_trainer.")]
    assert {registry.what for registry in ours} == set(PLACES)


@pytest.mark.parametrize("place", PLACES)
def test_an_error_names_file_line_class_and_method(folder, nnue, place):
    said = error_of(nnue, plugin(folder, place, "return [][1]"))
    assert "IndexError: list index out of range" in said
    assert f"bad.py:{len(HEAD.splitlines()) + 6}: Bad.{PLACES[place].method}: " in said


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", ["None", "'x'", "torch.ones(3, 2)"])
def test_what_comes_back_is_checked(folder, nnue, place, value):
    if (place, value) == ("callback", "None"):
        value = "(None for _ in ())"
    said = error_of(nnue, plugin(folder, place, f"return {value}"))
    assert f"bad.py: Bad.{PLACES[place].method} returned " in said
    assert "expected " in said


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("(net.square().detach(), None)", "a loss with a gradient"),
        ("(net.int(), None)", "a loss with a gradient"),
        ("(net * 1j, None)", "real numbers"),
        ("(net.square(), net * 1j)", "real numbers"),
    ],
)
def test_a_loss_that_cannot_be_trained_is_named(folder, nnue, value, expected):
    assert f"expected {expected}" in error_of(nnue, plugin(folder, "loss", f"return {value}"))


def test_what_is_no_exception_is_an_error_as_well(folder, nnue):
    """`BaseException` passes by most handlers."""
    said = error_of(nnue, plugin(folder, "loss", "class Odd(BaseException): pass\n        raise Odd('so')"))
    assert "Bad.per_position: Odd: so" in said


def test_waiting_for_the_gpu_in_a_graph_is_explained():
    def of(batch):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nSearch for it in the manual")

    with pytest.raises(UserError) as caught, foreign.explaining(of):
        of(None)
    assert "test_door.py:" in str(caught.value)
    assert "waits for the GPU" in str(caught.value)
    assert str(caught.value).endswith("set training.cuda_graph=false")


@pytest.mark.parametrize("place", PLACES)
def test_ending_the_program_is_an_error(folder, nnue, place):
    said = error_of(nnue, plugin(folder, place, "sys.exit(0)"))
    assert f"bad.py:{len(HEAD.splitlines()) + 6}: Bad.{PLACES[place].method}: ended the program (SystemExit)" in said


def test_an_import_that_ends_the_program_is_an_error(folder, nnue):
    (folder / "bad.py").write_text("import sys\nsys.exit(0)\n")
    assert "plugin bad.py:2: SystemExit" in trained(nnue, "loss={kind: bad.py:Bad}")


def test_an_error_in_mid_run_saves_what_was_trained(folder, nnue):
    assert "bad.py" in error_of(nnue, plugin(folder, "schedule", "return lr if now.step < 3 else sys.exit(0)"))
    assert (folder / "run" / "checkpoints" / "last.safetensors").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return replace(super().integer_forward(), score_divide=255)", "integers and floats .* differ by .* expected"),
        ("return replace(super().integer_forward(), layers=())", "cannot be evaluated in integers: "),
        ("return replace(super().integer_forward(), first=None)", "cannot be evaluated in integers: "),
        ("return [][1]", r"cannot be evaluated in integers: .*bad\.py:\d+: Bad\.integer_forward: IndexError"),
    ],
)  # fmt: skip
def test_integers_that_do_not_fit_are_refused_before_the_first_step(folder, nnue, body, message):
    (folder / "bad.py").write_text(
        f'{HEAD}@section\nclass Bad(Simple):\n    """Wrong."""\n    def integer_forward(self):\n        {body}\n'
    )
    said = trained(nnue, "model={kind: bad.py:Bad, hidden: 16}")
    assert re.search(message, said), said
    assert not (folder / "run").exists()


HANGS = {
    "filter": "import threading; threading.Event().wait()",
    "loss": "[None for _ in iter(int, 1)]",
}


@pytest.mark.slow
@pytest.mark.parametrize(("place", "signals"), [("filter", 1), ("filter", 2), ("loss", 2)])
def test_code_that_hangs_does_not_hold_up_the_end(folder, place, signals):
    """A filter in another thread is left behind at the first Ctrl-C; the second one ends whatever hangs."""
    command = plugin(folder, place, f"show_signals(); open('hangs', 'w').close(); {HANGS[place]}")
    command = [sys.executable, "-m", "nnue_trainer", *command]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=_heeds_interrupts) as child:
        try:
            wait_for((folder / "hangs").exists, child)
            for _ in range(signals):
                child.send_signal(signal.SIGINT)
                wait_for(lambda: (folder / "heard").exists() or child.poll() is not None)
            _, said = child.communicate(timeout=SECONDS)
        finally:
            child.kill()
    assert child.returncode == 130, said
    assert "internal" not in said


def _heeds_interrupts() -> None:
    """Works even if the tests ignore Ctrl-C, as under nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_interrupt_while_a_recipe_becomes_data_is_an_interrupt(
    project_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sections of a registry are written by a function of ours, and pydantic replaces its exceptions."""
    recipe = config.load(project_root / "configs" / "quickstart.yaml")

    def interrupted(instance: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "fields_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        schema.to_data(recipe)
