"""The walks of docs/extending.md: each file of examples/extending is trained from a folder that holds nothing else, is
interrupted, resumed to the bit and exported."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import nnue

from nnue_trainer import registry
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.training.trainer import Trainer

PARTS = {
    "my_loss.py": "loss={kind: my_loss.py:CrossEntropy, scale: 380}",
    "my_lambda.py": "lambda={kind: my_lambda.py:HoldThenFall, end: 0.7}",
    "my_optimizer.py": "optimizer={kind: my_optimizer.py:Lion, lr: 1e-3, weight_decay: 0.1}",
    "my_schedule.py": "schedule={kind: my_schedule.py:InverseSquareRoot, half_life: 20, warmup_steps: 3}",
    "my_filter.py": "data.filters.extra=[{kind: my_filter.py:Agreeing, margin: 100}]",
}
BUILT_IN = """
model: {kind: simple, hidden: 32}
data: {train: [train.binpack], validation: [val.binpack], batch_size: 512, shuffle_buffer: 4096,
       validation_positions: 500}
loss: {kind: sigmoid}
training: {epochs: 2, positions_per_epoch: 2560, device: cpu}
logging: {every_steps: 5, tensorboard: false}
"""


# `nnue` in a process that SIGKILL ends as soon as the first checkpoint is written, before it gets its other names.
KILLED = """
import os, signal
from nnue_trainer.cli.main import main
from nnue_trainer.files import checkpoint
save = checkpoint.save
def killed(*arguments):
    save(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save = killed
main()
"""

pytestmark = pytest.mark.usefixtures("one_thread")  # as in the processes that a test starts: sums depend on it


@pytest.fixture
def folder(project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and a recipe of built-in parts, to be worked in."""
    for name in ("train.binpack", "val.binpack"):
        (tmp_path / name).symlink_to(project_root / "samples" / name)
    (tmp_path / "recipe.yaml").write_text(BUILT_IN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_same(one: Path, two: Path) -> None:
    first, second = (checkpoint.load(run / "checkpoints" / "last.safetensors") for run in (one, two))
    assert first.state == second.state
    assert first.tensors.keys() == second.tensors.keys()
    for group, tensors in first.tensors.items():
        assert tensors.keys() == second.tensors[group].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, second.tensors[group][name]), f"{group}/{name}"


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    advance = Trainer.advance

    def interrupted(self: Trainer) -> None:
        if self.step == step:
            os.kill(os.getpid(), signal.SIGINT)
        advance(self)

    monkeypatch.setattr(Trainer, "advance", interrupted)


@pytest.mark.slow
@pytest.mark.parametrize("file", PARTS)
def test_one_part_from_outside(file, folder, project_root, monkeypatch):
    shutil.copy(project_root / "examples" / "extending" / file, folder)
    nnue("train", "--config", "recipe.yaml", "--run-dir", "built-in")
    nnue("train", "--config", "recipe.yaml", "--run-dir", "whole", PARTS[file])

    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        output = nnue("train", "--config", "recipe.yaml", "--run-dir", "parts", PARTS[file])
    stopped = re.search(r"stopped after step ([34]) of 10", output)
    assert stopped, output
    assert f"nnue train --resume parts --plugin {file}" in output

    registry.forget_plugins()
    with pytest.raises(UserError, match=rf"files do not make it import code: name the file with --plugin {file}$"):
        nnue("train", "--resume", "parts")
    assert f"resumed at step {stopped[1]}" in nnue("train", "--resume", "parts", "--plugin", file)
    assert_same(Path("whole"), Path("parts"))
    weights = [
        checkpoint.load(f"{run}/checkpoints/last.safetensors").tensors["model"]["output.weight"]
        for run in ("whole", "built-in")
    ]
    assert not torch.equal(*weights), "the part from outside was used"

    registry.forget_plugins()
    assert "simple, " in nnue("export", "whole/checkpoints/last.safetensors", "whole.nnue")
    nnue("export", "parts/checkpoints/last.safetensors", "parts.nnue")
    assert Path("whole.nnue").read_bytes() == Path("parts.nnue").read_bytes()
    assert "evaluation" in nnue("eval", "whole.nnue", "--fen", "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1")


def test_an_optimiser_from_outside_on_a_net_with_virtual_rows(folder, project_root, monkeypatch):
    shutil.copy(project_root / "examples" / "extending" / "my_optimizer.py", folder)
    small = ["model={kind: sfnnv5, l1: 32}", "data.batch_size=128", "training.positions_per_epoch=640"]
    arguments = ["train", "--config", "recipe.yaml", PARTS["my_optimizer.py"], *small]
    nnue(*arguments, "--run-dir", "whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)
        nnue(*arguments, "--run-dir", "parts")
    nnue("train", "--resume", "parts", "--plugin", "my_optimizer.py")
    assert_same(Path("whole"), Path("parts"))
    state = checkpoint.load("whole/checkpoints/last.safetensors").tensors["optimizer"]
    assert state["momentum/feature_transformer.weight.virtual"].shape == (768, 32)


@pytest.mark.slow
def test_all_parts_at_once_and_a_process_that_is_killed(folder, project_root):
    """The recipe beside the examples, with real processes and SIGKILL."""
    files = ["my_net.py", "my_callback.py", *PARTS]
    for file in [*files, "recipe.yaml"]:
        shutil.copy(project_root / "examples" / "extending" / file, folder)
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(project_root)}
    command = [sys.executable, "-m", "nnue_trainer", "train"]
    epochs = ["training.positions_per_epoch=10_240", "training.epochs=4"]
    begin = ["train", "--config", "recipe.yaml", "--run-dir", "parts", *epochs]
    assert subprocess.run([sys.executable, "-c", KILLED, *begin], env=env).returncode == -signal.SIGKILL
    nnue("train", "--config", "recipe.yaml", "--run-dir", "whole", *epochs)
    refused = subprocess.run([*command, "--resume", "parts"], env=env, capture_output=True, text=True)
    (line,) = refused.stderr.splitlines()
    assert sorted(re.findall(r"--plugin (\S+)", line)) == sorted(files), "one line names every file that is missing"
    plugins = [argument for file in files for argument in ("--plugin", file)]
    second = subprocess.run([*command, "--resume", "parts", *plugins], env=env, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert "resumed at step" in second.stderr
    assert_same(Path("whole"), Path("parts"))


def test_a_net_from_outside(folder, project_root, monkeypatch):
    """Trained, interrupted, resumed to the bit, exported, evaluated, imported; and aware of its quantisation."""
    shutil.copy(project_root / "examples" / "extending" / "my_net.py", folder)
    plugin = ["--plugin", "my_net.py"]
    model = ["model={kind: my_net.py:TwoLayers, hidden: 32}", "training.epochs=3"]
    output = nnue("train", "--config", "recipe.yaml", "--run-dir", "whole", *model)
    assert "export with      nnue export whole/checkpoints/best.safetensors whole/net.nnue --plugin my_net.py" in output
    losses = [float(value) for value in re.findall(r"epoch \d: validation loss ([\d.]+)", output)]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)
        nnue("train", "--config", "recipe.yaml", "--run-dir", "parts", *model)
    registry.forget_plugins()
    missing = r"files do not make it import code: name the file with --plugin my_net\.py$"
    for arguments in (["train", "--resume", "parts"], ["export", "whole", "whole.nnue"]):
        with pytest.raises(UserError, match=missing):
            nnue(*arguments)
    nnue("train", "--resume", "parts", *plugin)
    assert_same(Path("whole"), Path("parts"))
    state = checkpoint.load("whole/checkpoints/last.safetensors").tensors["optimizer"]
    assert any(name.endswith("first.weight.virtual") for name in state), "its king buckets have a factoriser"

    nnue("export", "whole", "whole.nnue", *plugin)
    registry.forget_plugins()
    with pytest.raises(UserError, match=missing):
        nnue("eval", "whole.nnue", "--fen", "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1")
    assert '"score"' in nnue("eval", "whole.nnue", "--fen", "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", "--json", *plugin)
    nnue("import", "whole.nnue", "again.safetensors", *plugin)
    nnue("export", "again.safetensors", "again.nnue", *plugin)
    assert Path("again.nnue").read_bytes() == Path("whole.nnue").read_bytes()
    nnue("train", "--config", "recipe.yaml", "--run-dir", "aware", *model, "model.quantisation.qat=true")
    assert re.search(r"trained as fake-quantised: 0\.000 rms", nnue("check", "aware", "--data", "val.binpack", *plugin))


# Each set alone, beside a built-in one, and a declared one in the recipe: the files it needs, and `model.inputs`.
FEATURES = {
    "declared": ([], f"[{{kings: {16 * [0] + 16 * [1]}, mirror: a-d, planes: 10, order: interleaved}}, PP_3Wide]"),
    "declared-64": ([], f"[{{kings: {32 * [0, 1]}, planes: 12}}]"),
    "python": (["my_features.py"], "[HalfKP, {kind: my_features.py:KingDistance, both_kings: true}]"),
    "python-name": (["my_features.py"], "HalfKP + my_features.py:KingDistance"),
    "header": (["my_features.h"], "my_features.h:Neighbours"),
    "header-section": (["my_features.h"], "[{kind: my_features.h:Neighbours}, HalfKAv2_hm]"),
}  # fmt: skip


@pytest.fixture
def compiled_once(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("walk", FEATURES)
def test_a_feature_set_from_outside(walk, folder, project_root, monkeypatch):
    """Trained, interrupted, resumed to the bit, exported and evaluated."""
    files, inputs = FEATURES[walk]
    for file in files:
        shutil.copy(project_root / "examples" / "extending" / file, folder)
    plugins = [argument for file in files for argument in ("--plugin", file)]
    model = [f"model={{kind: layered, hidden: 32, inputs: {inputs}}}"]
    model += ["model.factorised=false"] if walk == "declared-64" else []
    nnue("train", "--config", "recipe.yaml", "--run-dir", "whole", *model)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)
        assert "stopped after step" in nnue("train", "--config", "recipe.yaml", "--run-dir", "parts", *model)

    registry.forget_plugins()
    fen = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"
    if files:
        missing = rf"files do not make it import code: name the file with --plugin {files[0]}$"
        with pytest.raises(UserError, match=missing):
            nnue("train", "--resume", "parts")
        with pytest.raises(UserError, match=missing):
            nnue("export", "whole/checkpoints/last.safetensors", "whole.nnue")
    assert "resumed at step" in nnue("train", "--resume", "parts", *plugins)
    assert_same(Path("whole"), Path("parts"))
    saved = checkpoint.load("whole/checkpoints/last.safetensors")
    assert sorted(saved.state["plugins"]) == files

    for run in ("whole", "parts"):
        for kind in ("nnue", "raw"):
            nnue("export", f"{run}/checkpoints/last.safetensors", f"{run}.{kind}", "--format", kind, *plugins)
    assert Path("whole.nnue").read_bytes() == Path("parts.nnue").read_bytes()
    assert Path("whole.raw").read_bytes() == Path("parts.raw").read_bytes()
    registry.forget_plugins()
    if files:
        with pytest.raises(UserError, match=missing):
            nnue("eval", "whole.nnue", "--fen", fen)
    said = [nnue("eval", net, "--fen", fen, "--json", *plugins) for net in ("whole.nnue", "parts.nnue")]
    assert said[0] == said[1]
    assert '"score"' in said[0]
    nnue("import", "whole.nnue", "again.safetensors", *plugins)
    nnue("export", "again.safetensors", "again.nnue", *plugins)
    assert Path("again.nnue").read_bytes() == Path("whole.nnue").read_bytes()


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.usefixtures("compiled_once")
def test_all_ways_in_one_net_and_a_process_that_is_killed(folder, project_root):
    """features.yaml beside the examples, with real processes and SIGKILL."""
    files = ["my_features.py", "my_features.h"]
    for file in [*files, "features.yaml"]:
        shutil.copy(project_root / "examples" / "extending" / file, folder)
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(project_root)}
    command = [sys.executable, "-m", "nnue_trainer", "train"]
    begin = ["train", "--config", "features.yaml", "--run-dir", "parts"]
    assert subprocess.run([sys.executable, "-c", KILLED, *begin], env=env).returncode == -signal.SIGKILL
    nnue("train", "--config", "features.yaml", "--run-dir", "whole")
    plugins = [argument for file in files for argument in ("--plugin", file)]
    second = subprocess.run([*command, "--resume", "parts", *plugins], env=env, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert_same(Path("whole"), Path("parts"))
    names = checkpoint.load("whole/checkpoints/last.safetensors").tensors["model"]["feature_transformer.weight"]
    assert len(names) == 4 * 704 + 192 + 576


def test_the_reference_shows_feature_sets_from_outside(folder, project_root):
    shutil.copy(project_root / "examples" / "extending" / "my_features.py", folder)
    reference = nnue("config", "--reference", "--plugin", "my_features.py")
    assert "model.inputs.N.kind = my_features.py:KingDistance\n    Each piece with its distance" in reference
    assert "model.inputs.N.both_kings: bool [false]\n    the distance from the enemy king" in reference


def test_mistakes_in_inputs_are_one_line(folder, project_root):
    shutil.copy(project_root / "examples" / "extending" / "my_features.py", folder)
    for inputs, message in (
        (
            "[{kind: my_features.py:KingDistance, both_king: 1}]",
            r"model\.inputs\.0\.both_king: unknown key \(did you mean 'both_kings'",
        ),
        ("[HalfKP, my_features.py:Nope]", r"model\.inputs\.1: .*my_features\.py: has no class 'Nope'"),
        ("[{kind: nowhere.py:Set}]", r"model\.inputs\.0\.kind: plugin nowhere\.py: cannot be read: No such file"),
        ("nowhere.h:Set", r"model\.inputs: .*plugin nowhere\.h: cannot be read: No such file"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            nnue("train", "recipe.yaml", f"model={{kind: layered, inputs: {inputs}}}")
        assert "\n" not in str(caught.value)


def test_a_file_that_has_changed_is_told_of(folder, project_root, capsys):
    shutil.copy(project_root / "examples" / "extending" / "my_loss.py", folder)
    nnue("train", "--config", "recipe.yaml", "--run-dir", "run", PARTS["my_loss.py"], "training.epochs=1")
    saved = checkpoint.load("run/checkpoints/last.safetensors")
    assert list(saved.state["plugins"]) == ["my_loss.py"]
    with Path("my_loss.py").open("a") as file:
        file.write("\n# another thought\n")
    registry.forget_plugins()
    output = nnue("train", "--resume", "run", "--plugin", "my_loss.py", "training.epochs=2")
    assert "plugins changed, so validations cannot be compared" in output
    (line,) = [line for line in output.splitlines() if "changed since" in line]
    assert line.startswith("run/checkpoints/last.safetensors: my_loss.py has changed since: it was ")


def test_the_reference_and_the_recipe_show_classes_from_outside(folder, project_root):
    shutil.copy(project_root / "examples" / "extending" / "my_optimizer.py", folder)
    reference = nnue("config", "--reference", "--plugin", "my_optimizer.py")
    assert "optimizer.kind = my_optimizer.py:Lion\n    Lion with decoupled weight decay." in reference
    assert "optimizer.kind = adamw" in reference
    assert "data.filters.extra.N.kind = pieces" in reference
    config = ("config", "recipe.yaml", PARTS["my_optimizer.py"], "--plugin", "my_optimizer.py")
    assert "kind: my_optimizer.py:Lion\n  lr: 0.001" in nnue(*config)


@pytest.mark.parametrize(
    ("file", "override", "message"),
    [
        ("my_loss.py", "loss.scal=1", r"loss\.scal: unknown key \(did you mean 'scale'\?\)"),
        ("my_loss.py", "loss.scale=0", r"loss\.scale: found 0, expected greater than 0"),
        (
            "my_filter.py",
            "data.filters.extra=[{kind: my_filter.py:Agreeing, mar: 1}]",
            r"extra\.0\.mar: unknown key \(d",
        ),
        (
            "my_filter.py",
            "data.filters.extra=[{kind: my_filter.py:Nope}]",
            r"extra\.0\.kind: my_filter\.py: has no class",
        ),
        (
            "my_filter.py",
            "data.filters.extra=[{margin: 1}]",
            r"extra\.0\.kind: missing, expected one of pieces",
        ),
    ],
)
def test_mistakes_in_sections_from_outside_are_one_line(folder, project_root, file, override, message):
    shutil.copy(project_root / "examples" / "extending" / file, folder)
    with pytest.raises(UserError, match=message) as caught:
        nnue("train", "recipe.yaml", PARTS[file], override)
    assert "\n" not in str(caught.value)


def test_the_guides_link_to_the_files(project_root):
    for page, file in (
        ("own-features.md", "my_features.h"),
        ("own-features.md", "my_features.py"),
        ("own-nets.md", "my_net.py"),
        ("own-nets.md", "my_format.py"),
        ("own-nets.md", "my_stockfish.py"),
    ):
        assert f"(../examples/extending/{file})" in (project_root / "docs" / page).read_text(encoding="utf-8")
    guide = (project_root / "docs" / "extending.md").read_text(encoding="utf-8")
    for file in [*PARTS, "my_net.py", "my_stockfish.py", "my_features.py", "my_features.h"]:
        assert f"(../examples/extending/{file})" in guide
