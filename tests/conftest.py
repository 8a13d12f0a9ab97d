"""Fixtures of every room's tests."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# As in `nnue train`, before torch is loaded: OpenMP threads that wait must not spin where two processes share the CPUs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from command import Done
from hypothesis import settings
from needs import ROOT, SHARED, TOOLS, no_shared, require
from processes import adopt_orphans, end_children, restored_signals, set_signals

from nnue_trainer import ops, registry
from nnue_trainer.base import programs
from nnue_trainer.cli.main import main

# One commit, one outcome: examples are a function of the test's code. HYPOTHESIS_PROFILE=search looks further.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SAMPLES = ("train", "val")

set_signals()
adopt_orphans()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Nothing that the tests started outlives them."""
    for pid, line in end_children().items():
        terminalreporter.write_line(f"ended process {pid} that the tests left behind: {line[:160]}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in TOOLS.items():
        if item.get_closest_marker(marker):
            require(missing())
    if item.get_closest_marker("shared") and (reason := no_shared()):
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _no_plugins() -> Iterator[None]:
    """A test sees only the files that it loads itself, as a process does."""
    yield
    registry.forget_plugins()
    programs.forget()


@pytest.fixture(autouse=True)
def _indices_are_checked_at_once() -> Iterator[None]:
    """A training on a GPU has wrong indices reported later, in the whole process; other tests expect the default."""
    yield
    ops.set_index_check("sync")


@pytest.fixture(autouse=True)
def _switches_of_torch() -> Iterator[None]:
    """Torch's switches for the whole process, put back after each test."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # the call imports the compiler: seconds
        torch.use_deterministic_algorithms(deterministic)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", fill)  # noqa: B010 (the type lacks it)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A test that runs `main` leaves signals ignored, which later ones and their children would inherit."""
    with restored_signals():
        yield


@pytest.fixture(autouse=True, scope="module")
def _trainings_are_on_one_thread(request: pytest.FixtureRequest) -> None:
    if request.path.parent.name in ("callbacks", "config", "losses", "optim", "parallel", "schedules", "training"):
        request.getfixturevalue("one_thread")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch on one thread, in the fixtures of a module too: small nets are faster so, and sums are those of a process
    that is started with one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def nnue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """`nnue("train", "recipe.yaml")`: the command as users meet it, errors printed and all, in this process."""

    def run(*arguments: object) -> Done:
        registry.forget_plugins()
        programs.forget()
        monkeypatch.setattr(sys, "argv", ["nnue", *map(str, arguments)])
        capsys.readouterr()
        with restored_signals(), pytest.raises(SystemExit) as caught:
            main()
        return Done(int(caught.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def positions_file() -> Callable[[str], Path]:
    """`positions_file("train")`: a file of real positions. `train` and `val` are the bundled samples; tests of `small`,
    `selfplay-d5-val` and `selfplay-d5-train`, which are not in the project, are marked `shared`."""
    return lambda name: ROOT / "samples" / f"{name}.binpack" if name in SAMPLES else SHARED / "data" / f"{name}.binpack"


@pytest.fixture
def fake_engine(tmp_path: Path) -> Callable[..., str]:
    """`fake_engine("dies", 40)`: the path of a UCI engine that misbehaves in a way of tests/data/fake_engine.py."""

    def make(mode: str = "", start: int = 1, run: str = "exec") -> str:
        path = tmp_path / f"fake{mode}"
        script = ROOT / "tests" / "data" / "fake_engine.py"
        words = shlex.join([sys.executable, str(script), *mode.split(), str(start)])
        path.write_text(f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} {run} {words}\n")
        path.chmod(0o755)
        return str(path)

    return make
