"""Hints about memory for training on a CPU. A system that does not know a hint ignores it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor

_HUGE_PAGE = 1 << 21


def _from_c_library(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def keep_freed_memory() -> None:
    """Lets the C library reuse large blocks. By default it returns each of them to the system, and every step would
    fault in the pages of its gradients, 100 MB each, again: 40 % of the CPU time of an SFNNv5 step. glibc only."""
    m_trim_threshold, m_mmap_max = -1, -4  # of malloc.h
    mallopt = _from_c_library("mallopt")
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def move_to_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Moves memory from pages of 4 KB into pages of 2 MB, without changing an address. A row of a feature transformer
    is as large as a small page, and a step visits rows in all places, so with small pages each row would need a page
    look-up in weight and moments. Linux from 6.1 on."""
    madv_hugepage, madv_collapse = 14, 25  # of sys/mman.h: for pages to come, and for those that are there
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
