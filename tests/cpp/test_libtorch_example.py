"""The example that trains in C++ alone gives the losses of `nnue train`, and checkpoints that everything else reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from cpp_support import with_torch

from nnue_trainer.config import load
from nnue_trainer.files import checkpoint
from nnue_trainer.training.run import train

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

STEPS, EPOCH = 30, 10
NET: dict[str, Any] = {
    "kind": "layered", "inputs": ["HalfKAv2_hm"], "factorised": True, "psqt": True, "hidden": 32,
    "output_buckets": {"count": 8, "rule": "stockfish"},
}  # fmt: skip
FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


def run_cpp(project_root: Path, out: Path, *more: str, device: str = "cpu") -> list[tuple[float, float]]:
    """Training and validation losses of each epoch."""
    samples = project_root / "samples"
    options = [f"data={samples / 'train.binpack'}", f"validation={samples / 'val.binpack'}"]
    sizes = ["hidden=32", "batch=512", f"steps={STEPS}", f"epoch={EPOCH}", "window=20000", "seed=7"]
    command: list[str | Path] = [
        with_torch("train") / "libtorch" / "train",
        *options,
        *sizes,
        f"out={out}",
        f"device={device}",
        *more,
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^step \d+  loss (\S+)  validation (\S+)", printed, re.MULTILINE)
    return [(float(loss), float(validation)) for loss, validation in found]


def run_python(
    project_root: Path, folder: Path, rule: str, device: str, precision: str = "fp32"
) -> list[tuple[float, float]]:
    samples = project_root / "samples"
    recipe = {
        "model": NET,
        "data": {
            "train": [str(samples / "train.binpack")], "validation": [str(samples / "val.binpack")],
            "batch_size": 512, "shuffle_buffer": 20000,
        },
        "loss": {"kind": "sigmoid"},
        "lambda": {"kind": "constant", "value": 0.7},
        "optimizer": {"kind": rule, "lr": 1e-3, "weight_decay": 0.01, "betas": [0.9, 0.999]},
        "schedule": {"kind": "constant"},
        "training": {
            "epochs": STEPS // EPOCH, "positions_per_epoch": EPOCH * 512, "seed": 7, "device": device,
            "precision": precision,
        },
        "logging": {"every_steps": EPOCH, "tensorboard": False},
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    train(load(path), folder / "run")
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {name: [r["loss"] for r in records if r.get("event") == name] for name in ("train", "validation")}
    return list(zip(losses["train"], losses["validation"], strict=True))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("rule", ["adamw", "radam", "lion"])
def test_losses_are_those_of_the_trainer(project_root: Path, tmp_path: Path, rule: str, device: str) -> None:
    """With PSQT, virtual rows and rows that are updated when a batch has them."""
    found = run_cpp(project_root, tmp_path / "net.safetensors", f"rule={rule}", device=device)
    expected = run_python(project_root, tmp_path, rule, device)
    assert len(found) == STEPS // EPOCH
    assert found[-1][1] < found[0][1]
    assert torch.tensor(found).allclose(torch.tensor(expected), rtol=2e-5, atol=0), (found, expected)
    # The weights are the same as well, up to rounding that AdamW magnifies where a gradient is nearly 0.
    ours = checkpoint.load(tmp_path / "net.safetensors").tensors["model"]
    theirs = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.safetensors").tensors["model"]
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.shape == theirs[name].shape
        assert (tensor - theirs[name]).abs().mean() < 1e-5, name


@pytest.mark.cuda
def test_mixed_precision(project_root: Path, tmp_path: Path) -> None:
    """The transformer reads a bfloat16 copy of its weight. The orders of some sums differ, and rounding to 8 bits
    magnifies it."""
    found = run_cpp(project_root, tmp_path / "net.safetensors", "precision=mixed", device="cuda")
    expected = run_python(project_root, tmp_path, "adamw", "cuda", "mixed")
    assert len(found) == STEPS // EPOCH
    assert torch.tensor(found).allclose(torch.tensor(expected), rtol=5e-4, atol=0), (found, expected)
    mixed, plain = (
        run_cpp(project_root, tmp_path / "again", f"precision={each}", device="cuda") for each in ("mixed", "fp32")
    )
    assert mixed == found != plain


def test_a_checkpoint_is_exported_evaluated_trained_further_and_compiled(
    project_root: Path, tmp_path: Path, nnue: Any
) -> None:
    saved = tmp_path / "net.safetensors"
    run_cpp(project_root, saved)
    exported = tmp_path / "net.nnue"
    assert nnue("export", saved, exported).returncode == 0
    done = nnue("eval", exported, "--fen", FEN)
    score = int(re.search(r"evaluation ([+-]\d+)", done.stdout).group(1))  # type: ignore[union-attr]
    assert nnue("eval", saved, "--fen", FEN).returncode == 0

    recipe = tmp_path / "further.yaml"
    content = {
        "model": NET,
        "data": {
            "train": [str(project_root / "samples" / "val.binpack")], "batch_size": 64, "shuffle_buffer": 1000,
        },
        "loss": {"kind": "sigmoid"},
        "training": {"epochs": 1, "positions_per_epoch": 128, "device": "cpu", "initial_weights": str(saved)},
    }  # fmt: skip
    recipe.write_text(yaml.safe_dump(content))
    assert nnue("train", recipe, "--run-dir", tmp_path / "further").returncode == 0

    # Compiled by AOTInductor, it runs in a C++ program that has loaded the operators.
    script = project_root / "examples" / "libtorch" / "export.py"
    subprocess.run([sys.executable, script, saved, tmp_path / "net.pt2"], check=True, capture_output=True)
    program = with_torch("run_exported") / "libtorch" / "run_exported"
    other = "4k3/pp6/8/3q4/8/8/PPP5/4K2R b - - 0 1"
    run = subprocess.run([program, tmp_path / "net.pt2", FEN, other], capture_output=True, text=True, check=True)
    first, second = (float(line.split()[0]) for line in run.stdout.splitlines())
    assert abs(first - score) < 15
    assert first != second


def test_errors_are_one_line(project_root: Path, tmp_path: Path) -> None:
    program = with_torch("train") / "libtorch" / "train"
    sample = project_root / "samples" / "val.binpack"
    for arguments, expected in (
        (["data=none.binpack", "validation=none.binpack"], "none.binpack"),
        ([f"data={sample}", f"validation={sample}", "batch=40000"], "less than a batch of 40000"),
        (["colour=red"], "colour: no such option, see --help"),
        (["batch=many"], "batch=many: expected a number"),
    ):
        run = subprocess.run(
            [program, *arguments, f"out={tmp_path / 'x'}"], capture_output=True, text=True, check=False
        )
        assert run.returncode == 1
        assert expected in run.stderr
        assert run.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_help_lists_every_option() -> None:
    run = subprocess.run(
        [with_torch("train") / "libtorch" / "train", "--help"], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("usage: train data=FILE")
    assert re.search(r"^  batch +positions in a batch; default 16384$", run.stdout, re.MULTILINE)
    assert re.search(r"^  data +training file; required$", run.stdout, re.MULTILINE)
