"""C++ and CUDA sources that are compiled at their first use and kept: one shared library for each text.

A library's name has a hash of the source, the compiler, its version and its options. So what has changed is compiled
again, and nothing else is. Only sources that the caller has in hand are compiled, never what a file of a net or a
checkpoint says.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nnue_trainer.errors import UserError, shown
from nnue_trainer.progress import Unfailing

_SHOWN_ERRORS = 3


def find_compiler(what: str) -> list[str]:
    """The C++ compiler, for `what`, such as "window functions": $CXX, or g++, c++, clang++ on PATH."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    found = f"$CXX is {' '.join(named)!r}, which is not there" if named else "no g++, c++ or clang++"
    raise UserError(f"{what} need a C++20 compiler: {found}; install g++")


def find_nvcc(what: str) -> list[str]:
    """nvcc of $CUDA_HOME, on PATH or in its usual place."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    for candidate in [f"{home}/bin/nvcc"] * bool(home) + ["nvcc", "/usr/local/cuda/bin/nvcc"]:
        if found := shutil.which(candidate):
            return [found]
    raise UserError(f"{what} need nvcc for CUDA, which is neither on PATH nor in $CUDA_HOME")


def cache_folder(kind: str) -> Path:
    """Where compiled things are kept: $XDG_CACHE_HOME/nnue-trainer/KIND, by default below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        raise UserError(f"no home folder to keep compiled {kind} in: set XDG_CACHE_HOME") from None
    return home / "nnue-trainer" / kind


def library_of(name: str, kind: str, source: str, suffix: str, command: list[str], flags: list[str]) -> Path:
    """The shared library made of `source`. UserError with the compiler's first errors, or if it cannot be kept.

    name: what messages call it. kind: its folder in the cache, and what it is. suffix: of the source, ".cpp" or ".cu".
    """
    text = repr([source, command, flags, _run([*command, "--version"], name)])
    folder = cache_folder(kind)
    library = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix="compiling-")
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written: {error.strerror}; compiled {kind} are kept there (XDG_CACHE_HOME)"
        ) from None
    with scratch as inner:
        unit, built = Path(inner) / f"source{suffix}", Path(inner) / "built.so"
        unit.write_text(source, encoding="utf-8")
        print(f"nnue: {shown(name)}: compiling, once; kept in {shown(folder)}", file=Unfailing(sys.stderr))
        _run([*command, *flags, str(unit), "-o", str(built)], name, str(unit))
        built.replace(library)  # a reader never sees half of it
    return library


def _run(command: list[str], name: str, unit: str = "") -> str:
    try:
        env = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, check=False)
    except OSError as error:
        raise UserError(f"{shown(command[0])}: cannot be run: {error.strerror}") from None
    if done.returncode == 0:
        return done.stdout
    said = (done.stderr + done.stdout).replace(f"{unit}:" if unit else "\0", "")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line)] or lines or [f"status {done.returncode}"]
    more = f" (and {len(errors) - _SHOWN_ERRORS} more)" if len(errors) > _SHOWN_ERRORS else ""
    first = "; ".join(shown(line) for line in errors[:_SHOWN_ERRORS])
    raise UserError(f"{shown(name)}: {Path(command[0]).name}: {first}{more}")
