"""nnue_trainer.base.system, here and as other systems see it."""

import importlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from nnue_trainer import _data
from nnue_trainer.base import system
from nnue_trainer.data import features, records_from_fens


def test_a_process_began_before_now() -> None:
    began = system.process_start()
    assert began is not None
    assert 0 < began <= system.seconds_since_boot() + 0.01


@pytest.mark.parametrize(("code", "end"), [("raise SystemExit(3)", (3, False)), ("os.kill(os.getpid(), 9)", (9, True))])
def test_the_end_of_a_child_is_seen_and_the_child_stays(code: str, end: tuple[int, bool]) -> None:
    with subprocess.Popen([sys.executable, "-c", f"import os; {code}"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert system.end_of_child(child.pid) == end
        assert system.end_of_child(child.pid) == end


def test_a_child_that_runs_has_no_end() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert system.end_of_child(child.pid) is None
        child.kill()


def test_without_proc_the_start_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system, "Path", lambda _: tmp_path / "missing")
    assert system.process_start() is None


def test_elsewhere_callers_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "waitid")
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert system.end_of_child(os.getpid()) is None
    monkeypatch.delattr(os, "sched_getaffinity")
    assert system.usable_cpus() == (os.cpu_count() or 1)
    assert system.seconds_since_boot() <= system.seconds_since_boot()


def test_a_lock_excludes_others(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file, (tmp_path / "file").open("r+b") as other:
        system.lock(file.fileno())
        with pytest.raises(BlockingIOError):
            system.lock(other.fileno())
        assert file.tell() == other.tell() == 0


@pytest.mark.parametrize("statement", ["import nnue_trainer", "exec(compile(build, 'setup.py', 'exec'))"])
def test_windows_is_refused_in_one_line(statement: str, project_root: Path) -> None:
    """Also where it would only be installed. WSL2 is Linux."""
    imports = "import os, setuptools.command.build_ext, setuptools.command.build_py"
    command = [sys.executable, "-c", f"{imports}; build = open('setup.py').read(); os.name = 'nt'; {statement}"]
    ended = subprocess.run(command, cwd=project_root, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert re.search(
        r"torch-nnue does not (run|build) on Windows; use WSL2, as docs/install\.md describes$", ended.stderr
    )


def test_the_largest_resident_set_is_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = system.peak_resident_set()
    assert 1 << 24 < found < 1 << 44
    monkeypatch.setattr(sys, "platform", "darwin")
    assert found <= 1024 * system.peak_resident_set()


def test_the_limit_of_open_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 256), before[1]))
        assert (system.allow_open_files(257) or 257) >= 257
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 257
        if before[1] != resource.RLIM_INFINITY:
            assert system.allow_open_files(before[1] + 1) == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_program_inherits_a_file_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    code = "import os, signal, sys; os.fstat(int(sys.argv[1])); sys.exit(signal.getsignal(2) == signal.SIG_IGN)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with (tmp_path / "file").open("wb") as file:
            command = [sys.executable, "-c", code, str(file.fileno())]
            assert system.start_with(file.fileno(), command).wait() == 0
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", [system.EpollEvents, system.PolledEvents])
def test_events_of_pipes(kind: Callable[[], system.Events]) -> None:
    events = kind()
    reader, writer = os.pipe()
    events.register(reader, 0)
    os.write(writer, b"x")
    assert events.wait(0) == []
    events.once(reader, system.READABLE)
    assert events.wait(1) == [(reader, system.READABLE)]
    assert events.wait(0.002) == []
    os.read(reader, 1)
    events.register(writer, system.WRITABLE)
    assert events.wait(1) == [(writer, system.WRITABLE)]
    events.unregister(writer)
    events.once(reader, system.READABLE)
    os.close(writer)
    ((descriptor, happened),) = events.wait(1)
    assert (descriptor, happened & system.ENDED) == (reader, system.ENDED)
    events.unregister(reader)
    os.close(reader)
    events.close()


def test_events_beside_many_open_files() -> None:
    """select takes no descriptor from 1024 on."""
    limit = system.allow_open_files(1200)
    if limit is not None and limit < 1200:
        pytest.skip(f"at most {limit} open files")
    reader, writer = os.pipe()
    others = [os.dup(reader) for _ in range(1024)]
    events = system.EpollEvents()
    try:
        events.register(reader, 0)
        events.once(reader, system.READABLE)
        assert events.wait(0.002) == []
        os.write(writer, b"x")
        assert events.wait(1) == [(reader, system.READABLE)]
    finally:
        events.close()
        for descriptor in (reader, writer, *others):
            os.close(descriptor)


def test_macos_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(system.events(), system.EpollEvents)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert isinstance(system.events(), system.PolledEvents)


# --- C++: data_loader/base/system.h -----------------------------------------------------------------------------------

OF_ONE_SYSTEM = re.compile(r"#\s*include <((sys/\w+|dlfcn|fcntl|io|poll|pthread|sched|spawn|unistd|windows)\.h)>")


def test_only_one_file_in_cpp_calls_the_system(project_root: Path) -> None:
    found = {
        (str(path.relative_to(project_root)), header)
        for room in ("csrc", "data_loader", "nnue_trainer/include")
        for path in (project_root / room).rglob("*")
        if path.suffix in (".h", ".cpp", ".cu", ".cuh")
        for header, _ in OF_ONE_SYSTEM.findall(path.read_text(encoding="utf-8"))
    }
    system = {header for path, header in found if path == "data_loader/base/system.cpp"}
    assert {"unistd.h", "fcntl.h"} <= system
    found -= {("data_loader/base/system.cpp", header) for header in system}
    found.remove(("data_loader/tests/formats_test.cpp", "sys/resource.h"))  # makes writes fail
    found.remove(("data_loader/tests/system_test.cpp", "sys/stat.h"))  # sets the umask
    assert not found, f"use data_loader/base/system.h instead: {found}"


@pytest.mark.parametrize(
    ("cgroup", "files", "cpus"),
    [
        ("0::/a/b", {"a/b/cpu.max": "100000 100000", "a/cpu.max": "max 100000"}, [1.0]),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, [2.5]),
        ("0::/", {"cpu.max": "50000 100000"}, [0.5]),
        ("0::/docker/of/the/host", {"cpu.max": "400000 100000"}, [4.0]),
        (
            "3:memory:/m\n4:cpu,cpuacct:/c",
            {"cpu,cpuacct/c/cpu.cfs_quota_us": "300000", "cpu,cpuacct/c/cpu.cfs_period_us": "100000"},
            [3.0],
        ),
        ("4:cpu:/c", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, []),
        ("0::/", {}, []),
        ("0::/", {"cpu.max": "broken"}, []),
    ],
)
def test_the_quota_of_a_container(tmp_path: Path, cgroup: str, files: dict[str, str], cpus: list[float]) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert set(system._cpu_quotas(tmp_path)) == set(cpus)


def test_usable_cpus_are_no_more_than_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    for quotas, cpus in (([], 64), ([3.2, 8.0], 4), ([0.2], 1), ([100.0], 64)):
        monkeypatch.setattr(system, "_cpu_quotas", lambda quotas=quotas: quotas)
        assert system.usable_cpus() == cpus
        with monkeypatch.context() as environment:
            environment.delenv("OMP_NUM_THREADS", raising=False)
            system.limit_threads()
            assert os.environ.pop("OMP_NUM_THREADS", None) == (str(cpus) if cpus < 64 else None)
            environment.setenv("OMP_NUM_THREADS", "9")
            system.limit_threads()
            assert os.environ["OMP_NUM_THREADS"] == "9", "the user's own value"


def test_no_other_code_counts_the_cpus_of_the_machine(project_root: Path) -> None:
    counts = re.compile(r"\bcpu_count\b|\bsched_getaffinity\b")
    found = {
        path.name
        for path in (project_root / "nnue_trainer").rglob("*.py")
        if counts.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"system.py", "machine.py"}, "use usable_cpus()"


def test_compiled_code_gets_the_usable_cpus_where_no_threads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`threads` 0 of the compiled module is one per CPU of the machine."""
    used = []

    class Compiled:
        def __init__(self, *_: object) -> None:
            pass

        def evaluate_records(self, records: object, *how: object) -> list[None]:
            used.append(how[1])
            return [None] * 4

    evaluate = importlib.import_module("nnue_trainer.export.evaluate")  # the package has a function of this name
    for module in (features, evaluate):
        monkeypatch.setattr(module, "usable_cpus", lambda: 3)
    monkeypatch.setattr(evaluate, "compiled_forward", lambda *_: None)
    monkeypatch.setattr(_data, "Evaluator", Compiled)
    net = SimpleNamespace(integer_forward=lambda: "described", integer_feature_set="HalfKP")
    monkeypatch.setattr(_data, "expand_into", lambda *given: used.append(given[-1]))
    records = records_from_fens(["4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"])
    for threads in (0, 5):
        features.expand(records, "HalfKP", threads)
        evaluate.Evaluator(SimpleNamespace(net=net, tensors={}), threads=threads).evaluate(records)
    assert used == [3, 3, 5, 5]
