"""`nnue train` on real positions: both nets, resume through files and processes, and its errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import nnue
from small_runs import split_sample

from nnue_trainer import nets
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint


@pytest.fixture(scope="module")
def data(project_root, tmp_path_factory) -> Path:
    """A folder with train.binpack, 6,000 positions, and val.binpack, 1,000 others."""
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 6_000, 1_000)


def recipe(folder: Path, data: Path, model: str, loss: str, **training: object) -> Path:
    settings = {"epochs": 3, "positions_per_epoch": 4_000, "device": "cpu", **training}
    path = folder / "mine.yaml"
    path.write_text(
        f"model: {model}\n"
        f"data: {{train: [{data}/train.binpack], validation: [{data}/val.binpack], batch_size: 500,"
        " shuffle_buffer: 2000, threads: 2}\n"
        f"loss: {loss}\n"
        "optimizer: {lr: 5e-3}\n"
        "schedule: {kind: cosine, final_lr: 1e-5}\n"
        f"training: {json.dumps(settings)}\n"
        "logging: {every_steps: 4, tensorboard: false}\n"
    )
    return path


NETS = {
    "simple": ("{kind: simple, hidden: 32}", "{kind: sigmoid}\nlambda: {kind: linear, end: 0.7}"),
    "sfnnv5": ("{kind: sfnnv5, l1: 32}", "{kind: win_rate}\nlambda: {kind: linear, end: 0.75}"),
}


@pytest.mark.parametrize("kind", NETS)
def test_a_net_learns_from_a_binpack_file(tmp_path, data, kind):
    path = recipe(tmp_path, data, *NETS[kind])
    run = tmp_path / "run"
    output = nnue("train", "--config", path, "--run-dir", run)
    assert ("\nmodel.l1 is 32, which no Stockfish reads; expected" in output) == (kind == "sfnnv5")
    assert "finished step 24 of 24: 12.0 k positions" in output
    assert f"nnue export {run}/checkpoints/best.safetensors" in output
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["event"] == "validation"]
    assert len(losses) == 3
    assert losses[-1] < losses[0]

    best = checkpoint.load(run / "checkpoints" / "best.safetensors")
    model = nets.build(best.architecture)
    checkpoint.load_into(best.tensors["model"], model, "best")
    for bound in model.weight_bounds():
        assert bound.low <= bound.parameter.min(), bound.name
        assert bound.parameter.max() <= bound.high, bound.name
    kept = (run / "recipe.yaml").read_text()  # has the precision that auto became, which depends on the device
    settled = "precision: mixed" if "precision: mixed" in kept else "precision: fp32"
    assert kept.replace(settled, "precision: auto") == nnue("config", path).rstrip("\n") + "\n"


@pytest.mark.parametrize("kind", NETS)
def test_stop_and_resume_is_bit_identical(tmp_path, data, kind):
    """Epochs of 8 steps; cut after 1 of 3 by the number of epochs changing, which leaves all else alone."""
    path = recipe(tmp_path, data, *NETS[kind])
    constant = "schedule={kind: constant}"
    fixed = "lambda={kind: constant}"  # λ of the step must not depend on the number of epochs
    nnue("train", "--config", path, "--run-dir", tmp_path / "whole", constant, fixed)
    nnue("train", "--config", path, "--run-dir", tmp_path / "parts", constant, fixed, "training.epochs=1")
    output = nnue("train", "--resume", tmp_path / "parts", "training.epochs=3", "data.threads=1")
    assert "resuming with training.epochs 3, it was 1" in output
    assert "resumed at step 8" in output
    whole, parts = (
        checkpoint.load(tmp_path / name / "checkpoints" / "last.safetensors") for name in ("whole", "parts")
    )
    assert whole.state == parts.state
    for group, tensors in whole.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, parts.tensors[group][name]), f"{group}/{name}"


INTERRUPTED = """
import os, runpy, signal, sys
from nnue_trainer.training.trainer import Trainer
advance = Trainer.advance
def interrupted(trainer):
    if trainer.step == 100:
        os.kill(os.getpid(), signal.SIGINT)
    advance(trainer)
Trainer.advance = interrupted
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on_to_the_same_end(tmp_path, data, project_root):
    """Two real processes, the first interrupted in the middle of an epoch."""
    path = recipe(tmp_path, data, *NETS["simple"], epochs=2, positions_per_epoch=60_000)
    command = [str(project_root / "train.py"), "--config", str(path)]
    # The fixture holds this process to one thread, and torch's sums depend on the number.
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    nnue("train", "--config", path, "--run-dir", tmp_path / "whole")

    run = tmp_path / "run"

    def started(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, cwd=project_root, env=env, check=False
        )

    first = started("-c", INTERRUPTED, *command, "--run-dir", str(run))
    assert first.returncode == 130, first.stderr
    assert f"continue with    nnue train --resume {run}" in first.stderr
    stopped = checkpoint.load(run / "checkpoints" / "last.safetensors").state["step"]
    assert stopped in (100, 101)

    second = started(*command, "--run-dir", str(run), "--resume", "auto")
    assert second.returncode == 0, second.stderr
    assert f"resumed at step {stopped}" in second.stderr
    whole, parts = (
        checkpoint.load(folder / "checkpoints" / "last.safetensors") for folder in (tmp_path / "whole", run)
    )
    assert parts.state == whole.state
    for name, tensor in whole.tensors["model"].items():
        assert torch.equal(tensor, parts.tensors["model"][name]), name


def test_a_run_is_not_overwritten_by_accident(tmp_path, data):
    path = recipe(tmp_path, data, *NETS["simple"], epochs=1)
    run = tmp_path / "run"
    nnue("train", "--config", path, "--run-dir", run)
    with pytest.raises(UserError, match="run: already holds a run; --resume auto continues it"):
        nnue("train", "--config", path, "--run-dir", run)
    assert "finished step 8 of 8: 0 positions" in nnue("train", "--config", path, "--run-dir", run, "--resume", "auto")
    assert "finished step 4 of 4" in nnue(
        "train", "--config", path, "--run-dir", run, "--overwrite", "training.positions_per_epoch=2000"
    )
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("key", ["train", "validation"])
def test_a_run_without_data_writes_nothing(tmp_path, data, key):
    """A mistyped file must not leave a run folder that then blocks the corrected command."""
    path, run = recipe(tmp_path, data, *NETS["simple"]), tmp_path / "run"
    with pytest.raises(UserError, match=r"nope\.binpack: No such file"):
        nnue("train", "--config", path, "--run-dir", run, f"data.{key}=[nope.binpack]")
    assert not run.exists()


def test_resume_auto_starts_where_there_is_no_checkpoint_yet(tmp_path, data):
    path, run = recipe(tmp_path, data, *NETS["simple"], epochs=1), tmp_path / "run"
    run.mkdir()
    for name in ("recipe.yaml", "metrics.jsonl"):
        (run / name).write_text("", encoding="utf-8")
    assert "finished step 8 of 8" in nnue("train", "--config", path, "--run-dir", run, "--resume", "auto")


def test_weights_of_another_run_are_a_start(tmp_path, data):
    path = recipe(tmp_path, data, *NETS["simple"], epochs=1)
    nnue("train", "--config", path, "--run-dir", tmp_path / "a")
    start = f"training.initial_weights={tmp_path}/a/checkpoints/last.safetensors"
    still = ["schedule={kind: constant}", "optimizer.lr=1e-30", "training.seed=9"]
    nnue("train", "--config", path, "--run-dir", tmp_path / "b", start, *still)
    a, b = (checkpoint.load(tmp_path / name / "checkpoints" / "last.safetensors").tensors["model"] for name in "ab")
    for name, tensor in a.items():
        torch.testing.assert_close(b[name], tensor, rtol=0, atol=1e-20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["training.device=cuda:7"], r"training\.device: found 'cuda:7', but torch .* finds"),
        (["data.train=[none.binpack]"], r"none\.binpack"),
        (["data.validation=[none.binpack]"], r"none\.binpack"),
        (["--resume", "none"], r"none/checkpoints/last\.safetensors: no such checkpoint"),
        (["--resume", "auto", "--overwrite"], "--overwrite and --resume exclude each other"),
        (["training.initial_weights=none"], "none: no such checkpoint"),
        (["data.batch_size=7000"], "train.binpack"),
        (["data.filters.max_score=-1"], r"data\.filters\.max_score: found -1, expected greater than or equal to 0"),
        (["data.filters.min_ply=500"], "positions pass the filters"),
    ],
)
def test_mistakes_are_one_line(tmp_path, data, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    path = recipe(tmp_path, data, *NETS["simple"], epochs=1, positions_per_epoch=500)
    with pytest.raises(UserError, match=message) as caught:
        nnue("train", "--config", path, *arguments)
    assert "\n" not in str(caught.value)


def test_resume_refuses_another_model_or_other_data(tmp_path, data):
    path = recipe(tmp_path, data, *NETS["simple"], epochs=1)
    run = tmp_path / "run"
    nnue("train", "--config", path, "--run-dir", run)
    with pytest.raises(UserError, match=r"last\.safetensors: model\.hidden was 32, now it is 64"):
        nnue("train", "--resume", run, "model.hidden=64")
    with pytest.raises(UserError, match=r"last\.safetensors: loader state: batch_size was 500, now it is 250"):
        nnue("train", "--resume", run, "data.batch_size=250")


def test_what_config_prints(tmp_path, data):
    assert "data.batch_size: int > 0, ≤ 16777216 [16384]" in nnue("config")
    assert "data.batch_size: int > 0, ≤ 16777216 [16384]" in nnue("train", "--help-recipe")
    path = recipe(tmp_path, data, *NETS["simple"])
    assert "lr: 0.25\n" in nnue("config", path, "optimizer.lr=0.25")
    with pytest.raises(UserError, match=r"expected a RECIPE, --preset NAME .*, or --resume PATH"):
        nnue("train")


@pytest.mark.parametrize("name", ["quickstart", "sfnnv5", "simple"])
def test_the_recipes_of_the_project_are_valid(project_root, name):
    assert "kind:" in nnue("config", project_root / "configs" / f"{name}.yaml")
