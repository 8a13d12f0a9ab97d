"""Wishes about memory change nothing but speed."""

from __future__ import annotations

import ctypes
import sys

import pytest
import torch

from nnue_trainer.base import system
from nnue_trainer.training import memory


def test_moving_keeps_addresses_and_values() -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(size, generator=generator) for size in (0, 3, (1 << 20) + 7, 3 << 20)]
    tensors.append(tensors[-1].view(1 << 10, -1)[:, ::2])  # with gaps
    before = [(tensor.data_ptr(), tensor.clone()) for tensor in tensors]
    memory.move_to_huge_pages(tensors)
    for tensor, (address, values) in zip(tensors, before, strict=True):
        assert tensor.data_ptr() == address
        assert torch.equal(tensor, values)


@pytest.mark.skipif(sys.platform != "linux", reason="madvise is a call of Linux")
def test_only_whole_pages_inside_the_tensor_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def madvise(address: ctypes.c_void_p, length: ctypes.c_size_t, advice: int) -> None:
        asked.append((int(address.value or 0), int(length.value)))

    monkeypatch.setattr(system, "function_of_c_library", lambda name: madvise)
    tensor = torch.zeros(3 << 20)
    memory.move_to_huge_pages([tensor, torch.zeros(5)])
    assert asked
    for address, length in asked:
        assert address % (1 << 21) == length % (1 << 21) == 0
        assert tensor.data_ptr() <= address
        assert address + length <= tensor.data_ptr() + tensor.nbytes


def test_without_the_function_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "function_of_c_library", lambda name: None)
    memory.move_to_huge_pages([torch.zeros(1 << 20)])
    memory.keep_freed_memory()
