"""nnue_trainer.system, here and as other systems see it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nnue_trainer import system


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
