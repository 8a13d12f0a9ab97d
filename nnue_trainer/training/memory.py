"""Memory settings that speed up training on a CPU. They do nothing on a system that does not support them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor

_HUGE_PAGE = 1 << 21


def _from_c_library(name: str) -> Any:
    """A function of the C library; None if the library has none of this name, or on a system other than Linux."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks of any size for later allocations. By default glibc returns large blocks to the
    system, so every step would fault in the pages of its gradients again: for an SFNNv5 net these are 100 MB, and the
    faults took 40 % of the CPU time of a step. Has no effect with another C library."""
    m_trim_threshold, m_mmap_max = -1, -4  # constants of malloc.h
    mallopt = _from_c_library("mallopt")
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def move_to_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Moves contiguous CPU tensors from pages of 4 KB into pages of 2 MB; their addresses stay the same. A row of 1024
    fp32 weights fills one small page, and a step reads scattered rows, so with small pages almost every row of the
    weight and of each moment would miss the TLB. Needs Linux 6.1 or later."""
    madv_hugepage, madv_collapse = 14, 25  # constants of sys/mman.h: for future pages, and for existing ones
    madvise = _from_c_library("madvise")
    if madvise is None:
        return
    for tensor in tensors:
        if tensor.device.type != "cpu":
            continue
        begin = -(-tensor.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
        end = (tensor.data_ptr() + tensor.nbytes) // _HUGE_PAGE * _HUGE_PAGE
        if begin < end and tensor.is_contiguous():
            for advice in (madv_hugepage, madv_collapse):
                madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)
