"""Every operator test runs on the CPU, and on CUDA where there is a device and a library for it."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nnue_trainer import _library

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cuda_emulator"))
import emulated_library


def _cuda_reason() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    error = _library.load().cuda_error
    return None if error is None else f"no CUDA op library: {error}"


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and (reason := _cuda_reason()) is not None:
        pytest.skip(reason)
    return torch.device(request.param)


@pytest.fixture
def cuda() -> torch.device:
    if (reason := _cuda_reason()) is not None:
        pytest.skip(reason)
    return torch.device("cuda")


@pytest.fixture(scope="session")
def emulator(project_root: Path) -> ctypes.CDLL:
    """`torch.ops.nnue_emulated`: the fused operator's CUDA kernels on CPU tensors."""
    if (reason := emulated_library.why_not()) is not None:
        pytest.skip(reason)
    library = str(emulated_library.build(project_root))
    torch.ops.load_library(library)
    found = ctypes.CDLL(library)
    found.emulator_configure.argtypes = [ctypes.c_int, ctypes.c_uint64]
    found.emulator_configure.restype = None
    return found


@pytest.fixture(autouse=True)
def _forget_compiled() -> Iterator[None]:
    """One compiled test body on two devices and in several shapes would run into dynamo's limit of recompilations."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
