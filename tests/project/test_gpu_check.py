"""tools/gpu_check.sh, as far as it can be tried without a GPU."""

import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from waiting import SECONDS


def check(project_root: Path, out: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["tools/gpu_check.sh", str(out), "positions.binpack", *words]
    return subprocess.run(
        command, cwd=project_root, env=os.environ | environment, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("steps", [[], ["session"]], ids=["all", "session"])
def test_the_commands_name_files_that_exist(project_root: Path, tmp_path: Path, steps: list[str]) -> None:
    done = check(project_root, tmp_path, *steps, DRY="1", NNUE_CUDA_ARCHS="90")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    files = set(re.findall(r"(?:benchmarks|tests|configs|samples)/[\w/.]+", done.stdout))
    assert len(files) > 5
    assert [name for name in sorted(files) if not (project_root / name).exists()] == []


def test_an_unknown_step_is_refused(project_root: Path, tmp_path: Path) -> None:
    done = check(project_root, tmp_path, "test", DRY="1")
    assert done.returncode == 2
    assert done.stdout.startswith("no step test; there are: ")
    assert " tests " in done.stdout


def test_a_limit_stops_a_step_and_what_is_there_is_packed(project_root: Path, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    begun = tmp_path / "begun"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo 0 && exit\necho begun\ntouch "{begun}"\n/bin/sleep infinity & wait\n'
    )
    python.chmod(0o755)
    sleep = python.with_name("sleep")  # the time of the step counts from its first line, which may come late
    sleep.write_text(f'#!/bin/sh\nuntil [ -e "{begun}" ]; do /bin/sleep 0.02; done\nexec /bin/sleep "$@"\n')
    sleep.chmod(0o755)
    out, packed = tmp_path / "out", tmp_path / "packed.tar.gz"
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = check(project_root, out, "info", "stacks", PATH=path, LIMIT="2", PACK=str(packed))
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("FAILED: info stacks"), done.stdout
    with tarfile.open(packed) as files:
        log = files.extractfile("./info.log")
        assert log is not None
        assert log.read().decode().startswith("begun\nstopped after ")
        assert "./stacks.log" in files.getnames()
