"""Tests the declared ranges of dependencies: installs the lowest or newest release of each, and runs tests with them.

    python tools/check_dependencies.py lowest                 # each at its lower bound in pyproject.toml
    python tools/check_dependencies.py newest                 # each at its newest release within its bounds
    python tools/check_dependencies.py lowest --set typer==0.27.2 --tests tests/cli/test_command_line.py
    python tools/check_dependencies.py lowest --torch         # torch, too: several GB

The packages go into a separate environment in a temporary folder. Everything else (pytest, the built project,
torch without `--torch`) comes from the environment whose Python runs this. Needs a package index.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A room that uses each package: typer and rich, pydantic and PyYAML, safetensors, numpy, zstandard, Jinja2 and
# matplotlib, tensorboard, onnx.
TESTS = (
    "tests/cli/test_command_line.py",
    "tests/base/test_registry.py",
    "tests/base/test_trust.py",
    "tests/config/test_config.py",
    "tests/files/test_checkpoint.py",
    "tests/training/test_trainer.py",
    "tests/training/test_metrics.py",
    "tests/data/test_formats.py",
    "tests/data/test_fen.py",
    "tests/nets/test_onnx.py",
    "tests/analysis/test_report_page.py",
    "tests/extending/test_walks.py",
)


def declared() -> dict[str, str]:
    """Package → its range in pyproject.toml, those of the optional groups included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    found = {}
    for requirement in (each for group in groups for each in group):
        name, bounds = re.fullmatch(r"([A-Za-z0-9_-]+)(>=.*)", requirement).groups()  # type: ignore[union-attr]
        found[name] = bounds
    return found


def requirements(which: str, ranges: dict[str, str]) -> list[str]:
    """Arguments of pip: `name==LOWEST`, or `name>=…` with its upper bound."""
    if which == "newest":
        return [f"{name}{bounds}" for name, bounds in ranges.items()]
    return [f"{name}=={bounds.split(',')[0].removeprefix('>=')}" for name, bounds in ranges.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["lowest", "newest"])
    parser.add_argument("--torch", action="store_true", help="install torch as well")
    parser.add_argument("--set", action="append", default=[], metavar="NAME==VERSION", help="another version of one")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave the installed version")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="test files")
    options = parser.parse_args()
    skipped = {*options.without, *([] if options.torch else ["torch"]), *(each.split("==")[0] for each in options.set)}
    ranges = {name: bounds for name, bounds in declared().items() if name not in skipped}
    wanted = [*requirements(options.which, ranges), *options.set]
    with tempfile.TemporaryDirectory(prefix="nnue-dependencies-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        (packages,) = Path(folder).glob("lib/python*/site-packages")
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", *wanted], check=False)
        if done.returncode:
            return done.returncode
        # After the installation, so that pip does not count what is there. The new packages come first.
        below = sysconfig.get_path("purelib")
        (packages / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
        names = [re.split("[=<>]", each)[0] for each in wanted] + ["torch"]
        show = "import sys; from importlib.metadata import version\nfor n in sys.argv[1:]: print(n, version(n))"
        subprocess.run([python, "-c", show, *names], check=True)
        tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not cuda", *options.tests]
        return subprocess.run([python, *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
