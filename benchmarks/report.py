"""Writes the results of a benchmark, with the date, the commit, the machine and the versions they were measured
with."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import config, schema
from nnue_trainer.config import Recipe

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


def commit() -> str:
    """The commit of the working tree. NNUE_COMMIT replaces it, for sources that were copied without their history."""
    if named := os.environ.get("NNUE_COMMIT"):
        return named
    answer = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return answer.stdout.strip() or "unknown"


def wait_as_training_does() -> None:
    """Restarts this process with OMP_WAIT_POLICY=passive, as `nnue train` sets it, so that OpenMP threads sleep while
    they wait. torch's OpenMP reads the variable only when it is loaded. Threads that spin take the loader's cores, and
    their time counts as CPU time. Does nothing if OMP_WAIT_POLICY is already set."""
    if "OMP_WAIT_POLICY" not in os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"OMP_WAIT_POLICY": "passive"})


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Date, commit, command, machine and versions. Call it before measuring: then the load average is that of other
    programs."""
    device = torch.device(device)
    cuda = device.type == "cuda"
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": " ".join(["python", *(Path(word).name if "/" in word else word for word in sys.argv)]),
        "device": torch.cuda.get_device_name(device) if cuda else cpu_name(),
        "cpu": {"name": cpu_name(), "cores": os.cpu_count(), "torch_threads": torch.get_num_threads()},
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
    }


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain data; of files only the names, without their folders."""
    data = schema.to_data(recipe.data)
    names = {key: [Path(file).name for file in data[key]] for key in ("train", "validation")}
    return schema.to_data(recipe) | {"data": data | names}


def load_recipe(path: Path, data: str, overrides: Iterable[str]) -> Recipe:
    """The recipe that is measured, on this data file: in fp32, as that is comparable, unless overridden."""
    return config.load(path, [f"data.train={json.dumps([data])}", "training.precision=fp32", *overrides])


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def add_clock(parser: argparse.ArgumentParser) -> None:
    """The option that selects one of CLOCKS."""
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: CPU time of one thread, for a machine that other programs use, too",
    )


def precision_suffix(recipe: Recipe) -> str:
    """The suffix of a result's name for the precision: none for fp32."""
    return "" if recipe.training.precision == "fp32" else f"-{recipe.training.precision}"


def write(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}")
