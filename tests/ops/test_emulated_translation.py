"""The translation of the CUDA sources for the emulator leaves files alone that have not changed: ninja goes by time.
And what needs only the translation: the checks of index_check.cu with a runtime that fails."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import emulated_library
import pytest
import torch
from needs import require
from translate import operators
from translate import translate as as_cpp

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def csrc(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "csrc", tmp_path / "csrc"))


def translate(csrc: Path, out: Path) -> dict[str, int]:
    """Translates; the time of each file below `out`."""
    subprocess.run([sys.executable, emulated_library.HERE / "translate.py", csrc, out], check=True)
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def test_a_second_translation_writes_only_what_has_changed(csrc: Path, tmp_path: Path) -> None:
    out = tmp_path / "translated"
    first = translate(csrc, out)
    assert "cuda/portable/forward.cuh" in first
    header = csrc / "cuda" / "portable" / "forward.cuh"
    header.write_text(header.read_text() + "// a change\n")
    second = translate(csrc, out)
    assert {name for name in second if second[name] != first[name]} == {"cuda/portable/forward.cuh"}


def test_what_the_sources_no_longer_have_is_removed(csrc: Path, tmp_path: Path) -> None:
    out = tmp_path / "translated"
    (csrc / "cuda" / "portable" / "forgotten.cuh").write_text("#pragma once\n")
    first = translate(csrc, out)
    (csrc / "cuda" / "portable" / "forgotten.cuh").unlink()
    assert first.keys() - translate(csrc, out).keys() == {"cuda/portable/forgotten.cuh"}


@pytest.mark.slow
@pytest.mark.compiler
def test_a_check_whose_memory_cannot_be_allocated_can_be_repeated(csrc: Path, tmp_path: Path) -> None:
    """Every call of the CUDA runtime fails once; each time the report is released, and the next check makes it."""
    require(emulated_library.why_not())
    out = tmp_path / "translated"
    translate(csrc, out)
    text = (csrc / "cuda" / "index_check.cu").read_text().partition("STABLE_TORCH_LIBRARY_IMPL")[0]
    (out / "cuda" / "index_check.cpp").write_text(operators(as_cpp(text), ""))
    here, libraries = emulated_library.HERE, Path(torch.__file__).parent
    includes = [f"-I{place}" for place in (out, here, ROOT / "data_loader", libraries / "include")]
    sources = [here / "failing_check.cpp", here / "emulator.cpp"]
    link = [f"-L{libraries / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries / 'lib'}", "-pthread"]
    program = tmp_path / "failing_check"
    command: list[str | Path] = [
        *emulated_library.COMPILER,
        *emulated_library.FLAGS,
        *includes,
        *sources,
        "-o",
        program,
        *link,
    ]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert re.fullmatch(r"OK \d\d?\n", done.stdout), done
