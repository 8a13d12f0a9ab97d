"""A training on a device without kernels: the one of fake_device.py, which stands for MPS, XPU and ROCm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command import Done

from nnue_trainer.base import _library
from nnue_trainer.errors import UserError
from nnue_trainer.training import device as devices

PROGRAM = """
import json, sys
from pathlib import Path
import torch
import fake_device
fake_device.register()
from nnue_trainer import config
from nnue_trainer.training.run import train

torch.set_num_threads(1)
for name in ("cpu", "fake"):
    recipe = config.load(sys.argv[1], [f"training.device={name}"])
    train(recipe, Path(sys.argv[2], name))
print(json.dumps(dict(fake_device.calls)))
"""

RECIPE = """
model: {kind: sfnnv5, l1: 32, quantisation: {qat: true, qat_from: 0.5}}
data: {train: TRAIN, validation: VALIDATION, validation_positions: 500, batch_size: 64, shuffle_buffer: 1024}
loss: {kind: win_rate}
optimizer: {kind: adamw, lr: 1.0e-3}
training: {epochs: 2, positions_per_epoch: 512, precision: fp32}
logging: {every_steps: 1, tensorboard: false}
"""


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record["event"] in ("train", "validation")]


def test_torch_computes_the_step_there_and_the_cpu_the_rest(tmp_path: Path, project_root: Path) -> None:
    """The losses are those of the CPU's own kernels, with rounding and without."""
    samples = {"TRAIN": "train", "VALIDATION": "val"}
    text = RECIPE
    for key, name in samples.items():
        text = text.replace(key, str(project_root / "samples" / f"{name}.binpack"))
    (tmp_path / "recipe.yaml").write_text(text)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "recipe.yaml"), str(tmp_path)]
    done = subprocess.run(command, cwd=project_root / "tests" / "support", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    calls = json.loads(done.stdout.splitlines()[-1])
    assert not [name for name in calls if name.startswith("nnue")], "no operator of this project runs there"
    assert sum(calls.values()) > 500
    assert done.stderr.count("fake has no kernels of this project, so PyTorch's operators compute") == 1, done.stderr
    expected, found = losses(tmp_path / "cpu"), losses(tmp_path / "fake")
    assert len(found) > 16
    assert found == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.device=nonsense", "training.device: found 'nonsense', which torch"),
        ("training.device=xpu", "training.device: found 'xpu', which torch"),
        ("training.device=mps", "training.device: found 'mps', which torch"),
        ("training.device=MPS", "override 'training.device=MPS': training.device: found \"MPS\""),
    ],
)
def test_a_device_that_torch_cannot_use(
    nnue: Callable[..., Done],
    tmp_path: Path,
    project_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    override: str,
    message: str,
) -> None:
    monkeypatch.chdir(project_root)
    done = nnue("train", "--preset", "quickstart", override, "--run-dir", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.startswith(f"nnue: error: {message}")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 500
    assert not (tmp_path / "run").exists()


def test_a_gpu_without_our_library_is_such_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs of ROCm are such: torch calls them cuda."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(_library, "load", lambda: _library.Libraries(None, "undefined symbol"))
    assert devices.choose_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="found 'cuda', which torch"):  # this torch has no CUDA
        devices.choose_device("cuda")


@pytest.mark.parametrize(
    ("capability", "built", "chosen"),
    [
        *[((7, 0), "75+80+90", "cpu"), ((7, 5), "75+80+90", "cuda"), ((7, 5), "80+90", "cpu")],
        *[((8, 6), "90", "cpu"), ((9, 0), "80", "cuda")],
    ],
)
def test_a_gpu_older_than_the_kernels_is_such_a_device(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], built: str, chosen: str
) -> None:
    """Such as the P100 of free notebooks, on which the library loads, but no kernel starts."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(_library, "load", lambda: _library.Libraries(None, None))
    monkeypatch.setattr(_library, "build_info", lambda path: {"architectures": built})
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device, **options: zeros(*size, **options))
    assert devices.choose_device("auto") == torch.device(chosen)
    assert devices.choose_device("cuda") == torch.device(chosen)
    assert devices.offloaded("cuda") == (None if chosen == "cuda" else torch.device("cuda"))
