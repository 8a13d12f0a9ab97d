"""Torch's global switches, which training sets, put back after each test."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _restore_torch(one_thread: None) -> Iterator[None]:
    deterministic, precision = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision(precision)
    torch.utils.deterministic.fill_uninitialized_memory = fill
