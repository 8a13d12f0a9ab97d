"""The translation of the CUDA sources for the emulator leaves files alone that have not changed: ninja goes by time."""

import shutil
import subprocess
import sys
from pathlib import Path

import emulated_library
import pytest

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
