"""`import nnue_trainer` is enough for `torch.ops.nnue`, in either order, and imports no torch."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nnue_trainer.base import _first_look

LOOK = """
found = torch.ops.nnue.rolling(torch.arange(5.0), None, 1, -1, 2, 2)
assert found.tolist()[1:] == [0.5, 1.5, 2.5, 3.5], found
shapes = ((4, 5), (5,))
parameters = [torch.zeros(shape, device="meta") for shape in shapes]
meta = torch.ops.nnue.feature_transformer_forward(
    torch.zeros(3, 2, dtype=torch.int32, device="meta"), None, *parameters
)
assert meta.shape == (3, 5)
weight = torch.ones(4, 5, requires_grad=True)
rows = torch.zeros(3, 2, dtype=torch.int32)
torch.ops.nnue.feature_transformer_forward(rows, None, weight, torch.zeros(5)).sum().backward()
assert weight.grad[0].tolist() == [6] * 5
assert not hasattr(torch.ops.nnue, "no_such_operator")
assert torch.ops.nnue.rolling.__module__ == torch.ops.aten.add.__module__.replace("aten", "nnue"), "torch looks there"
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["import nnue_trainer; import torch", "import torch; import nnue_trainer"])
def test_the_import_is_enough(imports: str) -> None:
    run(imports + LOOK)


@pytest.mark.slow
def test_the_import_imports_little() -> None:
    program = """
import sys
import nnue_trainer
import torch
print(sorted(name for name in sys.modules if name.startswith("nnue_trainer")))
"""
    ours = ["", ".base", ".base._first_look", ".base.distribution", ".base.lazy"]
    assert run(program).strip() == str([f"nnue_trainer{name}" for name in ours])


def test_the_import_loads_nothing_slow(project_root: Path) -> None:
    """In an interpreter without site, which loads some of these modules itself."""
    program = f"""
import sys
sys.path.insert(0, {str(project_root)!r})
import nnue_trainer
slow = {{"torch", "numpy", "typing", "pathlib", "re", "contextlib", "importlib.util"}} & set(sys.modules)
assert not slow, slow
"""
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_operator_has_the_home_that_registers_it() -> None:
    """Looked up in a process where nothing else was, each has its fake kernel, or is one that needs none."""
    for home in _first_look.HOMES.values():
        importlib.import_module(f"nnue_trainer.{home}")
    names = {n.partition("::")[2].partition(".")[0] for n in torch._C._dispatch_get_all_op_names() if "nnue::" in n}
    homes = {_first_look._home(name) for name in names}
    assert homes == {*_first_look.HOMES.values(), "ops"}
    own = {home: sorted(name for name in names if _first_look._home(name) == home) for home in sorted(homes)}
    # A fork of a process that has imported torch: each import of it takes seconds.
    program = f"""
import os, torch, nnue_trainer
for home, own in {own!r}.items():
    if os.fork() == 0:
        has = torch._library.utils.has_fake_kernel
        print(repr((home, [name for name in own if not has(getattr(torch.ops.nnue, name).default)])), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, home
"""
    without = dict(map(ast.literal_eval, run(program).splitlines()))
    assert without.keys() == own.keys()
    with_fakes = {n for n in names if torch._library.utils.has_fake_kernel(getattr(torch.ops.nnue, n).default)}
    assert {home: set(names) for home, names in without.items()} == {
        home: set(names) - with_fakes for home, names in own.items()
    }


def test_a_match_of_engines_imports_no_torch() -> None:
    code = "import sys, nnue_trainer.match.run, nnue_trainer.match.players; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
