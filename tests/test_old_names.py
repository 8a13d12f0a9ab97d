"""Names of version 0.1.0 that have changed: they work in this one, with a warning."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import nnue_trainer
from nnue_trainer import _old_names, nets
from nnue_trainer.errors import OldName, UserError


@pytest.mark.parametrize("old", sorted(_old_names.MODULES))
def test_an_old_module_is_the_new_one(old: str) -> None:
    new = importlib.import_module(f"nnue_trainer.{_old_names.MODULES[old]}")
    spec = new.__spec__
    with pytest.warns(FutureWarning, match=f"nnue_trainer.{old} is now nnue_trainer.{_old_names.MODULES[old]}"):
        assert getattr(nnue_trainer, old) is new
    sys.modules.pop(f"nnue_trainer.{old}", None)
    with pytest.warns(FutureWarning, match=f"nnue_trainer.{old} is now"):
        assert importlib.import_module(f"nnue_trainer.{old}") is new
    assert new.__spec__ is spec


def test_old_names_in_a_program() -> None:
    program = (
        "import nnue_trainer.checkpoint, nnue_trainer\n"
        "from nnue_trainer.random import Philox\n"
        "from nnue_trainer.analysis import rolling\n"
        "from nnue_trainer.files import checkpoint\n"
        "from nnue_trainer.stats import random, rolling as new\n"
        "assert nnue_trainer.checkpoint is checkpoint and Philox is random.Philox and rolling is new\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr.count("OldName: ") == 3, done.stderr


def test_an_old_key_of_a_recipe() -> None:
    old = {"kind": "simple", "quantisation": {"aware": True, "aware_from": 0.5}}
    with pytest.warns(OldName, match="the key aware_from is now qat_from; the old name will be removed"):
        net = nets.parse(old, "test")
    assert net == nets.parse({"kind": "simple", "quantisation": {"qat": True, "qat_from": 0.5}}, "test")
    with pytest.raises(UserError, match=r"quantisation: found both aware and qat, expected only qat"):
        nets.parse({"kind": "simple", "quantisation": {"aware": True, "qat": True}}, "test")


def test_the_command_warns_in_one_line() -> None:
    command = [sys.executable, "-m", "nnue_trainer", "config", "--preset", "simple", "model.quantisation.aware=true"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    line = "nnue: warning: the key aware is now qat; the old name will be removed in the next release\n"
    assert done.stderr == line
    assert "    qat: true\n" in done.stdout


def test_no_other_name_is_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"nnue_trainer\.nothing"):
        importlib.import_module("nnue_trainer.nothing")
