"""Builds the C++ examples with CMake, as their readers do, in a folder that the next run of the tests finds again."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import torch.utils
from needs import ROOT

import nnue_trainer


def tool(name: str) -> str:
    """A program of the test environment, or of the machine."""
    own = Path(sys.executable).with_name(name)
    return str(own if own.exists() else shutil.which(name) or name)


def build(project: Path, name: str, *options: str, target: str = "all") -> Path:
    """The folder with the programs of a CMake project, of which `target` is built."""
    folder = ROOT / "build" / name
    configure = [
        *(tool("cmake"), "-S", str(project), "-B", str(folder), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-Dnnue_trainer_DIR={nnue_trainer.cmake_dir()}",
        *options,
    ]
    if shutil.which("ccache"):
        configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    for command in (configure, [tool("cmake"), "--build", str(folder), "--target", target]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@functools.cache
def with_torch(target: str) -> Path:
    """The folder of the programs that are compiled with torch's headers. Only `target` is built: each takes most of a
    minute unless ccache has it."""
    return build(
        ROOT / "tests" / "cpp",
        "cpp-tests",
        f"-DTorch_DIR={torch.utils.cmake_prefix_path}/Torch",
        "-DCMAKE_BUILD_TYPE=Debug",
        "-DCMAKE_CXX_FLAGS_DEBUG=-O0",
        target=target,
    )
