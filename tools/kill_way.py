"""Kills `nnue run` again and again in each of its steps, and compares the folder with one that was never killed.

    python tools/kill_way.py --kills 3                          # the net of Stockfish 15.1, in that engine
    python tools/kill_way.py --l1 128 --engine ENGINE --no-verify
    python tools/kill_way.py --l1 128 --short                   # data, training and export only

The way has all steps: data (shuffled, then filtered), a training of two stages with an average, export, permute, verify
and match, scaled down to seconds. It is killed with SIGKILL after random times: all of its processes, as in a power
cut; only the command of the step; or only `nnue run`, whose command then goes on, and keeps a second `nnue run` out. At
the end every file must be there that is in the other folder, and no other, with the same bytes; of checkpoints the same
tensors and state, of metrics the same records; the order of the games in the journal is free. Exit status 1 where they
differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml
from kill_stages import ROOT, differences

from nnue_trainer.base.status import IN_USE

STEPS = ("data 1", "data 2", "train", "export", "permute", "verify", "match")
COMPARED_BY_CONTENT = (".safetensors", "metrics.jsonl", "games.journal", "run.json")  # the journal: by match.json
WITHOUT_END = 600.0  # seconds


def recipe(l1: int) -> dict[str, object]:
    """A training of two stages that takes seconds."""
    return {
        "model": {"kind": "sfnnv5", "l1": l1},
        "data": {
            "train": ["none"],
            "validation": [str(ROOT / "samples" / "val.binpack")],
            "validation_positions": 500,
            "batch_size": 64,
            "shuffle_buffer": 2048,
            "threads": 1,
        },
        "loss": {"kind": "win_rate"},
        "lambda": {"kind": "linear", "end": 0.7, "batch_jitter": 0.1},
        "average": {"kind": "ema", "half_life": 8, "every": 2},
        "training": {"epochs": 2, "positions_per_epoch": 256, "keep_last": 1, "device": "cpu", "validate_every": 1},
        "stages": [
            {"name": "early"},
            {"name": "late", "carry": "optimizer", "data": {"batch_size": 32}, "training": {"epochs": 1}},
        ],
        "logging": {"tensorboard": False, "every_steps": 1},
    }


def way(engine: str, verify: bool, short: bool) -> dict[str, object]:
    """The steps from the bundled sample to a match against the first stage, or, `short`, to an exported net."""
    shuffled, filtered = "{folder}/shuffled.binpack", "{folder}/train.binpack"
    steps: dict[str, object] = {
        "data": [
            {"run": f"shuffle {ROOT / 'samples' / 'val.binpack'} {shuffled} --seed 1", "makes": shuffled},
            {"run": f"filter {shuffled} {filtered} --min-ply 12", "makes": filtered},
        ],
        "train": {"recipe": "recipe.yaml", "set": [f"data.train={filtered}"]},
    }
    if short:
        return steps
    steps["permute"] = {"data": filtered, "options": "--engine none --positions 500"}
    if verify:
        steps["verify"] = {"engine": engine, "options": "--positions 300"}
    steps["match"] = {
        "against": ["{folder}/run/checkpoints/stage-early.safetensors"],
        "engine": engine,
        "options": "--pairs 6 --nodes 100 --max-moves 20 --hash 1 -j 2",
    }
    return steps


class Way:
    """`nnue run` in a folder, in a separate session."""

    def __init__(self, folder: Path) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nnue_trainer", "run", "way.yaml"],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.output, self.step, self.began = "", "", time.monotonic()

    def read(self, seconds: float) -> bool:
        """Reads a piece of output within `seconds`; whether there can be more. Keeps the step that is going on."""
        assert self.process.stdout is not None
        if select.select([self.process.stdout], [], [], max(0.0, seconds))[0]:
            piece = os.read(self.process.stdout.fileno(), 65536).decode(errors="replace")
            self.output += piece
            for line in self.output[self.output.rfind("step ", 0, len(self.output) - len(piece)) :].splitlines():
                name = line.partition(": ")[0].partition(" ")[2].partition(" ")[2]
                if line.startswith("step ") and ": nnue " in line and name != self.step:
                    self.step, self.began = name, time.monotonic()
            return bool(piece)
        return True

    def kill_all(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def command(self) -> int | None:
        """The process of the step, if there is one."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(listed[0]) if listed else None

    def ended(self) -> int:
        """Waits for the end, and returns the exit status."""
        while self.read(WITHOUT_END) and self.process.poll() is None:
            pass
        return self.process.wait(WITHOUT_END)


def whole(folder: Path) -> dict[str, float]:
    """Runs the way without a kill; the seconds that each step took."""
    run, seconds, before = Way(folder), dict[str, float](), ("", 0.0)
    while run.read(WITHOUT_END) and run.process.poll() is None:
        if run.step != before[0]:
            seconds[before[0]] = run.began - before[1]
            before = (run.step, run.began)
    if run.ended() != 0:
        sys.exit(f"the way failed:\n{run.output}")
    seconds[before[0]] = time.monotonic() - before[1]
    return seconds


def killed_once(folder: Path, step: str, after: float, how: str) -> str:
    """Continues with the way, and kills it `after` seconds of a step; the step that was killed, "" for none."""
    run = Way(folder)
    while run.process.poll() is None and (run.step != step or time.monotonic() < run.began + after):
        run.read(0.02 if run.step != step else min(0.02, run.began + after - time.monotonic()))
        if STEPS.index(run.step or STEPS[0]) > STEPS.index(step):
            break
    if run.process.poll() is not None:
        status = run.ended()
        if status != 0:
            sys.exit(f"the way failed with status {status}:\n{run.output}")
        return ""
    if how == "command" and (command := run.command()):
        os.kill(command, signal.SIGKILL)
        status = run.ended()
        if status != 128 + signal.SIGKILL:
            sys.exit(f"the command was killed, and the status is {status}:\n{run.output}")
    elif how == "run" and run.command():
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        second = Way(folder)
        status = second.ended()
        if status != IN_USE or "is using this folder" not in second.output:
            print(f"a second nnue run beside the command: status {status}, {second.output[-200:]!r}")
        second.kill_all()
    run.kill_all()
    return run.step


def compared(one: Path, other: Path) -> list[str]:
    """The differences between two folders."""
    files = [{path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} for folder in (one, other)]
    found = [f"{name} is in one of them" for name in sorted(files[0] ^ files[1])]
    both = [name for name in sorted(files[0] & files[1]) if not str(name).endswith(COMPARED_BY_CONTENT)]
    found += [str(name) for name in both if (one / name).read_bytes() != (other / name).read_bytes()]
    if listed(one / "run") != listed(other / "run"):
        found.append("run/run.json")
    return found + differences(one / "run", other / "run")


def listed(run: Path) -> set[str]:
    """The existing files of a run folder's list, which keeps the names of deleted ones until the next one is added."""
    return {name for name in json.loads((run / "run.json").read_text())["files"] if (run / name).exists()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=3, help="in each step; default: 3")
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=STEPS, help="steps to kill; default: all")
    parser.add_argument("--l1", type=int, default=1024, help="size of the first layer; default: 1024")
    parser.add_argument("--engine", default="stockfish", help="default: stockfish")
    parser.add_argument("--no-verify", action="store_true", help="leave out the step verify")
    parser.add_argument("--short", action="store_true", help="only data, training and export")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random_numbers = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / name for name in ("whole", "killed")]
        for folder in folders:
            folder.mkdir()
            (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(arguments.l1)))
            (folder / "way.yaml").write_text(
                yaml.safe_dump(way(arguments.engine, not arguments.no_verify, arguments.short))
            )
        seconds = whole(folders[0])
        kills, ways = Counter[str](), ("all", "command", "run")
        for step in arguments.steps:
            for number in range(arguments.kills if step in seconds else 0):
                moment = random_numbers.uniform(0, seconds[step])
                how = ways[(number + arguments.seed) % len(ways)]
                kills[killed_once(folders[1], step, moment, how)] += 1
        last = Way(folders[1])
        if last.ended() != 0:
            sys.exit(f"the way failed:\n{last.output}")
        found = compared(*(folder / "runs" / "way" for folder in folders))
        for name in found:
            print(f"differs: {name}")
        missed = kills.pop("", 0)
        print(
            f"l1 {arguments.l1}, {arguments.engine}: {json.dumps(dict(kills))} kills"
            f"{f', {missed} too late' if missed else ''}: {'differs' if found else 'equal'}"
        )
        return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
