"""Compiles the library of statistics at its first use, in a checkout where `make quickstart` left it out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nnue_trainer.base import _library


def compile_library() -> None:
    """Compiles `_stats_cpu.so` if the other operators were built in this checkout without it. One process compiles, the
    others wait. Where that fails, the library is missing, and loading it raises what to do.
    """
    checkout = _library.STATS_CPU_LIBRARY.parents[1]
    build = checkout / "tools" / "quiet_build.py"
    if _library.STATS_CPU_LIBRARY.is_file() or not _library.CPU_LIBRARY.is_file() or not build.is_file():
        return
    import fcntl  # not on Windows

    try:
        (checkout / "build").mkdir(exist_ok=True)
        with (checkout / "build" / "stats.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _library.STATS_CPU_LIBRARY.is_file():
                print("nnue: note: compiling the operators of statistics, once: half a minute", file=sys.stderr)
                path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
                environment = os.environ | {
                    "PATH": path,
                    "NNUE_PARTS": "stats",
                    "NNUE_ISA": "native",
                    "FORCE_CUDA": "0",
                }
                subprocess.run([sys.executable, str(build)], env=environment, capture_output=True, check=False)
    except OSError:
        return  # such as a checkout that this user may not write to
