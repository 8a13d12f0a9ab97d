"""Fixtures for tests of operators: they run on the CPU, and on CUDA where there is a device and a library for it."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from needs import no_cuda, require

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cuda_emulator"))
import emulated_library


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def cuda() -> torch.device:
    require(no_cuda())
    return torch.device("cuda")


@pytest.fixture(scope="session")
def emulator(project_root: Path) -> ctypes.CDLL:
    """`torch.ops.nnue_emulated`: the fused operator's CUDA kernels on CPU tensors."""
    require(emulated_library.why_not())
    return load_emulated(project_root)


def load_emulated(project_root: Path, capability: int = 90) -> ctypes.CDLL:
    """The emulated library for a compute capability, with its operators loaded."""
    library = str(emulated_library.build(project_root, capability))
    torch.ops.load_library(library)
    found = ctypes.CDLL(library)
    found.emulator_configure.argtypes = [ctypes.c_int, ctypes.c_uint64]
    found.emulator_configure.restype = None
    found.emulator_executed_atomics.restype = ctypes.c_uint64
    return found


@pytest.fixture(autouse=True)
def forget_compiled() -> Iterator[None]:
    """One compiled test body on two devices and in several shapes would run into dynamo's limit of recompilations."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
