"""Reasons why a machine cannot train, or not fast, each with the command that helps.

The checks read `Machine` and the data of `nnue info`, so tests make up both. They are in the order in which a user
needs to solve them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nnue_trainer.base import distribution
from nnue_trainer.base.machine import Machine

SHARED_MEMORY = 1 << 30
"""Bytes of /dev/shm below which a training in several processes may fail."""
WHEELS_GLIBC = (2, 35)
OLDEST_GPU = 75
"""Ten times the lowest compute capability that has kernels, as in setup.py."""


@dataclass(frozen=True)
class Finding:
    """One line that describes a problem, and one with the command that solves it."""

    problem: str
    remedy: str
    stops: bool = False
    """nothing can be trained until it is solved"""


Info = dict[str, Any]
"""The data of `nnue info --json`."""


def findings(machine: Machine, info: Info) -> list[Finding]:
    """All findings, the most urgent first."""
    found = (check(machine, info) for check in CHECKS)
    return [each for each in found if each is not None]


def unused_gpu(machine: Machine, info: Info) -> Finding | None:
    """Why a training does not use the GPU of this machine, the first reason of several; None if it does, or if there is
    none."""
    return next((found for check in GPU_CHECKS if (found := check(machine, info)) is not None), None)


def _another_distribution(machine: Machine, info: Info) -> Finding | None:
    others = info["other_distributions"]
    if not others:
        return None
    return Finding(
        f"the distribution {distribution.OTHER} is installed too ({others[0]}), with a package of the same name",
        distribution.advice(),
    )


def _parts(machine: Machine, info: Info) -> Finding | None:
    for name, error in (("data module", info["data"]["error"]), ("CPU operators", info["cpu_ops"]["error"])):
        if error is None:
            continue
        version = tuple(int(word) for word in machine.glibc.split(".")[:2] if word.isdigit())
        if "GLIBC" in error and version < WHEELS_GLIBC:
            return Finding(
                f"{name}: this system has glibc {machine.glibc}, and wheels need 2.35",
                "build from source: make build (docs/install.md), or use a container with a newer system",
                stops=True,
            )
        return Finding(f"{name}: {error}", "make build in a checkout, or install the wheel again", stops=True)
    return None


def _driver(machine: Machine, info: Info) -> Finding | None:
    if not machine.nvidia_gpus or machine.device_files or info["cuda_devices"]:
        return None
    if machine.container:
        return Finding(
            "this container cannot see the NVIDIA GPU of its host",
            "start it with `docker run --gpus all` (the host needs the NVIDIA Container Toolkit)",
        )
    if machine.wsl:
        return Finding("WSL2 cannot see the GPU", "install NVIDIA's driver in Windows, then run `wsl --shutdown` there")
    install = {
        "ubuntu": "sudo ubuntu-drivers install && sudo reboot",
        "debian": "sudo apt install nvidia-driver && sudo reboot (sections contrib and non-free)",
    }.get(machine.distribution, "install NVIDIA's driver with the packages of this system, then reboot")
    return Finding("there is an NVIDIA GPU, but its driver is not loaded", install)


def _torch_without_cuda(machine: Machine, info: Info) -> Finding | None:
    if not machine.nvidia_gpus or info["torch_cuda"] or info["torch_hip"]:
        return None
    return Finding(
        f"there is an NVIDIA GPU, but torch {info['torch']} was built without CUDA",
        "pip install --force-reinstall torch (not from torch's index for CPUs), then make build in a checkout, or "
        "install a wheel that has the CUDA operators",
    )


def _torch_sees_no_gpu(machine: Machine, info: Info) -> Finding | None:
    if not machine.nvidia_gpus or not info["torch_cuda"] or info["cuda_devices"]:
        return None
    if info["hidden_devices"]:
        return Finding(f"CUDA_VISIBLE_DEVICES={info['hidden_devices']} hides the GPU", "unset CUDA_VISIBLE_DEVICES")
    driver = f"driver {machine.driver}" if machine.driver else "the driver"
    return Finding(
        f"torch {info['torch']} needs CUDA {info['torch_cuda']}, and {driver} does not support it or cannot be opened",
        "install a newer driver, or torch for the CUDA version that `nvidia-smi` prints (Get Started on pytorch.org)",
    )


def _no_cuda_library(machine: Machine, info: Info) -> Finding | None:
    library = info["cuda_ops"]
    if not info["cuda_devices"] or library["error"] is None or info["torch_hip"]:
        return None
    if library["built"] is None:
        return Finding(
            f"the CUDA operators are missing: {library['error']}",
            "install nvcc of CUDA 12.8 or later (docs/install.md), then run make build, or use a wheel that has them",
        )
    return Finding(
        f"the CUDA operators cannot be loaded: {library['error']}",
        "build them for this torch: make build, or install the wheel again",
    )


def _old_gpu(machine: Machine, info: Info) -> Finding | None:
    built = info["cuda_ops"]["built"] if info["cuda_ops"]["error"] is None else None
    lowest = min(map(int, (built or {}).get("architectures", str(OLDEST_GPU)).split("+")))
    for device in [] if info["torch_hip"] else info["cuda_devices"]:
        major, minor = map(int, device["compute_capability"].split("."))
        capability = 10 * major + minor
        if capability < OLDEST_GPU:
            return Finding(
                f"{device['name']} has compute capability {major}.{minor}, and the CUDA operators need "
                f"{OLDEST_GPU // 10}.{OLDEST_GPU % 10} or later",
                "training.device=cuda, with which PyTorch's operators compute the forward and backward pass on it",
            )
        if capability < lowest:
            return Finding(
                f"{device['name']} has compute capability {major}.{minor}, and the CUDA operators were built for "
                f"{lowest // 10}.{lowest % 10} and later",
                f"NNUE_CUDA_ARCHS={capability} make build in a checkout, or install a wheel that has {major}.{minor}",
            )
    return None


def _shared_memory(machine: Machine, info: Info) -> Finding | None:
    size = machine.shared_memory
    if size is None or size >= SHARED_MEMORY or len(info["cuda_devices"]) < 2:
        return None
    return Finding(
        f"/dev/shm has {size >> 20} MiB, which can be too few for a training on several GPUs",
        "start the container with --shm-size=1g or --ipc=host"
        if machine.container
        else "sudo mount -o remount,size=1g /dev/shm",
    )


def _quota(machine: Machine, info: Info) -> Finding | None:
    if machine.usable_cpus >= machine.cpus:
        return None
    more = "docker run --cpus N" if machine.container else "request them from the scheduler, or see `taskset -p $$`"
    return Finding(f"this process may use {machine.usable_cpus} of {machine.cpus} CPUs", f"to use more: {more}")


def _old_cpu(machine: Machine, info: Info) -> Finding | None:
    if machine.instruction_sets != "x86-64 without AVX2":
        return None
    return Finding(
        "the CPU has no AVX2, so operators and data pipeline run plain code",
        "in a virtual machine, pass the host's CPU through: `-cpu host` (QEMU), `host-passthrough` (libvirt)",
    )


def _no_bytecode(machine: Machine, info: Info) -> Finding | None:
    if not machine.torch_without_bytecode:
        return None
    return Finding(
        "torch has no bytecode, so each command compiles its modules again, for seconds",
        f"{shlex.join([sys.executable, '-m', 'compileall', '-q', machine.torch_without_bytecode])}, or unset "
        "PYTHONDONTWRITEBYTECODE",
    )


Check = Callable[[Machine, Info], Finding | None]
GPU_CHECKS: tuple[Check, ...] = (_driver, _torch_without_cuda, _torch_sees_no_gpu, _old_gpu, _no_cuda_library)
CHECKS: tuple[Check, ...] = (_another_distribution, _parts, unused_gpu, _shared_memory, _quota, _old_cpu, _no_bytecode)
