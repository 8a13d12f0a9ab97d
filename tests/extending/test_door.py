"""Code that users bring: what is wrong in it is named by file, class and method, and it cannot hold up the program."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_for

RECIPE = """
model: {kind: simple, hidden: 16}
data: {train: [train.binpack], validation: [val.binpack], batch_size: 250, shuffle_buffer: 1000,
       validation_positions: 250, threads: 1}
loss: {kind: sigmoid}
training: {epochs: 1, positions_per_epoch: 1000, device: cpu}
logging: {every_steps: 5, tensorboard: false}
"""
HEAD = """
import sys, time
from dataclasses import replace
import numpy as np
import torch
from nnue_trainer.data.filters import Filter
from nnue_trainer.lambdas import LambdaSchedule
from nnue_trainer.losses import Loss
from nnue_trainer.nets.simple import Simple, SimpleModel
from nnue_trainer.optim import OptimizerConfig, Rule
from nnue_trainer.schedules import Schedule
from nnue_trainer.schema import section

class BadModel(SimpleModel):
    def __init__(self, net): super().__init__(net)

"""
# Section of the recipe, class it derives from, and a method.
PLACES = {
    "net": ("model", "Simple", "def model(self):"),
    "loss": ("loss", "Loss", "def per_position(self, net, score, result, lam):"),
    "lambda": ("lambda", "LambdaSchedule", "def at(self, now):"),
    "schedule": ("schedule", "Schedule", "def at(self, now, lr):"),
    "optimizer": ("optimizer", "OptimizerConfig", "def rule(self, work):"),
    "filter": ("data.filters.extra", "Filter", "def keep(self, records):"),
}


@pytest.fixture
def folder(project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("train.binpack", "val.binpack"):
        (tmp_path / name).symlink_to(project_root / "samples" / name)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plugin(folder: Path, place: str, body: str) -> str:
    """Writes bad.py, whose class does `body` in its method; the override that uses it."""
    section, base, head = PLACES[place]
    doc = '    """Wrong."""\n'
    (folder / "bad.py").write_text(f"{HEAD}@section\nclass Bad({base}):\n{doc}    {head}\n        {body}\n")
    value = "{kind: bad.py:Bad}"
    return f"{section}={f'[{value}]' if place == 'filter' else value}"


def trained(nnue, override: str) -> str:
    """What `nnue train` says is wrong: one line, exit status 1."""
    done = nnue("train", "recipe.yaml", override, "--run-dir", "run")
    assert done.returncode == 1, done
    errors = [line for line in done.stderr.splitlines() if line.startswith("nnue: error: ")]
    assert len(errors) == 1
    assert "internal" not in errors[0]
    return errors[0]


@pytest.mark.parametrize("place", PLACES)
def test_an_error_names_file_class_and_method(folder, nnue, place):
    said = trained(nnue, plugin(folder, place, "return [][1]"))
    assert "IndexError: list index out of range" in said
    if place == "filter":
        assert "filter bad.py:Bad" in said
    else:
        method = PLACES[place][2].split()[1].partition("(")[0]
        assert f"bad.py:{len(HEAD.splitlines()) + 5}: Bad.{method}: " in said


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", ["None", "'x'", "torch.ones(3, 2)"])
def test_what_comes_back_is_checked(folder, nnue, place, value):
    said = trained(nnue, plugin(folder, place, f"return {value}"))
    method = PLACES[place][2].split()[1].partition("(")[0]
    assert "filter bad.py:Bad: gave" in said if place == "filter" else f"bad.py: Bad.{method} returned " in said
    assert "expected " in said


@pytest.mark.parametrize("place", PLACES)
def test_ending_the_program_is_an_error(folder, nnue, place):
    said = trained(nnue, plugin(folder, place, "sys.exit(0)"))
    assert "ended the program" in said or "SystemExit" in said
    assert "bad.py" in said


def test_an_import_that_ends_the_program_is_an_error(folder, nnue):
    (folder / "bad.py").write_text("import sys\nsys.exit(0)\n")
    assert "plugin bad.py:2: SystemExit" in trained(nnue, "loss={kind: bad.py:Bad}")


def test_an_error_in_mid_run_saves_what_was_trained(folder, nnue):
    override = plugin(folder, "schedule", "return lr if now.step < 3 else sys.exit(0)")
    assert "bad.py" in trained(nnue, override)
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


@pytest.mark.parametrize(("place", "signals"), [("filter", 1), ("filter", 2), ("loss", 2)])
def test_code_that_hangs_does_not_hold_up_the_end(folder, place, signals):
    """A filter in another thread is left behind at the first Ctrl-C; the second one ends whatever hangs."""
    override = plugin(folder, place, f"open('hangs', 'w').close(); {HANGS[place]}")
    command = [sys.executable, "-m", "nnue_trainer", "train", "recipe.yaml", override, "--run-dir", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=_heeds_interrupts) as child:
        try:
            wait_for(lambda: (folder / "hangs").exists(), child)
            for _ in range(signals):
                os.kill(child.pid, signal.SIGINT)
                time.sleep(0.5)
            _, said = child.communicate(timeout=120)
        finally:
            child.kill()
    assert child.returncode == 130, said
    assert "internal" not in said


def _heeds_interrupts() -> None:
    """Also where the tests ignore Ctrl-C, as under nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
