"""Names that have changed since the last version: they work in this one, with a warning."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nnue_trainer
from nnue_trainer import _old_names, config, nets, presets
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


@pytest.mark.slow
def test_what_is_below_an_old_package_is_the_new_one() -> None:
    program = (
        "import nnue_trainer.lambdas.base, sys\n"
        "from nnue_trainer.lambdas.constant import ConstantLambda\n"
        "import nnue_trainer.wdl.base, nnue_trainer.wdl.constant\n"
        "old, new = sys.modules['nnue_trainer.lambdas.base'], nnue_trainer.wdl.base\n"
        "assert old is new and old.LAMBDAS is nnue_trainer.wdl.LAMBDAS\n"
        "assert new.__spec__.name == 'nnue_trainer.wdl.base'\n"
        "assert ConstantLambda is nnue_trainer.wdl.constant.ConstantLambda\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("OldName: ") == 1, done.stderr


@pytest.mark.slow
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


@pytest.mark.filterwarnings("ignore::nnue_trainer.errors.OldName")
@pytest.mark.parametrize(("old", "new"), [("qat", "aware"), ("aware", "qat"), ("aware", "aware")])
@pytest.mark.parametrize("kind", ["simple", "examples/extending/my_net.py:TwoLayers"])
def test_old_and_new_keys_merge(project_root: Path, kind: str, old: str, new: str) -> None:
    """Stages and overrides change what the recipe has under either name."""
    stage = {"name": "late", "model": {"quantisation": {new: True}}}
    recipe = config.read_yaml(presets.path("simple"))
    recipe["model"] = {"kind": kind.replace("examples", str(project_root / "examples")), "quantisation": {old: False}}

    def found(overrides: list[str], **changes: Any) -> tuple[bool, bool]:
        """`qat` of the recipe and of its last stage."""
        found = config.parse(recipe | changes, overrides, may_import=True)
        return found.model.qat_config.qat, config.stage_recipes(found)[-1].model.qat_config.qat

    assert found([], stages=[stage]) == (False, True)
    assert found([f"model.quantisation.{new}=true"]) == (True, True)
    assert found([f"model.quantisation={{{new}: true}}", f"model.quantisation.{old}=false"]) == (False, False)
    assert found([f"stages.late.model.quantisation.{old}=false"], stages=[stage]) == (False, False)
    assert found([f"stages=[{{name: late, model: {{quantisation: {{{new}: true}}}}}}]"]) == (False, True)


def test_a_recipe_keeps_no_old_key() -> None:
    stage = {"name": "late", "model": {"quantisation": {"aware": True}}}
    data = config.read_yaml(presets.path("simple")) | {"stages": [stage]}
    with pytest.warns(OldName, match="the key aware is now qat"):
        recipe = config.parse(data)
    assert "aware" not in config.to_yaml(recipe)
    data["stages"] = [stage | {"model": {"quantisation": {"aware": True, "qat": True}}}]
    with pytest.raises(
        UserError, match=r"stage late: model\.quantisation: found both aware and qat, expected only qat"
    ):
        config.parse(data)


@pytest.mark.slow
def test_the_command_warns_in_one_line() -> None:
    command = [sys.executable, "-m", "nnue_trainer", "config", "--preset", "simple", "model.quantisation.aware=true"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    line = "nnue: warning: the key aware is now qat; the old name will be removed in the next release\n"
    assert done.stderr == line
    assert "    qat: true\n" in done.stdout


def test_the_command_wraps_the_printing_of_warnings_once() -> None:
    program = (
        "import warnings\nfrom nnue_trainer.cli import main\n"
        "main._prepare_streams()\nfirst = warnings.formatwarning\nmain._prepare_streams()\n"
        "assert warnings.formatwarning is first\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_no_other_name_is_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"nnue_trainer\.nothing"):
        importlib.import_module("nnue_trainer.nothing")
