"""A run is killed at every call that changes a file, and resume mends whatever is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("shim") / "kill_at_call.so"
    source = str(HERE / "kill_at_call.cpp")
    subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(path), source], check=True)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "least"), [("save", 30), ("rewind", 60), ("run", 20)])
def test_killed_at_every_call(tmp_path, shim, scenario, least):
    environment = os.environ | {"LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    result = subprocess.run(
        [sys.executable, str(HERE / "kill_driver.py"), scenario, str(tmp_path)],
        capture_output=True, text=True, env=environment, cwd=HERE.parents[1],
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout) >= least
