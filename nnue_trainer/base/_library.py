"""Loads the op libraries and reports their versions.

`_ops_cpu.so` holds the schemas and the CPU kernels; without it there are no ops. `_ops_cuda.so` adds the CUDA kernels;
where it is missing or cannot be loaded (a CPU build of torch, a machine without the driver) the CPU ops work, the
reason stays in `cuda_error`, and the first CUDA tensor raises it. `_stats_cpu.so` and `_stats_cuda.so` are the same for
`nnue_trainer.stats`, whose modules load them. Neither pair needs the other.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nnue_trainer.base import _unbuilt

CPU_LIBRARY = Path(__file__).parents[1] / "_ops_cpu.so"
CUDA_LIBRARY = Path(__file__).parents[1] / "_ops_cuda.so"
STATS_CPU_LIBRARY = Path(__file__).parents[1] / "_stats_cpu.so"
STATS_CUDA_LIBRARY = Path(__file__).parents[1] / "_stats_cuda.so"
# The oldest torch whose stable ABI has everything that the libraries use; TORCH_TARGET_VERSION in setup.py.
TARGET_TORCH = "2.10"


@dataclass(frozen=True)
class Libraries:
    """The result of `load` and `load_stats`: None for a library that is loaded, else one line with the reason."""

    cpu_error: str | None
    cuda_error: str | None


def _load(path: Path) -> str | None:
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError) as error:
        # torch wraps the loader's error; only the inner error names what is missing.
        return " ".join(str(error.__cause__ or error).split())
    return None


# The CPU library's record of the CUDA library of the same build: NNUE_CUDA_BUILD in setup.py.
_WHY_NO_CUDA = {
    "forced_off": "FORCE_CUDA=0 was set when this package was built",
    "old_gpu": "NNUE_CUDA_ARCHS had no compute capability of 7.5 or later, and others have no kernels",
    "no_nvcc": "nvcc was not found when this package was built; see FORCE_CUDA",
    "built": "it was built with this package, but the file is not here",
}


def _load_cuda(cpu: Path, cuda: Path) -> str | None:
    if not cuda.is_file():
        why = _WHY_NO_CUDA.get((build_info(cpu) or {}).get("cuda_build", ""))
        return f"{cuda.name} was not built" if why is None else f"no {cuda.name}: {why}"
    error = _load(cuda)
    if error is not None and torch.version.cuda is None and build_info(cuda) is not None:
        return f"built, but this torch ({torch.__version__}) has no CUDA"  # the loader names one of torch's symbols
    return error


@functools.cache
def load() -> Libraries:
    """Load both libraries of training, once per process. Never raises."""
    return _load_both(CPU_LIBRARY, CUDA_LIBRARY)


@functools.cache
def load_stats() -> Libraries:
    """Load both libraries of statistics, once per process. Never raises."""
    return _load_both(STATS_CPU_LIBRARY, STATS_CUDA_LIBRARY)


def _load_both(cpu: Path, cuda: Path) -> Libraries:
    cpu_error = _load(cpu) if cpu.is_file() else _unbuilt.reason(cpu.stem)
    if cpu_error is not None:
        return Libraries(cpu_error, "the CPU library, which holds the operators' schemas, is not loaded")
    _tag_compiled_graphs()
    return Libraries(None, _load_cuda(cpu, cuda))


def _tag_compiled_graphs() -> None:
    """Keep torch.compile from using graphs on disk that were made with other libraries: their operators have the same
    names, but may have other schemas, and plans of other sizes."""
    every = (CPU_LIBRARY, CUDA_LIBRARY, STATS_CPU_LIBRARY, STATS_CUDA_LIBRARY)
    built = [path.stat() for path in every if path.is_file()]
    tag = "nnue_trainer " + " ".join(f"{file.st_size}@{file.st_mtime_ns}" for file in built)
    config = torch.compiler.config
    if tag not in config.cache_key_tag:
        config.cache_key_tag = " ".join(filter(None, [config.cache_key_tag, tag]))


def require(load: Callable[[], Libraries] = load) -> Libraries:
    """Load the libraries of training, or those that `load` loads; RuntimeError if there are no ops at all."""
    libraries = load()
    if libraries.cpu_error is not None:
        raise RuntimeError(f"nnue_trainer: the operator library is not available: {libraries.cpu_error}")
    return libraries


def build_info(path: Path) -> dict[str, Any] | None:
    """The build settings of a library, read from the bytes of its file without loading it; None if there is no file."""
    if not path.is_file():
        return None
    found = re.search(rb"@nnue-build-info@(\{.*?\})\0", path.read_bytes())
    if found is None:
        return None
    info: dict[str, Any] = json.loads(found.group(1))
    return info


def has_kernels(device: str) -> bool:
    """Whether the library for CUDA is loaded and was built for the GPU `device`, "cuda" or "cuda:1", or for older ones.
    True for a GPU that does not exist."""
    if load().cuda_error is not None:
        return False
    built = (build_info(CUDA_LIBRARY) or {}).get("architectures", "")
    index = torch.device(device).index or 0
    if not built or index >= torch.cuda.device_count():
        return True
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor >= min(map(int, built.split("+")))


def facts() -> dict[str, Any]:
    """torch, the operator libraries and the GPUs that torch finds, as JSON data."""
    libraries = load()
    devices = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            devices.append(
                {
                    "name": device.name,
                    "compute_capability": f"{device.major}.{device.minor}",
                    "memory_bytes": device.total_memory,
                }
            )
    return {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "torch_hip": torch.version.hip,
        "target_torch": TARGET_TORCH,
        "cpu_threads": torch.get_num_threads(),
        "cpu_ops": {"built": build_info(CPU_LIBRARY), "error": libraries.cpu_error},
        "cuda_ops": {"built": build_info(CUDA_LIBRARY), "error": libraries.cuda_error},
        "cuda_devices": devices,
        "hidden_devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }


def as_text(text: torch.Tensor) -> str:
    """A text that an operator returned, uint8 [n]."""
    return bytes(text.tolist()).decode()


def as_bytes(text: str) -> torch.Tensor:
    """A text as operators take it: its bytes, uint8 [n]. No operator takes or returns a str: csrc/enumerations.h."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")
