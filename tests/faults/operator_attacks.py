"""Recorded calls of operators, made wrong: `python tests/faults/operator_attacks.py FIRST_SEED SEEDS`.

Every tensor of a call lies next to a page that must not be touched, so an operator that reads or writes beyond one ends
the process. A call may succeed or raise an error; it must not crash, hang, or take memory without bound. Each call is
written to standard output before it is made, so the last line names the one that ended the process.

Used by tests/faults/test_operators.py (a few hundred calls) and tools/attack_operators.py (as many as you like)."""

from __future__ import annotations

import ctypes
import faulthandler
import math
import random
import resource
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from operator_calls import LEFT_OUT, Call, copied, operators_of_the_cpu, recorded_calls

PAGE = 4096
SECONDS = 60  # for one call
MEMORY = 4 << 30  # beyond what the process has at the start
INTEGERS = [0, 1, -1, 2, 3, 255, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -1.0, 1.0, 0.5, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan]
DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float16, torch.float32]
DTYPES += [torch.float64, torch.complex64]
# A call that has to take as much time: no fault.
SLOW = {("random_walks", "rounds"), ("random_walks", "restart")}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class GuardedMemory:
    """Memory between two pages that must not be touched; freed by `close`."""

    def __init__(self) -> None:
        self._mapped: list[tuple[int, int]] = []
        self._made: dict[int, Tensor] = {}  # by the tensor that was copied: what was one tensor stays one

    def close(self) -> None:
        self._made.clear()
        for address, size in self._mapped:
            _libc.munmap(address, size)
        self._mapped.clear()

    def tensor(self, like: Tensor, at_end: bool) -> Tensor:
        """A copy with the same strides, whose memory ends at the page behind it, or begins at the one before it."""
        if like.numel() == 0 or like.layout != torch.strided:
            return like.clone()
        elements = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
        bytes_ = elements * like.element_size()
        inside = -(-bytes_ // PAGE) * PAGE
        address = _libc.mmap(None, inside + 2 * PAGE, 0, 0x22, -1, 0)  # private, anonymous
        assert address not in (None, ctypes.c_void_p(-1).value)
        self._mapped.append((address, inside + 2 * PAGE))
        assert _libc.mprotect(address + PAGE, inside, 3) == 0
        begin = address + PAGE + (inside - bytes_ if at_end else 0)
        memory = (ctypes.c_char * bytes_).from_address(begin)
        made = torch.frombuffer(memory, dtype=like.dtype)
        made.copy_(like.as_strided((elements,), (1,), like.storage_offset()))
        return made.as_strided(like.shape, like.stride())

    def guard(self, value: Any, at_end: bool) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self._made:
                self._made[id(value)] = self.tensor(value, at_end)
            return self._made[id(value)]
        return [self.guard(part, at_end) for part in value] if isinstance(value, list | tuple) else value


def _wrong_tensor(dice: random.Random, x: Tensor, others: list[Tensor]) -> tuple[str, Any]:
    kind = dice.choice(
        ["none", "dtype", "shape", "values", "values", "strides", "other", "dimension", "scalar", "empty"]
    )
    if kind == "none":
        return kind, None
    if kind == "dtype":
        dtype = dice.choice(DTYPES)
        return f"{kind} {dtype}", x.to(dtype)
    if kind == "shape" and x.dim() > 0:
        d = dice.randrange(x.dim())
        size = dice.choice([0, 1, max(x.shape[d] - 1, 0), x.shape[d] + 1, 2 * x.shape[d] + 3])
        index = torch.arange(size) % max(x.shape[d], 1)
        return f"{kind} {d} {size}", x.index_select(d, index) if x.shape[d] else x
    if kind == "values" and x.numel() > 0:
        x = x.clone()
        x = x.contiguous()
        flat = x.view(-1)
        for _ in range(dice.choice([1, 1, 3, x.numel()])):
            value: Any = dice.choice(FLOATS) if x.dtype.is_floating_point else dice.choice(INTEGERS)
            if not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool):
                limits = torch.iinfo(x.dtype)
                value = min(max(value, limits.min), limits.max)
            flat[dice.randrange(x.numel())] = torch.tensor(
                value, dtype=torch.float64 if isinstance(value, float) else None
            )
        return kind, x
    if kind == "strides" and x.dim() > 0:
        return kind, x[:1].expand(x.shape) if dice.random() < 0.5 and len(x) else x.transpose(0, x.dim() - 1)
    if kind == "other" and others:
        return kind, dice.choice(others)
    if kind == "dimension":
        return kind, x[None] if dice.random() < 0.5 else x[..., None]
    if kind == "scalar":
        return kind, x.flatten()[0] if x.numel() else x.new_zeros(())
    return "empty", x.new_empty(0)


def _wrong(dice: random.Random, value: Any, others: list[Tensor]) -> tuple[str, Any]:
    """The value made wrong, and how."""
    if isinstance(value, Tensor):
        return _wrong_tensor(dice, value, others)
    if isinstance(value, bool):
        return "flipped", not value
    if isinstance(value, int):
        made: Any = dice.choice([*INTEGERS, value + 1, value - 1, 2 * value, -value])
        made = min(max(made, -(2**63)), 2**63 - 1)
        return str(made), made
    if isinstance(value, float):
        made = dice.choice(FLOATS)
        return str(made), made
    if isinstance(value, str):
        made = dice.choice(["", "x", "none", value * 2, value[1:]])
        return repr(made), made
    if isinstance(value, list | tuple):
        kind = dice.choice(["part", "part", "part", "shorter", "longer", "empty", "twice"])
        if kind == "part" and value:
            place = dice.randrange(len(value))
            how, made = _wrong(dice, value[place], others)
            return f"[{place}] {how}", [*value[:place], made, *value[place + 1 :]]
        changed = {"shorter": value[:-1], "longer": [*value, *value[-1:]], "empty": [], "twice": [*value, *value]}
        return kind, list(changed.get(kind, []))
    return "None", dice.choice([None, 0, 1.0]) if value is None and not others else (
        dice.choice(others) if others else 0
    )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, list | tuple) else []


def attack_once(seed: int, calls: dict[str, list[Call]]) -> str:
    """Makes one wrong call; returns how it ended."""
    dice = random.Random(seed)
    name = dice.choice(sorted(calls))
    call = dice.choice(calls[name])
    names, values = call.with_all_arguments()
    values = copied(values)
    others = _tensors(values)
    changes = []
    for _ in range(dice.choice([1, 1, 1, 2])):
        place = dice.randrange(len(values)) if values else -1
        if place < 0 or (name, names[place]) in SLOW:
            continue
        how, values[place] = _wrong(dice, values[place], others)
        changes.append(f"{names[place]}: {how}")
    print(f"seed {seed}: {name}: {'; '.join(changes)}", flush=True)
    memory = GuardedMemory()
    guarded = memory.guard(values, at_end=dice.random() < 0.7)
    try:
        result = call.operator(*guarded)
        for tensor in _tensors(result if isinstance(result, list | tuple) else [result]):
            tensor.reshape(-1)[:1].tolist()
        return "returned"
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, MemoryError):
        return "refused"
    finally:
        result = guarded = None
        memory.close()


def attack(first: int, count: int) -> Counter[str]:
    faulthandler.enable()
    torch.set_num_threads(1)
    calls = {name: found for name, found in recorded_calls().items() if name not in LEFT_OUT}
    missing = set(operators_of_the_cpu()) - calls.keys() - LEFT_OUT
    assert not missing, f"no call is recorded of {sorted(missing)}"
    used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    outcome: Counter[str] = Counter()
    for seed in range(first, first + count):
        signal.alarm(SECONDS)  # ends the process
        outcome[attack_once(seed, calls)] += 1
    signal.alarm(0)
    return outcome


if __name__ == "__main__":
    found = attack(int(sys.argv[1]), int(sys.argv[2]))
    print(f"{found['returned']} returned, {found['refused']} refused")
