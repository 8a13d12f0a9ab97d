"""Torch's global switches, which training sets, put back after each test."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _restore_torch() -> Iterator[None]:
    deterministic, precision = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these nets are too small to share
    fill = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision(precision)
    torch.utils.deterministic.fill_uninitialized_memory = fill
