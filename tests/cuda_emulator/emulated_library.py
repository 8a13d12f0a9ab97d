"""Builds the emulated operators: `python tests/cuda_emulator/emulated_library.py [SOURCES]` prints the library's path.

SOURCES is the project that is emulated, by default this one. Nothing is done where the library is there already: its
name has a hash of all that it is made of.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from translate import SOURCES

from nnue_trainer.base import _library

HERE = Path(__file__).resolve().parent
COMPILER = os.environ.get("CXX", "g++").split()
TARGET = "".join(f"{int(part):02x}" for part in _library.TARGET_TORCH.split("."))
FLAGS = [
    *("-std=c++20", "-O1", "-g1", "-fPIC", "-w", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing"),
    *(
        f"-DTORCH_TARGET_VERSION=0x{TARGET}000000000000",
        "-DUSE_CUDA",
        "-DNNUE_VERSION=emulated",
        "-DNNUE_CUDA_ARCHS=90",
    ),
]


def why_not() -> str | None:
    """Why kernels cannot be emulated here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "kernels are emulated on x86-64 Linux only"
    return None if shutil.which(COMPILER[-1]) else "no g++ to build the emulated kernels"


def build(project: Path) -> Path:
    sources = sorted(p for p in [*(project / "csrc").rglob("*.*"), *HERE.rglob("*.*")] if p.suffix != ".pyc")
    digest = hashlib.sha256(torch.__version__.encode())
    for source in sources:
        digest.update(source.read_bytes())
    out = project / "build" / "emulated" / digest.hexdigest()[:16]
    library = out / "emulated.so"
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            compile_into(library, project)
    return library


def compile_into(library: Path, project: Path) -> None:
    out = library.parent
    subprocess.run([sys.executable, str(HERE / "translate.py"), str(project / "csrc"), str(out / "csrc")], check=True)
    torch_root = Path(torch.__file__).parent
    includes = [f"-I{p}" for p in (out / "csrc", HERE, project / "data_loader", torch_root / "include")]

    def compile_one(source: Path) -> Path:
        target = out / (source.stem + ".o")
        subprocess.run([*COMPILER, *FLAGS, *includes, "-c", str(source), "-o", str(target)], check=True)
        return target

    translated = [(out / "csrc" / "cuda" / name).with_suffix(".cpp") for name in SOURCES]
    units = [*translated, HERE / "index_check.cpp", HERE / "emulator.cpp"]
    with ThreadPoolExecutor(2) as pool:
        objects = [str(o) for o in pool.map(compile_one, units)]
    unfinished = out / "unfinished.so"
    link = ["-shared", "-o", str(unfinished), *objects, f"-L{torch_root / 'lib'}", "-ltorch_cpu", "-pthread"]
    subprocess.run([*COMPILER, *link], check=True)
    unfinished.rename(library)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE.parents[1]))
