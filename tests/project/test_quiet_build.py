"""tools/quiet_build.py: a build without changes ends at once, and any change builds again."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SETUP = """
from pathlib import Path
log = Path("builds.log")
log.write_text(log.read_text() + "built\\n" if log.exists() else "built\\n")
Path("nnue_trainer/_data.so").touch()
"""


@pytest.fixture
def build(tmp_path: Path, project_root: Path) -> Callable[..., int]:
    """Runs the tool in a small project; returns how often setup.py has run."""
    for folder in ("tools", "csrc", "data_loader", "nnue_trainer/lib"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("find_nvcc.py", "quiet_build.py"):
        shutil.copy(project_root / "tools" / name, tmp_path / "tools")
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "nnue_trainer" / "__init__.py").touch()
    (tmp_path / "csrc" / "a.cpp").write_text("int a;")

    def run(**environment: str) -> int:
        command = [sys.executable, "tools/quiet_build.py"]
        subprocess.run(command, cwd=tmp_path, env=os.environ | environment, check=True)
        return (tmp_path / "builds.log").read_text().count("built")

    return run


def test_only_changes_are_built(build: Callable[..., int], tmp_path: Path) -> None:
    assert build() == 1
    assert build() == 1
    (tmp_path / "csrc" / "a.cpp").write_text("long a;")
    assert build() == 2
    (tmp_path / "csrc" / "b.h").touch()
    assert build() == 3
    (tmp_path / "nnue_trainer" / "_data.so").unlink()
    assert build() == 4
    assert build(NNUE_CUDA_ARCHS="90") == 5
    assert build(NNUE_CUDA_ARCHS="90") == 5
    assert build() == 6


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_another_nvcc_builds_again(
    build: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """This includes an nvcc that is not on PATH: setup.py finds it."""
    monkeypatch.delenv("CUDA_HOME", raising=False)
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    home = {variable: str(tmp_path / "cuda")}
    assert build(**home) == 1
    assert build(**home) == 1
    nvcc.write_text("#!/bin/sh\n# another version\n")
    assert build(**home) == 2


def test_a_build_that_failed_is_tried_again(build: Callable[..., int], tmp_path: Path) -> None:
    assert build() == 1
    (tmp_path / "setup.py").write_text("raise SystemExit(1)")
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            build()


@pytest.mark.parametrize("required", ["", "1"])
def test_products_that_wait_for_each_other_are_named(
    build: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str], required: str
) -> None:
    """In CI they are an error."""
    line = "ptxas info : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized in a kernel"
    (tmp_path / "setup.py").write_text(f"{SETUP}\nprint({line!r})")
    if required:
        with pytest.raises(subprocess.CalledProcessError):
            build(NNUE_REQUIRE_ALL=required)
    else:
        assert build(NNUE_REQUIRE_ALL=required) == 1
    assert line in capfd.readouterr().out
