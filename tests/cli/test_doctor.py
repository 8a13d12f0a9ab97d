"""`nnue doctor`: the findings on machines that tests make up, and what it prints here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Done

from nnue_trainer.base import _library, findings, machine
from nnue_trainer.base.machine import Machine
from nnue_trainer.cli import doctor, info
from nnue_trainer.training import device as devices

H200 = {"name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 1 << 37}
T4 = {"name": "Tesla T4", "compute_capability": "7.5", "memory_bytes": 1 << 34}
P100 = {"name": "Tesla P100", "compute_capability": "6.0", "memory_bytes": 1 << 34}
SERVER = Machine(
    distribution="ubuntu", nvidia_gpus=1, driver="580.65.06", device_files=True, glibc="2.39", shared_memory=1 << 33,
    cpus=16, usable_cpus=16, flags=frozenset({"avx2", "bmi1", "bmi2", "fma"}),
)  # fmt: skip
BUILT = {"library": "cuda", "compiler": "gcc 12", "torch_headers": "2.13", "cuda": "13.0", "architectures": "75+80+90"}
HEALTHY: dict[str, Any] = {
    "torch": "2.13.0",
    "torch_cuda": "13.0",
    "torch_hip": None,
    "cpu_ops": {"built": None, "error": None},
    "cuda_ops": {"built": BUILT, "error": None},
    "data": {"error": None},
    "cuda_devices": [H200],
    "hidden_devices": "",
    "other_distributions": [],
}
NO_GPU: dict[str, Any] = {"cuda_devices": []}


def test_a_healthy_machine_has_no_finding() -> None:
    assert findings.findings(SERVER, HEALTHY) == []
    assert list(doctor.lines([])) == ["", "nothing to improve"]


@pytest.mark.parametrize(
    ("here", "facts", "problem", "remedy"),
    [
        ({"driver": "", "device_files": False}, NO_GPU, "its driver is not loaded", "sudo ubuntu-drivers install"),
        (
            {"driver": "", "device_files": False, "distribution": "debian"},
            NO_GPU, "its driver is not loaded", "sudo apt install nvidia-driver",
        ),
        ({"device_files": False, "container": True}, NO_GPU, "this container cannot see", "docker run --gpus all"),
        ({"device_files": False, "wsl": True}, NO_GPU, "WSL2 cannot see the GPU", "wsl --shutdown"),
        ({}, NO_GPU | {"torch_cuda": None}, "was built without CUDA", "pip install --force-reinstall torch"),
        ({"driver": "535.54.03"}, NO_GPU, "needs CUDA 13.0, and driver 535.54.03 does not", "install a newer driver"),
        ({}, NO_GPU | {"hidden_devices": "-1"}, "CUDA_VISIBLE_DEVICES=-1 hides", "unset CUDA_VISIBLE_DEVICES"),
        (
            {}, {"cuda_ops": {"built": None, "error": "no _ops_cuda.so: nvcc was not found"}},
            "the CUDA operators are missing: no _ops_cuda.so: nvcc was not found", "install nvcc",
        ),
        (
            {}, {"cuda_ops": {"built": BUILT, "error": "undefined symbol: x"}},
            "the CUDA operators cannot be loaded: undefined symbol: x", "make build",
        ),
        (
            {}, {"cuda_devices": [H200, P100]},
            "Tesla P100 has compute capability 6.0, and the CUDA operators need 7.5 or later", "training.device=cuda",
        ),
        (
            {}, {"cuda_devices": [P100], "cuda_ops": {"built": None, "error": "no _ops_cuda.so"}},
            "Tesla P100 has compute capability 6.0", "training.device=cuda",
        ),
        (
            {}, {"cuda_devices": [T4], "cuda_ops": {"built": BUILT | {"architectures": "80+90"}, "error": None}},
            "Tesla T4 has compute capability 7.5, and the CUDA operators were built for 8.0 and later",
            "NNUE_CUDA_ARCHS=75 make build",
        ),
        (
            {}, {"cuda_ops": {"built": BUILT | {"architectures": "100+120"}, "error": None}},
            "NVIDIA H200 has compute capability 9.0, and the CUDA operators were built for 10.0 and later",
            "NNUE_CUDA_ARCHS=90 make build",
        ),
        (
            {"container": True, "shared_memory": 64 << 20}, {"cuda_devices": [H200, H200]},
            "/dev/shm has 64 MiB", "--shm-size=1g",
        ),
        ({"usable_cpus": 2}, {}, "may use 2 of 16 CPUs", "from the scheduler"),
        ({"usable_cpus": 2, "container": True}, {}, "may use 2 of 16 CPUs", "docker run --cpus N"),
        ({"flags": frozenset({"sse2"})}, {}, "the CPU has no AVX2", "-cpu host"),
        ({"torch_without_bytecode": "/x/torch"}, {}, "torch has no bytecode", "-m compileall -q /x/torch"),
        (
            {}, {"other_distributions": ["/x/nnue_trainer-0.1.1.dist-info"]},
            "nnue-trainer is installed too (/x/nnue_trainer-0.1.1.dist-info)", "pip uninstall nnue-trainer",
        ),
        (
            {"glibc": "2.31"}, {"data": {"error": "/lib/libc.so.6: version `GLIBC_2.34' not found"}},
            "data module: this system has glibc 2.31, and wheels need 2.35", "build from source",
        ),
        ({}, {"cpu_ops": {"built": None, "error": "_ops_cpu was not built"}}, "_ops_cpu was not built", "make build"),
    ],
)  # fmt: skip
def test_each_problem_has_a_remedy(here: dict[str, Any], facts: dict[str, Any], problem: str, remedy: str) -> None:
    (found,) = findings.findings(replace(SERVER, **here), HEALTHY | facts)
    assert problem in found.problem
    assert remedy in found.remedy
    assert found.stops == ("GLIBC" in str(facts) or "not built" in problem)


def test_facts_have_what_the_checks_read() -> None:
    assert HEALTHY.keys() <= info.collect().keys()


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_machine_as_the_system_describes_it(tmp_path: Path) -> None:
    pci = "sys/bus/pci/devices/0000"
    write(
        tmp_path,
        {
            "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04"\nID=ubuntu\nID_LIKE=debian\n',
            "proc/version": "Linux version 6.8",
            "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu avx2 bmi1 bmi2 fma\nprocessor\t: 1\nflags\t: none\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.07  Fri\nGCC",
            "dev/nvidia0": "",
            f"{pci}:01/vendor": "0x10de\n", f"{pci}:01/class": "0x030200\n",
            f"{pci}:02/vendor": "0x10de\n", f"{pci}:02/class": "0x040300\n",
            f"{pci}:03/vendor": "0x1002\n", f"{pci}:03/class": "0x030000\n",
            "run/.containerenv": "",
        },
    )  # fmt: skip
    found = machine.describe(tmp_path)
    assert (found.distribution, found.container, found.wsl) == ("ubuntu", True, False)
    assert (found.nvidia_gpus, found.amd_gpus, found.driver, found.device_files) == (1, 1, "570.133.07", True)
    assert found.instruction_sets == "AVX2"
    assert found.shared_memory is None


def test_wsl(tmp_path: Path) -> None:
    version = "Linux version 5.15.167.4-microsoft-standard-WSL2"
    write(tmp_path, {"proc/version": version, "dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": ""})
    found = machine.describe(tmp_path)
    assert (found.wsl, found.nvidia_gpus, found.driver, found.device_files) == (True, 1, "of Windows", True)


def test_a_training_names_the_gpu_that_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "describe", lambda: SERVER)
    monkeypatch.setattr(_library, "facts", lambda: HEALTHY | NO_GPU | {"torch_cuda": None})
    line = devices.unused_gpu(torch.device("cpu"))
    assert line is not None
    assert line.startswith(
        "the GPU is not used: there is an NVIDIA GPU, but torch 2.13.0 was built without CUDA; fix: "
    )
    assert devices.unused_gpu(torch.device("cuda")) is None


def test_the_command(nnue: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SECONDS", 0.1)
    monkeypatch.setattr(doctor, "_BATCH_SIZE", {"cpu": 64, "cuda": 64})
    monkeypatch.setattr(machine, "describe", lambda: replace(SERVER, nvidia_gpus=0, usable_cpus=2))
    done = nnue("doctor")
    assert done.returncode == 0, done.stderr
    for line in (
        "CPU            2 of 16 CPUs; AVX2",
        "found: this process may use 2 of 16 CPUs",
        "  fix: to use more: request them from the scheduler, or see `taskset -p $$`",
    ):
        assert line in done.stdout.splitlines()
    rates = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("per second")]
    assert rates == ["loader", "step", "training"]


def test_what_stops_all_is_an_error(nnue: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = info.collect() | {"data": {"error": "_data was not built"}}
    monkeypatch.setattr(info, "collect", lambda: broken)
    done = nnue("doctor", "--no-bench")
    assert done.returncode == 1
    assert "found: data module: _data was not built" in done.stdout


def test_a_package_without_bytecode_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_package").mkdir()
    (tmp_path / "plain_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert machine._without_bytecode("plain_package") == str(tmp_path / "plain_package")
    assert machine._without_bytecode("no_such_package") == ""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    assert machine._without_bytecode("plain_package") == ""
    importlib.import_module("plain_package")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert machine._without_bytecode("plain_package") == ""
