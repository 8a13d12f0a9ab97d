"""The memory that operators keep: `python tests/faults/operator_soak.py CALLS` makes this many calls of each.

Used by tests/faults/test_operators.py; tools/soak_operators.py makes 100,000 calls of each and steps of training."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

BOUND = 16  # bytes of a call that may stay in use

_FIELDS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


class _Info(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def has_mallinfo() -> bool:
    """Whether the C library counts the memory that is in use: glibc from 2.33 on."""
    return hasattr(ctypes.CDLL(None), "mallinfo2")


def in_use() -> int:
    """The bytes that malloc has given out, in all of its arenas."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Info
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def kept_by(call: Callable[[], Any], calls: int, rounds: int = 3) -> float:
    """Bytes that stay in use after each call: the least of several rounds, as Python's own memory comes and goes.

    A round in which memory was freed, as of what ran earlier in this process, could hide a leak, and is repeated.
    """

    def several(count: int) -> int:
        for _ in range(count):
            with suppress(RuntimeError):
                call()
        gc.collect()
        return in_use()

    several(calls // 10 + 1)
    found: list[float] = []
    for _ in range(rounds + 20):
        before = in_use()
        kept = (several(calls) - before) / calls
        if kept >= -BOUND:
            found.append(kept)
        if len(found) == rounds:
            return min(found)
    raise AssertionError(f"memory was freed in {rounds + 20 - len(found)} of {rounds + 20} rounds: nothing is measured")


if __name__ == "__main__":
    import torch
    from operator_calls import recorded_calls

    torch.set_num_threads(1)
    leaks = 0
    for name, recorded in sorted(recorded_calls().items()):
        for call in recorded:
            kept = kept_by(call, int(sys.argv[1]), 1)
            leaks += kept > BOUND
            print(f"{name}: {kept:+.1f} bytes in use after each call{' LEAK' * (kept > BOUND)}", flush=True)
    sys.exit(leaks > 0)
