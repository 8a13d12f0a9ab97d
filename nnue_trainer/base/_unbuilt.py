"""Why a compiled part of the package is missing or old, and what to do about it."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from nnue_trainer.base import distribution

_FOLDER = Path(__file__).parents[1]


def reason(name: str, folder: Path = _FOLDER) -> str:
    """One line for the part `name`, such as "_data" or "_ops_cpu", of the package in `folder`."""
    install = "`pip install --no-build-isolation .`"
    if not folder.is_dir():
        archive = next((parent for parent in folder.parents if parent.is_file()), folder)
        return f"{name}: compiled code cannot be loaded from the archive {archive}: install it with pip"
    if (folder.parent / "setup.py").is_file():
        return f"{name} was not built in {folder.parent}: run `make build` or {install} there"
    others = sorted(path.name for path in folder.glob(f"{name}.*.so"))
    if others and not any(other.removeprefix(name) in EXTENSION_SUFFIXES for other in others):
        version = ".".join(map(str, sys.version_info[:2]))
        return f"{name} was built for another Python ({', '.join(others)}): install the package for {version}"
    return f"{name} is missing in {folder}: install {distribution.NAME} anew with {install}"


def is_old(folder: Path = _FOLDER) -> bool:
    """Whether the package lies in a checkout with C++ or CUDA sources that are newer than all compiled parts."""
    sources = [
        path.stat().st_mtime
        for room in ("csrc", "data_loader")
        for path in (folder.parent / room).rglob("*")
        if path.suffix in (".h", ".cpp", ".cu", ".cuh")
        and path.relative_to(folder.parent / room).parts[0] not in ("bench", "fuzz", "tests")
    ]
    built = [path.stat().st_mtime for path in folder.glob("*.so")]
    return bool(sources and built) and max(sources) > max(built)
