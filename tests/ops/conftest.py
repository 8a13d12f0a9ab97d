"""Every operator test runs on the CPU, and on CUDA where there is a device and a library for it."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from needs import no_cuda, require

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cuda_emulator"))
import emulated_library

from nnue_trainer.modules import layer_stacks
from nnue_trainer.ops import capabilities, perspectives


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(params=["cpu", *(pytest.param(name, marks=pytest.mark.cuda) for name in ("cuda", "portable"))])
def device_with_kernels(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The CPU; a GPU with the kernels that it takes by itself; a GPU with those that every GPU has."""
    before = perspectives.set_cuda_kernels("portable" if request.param == "portable" else "auto")
    yield torch.device("cpu" if request.param == "cpu" else "cuda")
    perspectives.set_cuda_kernels(before)


@pytest.fixture
def cuda() -> torch.device:
    require(no_cuda())
    return torch.device("cuda")


@pytest.fixture(scope="session")
def emulator(project_root: Path) -> ctypes.CDLL:
    """`torch.ops.nnue_emulated`: the fused operator's CUDA kernels on CPU tensors."""
    require(emulated_library.why_not())
    library = str(emulated_library.build(project_root))
    torch.ops.load_library(library)
    found = ctypes.CDLL(library)
    found.emulator_configure.argtypes = [ctypes.c_int, ctypes.c_uint64]
    found.emulator_configure.restype = None
    found.emulator_executed_atomics.restype = ctypes.c_uint64
    return found


@pytest.fixture
def emulated(emulator: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """The operators of `layer_stacks` are those of the emulator, on CPU tensors, chosen as on an H100."""

    real = layer_stacks.LayerStacks.kernels

    def kernels(*call: Any, **options: Any) -> str:
        with monkeypatch.context() as only_here:
            only_here.setattr(capabilities, "machine_of", lambda device: capabilities.gpu(90))
            return real(*call, **options)

    monkeypatch.setattr(layer_stacks, "_operators", torch.ops.nnue_emulated)
    monkeypatch.setattr(layer_stacks.LayerStacks, "kernels", kernels)
    return emulator


@pytest.fixture(autouse=True)
def _forget_compiled() -> Iterator[None]:
    """One compiled test body on two devices and in several shapes would run into dynamo's limit of recompilations."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
