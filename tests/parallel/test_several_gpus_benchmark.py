"""benchmarks/several_gpus.py on CPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_what_it_writes(tmp_path: Path, project_root: Path) -> None:
    program = project_root / "benchmarks" / "several_gpus.py"
    arguments = ["--data", str(project_root / "samples" / "train.binpack"), "--out", str(tmp_path), "--sizes", "2"]
    arguments += ["--config", str(project_root / "configs" / "quickstart.yaml"), "--sources", "preloaded"]
    arguments += ["--rounding", "qat", "--seconds", "0.02", "model.l1=32", "data.batch_size=64"]
    run = subprocess.run(
        [sys.executable, str(program), *arguments, "data.shuffle_buffer=512", "training.device=cpu"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    report = json.loads((tmp_path / "several_gpus-quickstart-cpu-2x64.json").read_text())
    assert report["failed"] == []
    assert set(report["results"]) == {f"2, {name}" for batch in ("each", "between them") for name in (
        f"the batch {batch}, qat, preloaded", f"exchanges, the batch {batch}")}  # fmt: skip
    assert len(report["results"]["2, the batch each, qat, preloaded"]["cpu_milliseconds_per_step"]) == 2
    assert (tmp_path / "several_gpus-cpu-2.png").exists()
    assert "\n| net, batches | 2, each | 2, between them |\n| --- | --- | --- |\n| quickstart, qat, " in run.stdout
