"""The tests end every process that they start, and work under any parent process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from needs import ROOT

CHILD = """
import signal, sys, time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

SESSION = """
import signal, subprocess, sys, time
import processes
processes.set_signals()
processes.adopt_orphans()
with subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True) as child:
    assert child.stdout.readline() == "ready\\n"
    child.send_signal(signal.SIGINT)
    print(child.stdout.read(), end="")
# A child, and the orphan of another one.
subprocess.Popen(["sleep", "600"])
subprocess.run(["sh", "-c", "sleep 601 >/dev/null 2>&1 &"])
while not any(line.startswith("sleep 601") for line in processes.children().values()):  # the shell's child becomes it
    time.sleep(0.01)
print(sorted(processes.end_children().values()), processes.children())
"""


@pytest.mark.parametrize("ignored", [[], [signal.SIGINT], [signal.SIGINT, signal.SIGHUP, signal.SIGTERM]])
@pytest.mark.parametrize("closed", [False, True])
def test_children_can_be_interrupted_and_none_is_left(ignored: list[signal.Signals], closed: bool) -> None:
    starter = (
        f"import os, signal, sys\nfor number in {[int(number) for number in ignored]}:\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        f"if {closed}: os.close(0)\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], sys.argv[2]])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", starter, SESSION, CHILD],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "tests" / "support")},
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "interrupted\n['sleep 600', 'sleep 601'] {}\n"


def test_this_session_has_default_signals_for_its_children() -> None:
    code = (
        "import signal; print(*(int(signal.getsignal(n)) for n in (signal.SIGHUP, signal.SIGTERM)),"
        "signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "0 0 True set()\n"


def test_a_full_disk_leaves_no_bytecode_that_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytecode that another process wrote before would hide it: the module is new."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    file = tmp_path / "file"
    (tmp_path / "large.py").write_text(f"text = {'x' * 5000!r}\nopen({str(file)!r}, 'wb').write(bytes(5000))\n")
    command = [sys.executable, "-c", "import large"]
    run = processes.run_on_a_full_disk(command, 1000)
    assert file.stat().st_size == 1000, run
    subprocess.run(command, check=True)
    assert file.stat().st_size == 5000
