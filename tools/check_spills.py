"""Kernels of the transformer and the layers that keep values in local memory, which is slow.

    python tools/check_spills.py [LIBRARY]    default: nnue_trainer/_ops_cuda.so

Such values were spilled because registers are scarce, or are arrays whose index is not known at compile time. This
reads the stack frames that `cuobjdump -res-usage` reports for each GPU. It fails if a kernel has one that is not in
ALLOWED, or a larger one. It also fails if a library for all GPUs no longer needs an entry of ALLOWED.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Allowed:
    """A kernel that may have a stack frame, why, and how large it may be."""

    kernel: str  # regular expression for its demangled name
    most_bytes: int
    reason: str


# Namespaces whose kernels are checked.
CHECKED = re.compile(
    r"\bnnue::(portable|cuda::stacks|one_hot_product|forward_gather|(group|rare)_features|unbucketed_lists"
    r"|first_layer_through)::"
)

# Figures of nvcc 13.0, rounded up. None of these kernels was measured with more registers and fewer threads.
_TWO_BLOCKS = "two thread blocks per multiprocessor leave 128 registers, and 32 outputs need more"
ALLOWED = [
    Allowed(r"stacks::first_layer_forward<(__half|__nv_bfloat16), 4\b", 24, _TWO_BLOCKS),
    Allowed(r"stacks::first_layer_backward<.*InputRows<__half>, 2>", 8, _TWO_BLOCKS),
    Allowed(r"stacks::first_layer_backward<.*InputRows<(__half|__nv_bfloat16)>, 1>", 32, "128 registers on 7.5"),
    Allowed(r"stacks::first_layer_backward<.*SavedRows<1, \w+>, 2>", 16, _TWO_BLOCKS),
    Allowed(r"stacks::one_output_kernel<", 40, "forward and backward of a position in 128 registers"),
    Allowed(r"stacks::rest_kernel<", 24, "many thread blocks per multiprocessor leave 64 registers (9.0, 12.0)"),
    Allowed(r"one_hot_product::weight_gradient_kernel<", 16, "values used between tiles"),
    Allowed(r"one_hot_product::forward_kernel<\w+, 2>", 32, "of 96 registers, threads that copy keep 32"),
    Allowed(r"one_hot_product::row_gradient_kernel<1,", 64, "values of one row, for eight rows in flight"),
]


@dataclass(frozen=True)
class Frame:
    architecture: str
    kernel: str
    bytes: int


def frames(report: str) -> list[Frame]:
    """The kernels of a report that have a stack frame."""
    found, architecture, kernel = [], "", ""
    for line in report.splitlines():
        if match := re.match(r"arch = (\S+)", line):
            architecture = match[1]
        elif match := re.match(r" *Function (.+):$", line):
            kernel = match[1]
        elif (match := re.search(r"\bSTACK:(\d+)", line)) and int(match[1]) > 0 and CHECKED.search(kernel):
            found.append(Frame(architecture, kernel, int(match[1])))
    return found


def problems(found: Iterable[Frame], allowed: list[Allowed], for_all: bool = True) -> list[str]:
    """One line for each kernel that is not allowed, and for each entry that a library for all GPUs does not need."""
    complaints, unused = [], set(allowed)
    for frame in found:
        entries = [entry for entry in allowed if re.search(entry.kernel, frame.kernel)]
        unused -= set(entries)
        if not any(frame.bytes <= entry.most_bytes for entry in entries):
            complaints.append(f"{frame.architecture}: {frame.bytes} bytes on the stack of {frame.kernel}")
    return complaints + [
        f"no kernel has a stack frame: {entry.kernel}" for entry in allowed if for_all and entry in unused
    ]


def main() -> int:
    library = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "nnue_trainer" / "_ops_cuda.so"
    tool = shutil.which("cuobjdump") or next((str(path) for path in (ROOT / ".venv").rglob("cuobjdump")), None)
    if tool is None:
        print("no cuobjdump: install requirements/dev.txt")
        return 1
    report = subprocess.run([tool, "-res-usage", str(library)], capture_output=True, text=True, check=True)
    # Either stream, by the tool's version.
    names = subprocess.run(
        ["c++filt"], input=report.stdout + report.stderr, capture_output=True, text=True, check=True
    ).stdout
    found = frames(names)
    complaints = problems(found, ALLOWED, all(f"arch = sm_{each}\n" in names for each in ("80", "90a", "120")))
    print("\n".join(complaints or [f"{library}: {len(found)} kernels have a stack frame, all of them allowed"]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
