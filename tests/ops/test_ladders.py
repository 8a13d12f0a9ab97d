"""The kernels of benchmarks/ladders, emulated on the CPU: every rung computes the result of a plain loop."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import emulated_library
import pytest
import torch
import translate
from needs import require
from torch import Tensor

Load = Callable[[str], ctypes.CDLL]


@pytest.fixture(scope="module")
def ladder(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A function that compiles a ladder for the emulator and loads it."""
    require(emulated_library.why_not())
    out = tmp_path_factory.mktemp("ladders")
    flags = ["-std=c++20", "-O1", "-fPIC", "-w", "-ffp-contract=off", "-pthread", f"-I{emulated_library.HERE}"]
    command = [*emulated_library.COMPILER, *flags, "-include", "emulator.h"]
    subprocess.run([*command, "-c", emulated_library.HERE / "emulator.cpp", "-o", out / "emulator.o"], check=True)

    def load(name: str) -> ctypes.CDLL:
        text = translate.translate((project_root / "benchmarks" / "ladders" / f"{name}.cu").read_text())
        text = text.replace("return cudaGetLastError();", "emulator::synchronize();\nreturn cudaGetLastError();")
        (out / f"{name}.cpp").write_text(text.replace("../../csrc/", f"{project_root}/csrc/"))
        files: list[str | Path] = [out / f"{name}.cpp", out / "emulator.o", "-o", out / f"{name}.so"]
        subprocess.run([*command, "-shared", *files], check=True)
        return ctypes.CDLL(str(out / f"{name}.so"))

    return load


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def test_moving_averages(ladder: Load) -> None:
    """Windows shorter and longer than a thread's outputs, and arrays that end inside a thread block."""
    run = ladder("moving_average").moving_average
    for n, window in ((1, 1), (200, 4), (3200, 60)):
        x = torch.randn(n, dtype=torch.float64)
        expected = torch.full_like(x, torch.nan)
        expected[window - 1 :] = x.unfold(0, window, 1).mean(1)
        for rung in range(1, 7):
            out = torch.zeros_like(x)
            assert run(rung, pointer(x), pointer(out), ctypes.c_int64(n), window, None) == 0
            torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_transposes(ladder: Load) -> None:
    run = ladder("transpose").transpose
    x = torch.arange(96 * 96, dtype=torch.int32).view(96, 96)
    for rung in range(1, 4):
        out = torch.zeros_like(x)
        assert run(rung, pointer(x), pointer(out), ctypes.c_int64(96), None) == 0
        assert torch.equal(out, x.T)


def test_visits(ladder: Load) -> None:
    """All rungs make the same walks; threads count what they visit; sorted nodes even out their work."""
    run = ladder("visits").visits
    nodes, busy = 300, []
    degrees = torch.arange(nodes) % 5
    offsets = torch.nn.functional.pad(degrees.cumsum(0), (1, 0)).int()
    targets = torch.randint(nodes, (int(offsets[-1]),), generator=torch.Generator().manual_seed(1)).int()
    coupons = torch.where(torch.arange(nodes) % 37 == 0, 60, 1)
    first = torch.nn.functional.pad(coupons.cumsum(0), (1, 0))
    order = coupons.argsort(descending=True, stable=True).int()
    expected = None
    for rung in range(1, 5):
        visits, steps = torch.zeros(nodes, dtype=torch.int32), torch.zeros(384, dtype=torch.int32)
        tensors = map(pointer, (offsets, targets, first, order))
        made = pointer(visits), pointer(steps), None
        assert run(rung, *tensors, nodes, ctypes.c_double(0.15), ctypes.c_uint64(7), *made) == 0
        expected = visits if expected is None else expected
        assert torch.equal(visits, expected)
        assert steps.sum() == visits.sum() >= coupons.sum()
        busy.append(float(steps.sum() / (128 * steps.view(-1, 128).amax(1).sum())))
    assert busy[1] > busy[0]
