"""A net in the user's own file works like a built-in one: training, resuming, export, import and evaluation."""

import json
import shutil
from pathlib import Path

import pytest
from net_support import START

from nnue_trainer import nets, registry
from nnue_trainer.files.checkpoint import load

RECIPE = """
model: {kind: "my_net.py:MyNet", hidden: 16}
data: {train: [SAMPLE], validation: [SAMPLE], validation_positions: 512, batch_size: 256, shuffle_buffer: 1024}
loss: {kind: sigmoid}
optimizer: {lr: 1e-3}
training: {epochs: 2, positions_per_epoch: 2560, device: cpu}
logging: {every_steps: 5, tensorboard: false}
"""


@pytest.fixture
def folder(tmp_path: Path, project_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the user's file and a recipe; nothing is imported yet."""
    shutil.copy(Path(__file__).parent / "my_net.py", tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("SAMPLE", str(project_root / "samples" / "val.binpack")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_net_from_outside_goes_all_the_way(folder: Path, nnue) -> None:
    status, _, error = nnue("train", "--config", "recipe.yaml", "--run-dir", "run", "training.epochs=1")
    assert status == 0, error
    last = folder / "run" / "checkpoints" / "last.safetensors"
    assert load(last).architecture == {"kind": "my_net.py:MyNet", "hidden": 16}

    status, _, error = nnue("train", "--resume", "run", "training.epochs=2")
    assert status == 1
    assert "model.kind: net 'my_net.py:MyNet' is not part of torch-nnue" in error
    assert "--plugin my_net.py" in error
    assert error.count("\n") == 1
    status, _, error = nnue("train", "--resume", "run", "--plugin", "my_net.py", "training.epochs=2")
    assert status == 0, error
    assert load(last).state["step"] == 20

    status, _, error = nnue("export", last, "net.nnue")
    assert status == 1
    assert "architecture.kind: net 'my_net.py:MyNet' is not part" in error
    status, out, error = nnue("export", last, "net.nnue", "--plugin", "my_net.py")
    assert status == 0, error
    assert out.startswith("net.nnue: my_net.py:MyNet, ")

    assert nnue("eval", "net.nnue", "--fen", START)[0] == 1
    status, out, error = nnue("eval", "net.nnue", "--plugin", "my_net.py", "--fen", START, "--json")
    assert status == 0, error
    line = json.loads(out)
    assert len(line["positional_raw"]) == 8
    assert line["score"] == int(line["positional_raw"][7] * 400 / (255 * 64))

    assert nnue("import", "net.nnue", "again.safetensors", "--plugin", "my_net.py")[0] == 0
    status, _, error = nnue("export", "again.safetensors", "again.nnue", "--plugin", "my_net.py")
    assert status == 0, error
    assert Path("again.nnue").read_bytes() == Path("net.nnue").read_bytes()


def test_the_reference_and_errors_know_it(folder: Path, nnue) -> None:
    status, out, error = nnue("config", "recipe.yaml", "--plugin", "my_net.py")
    assert status == 0, error
    assert "my_net.py:MyNet" in out
    (folder / "recipe.yaml").write_text(RECIPE.replace("hidden: 16", "hiden: 16"))
    status, _, error = nnue("config", "recipe.yaml", "--plugin", "my_net.py")
    assert status == 1
    assert "model.hiden: unknown key (did you mean 'hidden'?)" in error


def test_its_weights_have_bounds_and_virtual_rows(folder: Path) -> None:
    registry.load_plugin(folder / "my_net.py")
    model = nets.build({"kind": "my_net.py:MyNet", "hidden": 8})
    assert model.factorised() == {"feature_transformer.weight": [nets.VirtualRows(0, 24576, 768)]}
    bounds = {bound.name: bound.high for bound in model.weight_bounds()}
    assert bounds == {
        "feature_transformer.weight": 32767 / 255,
        "feature_transformer.bias": 32767 / 255,
        "output.weight": 127 / 64,
    }
