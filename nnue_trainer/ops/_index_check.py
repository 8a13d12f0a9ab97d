"""When an illegal index or record is reported on CUDA."""

from __future__ import annotations

import os
from typing import Literal, cast

import torch

from nnue_trainer.base import _library
from nnue_trainer.ops import _enumerations

IndexCheck = Literal["sync", "async", "off"]


def set_index_check(mode: IndexCheck) -> IndexCheck:
    """Choose when CUDA operators report an illegal index or record; returns the previous mode. The CPU always checks.

    "sync": the call raises (the host waits for a small kernel that runs before the work). "async": the host never
    waits; the next operator on the device, or `raise_index_errors`, raises. "off": illegal entries are skipped.
    The environment variable NNUE_INDEX_CHECK sets the mode at start.
    """
    global _index_check
    code = _enumerations.code("set_cuda_index_check.mode", mode)
    before = _index_check
    if _library.require().cuda_error is None:
        torch.ops.nnue.set_cuda_index_check(code)
    _index_check = mode
    return before


def raise_index_errors() -> None:
    """Wait for the CUDA devices, and raise a RuntimeError if an illegal index was found ("async", CUDA graphs)."""
    if _library.require().cuda_error is None:
        torch.ops.nnue.raise_cuda_index_errors()


_index_check: IndexCheck = "sync"
if "NNUE_INDEX_CHECK" in os.environ:
    set_index_check(cast(IndexCheck, os.environ["NNUE_INDEX_CHECK"]))
