"""Kills a training on two "nodes" again and again, and compares it with one that was never killed.

    python tools/kill_nodes.py --kills 40

The job is examples/cluster/several_nodes.sh, in the stand-ins for SLURM of tests/cluster: two agents of torchrun on
this machine, which talk through its loopback interface, with two processes each. It is killed at random times, while
it starts and while it trains:

    USR1    to the batch shell, as before the end of its time (#SBATCH --signal=B:USR1@120)
    TERM    to the agents, as at a preemption
    KILL    to one process, to one node, or to the whole job

and the script, or the stand-in for the scheduler, queues it again. All tensors and the state of the last checkpoint and
the records of metrics must then equal those of the run that nothing ended. Exit status 1 where they differ.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml
from kill_stages import ROOT, differences

FAKES = ROOT / "tests" / "cluster"
KINDS = ("USR1", "TERM", "KILL process", "KILL node", "KILL job")
SECONDS_TO_END = 900.0  # without any progress


def recipe(steps: int) -> dict[str, object]:
    """A small net whose epochs have 20 steps; a checkpoint every 0.3 s."""
    return {
        "model": {"kind": "simple", "hidden": 16},
        "data": {
            "train": [str(ROOT / "samples" / "train.binpack")],
            "validation": [str(ROOT / "samples" / "val.binpack")],
            "validation_positions": 500,
            "batch_size": 64,
            "shuffle_buffer": 4096,
            "threads": 1,
        },
        "loss": {"kind": "sigmoid"},
        "training": {
            "epochs": max(steps // 20, 1),
            "positions_per_epoch": 20 * 64,
            "checkpoint_minutes": 0.005,
            "keep_last": 2,
            "device": "cpu",
        },
        "logging": {"every_steps": 5, "tensorboard": False},
    }


class Job:
    """A job that runs, and is queued again, until its training is finished."""

    def __init__(self, folder: Path, recipe: Path, run: Path) -> None:
        self.run, self.fake = run, folder
        folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.log = folder / "log"
        environment = os.environ | {
            "PATH": f"{FAKES}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FAKE_SLURM": str(folder),
            "NNUE_CLUSTER": str(ROOT / "examples" / "cluster"),
            "PROCESSES_PER_NODE": "2",
            "RENDEZVOUS_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "MAX_REQUEUES": "1000",
            "MAX_FAILED_STARTS": "1000",
            "NNUE_JOIN_SECONDS": "60",
        }
        script = ROOT / "examples" / "cluster" / "several_nodes.sh"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["sbatch", script, recipe, run], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def starts(self) -> int:
        with contextlib.suppress(OSError):
            return len((self.fake / "starts").read_text().splitlines())
        return 0

    def records(self) -> int:
        """Bytes of metrics so far, which grow while it trains."""
        with contextlib.suppress(OSError):
            return (self.run / "metrics.jsonl").stat().st_size
        return 0

    def processes(self) -> dict[int, dict[str, str]]:
        """The processes of the job with their environment variables."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                pairs = (text.partition("=") for text in (path / "environ").read_bytes().decode().split("\0"))
                variables = {name: value for name, _, value in pairs}
                if variables.get("FAKE_SLURM") == str(self.fake) and "SLURM_JOB_ID" in variables:
                    found[int(path.name)] = variables
        return found

    def kill(self, kind: str, choice: random.Random) -> bool:
        """Returns whether there was something to kill."""
        processes = self.processes()
        batch = [pid for pid, variables in processes.items() if "SLURM_NODEID" not in variables]
        agents = [pid for pid, v in processes.items() if "SLURM_NODEID" in v and "RANK" not in v]
        workers = [pid for pid, variables in processes.items() if "RANK" in variables]
        number = signal.SIGKILL
        if kind == "USR1":
            chosen, number = _numbers(self.fake / "batch"), signal.SIGUSR1
        elif kind == "TERM":
            chosen, number = agents, signal.SIGTERM
        elif kind == "KILL process":
            chosen = [choice.choice(workers)] if workers else []
        elif kind == "KILL node":
            node = str(choice.randrange(2))
            chosen = [pid for pid, variables in processes.items() if variables.get("SLURM_NODEID") == node]
        else:
            chosen = [*batch, *agents, *workers]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(chosen)

    def end(self) -> None:
        """Ends all processes of the job."""
        self.process.kill()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _numbers(path: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in path.read_text().split()]
    return []


def kill_at_random(job: Job, kills: int, choice: random.Random) -> Counter[str]:
    """Kills a job this many times, a third of them at any time and the others soon after it trains again. Returns the
    kills of each kind; fewer if the training is finished before."""
    done: Counter[str] = Counter()
    kinds = [KINDS[number % len(KINDS)] for number in range(kills)]
    choice.shuffle(kinds)
    start = 0
    for kind in kinds:
        records, began = job.records(), time.monotonic()
        while job.process.poll() is None and job.starts() == start:  # until it is queued again
            time.sleep(0.05)
            assert time.monotonic() - began < SECONDS_TO_END, job.log.read_text()[-4000:]
        if choice.random() < 1 / 3:
            time.sleep(choice.uniform(0.0, 12.0))
        else:
            # Records after the checkpoint are dropped at the start, so the file changes when the run continues.
            while job.process.poll() is None and job.records() in (records, 0):
                time.sleep(0.05)
                assert time.monotonic() - began < SECONDS_TO_END, job.log.read_text()[-4000:]
            time.sleep(choice.uniform(0.0, 2.0))
        start = job.starts()
        while job.process.poll() is None and not job.kill(kind, choice):  # until there is something to kill
            time.sleep(0.05)
        if job.process.poll() is not None:
            break
        done[kind] += 1
        print(f"{sum(done.values())}: {kind}, {job.records():,} bytes of metrics", flush=True)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="write the output of the jobs into this file", metavar="FILE")
    arguments = parser.parse_args()
    choice = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(arguments.steps)))
        jobs = []
        try:
            for name, kills in (("whole", 0), ("killed", arguments.kills)):
                jobs.append(Job(folder / f"{name}-job", folder / "recipe.yaml", folder / name))
                done = kill_at_random(jobs[-1], kills, choice)
                if jobs[-1].process.wait() != 0:
                    sys.exit(f"the training failed:\n{jobs[-1].log.read_text()[-80000:]}")
        finally:
            for job in jobs:
                job.end()
        if arguments.log:
            Path(arguments.log).write_text("".join(job.log.read_text() for job in jobs))
        found = differences(folder / "whole", folder / "killed")
        for name in found:
            print(f"differs: {name}")
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
        print(
            f"{arguments.steps} steps, {sum(done.values())} kills ({kinds}), {jobs[-1].starts()} starts: "
            f"{'differs' if found else 'equal'}"
        )
        return int(bool(found) or sum(done.values()) < arguments.kills)


if __name__ == "__main__":
    sys.exit(main())
