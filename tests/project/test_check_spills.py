"""tools/check_spills.py, which reads the compiler's report of a library."""

import sys

import pytest
from needs import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from check_spills import Allowed, Frame, frames, problems

REPORT = """
Fatbin elf code:
================
arch = sm_80
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:29 CONSTANT[4]:232
 Function void nnue::portable::sum_kernel<float>(nnue::portable::Backward):
  REG:64 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:456
 Function void nnue::portable::plan_kernel(int):
  REG:30 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:456
 Function void nnue::rolling::kernel(int):
  REG:30 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:456
arch = sm_120
 Function void nnue::cuda::stacks::first_layer_forward<float, 4>(int):
  REG:128 STACK:72 SHARED:0 LOCAL:0 CONSTANT[0]:456
"""
SUM = Frame("sm_80", "void nnue::portable::sum_kernel<float>(nnue::portable::Backward)", 8)
TILE = Frame("sm_120", "void nnue::cuda::stacks::first_layer_forward<float, 4>(int)", 72)


def test_frames_of_checked_kernels_are_found() -> None:
    assert frames(REPORT) == [SUM, TILE]


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        ([("sum_kernel", 8), ("first_layer_forward", 80)], []),
        ([("sum_kernel", 8)], [f"sm_120: 72 bytes on the stack of {TILE.kernel}"]),
        ([("sum_kernel", 4), ("first_layer_forward", 72)], [f"sm_80: 8 bytes on the stack of {SUM.kernel}"]),
        ([("sum|layer_forward", 80), ("forward_kernel", 8)], ["no kernel has a stack frame: forward_kernel"]),
    ],
)
def test_only_what_is_allowed_passes(allowed: list[tuple[str, int]], found: list[str]) -> None:
    assert problems([SUM, TILE], [Allowed(kernel, most, "") for kernel, most in allowed]) == found
