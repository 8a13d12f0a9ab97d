"""tools/release.py: what it refuses, and a dry run that changes nothing."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import nnue_trainer


@pytest.fixture(scope="module")
def release(project_root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", project_root / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_section_gets_its_date(release: ModuleType) -> None:
    text = "# Changelog\n\n## [1.2.0] - unreleased\n\n- Something.\n\n## [1.1.0] - 2026-01-01\n\n- Old.\n"
    assert release.dated_changelog(text, "1.2.0", "2026-02-03") == text.replace("unreleased", "2026-02-03")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("## [1.1.0]\n\n- x\n", r"no section '## \[1.2.0\]'"),
        ("## [1.2.0]\n\n## [1.1.0]\n\n- x\n", "is empty"),
        ("## [1.2.0] - never published\n\n- x\n", "cannot be dated"),
    ],
)
def test_what_is_refused(release: ModuleType, text: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        release.dated_changelog(text, "1.2.0", "2026-02-03")


def test_version_and_citation(release: ModuleType) -> None:
    assert release.with_version('a\n__version__ = "0.1"\n', "0.2.0") == 'a\n__version__ = "0.2.0"\n'
    assert release.packaged('context:\n  version: "0.1"\n', "0.2.0") == 'context:\n  version: "0.2.0"\n'
    assert release.cited("version: 1\n", "0.2.0", "2026-02-03") == "version: 0.2.0\ndate-released: 2026-02-03\n"


def test_a_prepared_section_gets_the_day_of_the_release(release: ModuleType) -> None:
    assert release.dated_changelog("## [1.2.0] - 2026-01-01\n\n- x\n", "1.2.0", "2026-02-03").startswith(
        "## [1.2.0] - 2026-02-03\n"
    )


def test_every_file_states_the_same_version(release: ModuleType) -> None:
    version = nnue_trainer.__version__
    for path, changed in (
        (release.INIT, release.with_version),
        (release.CONDA, release.packaged),
        (release.CITATION, lambda text, version: re.sub("(?m)^version: .*$", f"version: {version}", text)),
    ):
        text = path.read_text(encoding="utf-8")
        assert text.count(version) == 1, path
        assert changed(text, version) == text
    released = release.CHANGELOG.read_text(encoding="utf-8").partition("## [Unreleased]")[2]
    assert re.search(r"(?m)^## \[(.+)\] - ", released)[1] == version  # type: ignore[index]


def test_notes_and_the_list_of_packages(release: ModuleType, project_root: Path) -> None:
    text = "## [1.2.0] - 2026-01-01\n\n### Added\n\n- Something.\n\n## [1.1.0] - 2025-01-01\n\n- Old.\n"
    assert release.notes(text, "1.2.0") == "### Added\n\n- Something."
    with pytest.raises(SystemExit, match="no section"):
        release.notes(text, "1.3.0")
    packages = {package["name"]: package["versionInfo"] for package in release.sbom("1.2.0")["packages"]}
    assert packages["torch-nnue"] == "1.2.0"
    pinned = (project_root / "requirements" / "runtime.in").read_text(encoding="utf-8")
    for name, version in re.findall(r"(?m)^([A-Za-z]\w+)==(\S+)", pinned):
        assert packages.get(name.lower(), packages.get(name)) == version
    assert {"torch", "setuptools"} <= packages.keys()


def test_workflows_are_pinned_and_keep_no_credentials(project_root: Path) -> None:
    for path in (project_root / ".github" / "workflows").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        uses = re.findall(r"(?m)uses: (\S+)(.*)$", text)
        assert uses
        assert [name for name, comment in uses if not re.search(r"@[0-9a-f]{40}$", name) or " # v" not in comment] == []
        assert text.count("actions/checkout@") == text.count("persist-credentials: false"), path.name
        assert yaml.safe_load(text)["permissions"] in ({}, {"contents": "read"})


def test_a_dry_run_changes_nothing(project_root: Path) -> None:
    command = [sys.executable, "tools/release.py", "77.0.0", "--dry-run"]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "CHANGELOG.md: no section '## [77.0.0]': write what changed first\n"


def test_the_conda_recipe_requires_what_the_package_requires(project_root: Path) -> None:
    declared = tomllib.loads((project_root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((project_root / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    names = [word.replace("torch", "pytorch").lower() for word in declared["dependencies"]]
    wanted = {f"python{declared['requires-python']}", *names}
    assert {word.replace(" ", "") for word in recipe["requirements"]["run"]} == wanted


def test_the_conda_recipe_builds_and_installs_what_the_package_does(project_root: Path) -> None:
    """Versions, files and commands; the recipe itself is only rendered (tools/check_packaging.sh)."""
    project = tomllib.loads((project_root / "pyproject.toml").read_text(encoding="utf-8"))
    recipe = yaml.safe_load((project_root / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    torch = next(word for word in project["project"]["dependencies"] if word.startswith("torch"))
    host = {word.replace(" ", "") for word in recipe["requirements"]["host"]}
    assert {*project["build-system"]["requires"], f"py{torch}"} <= host
    assert {"python", "pip", "pybind11", "ninja"} <= host | set(recipe["requirements"]["build"])
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {function}" for name, function in project["project"]["scripts"].items()
    ]
    about = recipe["about"]
    assert about["license"] == project["project"]["license"]
    assert [about["license_file"]] == project["project"]["license-files"]
    source = project_root / "packaging" / "conda" / recipe["source"]["path"]
    assert all((source / name).is_file() for name in ("setup.py", about["license_file"]))
    for module in recipe["tests"][0]["python"]["imports"]:
        assert importlib.util.find_spec(module), module
    assert {line.split()[0] for line in recipe["tests"][1]["script"]} == project["project"]["scripts"].keys()


def test_every_requirement_has_hashes_and_no_index_is_named(project_root: Path) -> None:
    folder = project_root / "requirements"
    locked = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.txt") if path.stem != "torch"}
    assert sorted(locked) == sorted(path.stem for path in folder.glob("*.in"))
    for name, text in locked.items():
        packages = re.split(r"(?m)^(?=[a-z0-9])", text)[1:]
        assert all("--hash=sha256:" in package for package in packages), name
        assert not re.search(r"https?:|--index|--find-links|^torch==", text, re.MULTILINE), name
        pinned = {line.partition(" ")[0] for line in text.splitlines() if re.match(r"[a-z0-9]", line)}
        asked = re.findall(r"(?m)^([A-Za-z][^;\s]*==[^;\s]+)", (folder / f"{name}.in").read_text(encoding="utf-8"))
        assert asked
        assert {word.lower() for word in asked} <= pinned, f"run `make requirements`: {name}"
