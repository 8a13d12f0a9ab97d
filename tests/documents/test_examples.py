"""The examples that use other packages run, and train what a plain loop of the same parts trains."""

import itertools
import json
import os
import re
import runpy
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import written

from nnue_trainer import Loader, config, export, losses, nets, optim
from nnue_trainer.files import checkpoint
from nnue_trainer.training.trainer import Trainer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_torch_op(project_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(project_root / "examples/torch_op.py"), run_name="__main__")
    found = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert found[-1] < found[0] / 100


@pytest.mark.usefixtures("one_thread")
def test_the_loader_and_the_op(
    project_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = str(project_root / "samples/val.binpack")
    monkeypatch.setattr(sys, "argv", ["loader_to_op.py", sample])
    torch.manual_seed(1)
    found = runpy.run_path(str(project_root / "examples/loader_to_op.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"step +\d+  rows \[1024, 32\]  loss 0\.\d{4}$", line) for line in lines)
    losses = [float(line.split()[-1]) for line in lines]
    assert losses[-1] < 0.95 * losses[0]
    # The perspective of the side to move comes first.
    order = found["black_first"].flatten()
    assert torch.equal(found["accumulators"][order, :64], found["black"][order])
    assert torch.equal(found["accumulators"][~order, :64], found["white"][~order])


@pytest.mark.lightning
@pytest.mark.usefixtures("one_thread")
def test_lightning_trains_as_a_plain_loop_does_and_resumes(project_root: Path, folder: Path) -> None:
    example = runpy.run_path(str(project_root / "examples/lightning_net.py"))
    sample = str(project_root / "samples/val.binpack")
    example["main"](sample, 2)
    unbroken = checkpoint.load("net.safetensors").tensors["model"]

    torch.manual_seed(1)
    plain = nets.build({"kind": "my_net.py:TwoLayers", "hidden": 32})
    optimizer = optim.Optimizer(plain, optim.AdamW(lr=1e-3))
    loader = Loader([sample], plain.feature_set, 1024, shuffle_buffer=100_000, seed=1, repeat=True)
    for batch in itertools.islice(loader, 60):
        score = plain(batch) * plain.score_scale
        loss = losses.mean(*losses.SigmoidLoss().terms(score, batch.score, batch.result, 0.8))
        loss.backward()
        optimizer.step(loss)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, unbroken[name]), name

    inside_of_an_epoch = next(folder.glob("lightning_logs/version_0/checkpoints/*step=40.ckpt"))
    example["main"](sample, 2, str(inside_of_an_epoch))
    saved = checkpoint.load("net.safetensors")
    for name, tensor in unbroken.items():
        assert torch.equal(tensor, saved.tensors["model"][name]), name

    net = export.net_from_checkpoint(saved, "net")
    batch = next(iter(Loader([sample], plain.feature_set, 64, shuffle=False)))
    with torch.no_grad():
        floats = (plain(batch) * plain.score_scale).numpy()
    integers = export.evaluate(net, batch).score
    assert np.abs(floats - integers).max() < 25  # the layers have few steps in 1.0


@pytest.mark.slow
@pytest.mark.optuna
def test_a_killed_sweep_goes_on_inside_of_its_trial(
    project_root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = written(folder / "recipe.yaml", project_root / "samples")
    script = str(project_root / "examples/optuna_sweep.py")

    def sweep(trials: int) -> None:
        monkeypatch.setattr(sys, "argv", [script, str(recipe), "sweep", str(trials)])
        runpy.run_path(script, run_name="__main__")

    advance = Trainer.advance

    def killed(self: Trainer) -> None:
        if self.step == 8 and self.folder.path.name == "trial-001":
            os.kill(os.getpid(), signal.SIGINT)
        advance(self)

    monkeypatch.setattr(Trainer, "advance", killed)
    with pytest.raises(KeyboardInterrupt):
        sweep(3)
    monkeypatch.setattr(Trainer, "advance", advance)
    sweep(3)
    printed = capsys.readouterr()
    resumed = re.search(r"resumed at step (\d+) from sweep/trial-001", printed.out + printed.err)
    assert resumed
    assert 8 <= int(resumed[1]) < 12
    found = {path.parent.name: config.load(path) for path in folder.glob("sweep/*/recipe.yaml")}
    assert len(found) == 3
    figures = {name: last_figure(folder / "sweep" / name) for name in found}
    best = min(figures, key=lambda name: figures[name])
    assert f"score_cross_entropy {figures[best]:.6f}, sweep/{best}" in printed.out
    assert len({each.optimizer.lr for each in found.values()}) == 3


def last_figure(run: Path) -> float:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float([record["score_cross_entropy"] for record in records if record["event"] == "validation"][-1])


@pytest.mark.slow
def test_the_pictures_of_a_graph(project_root: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its densest subgraph is the hidden part or weighs more, and turns even out the visits of threads."""
    example = runpy.run_path(str(project_root / "examples/graph_pictures.py"))
    example["main"](["--out", "pictures", "--nodes", "1024", "--part", "24", "--device", "cpu"])
    assert sorted(path.name for path in Path("pictures").iterdir()) == [
        "graph-adjacency.png",
        "graph-layout.png",
        "graph-visits.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in Path("pictures").iterdir())
    g = example["hidden_part"](1024, 24, 1)
    before, after = example["work_of_threads"](g, 2)
    assert before.sum() == after.sum()
    assert after.max(1).mean() < before.max(1).mean() / 2
    weight = float(re.findall(r"(\d+) edges among", capsys.readouterr().out)[0])
    assert weight >= 0.5 * 24 * 23 / 2
