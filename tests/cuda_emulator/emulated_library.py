"""Builds the emulated operators: `python tests/cuda_emulator/emulated_library.py [SOURCES]` prints the library's path.

SOURCES is the project that is emulated, by default this one. The translated sources and the objects stay in
build/emulated/, so ninja compiles only what has changed; ccache, if it is installed, shares objects between checkouts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from translate import SOURCES, translate

from nnue_trainer.base import _library

HERE = Path(__file__).resolve().parent
COMPILER = os.environ.get("CXX", "g++").split()
TARGET = "".join(f"{int(part):02x}" for part in _library.TARGET_TORCH.split("."))
FLAGS = [
    *("-std=c++20", "-O1", "-g1", "-fPIC", "-w", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing"),
    # Without them, a conversion of a half, or a reference to a shared variable, is a call.
    *("-mf16c", "-mtls-dialect=gnu2"),
    *(
        f"-DTORCH_TARGET_VERSION=0x{TARGET}000000000000",
        "-DUSE_CUDA",
        "-DNNUE_VERSION=emulated",
    ),
]
# Those with functions that are others on 7.5 (csrc/cuda/ptx.cuh), and those that a step needs besides.
SOURCES_OF = {
    90: SOURCES,
    75: (
        *("feature_transformer.cu", "perspective_transformer.cu", "portable/portable.cu"),
        *("stacks/layer_stacks.cu", "stacks/one_output.cu"),
    ),
}


def why_not() -> str | None:
    """The reason why kernels cannot be emulated here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "kernels are emulated on x86-64 Linux only"
    if ninja() is None:
        return "no ninja to build the emulated kernels"
    return None if shutil.which(COMPILER[-1]) else "no g++ to build the emulated kernels"


def ninja() -> str | None:
    return shutil.which("ninja", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def build(project: Path, capability: int = 90) -> Path:
    """The operators as compiled for a compute capability; the names of others than 90 end in it, nnue_emulated_75."""
    out = project / "build" / "emulated"
    made = out if capability == 90 else out / str(capability)
    made.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, HERE / "translate.py", project / "csrc", out / "csrc"], check=True)
        (made / "build.ninja").write_text(rules(project, out, capability))
        # The linker makes a new file: a process that has loaded the old library keeps it.
        places = {"CCACHE_BASEDIR": str(project), "CCACHE_NOHASHDIR": "1", **os.environ}
        subprocess.run([str(ninja()), "--quiet", "-j2", "-C", made], check=True, env=places)
    return made / "emulated.so"


def build_source(source: str, folder: Path) -> Path:
    """The library of one CUDA source that needs nothing of the project, such as that of a user's function."""
    out = folder / hashlib.sha256(source.encode()).hexdigest()[:16]
    library = out / "emulated.so"
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            unit, built = out / "source.cpp", out / "built.so"
            unit.write_text("#include <cuda_runtime.h>\n" + translate(source))
            sources = [str(unit), str(HERE / "emulator.cpp")]
            subprocess.run(
                [*COMPILER, *FLAGS, f"-I{HERE}", "-shared", *sources, "-pthread", "-o", str(built)], check=True
            )
            built.rename(library)
    return library


def rules(project: Path, out: Path, capability: int) -> str:
    """The file for ninja."""
    torch_root = Path(torch.__file__).parent
    includes = [f"-I{place}" for place in (out / "csrc", HERE, project / "data_loader", torch_root / "include")]
    launcher = ["ccache"] if shutil.which("ccache") and "ccache" not in COMPILER else []
    of = [f"-DNNUE_CUDA_ARCHS={capability}", f"-DEMULATED_CAPABILITY={capability}"]
    if capability != 90:
        of.append(f"-Dnnue_emulated=nnue_emulated_{capability}")
    compiler = shlex.join([*launcher, *COMPILER, *FLAGS, *of, *includes])
    translated = [(out / "csrc" / "cuda" / name).with_suffix(".cpp") for name in SOURCES_OF[capability]]
    sources = [*translated, HERE / "index_check.cpp", HERE / "emulator.cpp"]
    objects = [f"{source.stem}.o" for source in sources]

    def path(text: str | Path) -> str:
        return re.sub(r"([$ :])", r"$\1", str(text))

    lines = [
        "rule compile",
        f"  command = {compiler.replace('$', '$$')} -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {shlex.join(COMPILER)} -shared -o $out $in -L{torch_root / 'lib'} -ltorch_cpu -pthread",
        *(f"build {target}: compile {path(source)}" for target, source in zip(objects, sources, strict=True)),
        f"build emulated.so: link {' '.join(objects)}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE.parents[1]))
