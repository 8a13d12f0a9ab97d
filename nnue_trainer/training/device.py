"""The device of a training, and torch's options for it."""

from __future__ import annotations

import contextlib
import os
import threading

import torch

from nnue_trainer import ops
from nnue_trainer.base import _library, findings, machine
from nnue_trainer.config import TrainingConfig
from nnue_trainer.errors import UserError, first_line
from nnue_trainer.training.memory import keep_freed_memory
from nnue_trainer.training.parallel.ranks import Ranks


def choose_device(name: str, ranks: Ranks | None = None) -> torch.device:
    """The device that `training.device` of a recipe names. If several processes train together on CUDA, each gets the
    GPU with its local rank. UserError for a CUDA device that does not exist, or for an index with several processes."""
    available = torch.cuda.is_available()
    if offloaded(name) is not None:
        if ranks is not None and ranks.several:
            raise UserError(f"training.device: found {name!r}, which only a single process can train with")
        return torch.device("cpu")
    if name == "auto":
        # Without the CUDA operators, those for the CPU are faster than torch's on a GPU.
        name = "cuda" if available and _library.has_kernels("cuda") else "cpu"
    device = torch.device(name)
    several = device.type == "cuda" and ranks is not None and ranks.several
    wanted = ""
    if several and ranks is not None:
        if ":" in name:
            raise UserError(f"training.device: found {name!r}, but each of several processes has its own GPU: set cuda")
        device, wanted = torch.device("cuda", ranks.local_rank), f" for {ranks.local_size} processes"
    if device.type == "cuda" and not (available and (device.index or 0) < torch.cuda.device_count()):
        found = f"{torch.cuda.device_count()} CUDA devices" if available else "no CUDA device"
        raise UserError(f"training.device: found {name!r}, but torch {torch.__version__} finds {found}{wanted}")
    if several:
        torch.cuda.set_device(device)  # NCCL, and code that names no device, use the current device
    return device


def unused_gpu(device: torch.device) -> str | None:
    """One line about a GPU of this machine if "auto" gave `device`, the CPU; None if there is none."""
    if device.type != "cpu":
        return None
    found = findings.unused_gpu(machine.describe(), _library.facts())
    return None if found is None else f"the GPU is not used: {found.problem}; fix: {found.remedy}; see nnue doctor"


def offloaded(name: str) -> torch.device | None:
    """The device that `training.device` names if this project has no kernels for it: PyTorch's operators compute the
    forward and backward pass there. None for any other device; UserError if torch cannot use it."""
    kind = name.partition(":")[0]
    if kind in ("auto", "cpu"):
        return None
    try:
        if kind == "cuda" and (not torch.cuda.is_available() or _library.has_kernels(name)):
            return None  # `choose_device` reports a missing GPU
        device = torch.device(name)
        torch.zeros(1, dtype=torch.float32, device=device).add_(1)
    except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
        raise UserError(
            f"training.device: found {name!r}, which torch {torch.__version__} cannot use: {first_line(error)}"
        ) from None
    return device


def start_device(device: torch.device) -> None:
    """Starts a GPU in the background, which takes seconds. Whatever fails here fails again where it is used."""

    def start() -> None:
        with contextlib.suppress(Exception):
            torch.empty(1, dtype=torch.float32, device=device)

    if device.type == "cuda":
        threading.Thread(target=start, name="start-device", daemon=True).start()


def set_up_torch(training: TrainingConfig, device: torch.device) -> None:
    """Sets torch's global options for the process: the seed, deterministic algorithms and TF32. On a CPU it also sets
    how freed memory is kept, on CUDA when the index rows are checked."""
    torch.manual_seed(training.seed)
    torch.set_float32_matmul_precision("high" if training.precision == "tf32" else "highest")
    if training.deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads this when it starts
    if training.compile:
        torch.use_deterministic_algorithms(training.deterministic)
    else:  # the same without an option of torch's compiler, whose import takes 5 seconds
        torch._C._set_deterministic_algorithms(training.deterministic, warn_only=False)
    # With deterministic algorithms torch fills every uninitialised tensor with NaN. That finds bugs, but it changes no
    # result of correct code, and it costs a pass over each gradient.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 (the type lacks it)
    if device.type == "cpu":
        keep_freed_memory()
    else:
        # The loader makes valid rows, so an error is not expected. It may be raised a step late: the host never waits.
        ops.set_index_check("async")
