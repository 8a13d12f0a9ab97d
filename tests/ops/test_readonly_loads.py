"""Loads through the read-only cache (`__ldg`, ld.global.nc, and `const T* __restrict__`, for which nvcc uses it).

PTX allows them only for memory that nothing writes while the kernel runs. A kernel that starts early
(`wait_for_kernels_before`) runs while the kernel before it still writes, so neither it nor a header that it uses may
have such loads."""

import re
from pathlib import Path

import pytest

READ_ONLY = re.compile(r"\b__ldg\s*\(|\bld\.global\.nc\b|\bconst [\w:<>]+\* __restrict__\b")
STARTS_EARLY = re.compile(r"\bwait_for_kernels_before\s*\(")
INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)


def sources(root: Path) -> dict[Path, str]:
    """The kernels' sources without comments."""
    files = sorted((root / "csrc" / "cuda").rglob("*.cu*"))
    return {path: re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8")) for path in files}


def included(path: Path, texts: dict[Path, str], seen: set[Path]) -> set[Path]:
    """The file, and all files of the kernels that it includes."""
    if path not in texts or path in seen:
        return seen
    seen.add(path)
    for name in INCLUDE.findall(texts[path]):
        included((path.parent / name).resolve(), texts, seen)
    return seen


def violations(texts: dict[Path, str]) -> list[str]:
    found = []
    for path, text in texts.items():
        if not STARTS_EARLY.search(text):
            continue
        for used in sorted(included(path, texts, set())):
            if load := READ_ONLY.search(texts[used]):
                line = texts[used].count("\n", 0, load.start()) + 1
                found.append(f"{used.name}:{line}: {load[0]!r}, used by a kernel of {path.name} that starts early")
    return found


def test_kernels_that_start_early_do_not_read_through_the_read_only_cache(project_root: Path) -> None:
    texts = sources(project_root)
    assert sum(bool(STARTS_EARLY.search(text)) for text in texts.values()) > 10
    assert sum(bool(READ_ONLY.search(text)) for text in texts.values()) > 2
    assert violations(texts) == []


@pytest.mark.parametrize("load", ["__ldg(p)", 'asm("ld.global.nc.u32")', "const int* __restrict__ p"])
@pytest.mark.parametrize("direct", [True, False])
def test_a_violation_is_found(load: str, direct: bool) -> None:
    kernel, header = Path("/csrc/cuda/a/kernel.cuh"), Path("/csrc/cuda/b/header.cuh")
    waits = '#include "../b/header.cuh"\nwait_for_kernels_before();\n'
    texts = {kernel: waits + (load if direct else ""), header: "" if direct else load}
    (line,) = violations(texts)
    assert line.startswith("kernel.cuh:3: " if direct else "header.cuh:1: ")
    assert violations({kernel: waits, header: ""}) == []
