"""Every operator test runs on the CPU, and on CUDA where there is a device and a library for it."""

import sys
from collections.abc import Iterator

import pytest
import torch

from nnue_trainer import _library


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


@pytest.fixture(autouse=True)
def _forget_compiled() -> Iterator[None]:
    """One compiled test body on two devices and in several shapes would run into dynamo's limit of recompilations."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
