"""Every operator test runs on the CPU, and on CUDA where there is a device and a library for it."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from operator_fixtures import cuda, device, emulator, forget_compiled  # noqa: F401

from nnue_trainer.modules import layer_stacks
from nnue_trainer.ops import capabilities, perspectives


@pytest.fixture(params=["cpu", *(pytest.param(name, marks=pytest.mark.cuda) for name in ("cuda", "portable"))])
def device_with_kernels(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The CPU; a GPU with the kernels that it takes by itself; a GPU with those that every GPU has."""
    before = perspectives.set_cuda_kernels("portable" if request.param == "portable" else "auto")
    yield torch.device("cpu" if request.param == "cpu" else "cuda")
    perspectives.set_cuda_kernels(before)


@pytest.fixture
def emulated(
    emulator: ctypes.CDLL,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> ctypes.CDLL:
    """The operators of `layer_stacks` are those of the emulator, on CPU tensors, chosen as on an H100."""

    real = layer_stacks.LayerStacks.kernels

    def kernels(*call: Any, **options: Any) -> str:
        with monkeypatch.context() as only_here:
            only_here.setattr(capabilities, "machine_of", lambda device: capabilities.gpu(90))
            return real(*call, **options)

    monkeypatch.setattr(layer_stacks, "_operators", torch.ops.nnue_emulated)
    monkeypatch.setattr(layer_stacks.LayerStacks, "kernels", kernels)
    return emulator
