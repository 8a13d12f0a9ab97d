"""The source distribution has all that `make build` and `make quickstart` need."""

import os
import subprocess
import sys
import tarfile

import pytest


def test_it_has_every_source(tmp_path, project_root):
    """Made of a copy of the tracked files, since a build in place leaves a list of files that hides what is missing."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=project_root, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    files = [name for name in tracked.stdout.split("\0") if name and (project_root / name).is_file()]
    rooms = ("csrc/", "data_loader/", "nnue_trainer/")
    wanted = {name for name in files if name.startswith(rooms) and not name.startswith("data_loader/fuzz/")}
    tree = tmp_path / "tree"
    (tree / "configs").parent.mkdir()
    (tree / "configs").symlink_to("nnue_trainer/presets")
    for name in files:
        copied = ("examples/", "samples/", "tools/", "requirements/", "LICENSES/", "tests/project/")
        if name in wanted or "/" not in name or name.startswith(copied):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(project_root / name, tree / name)
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True, env=os.environ | {"NNUE_NO_EXTENSIONS": "1"})
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    wanted |= {
        "Makefile",
        "REUSE.toml",
        "LICENSES/MIT.txt",
        "train.py",
        "configs/quickstart.yaml",
        "samples/train.binpack",
    }
    wanted |= {name for name in files if name.startswith("requirements/")}
    assert wanted - held == set()
    assert not [name for name in held if name.startswith("tests/")]
    assert not any(name.endswith((".so", ".o", ".nnue")) for name in held)
    assert archive.stat().st_size < 8 << 20
