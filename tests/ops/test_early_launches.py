"""A kernel that may start before the one before it is done must wait for it. The emulator does not see if it does not,
because it runs these kernels one after the other."""

from __future__ import annotations

import re
from pathlib import Path

CALL = re.compile(r'launch_(?:behind\(\s*([\w()., ]+?),|tiles\()\s*"\w+",\s*(\w+)')
BY_NAME = {"finish_kernel", "first_layer_backward", "first_layer_forward", "transpose"}
BY_VARIABLE = {"kernel", "name"}  # the others; what launch_tiles passes on
HOPPER = {"count_rows", "list_features", "list_rare", "make_tiles"}  # by `start` of bucket_plan.cuh
EARLY = BY_NAME | HOPPER | {"catch_up", "gram", "iterate", "move", "rest_kernel", "update"}


def test_kernels_launched_early_wait(project_root: Path) -> None:
    text = "\n".join(path.read_text() for path in sorted((project_root / "csrc" / "cuda").rglob("*.cu*")))
    launched = {kernel for early, kernel in CALL.findall(text) if early != "false"}
    assert launched - BY_VARIABLE == BY_NAME
    for name in EARLY:
        bodies = re.findall(rf"__global__[^;{{]*\b{name}\([^{{;]*\{{\n(.*?)\n\}}\n", text, re.DOTALL)
        waits = [body for body in bodies if "ptx::wait_for_kernels_before();" in body]
        assert len(waits) == 1, name
