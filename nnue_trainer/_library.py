"""Loads the op libraries and says what they are.

`_ops_cpu.so` holds every schema and the CPU kernels; without it there are no ops. `_ops_cuda.so` adds the CUDA kernels;
where it is missing or cannot be loaded (a CPU build of torch, a machine without the driver) the CPU ops work, the
loader's own words stay in `cuda_error`, and the first CUDA tensor raises them.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

CPU_LIBRARY = Path(__file__).with_name("_ops_cpu.so")
CUDA_LIBRARY = Path(__file__).with_name("_ops_cuda.so")
# The oldest torch that has what the libraries use of the stable ABI; TORCH_TARGET_VERSION in setup.py.
TARGET_TORCH = "2.10"


@dataclass(frozen=True)
class Libraries:
    """What `load` found: None, or why a library is not there, in one line."""

    cpu_error: str | None
    cuda_error: str | None


def _load(path: Path, how_to_build: str) -> str | None:
    if not path.is_file():
        return f"{path.name} was not built ({how_to_build})"
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError) as error:
        # torch wraps the loader's error, which alone says what is missing.
        return " ".join(str(error.__cause__ or error).split())
    return None


@functools.cache
def load() -> Libraries:
    """Load both libraries, once a process. Never raises."""
    cpu_error = _load(CPU_LIBRARY, "install with `pip install --no-build-isolation .`, or `make quickstart`")
    if cpu_error is not None:
        return Libraries(cpu_error, "the CPU library, which holds the operators' schemas, is not loaded")
    return Libraries(None, _load(CUDA_LIBRARY, "nvcc was not found when this package was built; see FORCE_CUDA"))


def require() -> Libraries:
    """Load the libraries; RuntimeError if there are no ops at all."""
    libraries = load()
    if libraries.cpu_error is not None:
        raise RuntimeError(f"nnue_trainer: the operator library is not available: {libraries.cpu_error}")
    return libraries


def build_info(path: Path) -> dict[str, Any] | None:
    """What a library says it was built with, read from the file's bytes, without loading it; None if there is none."""
    if not path.is_file():
        return None
    found = re.search(rb"@nnue-build-info@(\{.*?\})\0", path.read_bytes())
    if found is None:
        return None
    info: dict[str, Any] = json.loads(found.group(1))
    return info
