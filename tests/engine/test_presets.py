"""The presets of nets as engine authors build them: small ones learn on the sample, export, and are evaluated."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from inference_support import built, nnue, program_scores

from nnue_trainer import data, nets
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("preset", ["simple", "buckets", "layered"])
def test_a_preset_learns_exports_and_is_evaluated(preset: str, project_root: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    sample = project_root / "samples" / "train.binpack"
    settings = {"epochs": 1, "positions_per_epoch": 200 * 128, "device": "cpu"}
    overrides = ["model.hidden=32", f"data.train={sample}", "data.validation=[]", "data.batch_size=128"]
    overrides += ["data.shuffle_buffer=1_048_576", "data.threads=1", "optimizer.lr=1e-2", "logging.every_steps=10"]
    overrides += ["logging.tensorboard=false", *(f"training.{key}={value}" for key, value in settings.items())]
    nnue("train", "--preset", preset, "--run-dir", "run", *overrides)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line.get("kind", "train") == "train" and "loss" in line]
    assert len(losses) >= 20
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:3]), losses

    nnue("export", "run", "net.nnue")
    nnue("import", "net.nnue", "again.safetensors")
    nnue("export", "again.safetensors", "again.nnue")
    assert Path("again.nnue").read_bytes() == Path("net.nnue").read_bytes()
    fens = list(CHECK_POSITIONS)
    Path("fens.txt").write_text("\n".join(fens))
    scores = [
        json.loads(line)["score"] for line in nnue("eval", "net.nnue", "--fens", "fens.txt", "--json").splitlines()
    ]
    saved = checkpoint.load("run/checkpoints/last.safetensors", ("model",))
    model = nets.build(saved.architecture)
    model.load_state_dict(saved.tensors["model"])
    with torch.no_grad():
        floats = model(data.expand(data.records_from_fens(fens), model.feature_set)).numpy() * model.score_scale
    assert np.corrcoef(floats, scores)[0, 1] > 0.98
    nnue("export", "run", "net.bin", "--format", "raw", "--header")
    program = built("eval", tmp_path / "net.bin", "-O1 -march=native")
    assert program_scores(program, tmp_path / "net.bin", tmp_path / "fens.txt") == scores
    assert "<-- used" in nnue("eval", "net.nnue", "--fen", fens[0])
