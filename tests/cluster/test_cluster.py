"""The scripts of the page "On a cluster", with stand-ins for SLURM's commands (tests/cluster)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from needs import ROOT
from ports import free_port
from small_runs import last, split_sample, written
from waiting import SECONDS, wait_for

from nnue_trainer.base import torchrun

# A stand-in for Python: notes its arguments, and ends with the status for this start of the job. "wait" waits for USR1.
PYTHON = """#!/bin/bash
statuses=($STATUSES)
status=${statuses[$SLURM_RESTART_COUNT]}
[ "$status" = wait ] &&
    trap 'echo saved >>"$FAKE_SLURM/commands"; echo 75 >"$NNUE_STATUS_FILE"; exit 75' USR1
echo "$*" >>"$FAKE_SLURM/commands"
case $status in
wait) while true; do sleep 0.05; done ;;
none) exit 127 ;;
broken) [ "$SLURM_NODEID" = 1 ] && exit 127 || PATH=${PATH#*:} exec python "$@" ;;
empty) true >"$NNUE_STATUS_FILE" && exit 1 ;;
early | killed) # a signal ends it, before it has started or before it has written its status
    [ "$status" = early ] || echo started >"$NNUE_STATUS_FILE"
    until [ -s "$FAKE_SLURM/batch" ]; do sleep 0.01; done
    kill -USR1 "$(cat "$FAKE_SLURM/batch")"
    exec sleep 60
    ;;
lost) echo started >"$NNUE_STATUS_FILE" && kill -KILL $$ ;;
finished) # its node is lost when it has ended
    echo 0 >"$NNUE_STATUS_FILE"
    until [ -s "$FAKE_SLURM/batch" ]; do sleep 0.01; done
    kill -KILL "$(cat "$FAKE_SLURM/batch")"
    ;;
*)
    echo "$status" >"$NNUE_STATUS_FILE"
    exit $((status > 0)) # as torchrun does
    ;;
esac
"""

Submit = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    folder = tmp_path / "slurm"
    folder.mkdir()
    return folder


@pytest.fixture
def submit(project_root: Path, tmp_path: Path, fake: Path) -> Submit:
    """`submit("one_node.sh", "recipe.yaml", statuses="75 0")`; without statuses, Python is the real one."""

    def start(*words: object, statuses: str = "") -> subprocess.Popen[str]:
        path = f"{project_root / 'tests' / 'cluster'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        if statuses:
            (tmp_path / "bin").mkdir()
            (tmp_path / "bin" / "python").write_text(PYTHON)
            (tmp_path / "bin" / "python").chmod(0o755)
            path = f"{tmp_path / 'bin'}:{path}"
        scripts = project_root / "examples" / "cluster"
        environment = os.environ | {
            "PATH": path, "FAKE_SLURM": str(fake), "NNUE_CLUSTER": str(scripts), "MAX_REQUEUES": "3",
            "STATUSES": statuses, "NNUE_LEASE_SECONDS": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(project_root),
        }  # fmt: skip
        options = [word for word in words if str(word).startswith("--array")]
        script, *arguments = [str(word) for word in words if word not in options]
        return subprocess.Popen(
            ["sbatch", *map(str, options), scripts / script, *arguments],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    return start


def ended(job: subprocess.Popen[str]) -> str:
    said, _ = job.communicate(timeout=SECONDS)
    return said


@pytest.mark.parametrize(
    ("statuses", "starts", "status"),
    [
        ("0", 1, 0),
        ("75 76 lost 0", 4, 0),
        ("75 1", 2, 1),
        ("lost lost lost lost lost", 4, 1),
        ("69 69 69 69 69", 4, 1),
        ("69 0", 2, 0),
        ("none none none", 3, 127),
        ("none none 75 0", 4, 0),
        ("3", 1, 3),
        ("empty 0", 2, 0),
        ("early early early 0", 3, 75),
        ("killed none killed 0", 3, 75),
        ("early early 75 early early 0", 6, 0),
        ("75 finished 1", 2, 0),
    ],
)
def test_a_job_is_queued_again_until_it_is_finished(
    submit: Submit, fake: Path, statuses: str, starts: int, status: int
) -> None:
    job = submit("one_node.sh", "mine.yaml", "runs/mine", "training.epochs=3", statuses=statuses)
    said = ended(job)
    assert job.returncode == status, said
    commands = (fake / "commands").read_text().splitlines()
    line = "-m nnue_trainer train mine.yaml --run-dir runs/mine --resume auto training.epochs=3"
    assert commands == [line] * starts, said
    assert len((fake / "starts").read_text().splitlines()) == starts + ("was finished by an earlier start" in said)
    assert [path.name for path in (fake.parent / "runs").iterdir()] == []
    assert not list(fake.parent.glob(".nnue-*"))
    assert set((fake / "cpus").read_text().split()) == {"16"}


@pytest.mark.parametrize(
    ("shown", "again"),
    [
        ("JobState=CANCELLED Reason=None PreemptTime=None", False),
        ("JobState=COMPLETING Reason=None PreemptEligibleTime=2026-01-01T00:00:00 PreemptTime=None", False),
        ("JobState=COMPLETING Reason=TimeLimit PreemptTime=None", True),
        ("JobState=COMPLETING Reason=None PreemptTime=2026-01-01T00:00:00", True),
        ("JobState=RUNNING Reason=None PreemptTime=None", True),
        ("", True),  # `show job` fails
    ],
)
@pytest.mark.parametrize("status", ["75", "early"])
def test_a_cancelled_job_is_not_queued_again(submit: Submit, fake: Path, shown: str, again: bool, status: str) -> None:
    (fake / "job").write_text(shown)
    job = submit("seeds.sh", "--array=1-1", "mine.yaml", "runs", statuses=f"{status} 0")
    said = ended(job)
    assert job.returncode == (0 if again else 75), said
    assert len((fake / "starts").read_text().splitlines()) == (2 if again else 1)
    assert ("was cancelled" in said) != again
    assert not list(fake.parent.glob(".nnue-*"))


@pytest.mark.parametrize("script", ["one_node.sh", "several_nodes.sh", "seeds.sh"])
@pytest.mark.parametrize("folder", ["new/", "new/a//"])
def test_a_slash_after_a_new_folder(submit: Submit, fake: Path, script: str, folder: str) -> None:
    options = ["--array=1-1"] if script == "seeds.sh" else []
    job = submit(script, *options, "mine.yaml", folder, statuses="1")
    said = ended(job)
    assert job.returncode == 1, said
    assert len((fake / "starts").read_text().splitlines()) == 1, said


AT = """
at() {
    [ "$1" = "$AT" ] || return 0
    [ "$AT" = '"$@"' ] || until [ -e ready ]; do sleep 0.02; done
    kill -USR1 $$
}
set -T
trap 'at "$BASH_COMMAND"' DEBUG
_run bash child
"""
COUNTS_SIGNALS = """
trap 'echo >>signals' USR1
touch ready
until [ -s signals ]; do sleep 0.02; done
sleep 0.2
wc -l <signals
"""


@pytest.mark.parametrize(("line", "expected"), [('"$@"', ["", "1\n"]), ("_child=$!", ["1\n"])])
def test_a_signal_reaches_a_command_that_starts(
    project_root: Path, tmp_path: Path, line: str, expected: list[str]
) -> None:
    """Once, though its number is not known yet. Before the first line it does not exist and may not set its trap in
    time; then the signal ends it."""
    (tmp_path / "child").write_text(COUNTS_SIGNALS)
    (tmp_path / "job").write_text(f"source {project_root}/examples/cluster/job.sh\n{AT}")
    done = subprocess.run(
        ["bash", "job"], cwd=tmp_path, env=os.environ | {"AT": line}, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert done.stdout in expected, done


def test_copying_is_not_queued_again_without_end(submit: Submit, fake: Path, tmp_path: Path) -> None:
    """Each start gets its signal while it copies from a pipe without a writer."""
    os.mkfifo(tmp_path / "a.binpack")
    script = tmp_path / "mine.sh"
    script.write_text(
        'source "$NNUE_CLUSTER/scratch.sh"\n(sleep 0.2; kill -USR1 $$) &\n'
        f'stage_in "{tmp_path}/scratch" "{tmp_path}/a.binpack" || exit\nas_job run python train'
    )
    job = submit(script, statuses="0 0 0 0")
    said = ended(job)
    assert job.returncode == 75, said
    assert len((fake / "starts").read_text().splitlines()) == 3, said
    assert "3 starts in a row have failed or were too short (MAX_FAILED_STARTS)" in said


@pytest.mark.parametrize("fault", ["a missing file", "a full disk"])
def test_failed_copies(project_root: Path, fake: Path, tmp_path: Path, fault: str) -> None:
    if fault == "a full disk":
        (tmp_path / "a.binpack").write_bytes(b"x" * 5000)
    script = (
        f"ulimit -f 1; source {project_root}/examples/cluster/scratch.sh\n"
        f"stage_in '{tmp_path}/scratch' '{tmp_path}/a.binpack' || exit\necho copied"
    )
    environment = os.environ | {
        "PATH": f"{project_root / 'tests' / 'cluster'}:{os.environ['PATH']}", "FAKE_SLURM": str(fake),
    }  # fmt: skip
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done
    assert not done.stdout
    assert not list((tmp_path / "scratch").iterdir())


def test_a_signal_before_the_training_queues_the_job_again(submit: Submit, fake: Path, tmp_path: Path) -> None:
    """While data is copied: the first start copies from a pipe without a writer, and the second one finds a file."""
    data = tmp_path / "a.binpack"
    os.mkfifo(data)
    script = tmp_path / "mine.sh"
    script.write_text(
        f'source "$NNUE_CLUSTER/job.sh"; source "$NNUE_CLUSTER/scratch.sh"\nstage_in "{tmp_path}/scratch" "{data}"\n'
        "as_job run python train"
    )
    job = submit(script, statuses="1 0")
    writers: list[int] = []

    def copying() -> bool:
        """Whether a process has opened the pipe, which can be opened for writing only then."""
        with contextlib.suppress(OSError):
            writers.append(os.open(data, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    wait_for(copying, job)
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "file").replace(data)
    os.kill(int((fake / "batch").read_text()), signal.SIGUSR1)
    said = ended(job)
    assert job.returncode == 0, said
    assert len((fake / "starts").read_text().splitlines()) == 2, said
    assert (fake / "commands").read_text() == "train\n", said  # of the second start only
    assert (tmp_path / "scratch" / "a.binpack").read_bytes() == b"12345"
    os.close(*writers)


@pytest.mark.parametrize("script", ["one_node.sh", "several_nodes.sh"])
def test_the_signal_before_the_end_reaches_every_node(submit: Submit, fake: Path, script: str) -> None:
    nodes = 2 if script == "several_nodes.sh" else 1
    job = submit(script, "mine.yaml", "runs/mine", statuses="wait 0")
    commands = fake / "commands"
    wait_for((fake / "tasks").exists, job)
    wait_for(lambda: commands.exists() and commands.read_text().count(" train m") >= nodes, job)
    os.kill(int((fake / "batch").read_text()), signal.SIGUSR1)
    said = ended(job)
    assert job.returncode == 0, said
    lines = commands.read_text().splitlines()
    assert lines.count("saved") == nodes
    assert len([line for line in lines if " train mine.yaml " in line]) == 2 * nodes
    if nodes == 2:
        assert all("--nnodes 2" in line for line in lines if line != "saved")


# In place of torchrun: with a process of the training or without, until node.sh has printed its line or none.
TORCHRUN = """
import contextlib, os, subprocess, sys
child = subprocess.Popen(["/bin/sleep", "infinity"]) if sys.argv[1] == "True" else None
open("started", "w").close()
with contextlib.suppress(ChildProcessError):
    os.wait()
if child:
    child.kill()
"""


@pytest.mark.parametrize(("seconds", "started"), [("0.5", False), ("0.5", True), ("0", False), ("0.0", False)])
def test_a_missing_node_is_named(project_root: Path, fake: Path, tmp_path: Path, seconds: str, started: bool) -> None:
    """The first node of two waits for the other one; with a process of the training it prints nothing."""
    sleep = tmp_path / "bin" / "sleep"
    sleep.parent.mkdir()
    sleep.write_text("#!/bin/sh\nuntil [ -e started ]; do /bin/sleep 0.02; done\n")
    sleep.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{sleep.parent}:{project_root / 'tests' / 'cluster'}:{os.environ['PATH']}", "FAKE_SLURM": str(fake),
        "NNUE_STATUS_FILE": str(tmp_path / "run.status"), "NNUE_TELL_SECONDS": seconds, "NNUE_JOIN_SECONDS": "90",
        "SLURM_NODEID": "0", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "fake", "SLURM_JOB_ID": "1",
    }  # fmt: skip
    node = project_root / "examples" / "cluster" / "node.sh"
    done = subprocess.run(
        ["bash", node, sys.executable, "-c", TORCHRUN, str(started)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    expected = "torchrun waits for nodes that have not started: 127.0.0.1; it ends after 90 s (NNUE_JOIN_SECONDS)"
    assert (expected in done.stderr) == (seconds == "0.5" and not started)
    assert expected in done.stderr or not done.stderr


@pytest.mark.parametrize("backend", [["--rdzv-backend", "c10d", "--rdzv-endpoint"], ["--master-addr"]])
def test_torchrun_by_hand_tells_that_nodes_are_missing(tmp_path: Path, backend: list[str]) -> None:
    """The plug-in is also found where this folder was linked before it existed."""
    if not entry_points(group="torchrun.handlers", name="nnue"):
        (tmp_path / "nnue-1.dist-info").mkdir()
        content = "[torchrun.handlers]\nnnue = nnue_trainer.base.torchrun:handler\n"
        (tmp_path / "nnue-1.dist-info" / "entry_points.txt").write_text(content)
    port = free_port()
    address = f"127.0.0.1:{port}" if len(backend) == 3 else "127.0.0.1"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node", "1", *backend, address]
    command += [] if len(backend) == 3 else ["--master-port", str(port), "--node-rank", "0"]
    environment = os.environ | {"NNUE_TELL_SECONDS": "0.2", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    with subprocess.Popen(
        [*command, "-m", "nnue_trainer", "train", "x.yaml"], env=environment, stderr=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stderr is not None
        try:
            said = next((line for line in agent.stderr if line.startswith("nnue: ")), "")
        finally:
            agent.kill()
    expected = f"nnue: torchrun has started no process after 0.2 s: it waits for 2 nodes at {address}. Start it on all"
    assert said.startswith(expected)


def test_torchrun_ends_with_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In place of a traceback of 25 lines."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
    from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError

    failed = [ChildFailedError("nnue", {2: ProcessFailure(0, 7, status, "<N/A>")}) for status in (75, -11)]
    errors = [SignalException("", signal.SIGUSR1), *failed, RendezvousTimeoutError(), KeyError("else")]
    for error in errors:
        torchrun._print_end(type(error), error, None)
    assert capsys.readouterr().err.splitlines() == [
        "nnue: torchrun has ended its processes after SIGUSR1",
        "nnue: torchrun has ended, as process 2 ended with exit status 75",
        "nnue: torchrun has ended, as process 2 ended with signal 11",
        "nnue: torchrun has ended, as not all nodes came in time (--rdzv-conf join_timeout=SECONDS)",
        "KeyError: 'else'",
    ]
    monkeypatch.setattr(sys, "argv", ["/bin/torchrun", "-m", "nnue_trainer", "train"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(torchrun, "_watched", True)
    torchrun.handler()
    assert sys.excepthook is torchrun._print_end


def test_torchrun_of_other_programs_prints_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    run = "/lib/torch/distributed/run.py"
    assert torchrun._starts_training([run, "--nnodes", "2", "-m", "nnue_trainer", "train", "x.yaml"])
    assert torchrun._starts_training(["/bin/torchrun", "--nnodes=2", "mine/train.py", "--config", "x.yaml"])
    for arguments in ([run, "-m", "other"], ["/nnue_trainer/__main__.py", "train"], ["/bin/pytest", "nnue_trainer"]):
        assert not torchrun._starts_training(arguments)
    assert torchrun._option(["--nnodes", "1:2", "--rdzv_endpoint=a:1"], "nnodes") == "1:2"
    assert torchrun._option(["--nnodes", "1:2", "--rdzv_endpoint=a:1"], "rdzv-endpoint") == "a:1"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE):
        assert torchrun._has_children()


def test_arrays(submit: Submit, fake: Path) -> None:
    said = ended(submit("seeds.sh", "--array=1-2", "mine.yaml", "runs/mine", statuses="75 0"))
    seeds = [line.split()[5:] for line in (fake / "commands").read_text().splitlines()]
    assert seeds == [
        [f"runs/mine/seed-{seed}", "--resume", "auto", f"training.seed={seed}"] for seed in (1, 1, 2, 2)
    ], said


def test_parts_of_an_array(submit: Submit, fake: Path) -> None:
    ended(submit("rescore.sh", "--array=1-3", "stockfish", "in.binpack", "out/a.binpack", "--depth", statuses="0"))
    assert (fake / "commands").read_text().splitlines() == [
        f"-m nnue_trainer data rescore in.binpack out/a-{n}.binpack --engine stockfish --part {n}/3 --depth"
        for n in (1, 2, 3)
    ]


def test_copies_on_local_disks(project_root: Path, fake: Path, tmp_path: Path) -> None:
    (tmp_path / "a b.binpack").write_bytes(b"12345")
    script = f"source {project_root}/examples/cluster/scratch.sh; stage_in '{tmp_path}/s c' '{tmp_path}/a b.binpack'"
    environment = os.environ | {
        "PATH": f"{project_root / 'tests' / 'cluster'}:{os.environ['PATH']}", "FAKE_SLURM": str(fake),
    }  # fmt: skip
    copy = tmp_path / "s c" / "a b.binpack"
    for _ in range(2):
        subprocess.run(["bash", "-c", script], check=True, env=environment)
        assert copy.read_bytes() == b"12345"
        copy.write_bytes(b"123")  # as after a copy that was interrupted; the next one replaces it
    assert [path.name for path in copy.parent.iterdir()] == ["a b.binpack"]


@pytest.mark.slow
def test_a_broken_environment_on_one_node_is_a_failed_start(
    submit: Submit, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real torchrun waits on the other node."""
    variables = {"MAX_FAILED_STARTS": 1, "NNUE_JOIN_SECONDS": 2, "NNUE_TELL_SECONDS": 1, "PROCESSES_PER_NODE": 1}
    for name, value in (variables | {"RENDEZVOUS_PORT": free_port()}).items():
        monkeypatch.setenv(name, str(value))
    job = submit("several_nodes.sh", "mine.yaml", "runs/mine", statuses="broken broken broken broken")
    said = ended(job)
    assert job.returncode not in (0, 75), said
    assert "ended with status none" in said
    assert len((fake / "starts").read_text().splitlines()) == 1, said


@pytest.mark.slow
def test_a_training_has_started_when_all_processes_have_joined(project_root: Path, tmp_path: Path) -> None:
    """Until then its start has failed (tests/cli/test_command_line.py)."""
    recipe = written(tmp_path / "mine.yaml", split_sample(project_root, tmp_path, 4_000, 500))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "nnue_trainer", "train", str(recipe), "--run-dir", str(tmp_path / "run")]
    file = tmp_path / "status"
    environment = os.environ | {"NNUE_STATUS_FILE": str(file), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=project_root, env=environment) as agent:
        wait_for(lambda: file.exists() and file.read_text(), agent)
        assert file.read_text() == "started\n"
        agent.terminate()


@pytest.mark.slow
def test_a_training_over_several_jobs(project_root: Path, submit: Submit, fake: Path, tmp_path: Path) -> None:
    """Each has time for one step, and the third one validates and finishes the run."""
    data = split_sample(project_root, tmp_path, 4_000, 500)
    recipe = written(tmp_path / "mine.yaml", data, training={"epochs": 1, "positions_per_epoch": 500})
    job = submit("one_node.sh", recipe, tmp_path / "run", "training.max_time=1e-9")
    said = ended(job)
    assert job.returncode == 0, said
    assert last(tmp_path / "run").state["step"] == 2
    assert len((fake / "starts").read_text().splitlines()) == 3, said


@pytest.mark.slow
def test_killed_nodes(project_root: Path) -> None:
    """Two agents of torchrun with two processes each, killed once; 40 times by hand."""
    command = [sys.executable, "tools/kill_nodes.py", "--kills", "1", "--steps", "200", "--seed", "5"]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(": equal\n")
