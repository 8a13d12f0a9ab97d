"""Trains a recipe with several seeds, in turn or several at a time, and compares the results."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from nnue_trainer import config, registry
from nnue_trainer.base import process_groups, system
from nnue_trainer.base.status import INTERRUPTED, PREEMPTED, TIME_IS_UP, of_signal
from nnue_trainer.config import Recipe
from nnue_trainer.config.outline import outline
from nnue_trainer.errors import UserError
from nnue_trainer.files.atomic import replacing
from nnue_trainer.training.assembly import left
from nnue_trainer.training.figures import FIGURES
from nnue_trainer.training.run import train
from nnue_trainer.training.terminal import say

_INTERRUPTED = (INTERRUPTED, PREEMPTED)
_COMPARED = ("loss", "best", *FIGURES)


@dataclass(frozen=True)
class SeedRun:
    """The result of one seed."""

    seed: int
    folder: Path
    status: int
    """0, or the exit status of `nnue train` where it ended early: `INTERRUPTED`, `PREEMPTED` or `TIME_IS_UP`"""
    figures: dict[str, float]
    """of the last validation, by the names that metrics.jsonl has"""
    left: str = ""
    """how far it is, where a signal or training.max_time ended it early"""

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it early."""
        return self.status in _INTERRUPTED


def train_seeds(
    recipe: Recipe, folder: Path, *, resume: str | None = None, overwrite: bool = False, at_once: int | None = None
) -> list[SeedRun]:
    """Trains `recipe` once for each of its seeds, into `folder`/seed-N, and writes seeds.json with figures, mean and
    standard deviation. `resume`: None, or "auto", which continues and skips what is finished. `at_once`: how many
    processes train at a time, each on a separate GPU where there are any; None: one for each GPU. Ends after the seed
    that a signal interrupts."""
    if resume not in (None, "auto"):
        raise UserError(f"--resume {resume}: a recipe with seeds continues with --resume auto, or seed by seed")
    config.require_consent(recipe)
    facts = outline(recipe)
    gpus = torch.cuda.device_count() if facts.device in ("auto", "cuda") else 0
    at_once = min(at_once or max(gpus, 1), len(facts.seeds))
    runs = {seed: folder / f"seed-{seed}" for seed in facts.seeds}
    if at_once > 1:
        statuses = _at_once(recipe, runs, resume, overwrite, at_once, gpus)
    else:
        statuses = dict[int, int]()
        for seed, path in runs.items():
            say(f"seed {seed}: {path}")
            summary = train(config.with_only_seed(recipe, seed), path, resume=resume, overwrite=overwrite)
            statuses[seed] = summary.status
            if summary.interrupted:
                statuses |= dict.fromkeys(facts.seeds[facts.seeds.index(seed) :], summary.status)
                break
    found = [SeedRun(seed, path, statuses.get(seed, 0), _figures(path), _left(path)) for seed, path in runs.items()]
    with replacing(folder / "seeds.json") as output:
        output.write_text(json.dumps(_summary(found), indent=1) + "\n")
    return found


def report(runs: list[SeedRun]) -> list[str]:
    """Lines that compare the seeds."""
    lines = [
        f"seed {run.seed}{run.left and f' at {run.left}'}: "
        + (", ".join(f"{name} {run.figures[name]:.6f}" for name in _of(run)) or "no validation")
        for run in runs
    ]
    if any(run.left for run in runs):
        return [*lines, "not all seeds are finished, so their figures do not compare; --resume auto continues"]
    summary = _summary(runs)
    lines += [
        f"{name}: {summary['mean'][name]:.6f} ± {summary['deviation'][name]:.6f} over {len(runs)} seeds"
        for name in summary["mean"]
    ]
    return lines


def _of(run: SeedRun) -> list[str]:
    return [name for name in _COMPARED if name in run.figures]


def _summary(runs: list[SeedRun]) -> dict[str, dict[str, object]]:
    """Figures by seed; of finished seeds mean and standard deviation (of a sample) of those that all have."""
    finished = bool(runs) and not any(run.left for run in runs)
    common = [name for name in _COMPARED if finished and all(name in run.figures for run in runs)]
    values = {name: [run.figures[name] for run in runs] for name in common}
    return {
        "seeds": {str(run.seed): {"interrupted": run.interrupted, "left": run.left, **run.figures} for run in runs},
        "mean": {name: statistics.fmean(of_name) for name, of_name in values.items()},
        "deviation": {name: statistics.stdev(of_name) if len(of_name) > 1 else 0.0 for name, of_name in values.items()},
    }


def _left(folder: Path) -> str:
    last = folder / "checkpoints" / "last.safetensors"
    return left(last) if last.exists() else "the start"


def _figures(folder: Path) -> dict[str, float]:
    """The figures of the last validation; none if there was no validation."""
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    records = (json.loads(line) for line in reversed(lines) if line.endswith("}"))
    last: dict[str, object] = next((record for record in records if record.get("event") == "validation"), {})
    return {name: value for name in _COMPARED if isinstance(value := last.get(name), float)}


def _at_once(
    recipe: Recipe, runs: dict[int, Path], resume: str | None, overwrite: bool, at_once: int, gpus: int
) -> dict[int, int]:
    """Trains in several processes, which write what they print into seed-N.log. Returns the exit statuses of seeds that
    ended early. A signal is handed on to the processes, which save and stop. UserError if one fails."""
    waiting, running, statuses = list(runs), dict[int, subprocess.Popen[bytes]](), dict[int, int]()
    by_signal = INTERRUPTED
    places: dict[int, int] = {}  # which of the places at a time a seed has, and so which GPU
    stopped = threading.Event()
    flags = ["--overwrite"] if overwrite else ["--resume", resume] if resume else []
    flags += [flag for path in registry.loaded() for flag in ("--plugin", str(path))]

    def stop(number: int = signal.SIGINT, _: object = None) -> None:
        nonlocal by_signal
        by_signal = of_signal(number)
        stopped.set()
        for process in running.values():
            process.send_signal(signal.SIGTERM)

    next(iter(runs.values())).parent.mkdir(parents=True, exist_ok=True)
    ours = [each for each in system.stop_signals() if signal.getsignal(each) != signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in ours}
    try:
        with tempfile.TemporaryDirectory() as temporary:
            while waiting or running:
                while waiting and len(running) < at_once and not stopped.is_set():
                    seed = waiting.pop(0)
                    file, log = Path(temporary) / f"seed-{seed}.yaml", runs[seed].with_suffix(".log")
                    file.write_text(config.to_yaml(config.with_only_seed(recipe, seed)), encoding="utf-8")
                    places[seed] = min(set(range(at_once)) - {places[other] for other in running})
                    gpu = {"CUDA_VISIBLE_DEVICES": str(places[seed] % gpus)} if gpus else {}
                    command = [sys.executable, "-m", "nnue_trainer", "train", str(file), "--run-dir", str(runs[seed])]
                    with log.open("ab") as output:
                        running[seed] = process_groups.start(
                            [*command, *flags], stdout=output, stderr=output, env=os.environ | gpu
                        )
                    say(f"seed {seed}: {runs[seed]}, output in {log}")
                    if stopped.is_set():  # the signal came while it was started
                        running[seed].send_signal(signal.SIGTERM)
                if stopped.is_set() and waiting:
                    statuses |= dict.fromkeys(waiting, by_signal)
                    waiting = []
                time.sleep(0.1)
                for seed, process in list(running.items()):
                    if process.poll() is None:
                        continue
                    del running[seed]
                    process_groups.end(process)
                    ended = process.returncode
                    if ended in _INTERRUPTED or (stopped.is_set() and ended < 0):
                        statuses[seed] = by_signal if stopped.is_set() else ended
                    elif ended == TIME_IS_UP:
                        statuses[seed] = ended
                    elif ended:
                        stop()
                        last = runs[seed].with_suffix(".log").read_text(errors="replace").strip().splitlines()
                        raise UserError(f"seed {seed}: {last[-1] if last else f'exit status {ended}'}")
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for process in running.values():
            process.wait()
            process_groups.end(process)
    return statuses
