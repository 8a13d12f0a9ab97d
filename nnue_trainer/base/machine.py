"""The machine as the system describes it, without torch: GPUs, driver, container, limits, instruction sets.

`nnue doctor` compares it with what torch and the libraries see. On systems other than Linux most fields are empty.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from nnue_trainer.base import system

_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAY = "0x03"  # PCI class of GPUs


@dataclass(frozen=True)
class Machine:
    """The facts that `nnue doctor` checks."""

    system: str = "linux"
    """in lower case, as platform.system() has it"""
    distribution: str = ""
    """ID of /etc/os-release, such as "ubuntu" or "debian"; "" if there is none"""
    container: bool = False
    wsl: bool = False
    nvidia_gpus: int = 0
    """NVIDIA GPUs on the PCI bus, or given to this system by WSL2"""
    amd_gpus: int = 0
    driver: str = ""
    """version of NVIDIA's driver, "" if none is loaded"""
    device_files: bool = False
    """whether programs here can open the GPUs: /dev/nvidia0, or /dev/dxg in WSL2"""
    glibc: str = ""
    shared_memory: int | None = None
    """size of /dev/shm in bytes; None: there is none"""
    cpus: int = 1
    """CPUs of the machine"""
    usable_cpus: int = 1
    """CPUs that this process may use"""
    flags: frozenset[str] = frozenset()
    """instruction sets of an x86-64 CPU, as in /proc/cpuinfo"""
    torch_without_bytecode: str = ""
    """torch's folder if it has no bytecode and Python will not write it, so that each import compiles torch"""

    @property
    def instruction_sets(self) -> str:
        """The widest one that the CPU operators and the data pipeline use."""
        if not self.flags:
            return platform.machine()
        if self.flags >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"}:
            return "AVX-512"
        return "AVX2" if self.flags >= {"avx2", "bmi1", "bmi2", "fma"} else "x86-64 without AVX2"


def describe(root: Path = Path("/")) -> Machine:
    """This machine. `root` is for tests."""
    kernel = _text(root / "proc/version").lower()
    wsl = "microsoft" in kernel
    dxg = (root / "dev/dxg").exists()
    gpus = _gpus(root)
    return Machine(
        system=platform.system().lower(),
        distribution=(re.findall(r'(?m)^ID="?([\w-]+)', _text(root / "etc/os-release")) or [""])[0],
        container=any((root / name).exists() for name in (".dockerenv", "run/.containerenv")),
        wsl=wsl,
        nvidia_gpus=gpus.count(_NVIDIA) or len(_folders(root / "proc/driver/nvidia/gpus")) or int(wsl and dxg),
        amd_gpus=gpus.count(_AMD),
        driver=_driver(root),
        device_files=(root / "dev/nvidia0").exists() or dxg,
        glibc=platform.libc_ver()[1],
        shared_memory=_size(root / "dev/shm"),
        cpus=os.cpu_count() or 1,
        usable_cpus=system.usable_cpus(),
        flags=frozenset(" ".join(re.findall(r"(?m)^flags\s*:(.*)$", _text(root / "proc/cpuinfo"))[:1]).split()),
        torch_without_bytecode=_without_bytecode("torch"),
    )


def _without_bytecode(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin or not spec.cached or Path(spec.cached).exists():
        return ""
    folder = Path(spec.origin).parent
    return str(folder) if sys.dont_write_bytecode or not os.access(folder, os.W_OK) else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _gpus(root: Path) -> list[str]:
    """The PCI vendors of the GPUs."""
    devices = _folders(root / "sys/bus/pci/devices")
    return [_text(each / "vendor").strip() for each in devices if _text(each / "class").startswith(_DISPLAY)]


def _driver(root: Path) -> str:
    """ "570.133.07" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.07  …"; in WSL2 the driver is in
    Windows, and its version is unknown."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", _text(root / "proc/driver/nvidia/version"))
    if found:
        return found[1]
    return "of Windows" if (root / "usr/lib/wsl/lib/libcuda.so.1").exists() else ""


def _size(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None
