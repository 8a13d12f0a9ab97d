"""Operators under attack, and the memory that they keep; tools/attack_operators.py and tools/soak_operators.py do the
same for hours."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from operator_calls import LEFT_OUT, Call, operators_of_the_cpu, recorded_calls
from operator_soak import BOUND, has_mallinfo, kept_by


def takes_text(operator: str) -> bool:
    """Or returns one."""
    schema = getattr(torch.ops.nnue, operator).default._schema
    return any("str" in str(value.type) for value in (*schema.arguments, *schema.returns))


@pytest.fixture(scope="module")
def calls(one_thread: None) -> dict[str, list[Call]]:
    return recorded_calls()


def test_no_operator_takes_a_text() -> None:
    """The stable ABI leaks the string of every str argument and result; csrc/enumerations.h has the alternative."""
    names = [n.partition("::")[2] for n in torch._C._dispatch_get_all_op_names() if n.startswith("nnue::")]
    assert "rolling" in names
    assert [name for name in names if takes_text(name.partition(".")[0])] == []


def test_calls_are_recorded_of_every_operator(calls: dict[str, list[Call]]) -> None:
    missing = set(operators_of_the_cpu()) - calls.keys() - LEFT_OUT
    assert {name for name in missing if not name.startswith("_perspective_transformer_layout")} == set()


@pytest.mark.slow
@pytest.mark.skipif(not has_mallinfo(), reason="the C library does not count memory")
def test_no_operator_keeps_memory(calls: dict[str, list[Call]]) -> None:
    found = {name: kept_by(recorded[0], 100, 2) for name, recorded in calls.items()}
    leaks = {name: bytes_ for name, bytes_ in found.items() if bytes_ > BOUND}
    assert leaks == {}


@pytest.mark.slow
@pytest.mark.skipif(not has_mallinfo(), reason="the C library does not count memory")
@pytest.mark.parametrize("leak", [0, 24, 32, 1000])
def test_a_leak_is_found_while_other_memory_is_freed(leak: int) -> None:
    """Each of the first calls frees memory of earlier code in this process, which must not hide a leak."""
    malloc = ctypes.CDLL(None).malloc
    malloc.restype = ctypes.c_void_p
    earlier = [bytes(2000) for _ in range(500)]

    def call() -> None:
        if earlier:
            earlier.pop()
        if leak:
            malloc(leak)

    kept = kept_by(call, 100, 2)
    assert (kept > BOUND) == bool(leak)
    assert kept > leak - BOUND


def test_a_tensor_that_is_not_there_is_named(calls: dict[str, list[Call]]) -> None:
    """Every argument that must be a tensor, of every operator, and None in its place."""
    tried = 0
    for name, (call, *_) in calls.items():
        names, values = call.with_all_arguments()
        arguments = call.operator._schema.arguments
        for place, argument in enumerate(arguments):
            if str(argument.type) != "Tensor":
                continue
            without = [*values[:place], None, *values[place + 1 :]]
            with pytest.raises((RuntimeError, NotImplementedError)) as caught:
                call.operator(**dict(zip(names, without, strict=True)))
            said = str(caught.value)
            assert "aoti" not in said, (name, argument.name, said)
            # torch itself refuses a call without any tensor, as it cannot find the device.
            expected = f"nnue::{name}: argument {place + 1}: found None, expected a tensor"
            assert expected in said or "no tensor arguments to this function" in said
            tried += expected in said
    assert tried > 30


@pytest.mark.slow
def test_wrong_calls_do_not_end_the_process() -> None:
    script = Path(__file__).with_name("operator_attacks.py")
    done = subprocess.run([sys.executable, script, "0", "800"], capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, (done.returncode, last, done.stderr[-2000:])
    returned, refused = (int(word) for word in last[0].split() if word.isdigit())
    assert returned > 50
    assert refused > 250
