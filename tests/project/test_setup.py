"""The build: which compilers it takes, and the page that a package index shows."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def setup(project_root: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "-q", *words],
        cwd=project_root,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("macros", "found"),
    [
        ("#define __GNUC__ 11", "g++ 11"),
        ("#define __GNUC__ 4\n#define __clang__ 1\n#define __clang_major__ 15", "clang 15"),
    ],
)
def test_an_old_compiler_is_one_line(project_root: Path, tmp_path: Path, macros: str, found: str) -> None:
    compiler = tmp_path / "old"
    compiler.write_text(f"#!/bin/sh\necho '{macros}'\n")
    compiler.chmod(0o755)
    done = setup(project_root, "build_ext", CXX=str(compiler))
    assert done.returncode == 1
    assert done.stderr == f"{compiler} is {found}; torch-nnue needs g++ 12 or clang 16 or newer; set CXX to one\n"


@pytest.mark.parametrize(
    ("release", "expected"), [("12.6", "75;80;86;90"), ("12.8", "75;80;86;90;100;120"), ("13.0", "75;80;86;90;100;120")]
)
def test_gpus_that_this_nvcc_can_compile_for(project_root: Path, tmp_path: Path, release: str, expected: str) -> None:
    """tools/check_cuda_library.sh expects code for these in the library."""
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.0'\n")
    nvcc.chmod(0o755)
    lists = ("NNUE_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST")
    environment = {name: value for name, value in os.environ.items() if name not in lists}
    done = subprocess.run(
        [sys.executable, "setup.py", "architectures"],
        cwd=project_root,
        env=environment | {"CUDA_HOME": str(tmp_path), "PATH": f"{nvcc.parent}:{environment['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{expected}\n", done.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"TORCH_CUDA_ARCH_LIST": "7.0;7.5 9.0a+PTX"}, "75;90"),
        ({"TORCH_CUDA_ARCH_LIST": "8.0", "NNUE_CUDA_ARCHS": "86"}, "86"),
        ({"NNUE_CUDA_ARCHS": "60;90"}, "90"),
        ({"TORCH_CUDA_ARCH_LIST": ""}, "75;80;86;90;100;120"),
        ({"TORCH_CUDA_ARCH_LIST": "Hopper"}, "TORCH_CUDA_ARCH_LIST has 'Hopper', expected numbers"),
        ({"TORCH_CUDA_ARCH_LIST": "7.0"}, "expected a compute capability of 7.5 or later"),
    ],
)
def test_the_list_of_torch(project_root: Path, tmp_path: Path, given: dict[str, str], expected: str) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.0'\n")
    nvcc.chmod(0o755)
    path = f"{nvcc.parent}:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "NNUE_CUDA_ARCHS"}
    done = subprocess.run(
        [sys.executable, "setup.py", "architectures"],
        cwd=project_root,
        env=environment | {"CUDA_HOME": str(tmp_path), "PATH": path} | given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout == f"{expected}\n") if expected[0].isdigit() else (expected in done.stderr and done.returncode)


def test_each_gpu_has_code_of_the_sources_for_it(project_root: Path) -> None:
    """Sources differ between 7.5, 8.0 and 9.0: code for 8.0 made from PTX of 7.5 would run without its instructions."""
    parsed = ast.parse((project_root / "setup.py").read_text())
    function = next(node for node in parsed.body if getattr(node, "name", "") == "architecture_flags")
    names: dict[str, Any] = {}
    exec(compile(ast.Module([function], []), "setup.py", "exec"), names)

    def code(*archs: str) -> list[str]:
        return [flag.removeprefix("-gencode=arch=compute_") for flag in names["architecture_flags"](list(archs))]

    every = ["75,code=sm_75", "80,code=sm_80", "80,code=sm_86", "90,code=sm_90", "90,code=sm_100", "90,code=sm_120"]
    assert code("75", "80", "86", "90", "100", "120") == [*every, "90,code=compute_90"]
    assert code("75") == ["75,code=sm_75", "75,code=compute_75"]
    assert code("75", "86") == ["75,code=sm_75", "86,code=sm_86", "86,code=compute_86"]


@pytest.mark.parametrize("archs", ["60", "60;;70\n", ""])
@pytest.mark.parametrize(("forced", "status"), [("", 0), ("1", 1), ("0", 0)])
def test_gpus_without_kernels_need_no_nvcc(
    project_root: Path, tmp_path: Path, forced: str, status: int, archs: str
) -> None:
    """In a notebook with a P100, or without a GPU, the command of docs/install.md builds what does not need CUDA."""
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.0'\n")
    nvcc.chmod(0o755)
    done = setup(project_root, "build_ext", "--help", NNUE_CUDA_ARCHS=archs, FORCE_CUDA=forced, CUDA_HOME=str(tmp_path))
    assert bool(done.returncode) == bool(status), done.stderr
    said = f"NNUE_CUDA_ARCHS is {archs!r}: kernels need a compute capability of 7.5 or later"
    assert done.stderr.count(said) == (forced != "0"), done.stderr


def test_the_page_for_an_index_has_no_link_into_the_project(project_root: Path) -> None:
    done = setup(project_root, "--long-description", NNUE_NO_EXTENSIONS="1")
    assert "# torch-nnue\n" in done.stdout, done.stderr
    assert [link for link in re.findall(r"\]\(([^)\s]+)\)", done.stdout) if not link.startswith("https://")] == []


@pytest.mark.compiler
def test_installed_headers_are_found_before_those_of_an_engine(project_root: Path, tmp_path: Path) -> None:
    done = setup(project_root, "build_py", "--build-lib", str(tmp_path / "lib"), NNUE_NO_EXTENSIONS="1")
    assert done.returncode == 0, done.stderr
    headers = tmp_path / "lib" / "nnue_trainer" / "include"
    for name in ("chess/types.h", "formats/format.h", "features/feature_set.h", "pipeline/loader.h", "base/isa.h"):
        assert (headers / name).is_file()
        mine = tmp_path / "engine" / name
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("#error this is the engine's\n")
    (tmp_path / "program.cpp").write_text("#include <nnue/data.h>\nnnue::data::Record record;\n")
    compile_it = ["g++", "-std=c++20", "-fsyntax-only", f"-I{tmp_path / 'engine'}", "-isystem", str(headers)]
    done = subprocess.run([*compile_it, "program.cpp"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
