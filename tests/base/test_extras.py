"""Errors of a package that lacks something: an extra, its compiled parts, a folder to load them from, its samples."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nnue_trainer import config
from nnue_trainer.base import _unbuilt, extras
from nnue_trainer.cli.main import app
from nnue_trainer.errors import UserError
from nnue_trainer.files import presets
from nnue_trainer.training import metrics
from nnue_trainer.training.run_folder import RunFolder

PACKAGE = Path(_unbuilt.__file__).parents[1]


def failure(*words: str) -> str:
    error = CliRunner().invoke(app, list(words)).exception
    assert isinstance(error, UserError), error
    return str(error)


def test_every_extra_is_declared_and_nothing_else_needs_it(project_root: Path) -> None:
    project = tomllib.loads((project_root / "pyproject.toml").read_text())["project"]
    for package, extra in extras.EXTRA_OF.items():
        assert [need for need in project["optional-dependencies"][extra] if need.startswith(f"{package}>=")]
        assert not [need for need in project["dependencies"] if need.startswith(package)]


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("report", "run"), "nnue report"),
        (("watch", "run"), "nnue watch"),
        (("inspect", "net.nnue", "--png", "x.png"), "--png"),
        (("inspect", "net.nnue", "--html", "x.html"), "--html"),
        (("data", "info", "data.binpack", "--png", "x.png"), "--png"),
        (("data", "profile", "data.binpack", "--html", "x.html"), "--html"),
    ],
)
def test_without_matplotlib(
    words: tuple[str, ...], where: str, project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(project_root / "samples" / "val.binpack", tmp_path / "data.binpack")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert failure(*words) == f"{where}: needs the package matplotlib: pip install 'torch-nnue[pages]'"
    assert [path.name for path in tmp_path.iterdir()] == ["data.binpack"]


def test_a_training_with_a_report_does_not_start_without_matplotlib(
    project_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(project_root)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = failure("train", "--preset", "quickstart", "--report", "--run-dir", str(tmp_path / "run"))
    assert said == "--report: needs the package matplotlib: pip install 'torch-nnue[pages]'"
    assert not (tmp_path / "run").exists()


def test_without_tensorboard_a_run_writes_its_other_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    writer = metrics.MetricsWriter(RunFolder(tmp_path), step=0, tensorboard=True)
    writer.write("train", 1, {"loss": 0.5})
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
    assert not (tmp_path / "tensorboard").exists()
    said = "logging.tensorboard: needs the package tensorboard: pip install 'torch-nnue[tensorboard]'"
    assert f"{said}; the run writes metrics.jsonl only\n" in "".join(capsys.readouterr())


def test_a_preset_without_its_data_names_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(presets, "samples", lambda: None)
    said = failure("train", "--preset", "quickstart")
    assert said.startswith("--preset quickstart: data.train: 'samples/train.binpack': no such file")
    assert said.endswith("; set data.train=FILE and data.validation=FILE")
    assert list(tmp_path.iterdir()) == []


def test_a_preset_finds_the_samples_from_any_folder(
    tmp_path: Path, project_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_root)
    assert presets.overrides("quickstart") == presets.overrides("sfnnv5") == []
    monkeypatch.chdir(tmp_path)
    recipe = config.load(presets.path("quickstart"), presets.overrides("quickstart"))
    assert [*recipe.data.train, *recipe.data.validation] == [
        str(project_root / "samples" / f"{name}.binpack") for name in ("train", "val")
    ]
    assert presets.overrides("sfnnv5") == []


def test_reasons_for_a_missing_part(tmp_path: Path) -> None:
    folder = tmp_path / "nnue_trainer"
    folder.mkdir()
    assert _unbuilt.reason("_data", folder).startswith(f"_data is missing in {folder}: install torch-nnue")
    (folder / "_data.cpython-39-x86_64-linux-gnu.so").touch()
    assert "was built for another Python (_data.cpython-39-x86_64-linux-gnu.so)" in _unbuilt.reason("_data", folder)
    (tmp_path / "setup.py").touch()
    assert _unbuilt.reason("_data", folder).startswith(f"_data was not built in {tmp_path}: run `make build` or")


@pytest.mark.parametrize("zipped", [False, True])
def test_imports_without_compiled_parts_say_what_to_do(tmp_path: Path, zipped: bool) -> None:
    shutil.copytree(PACKAGE, tmp_path / "nnue_trainer", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    path = tmp_path
    if zipped:
        path = tmp_path / "package.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in (tmp_path / "nnue_trainer").rglob("*.py"):
                archive.write(file, file.relative_to(tmp_path))
    code = f"import sys; sys.path.insert(0, {str(path)!r})\nimport nnue_trainer.data"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    expected = "compiled code cannot be loaded from the archive" if zipped else f"_data is missing in {path}"
    assert expected in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize(
    ("source", "is_old"), [("csrc/a.cu", True), ("data_loader/formats/a.h", True), ("data_loader/tests/a.cpp", False)]
)
def test_compiled_parts_are_old_if_their_sources_are_newer(tmp_path: Path, source: str, is_old: bool) -> None:
    package, changed = tmp_path / "nnue_trainer", tmp_path / source
    for path in (package / "_ops_cpu.so", changed):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for seconds, expected in ((-10, False), (10, is_old)):
        os.utime(changed, (changed.stat().st_atime, (package / "_ops_cpu.so").stat().st_mtime + seconds))
        assert _unbuilt.is_old(package) == expected
    (package / "_ops_cpu.so").unlink()
    assert not _unbuilt.is_old(package)
