"""The data library for programs in C++: found by CMake, linked statically and as a shared library, without torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from cpp_support import build

import nnue_trainer
from nnue_trainer import data
from nnue_trainer.data import LoaderOptions
from nnue_trainer.data.filters import Filters

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module", params=["static", "shared"])
def program(request: pytest.FixtureRequest, project_root: Path) -> Path:
    shared = "ON" if request.param == "shared" else "OFF"
    name = f"examples-data-{request.param}"
    return build(project_root / "examples" / "data", name, f"-DBUILD_SHARED_LIBS={shared}") / "convert"


def test_a_program_converts_a_file(program: Path, project_root: Path, tmp_path: Path) -> None:
    source, target = project_root / "samples" / "val.binpack", tmp_path / "out.bin"
    run = subprocess.run([program, source, target], capture_output=True, text=True, check=True)
    options: LoaderOptions = {"shuffle": False, "drop_last": False}
    filtered = options | {"filters": Filters(no_score=True, quiet=True)}
    expected = np.concatenate([b.numpy() for b in data.RecordLoader([source], 4096, **filtered)])
    found = np.concatenate([b.numpy() for b in data.RecordLoader([target], 4096, **options)])
    assert len(found) > 10_000
    assert run.stdout.startswith(f"{len(found)} of ")
    assert np.array_equal(found, expected)


def test_it_needs_neither_torch_nor_python(program: Path) -> None:
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "torch" not in linked
    assert "python" not in linked
    assert ("libnnue_data.so" in linked) == ("shared" in str(program))


@pytest.mark.parametrize("output", ["out.bin", "out.foo"])
def test_errors_are_those_of_python(program: Path, project_root: Path, tmp_path: Path, output: str) -> None:
    source = project_root / ("README.md" if output == "out.bin" else "samples/val.binpack")
    run = subprocess.run([program, source, tmp_path / output], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
    if output == "out.bin":
        with pytest.raises(nnue_trainer.UserError) as raised:
            list(data.RecordLoader([source], 4))
        assert run.stderr.strip() == str(raised.value)
    else:
        assert "no format has this suffix, expected one of .bin, .binpack" in run.stderr


def test_the_package_names_its_places() -> None:
    assert (Path(nnue_trainer.include_dir()) / "nnue" / "data.h").is_file()
    assert (Path(nnue_trainer.cmake_dir()) / "nnue_trainer-config.cmake").is_file()
