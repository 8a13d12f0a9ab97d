"""Memory settings that speed up training, and page-locked memory. They do nothing on a system without them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from nnue_trainer.base import system

_HUGE_PAGE = 1 << 21
_FUTURE_PAGES, _EXISTING_PAGES = 14, 25  # MADV_HUGEPAGE and MADV_COLLAPSE of sys/mman.h


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks of any size for later allocations. By default glibc returns large blocks to the
    system, so every step would fault in the pages of its gradients again: for an SFNNv5 net these are 100 MB, and the
    faults took 40 % of the CPU time of a step. Has no effect with another C library."""
    m_trim_threshold, m_mmap_max = -1, -4  # constants of malloc.h
    mallopt = system.function_of_c_library("mallopt")
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def move_to_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Moves contiguous CPU tensors from pages of 4 KB into pages of 2 MB; their addresses stay the same. A row of 1024
    fp32 weights fills one small page, and a step reads scattered rows, so with small pages almost every row of the
    weight and of each moment would miss the TLB. Needs Linux 6.1 or later."""
    for tensor in tensors:
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            _advise(tensor, _FUTURE_PAGES, _EXISTING_PAGES)


def _advise(tensor: Tensor, *advices: int) -> None:
    madvise = system.function_of_c_library("madvise")
    begin = -(-tensor.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
    end = (tensor.data_ptr() + tensor.nbytes) // _HUGE_PAGE * _HUGE_PAGE
    if madvise is not None and begin < end:
        for advice in advices:
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)


class PageLocked:
    """Host memory `bytes`, uint8 [size], which a GPU writes without waiting for the host. It is unlocked by `free`, or
    with this object: memory that goes back to the system while it is locked would make later allocations on the GPU
    fail ("resource already mapped").

    torch's own page-locked memory takes 0.6 seconds per GiB, in which other threads cannot use the GPU: the driver
    touches page by page. Here the pages are touched first, huge ones where the system has them, and then locked.
    """

    def __init__(self, size: int):
        self.bytes = torch.empty(size, dtype=torch.uint8, device="cpu")
        _advise(self.bytes, _FUTURE_PAGES)
        self.bytes.zero_()
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        place = self.bytes.data_ptr()
        self._unlock: weakref.finalize[[int], PageLocked] | None = None
        # If the system allows no more locked memory, copies wait for the GPU.
        if int(runtime.cudaHostRegister(place, size, 0)) == 0:
            self._unlock = weakref.finalize(self, runtime.cudaHostUnregister, place)
            self._unlock.atexit = False  # the driver may be gone

    def free(self) -> None:
        if self._unlock is not None:
            self._unlock()
        self.bytes = torch.empty(0, dtype=torch.uint8, device="cpu")
