"""Page-locked memory, with a driver that only records what is locked."""

from __future__ import annotations

import contextlib
import gc
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typed import present

from nnue_trainer.training import checkpoints
from nnue_trainer.training.memory import PageLocked


class Driver:
    """Which memory is locked."""

    def __init__(self):
        self.locked = {}
        self.wait = lambda: None

    def register(self, place, size, _flags):
        self.wait()
        self.locked[place] = size
        return 0

    def unregister(self, place):
        del self.locked[place]


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    runtime = SimpleNamespace(cudaHostRegister=driver.register, cudaHostUnregister=driver.unregister)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return driver


def test_memory_is_unlocked_once(driver):
    memory = PageLocked(10_000)
    assert list(driver.locked.values()) == [10_000]
    memory.free()
    memory.free()
    assert not driver.locked
    assert len(memory.bytes) == 0


def test_dropped_memory_is_unlocked_before_it_is_reused(driver):
    memory = PageLocked(10_000)
    kept = memory.bytes  # so that its address is not used again
    del memory
    gc.collect()
    assert not driver.locked
    assert len(kept) == 10_000


def test_an_early_save_locks_the_memory_that_the_background_reserves(driver):
    """Both locked memory, and one of them was lost while it was locked."""
    memory = checkpoints._HostMemory()
    both_are_here = threading.Barrier(2)

    def wait():
        with contextlib.suppress(threading.BrokenBarrierError):
            both_are_here.wait(0.5)  # reached by two only if both lock memory

    driver.wait = wait
    threads = [threading.Thread(target=memory.reserve, args=(5_000,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert both_are_here.broken
    assert list(driver.locked.values()) == [5_000]
    memory.free()
    assert not driver.locked


def test_memory_is_not_replaced_while_a_save_copies_into_it(driver, monkeypatch):
    memory = checkpoints._HostMemory()
    background = threading.Thread(target=memory.reserve, args=(5_000,))

    class OnGpu:
        """A tensor of a GPU, as far as a copy of it is concerned."""

        is_cuda, device, dtype, shape, nbytes = True, "cuda:0", torch.uint8, (100,), 100

        def detach(self) -> torch.Tensor:
            background.start()
            background.join(0.5)
            assert len(present(memory._locked).bytes) == 128  # the background waits for the copy
            return torch.ones(100, dtype=torch.uint8)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(record_event=lambda: None))
    tensors: Any = {"model": {"weight": OnGpu()}}
    copies, _ = memory.copy(tensors)
    assert copies["model"]["weight"].sum() == 100
    background.join()
    memory.free()
    assert not driver.locked
