"""The name of the distribution, another distribution with the same package, and a build in an isolated environment."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nnue_trainer.base import distribution

WARNING = "the distribution nnue-trainer is installed too"


def project(root: Path) -> dict[str, object]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_name_is_that_of_the_project(project_root: Path) -> None:
    declared = project(project_root)["project"]
    assert isinstance(declared, dict)
    assert declared["name"] == distribution.NAME


def test_no_page_or_message_names_the_other_distribution(project_root: Path) -> None:
    """Its package has the same name, so `pip install nnue-trainer` would replace this one."""
    allowed = {
        "CHANGELOG.md",
        "docs/install.md",
        "nnue_trainer/base/distribution.py",
        "nnue_trainer/files/pages/page.py",
    }
    rooms = ("docs", "nnue_trainer", "packaging", ".github")
    files = [path for room in rooms for path in (project_root / room).rglob("*")]
    files += [path for path in project_root.iterdir() if path.suffix in (".md", ".py", ".toml", ".yml", ".cff")]
    named = {
        str(path.relative_to(project_root))
        for path in files
        if path.is_file()
        and path.suffix in (".md", ".py", ".toml", ".yml", ".yaml", ".cff", ".j2")
        and distribution.OTHER in path.read_text(encoding="utf-8")
    }
    assert named <= allowed


def installed(folder: Path, *, files: bool) -> Path:
    """A folder with the metadata of the other distribution, as pip leaves it."""
    metadata = folder / "nnue_trainer-0.1.1.dist-info"
    metadata.mkdir(parents=True)
    lines = ["nnue_trainer-0.1.1.dist-info/METADATA,,"] + ["nnue_trainer/__init__.py,sha256=x,1"] * files
    (metadata / "RECORD").write_text("\n".join(lines) + "\n")
    return metadata


@pytest.mark.parametrize(("files", "is_warned"), [(True, True), (False, False)])
def test_the_import_warns_of_mixed_files(tmp_path: Path, project_root: Path, files: bool, is_warned: bool) -> None:
    metadata = installed(tmp_path, files=files)
    code = f"import sys; sys.path[1:1] = [{str(project_root)!r}, {str(tmp_path)!r}]; import nnue_trainer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (WARNING in done.stderr) == is_warned, done.stderr
    if is_warned:
        assert str(metadata) in done.stderr
        assert "run pip uninstall nnue-trainer, then install torch-nnue again" in done.stderr


def test_folders_that_cannot_be_listed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zip").touch()
    (tmp_path / "nnue_trainer-0.2.0-py3-none-any.whl").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a.zip"), str(tmp_path / "missing"), str(tmp_path)])
    assert distribution.others() == []


def test_only_a_wheel_needs_torch(project_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an isolated environment pip installs what the backend returns."""
    system = project(project_root)["build-system"]
    assert isinstance(system, dict)
    assert system["requires"] == ["setuptools>=77"]
    spec = importlib.util.spec_from_file_location("build_backend", project_root / "tools" / "build_backend.py")
    assert spec is not None
    assert spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    monkeypatch.setattr(backend.build_meta, "get_requires_for_build_wheel", lambda settings: [])
    monkeypatch.delenv("NNUE_NO_EXTENSIONS", raising=False)
    dependencies = project(project_root)["project"]["dependencies"]  # type: ignore[index]
    native = backend.get_requires_for_build_wheel()
    assert next(word for word in dependencies if word.startswith("torch")) in native
    monkeypatch.setenv("NNUE_NO_EXTENSIONS", "1")
    assert backend.get_requires_for_build_wheel() == []


def test_metadata_needs_no_torch(project_root: Path, tmp_path: Path) -> None:
    """Torch and pybind11 cannot be imported here, and there is no compiler."""
    for name in ("torch", "pybind11"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "out").mkdir()
    command = [sys.executable, "setup.py", "-q", "dist_info", "--output-dir", str(tmp_path / "out")]
    environment = {"PATH": "", "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "CXX": "no-such-compiler"}
    done = subprocess.run(command, cwd=project_root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (metadata,) = (tmp_path / "out").glob("torch_nnue-*.dist-info/METADATA")
    assert "Requires-Dist: torch>=2.10" in metadata.read_text(encoding="utf-8")
