"""The data library for programs in C++: found by CMake, linked statically and as a shared library, without torch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cpp_support import build, tool

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


def test_the_name_that_programs_look_for_has_the_version(program: Path) -> None:
    series = ".".join(nnue_trainer.__version__.split(".")[:2])
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    if "shared" in str(program):
        assert f"libnnue_data.so.{series} => " in linked
        assert "not found" not in linked


def test_the_linker_finds_the_shared_library_by_its_short_name(tmp_path: Path) -> None:
    source, library = tmp_path / "main.cpp", Path(nnue_trainer.cmake_dir()).parent / "lib"
    source.write_text("int main() {}\n")
    flags = [f"-L{library}", "-Wl,--no-as-needed", "-lnnue_data", f"-Wl,-rpath,{library}"]
    subprocess.run(["g++", source, "-o", tmp_path / "main", *flags], check=True)
    subprocess.run([tmp_path / "main"], check=True)


@pytest.mark.parametrize(
    ("have", "fits", "others"),
    [
        ("0.2.3", ["", "0", "0.2", "0.2.0", "0.2.3 EXACT", "0.1...0.3"], ["0.1", "0.2.4", "0.3", "1", "0.2.0 EXACT"]),
        ("1.4.0", ["", "1", "1.2", "1.4.0"], ["0", "0.2", "1.5", "2", "0.1...<1.4.0"]),
    ],
)
def test_versions_that_cmake_accepts(tmp_path: Path, have: str, fits: list[str], others: list[str]) -> None:
    """Before 1.0 the interface may change with the second number, later with the first."""
    package = tmp_path / "package"
    (package / "cmake").mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{have}"\n')
    name = "nnue_trainer-config-version.cmake"
    (package / "cmake" / name).write_text((Path(nnue_trainer.cmake_dir()) / name).read_text())
    (package / "cmake" / "nnue_trainer-config.cmake").write_text("")
    lines = ["cmake_minimum_required(VERSION 3.19)", "project(versions NONE)"]
    for wanted in (*fits, *others):
        lines += [
            f"find_package(nnue_trainer {wanted} CONFIG QUIET PATHS {package}/cmake NO_DEFAULT_PATH)",
            f'message(STATUS "requested [{wanted}]: ${{nnue_trainer_FOUND}}")',
            "unset(nnue_trainer_DIR CACHE)",
            "unset(nnue_trainer_FOUND)",
        ]
    (tmp_path / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
    command = [tool("cmake"), "-S", str(tmp_path), "-B", str(tmp_path / "build")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"requested \[(.*)\]: (\d)", said))
    assert found == dict.fromkeys(fits, "1") | dict.fromkeys(others, "0")


def test_the_package_names_its_places() -> None:
    assert (Path(nnue_trainer.include_dir()) / "nnue" / "data.h").is_file()
    assert (Path(nnue_trainer.cmake_dir()) / "nnue_trainer-config.cmake").is_file()
