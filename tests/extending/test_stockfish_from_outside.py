"""A version of a Stockfish net in a user's file, with a feature set in that file: it is trained, exported, evaluated,
imported and started from other nets, and files of other nets can still be read."""

import dataclasses
import re
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
from command import nnue

from nnue_trainer import data, nets, registry
from nnue_trainer.errors import UserError
from nnue_trainer.export import evaluate, net_from_checkpoint, read_net, write_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint
from nnue_trainer.nets.stockfish import SfnnV16
from nnue_trainer.nnue_file.layout import Word

KIND = "my_stockfish.py:MyStockfish"
PLUGIN = ["--plugin", "my_stockfish.py"]
RECIPE = """
data: {train: [train.binpack], validation: [val.binpack], batch_size: 256, validation_positions: 256}
loss: {kind: win_rate}
training: {epochs: 1, positions_per_epoch: 1024, device: cpu}
logging: {tensorboard: false}
"""
OTHERS = """
from nnue_trainer.nets.stockfish import Small128
from nnue_trainer.nets.stockfish_net import Width
from nnue_trainer.schema import section

@section
class Twin(Small128):
    l1: Width = 128

@section
class Broken(Small128):
    l1: Width = 128

    @classmethod
    def known(cls):
        return [cls().missing]
"""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("train.binpack", "val.binpack"):
        (tmp_path / name).symlink_to(project_root / "samples" / name)
    shutil.copy(project_root / "examples" / "extending" / "my_stockfish.py", tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(path: Path) -> None:
    """The evaluator and the reference in NumPy agree about a file."""
    net = read_net(path)
    scores = evaluate(net, data.records_from_fens(list(CHECK_POSITIONS))).score
    batch = data.expand(data.records_from_fens(list(CHECK_POSITIONS)), net.net.integer_feature_set)
    raw, used = net.net.evaluate(net.tensors, batch), (np.arange(len(batch)), net.net.bucket(batch))
    assert np.array_equal(net.net.score(raw.psqt[used], raw.positional[used]), scores)
    assert len(set(scores.tolist())) > 20


@pytest.mark.slow
def test_a_version_of_a_stockfish_net_goes_all_the_way(folder: Path) -> None:
    model = [f"model={{kind: {KIND}, l1: 32}}"]
    nnue("train", "recipe.yaml", "--run-dir", "run", *model)
    with pytest.raises(UserError, match=r"l1 is 32, which no Stockfish reads; expected 1024; --any-l1"):
        nnue("export", "run", "net.nnue", *PLUGIN)
    nnue("export", "run", "net.nnue", "--any-l1", *PLUGIN)
    check(Path("net.nnue"))
    weights = read_net("net.nnue").tensors
    assert weights["feature_transformer.weight.my_stockfish.py:QueensOnFiles"].shape == (16, 32)
    assert weights["fc0.weight"].shape == (8, 64, 32)

    nnue("import", "net.nnue", "again.safetensors", *PLUGIN)
    nnue("export", "again.safetensors", "again.nnue", "--any-l1", *PLUGIN)
    assert Path("again.nnue").read_bytes() == Path("net.nnue").read_bytes()

    # Its weights start its own training and an ordinary one, and an ordinary net starts it.
    nnue("train", "recipe.yaml", "--run-dir", "other", "model={kind: sfnnv16, l1: 32}", "training.epochs=1")
    nnue("export", "other", "other.nnue", "--any-l1")
    for run, of, start in (
        ("own", f"{{kind: {KIND}, l1: 32}}", "net.nnue"),
        ("plain", "{kind: sfnnv16, l1: 32}", "net.nnue"),
        ("mine", f"{{kind: {KIND}, l1: 32}}", "other.nnue"),
    ):
        output = nnue("train", "recipe.yaml", "--run-dir", run, f"model={of}", f"training.initial_weights={start}")
        assert "finished step 4 of 4" in output
    registry.forget_plugins()
    with pytest.raises(UserError, match=re.escape(f"{KIND!r} is not part of torch-nnue")):
        nnue("eval", "net.nnue", "--fen", "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1")


def test_the_hash_of_a_set_is_stated_or_follows_from_its_name(folder: Path) -> None:
    registry.load_plugin("my_stockfish.py")
    net = nets.parse({"kind": KIND}, "test")
    assert isinstance(net, SfnnV16)
    default = dataclasses.replace(type(net).design, hashes={})
    name = "my_stockfish.py:QueensOnFiles"
    assert net.facts.feature_hash(name) == 0x51EE4701
    assert default.feature_hash(name) == zlib.crc32(name.encode())
    words = [item.value for layout in net.layouts() for item in layout.items if isinstance(item, Word)]
    plain = [item.value for layout in SfnnV16().layouts() for item in layout.items if isinstance(item, Word)]
    assert words[0] != plain[0], "no program takes the one file for the other"
    for change, message in (
        ({"sets": ("HalfKP", "Nope")}, "'Nope'"),
        ({"sets": ("HalfKP+PP_3Wide",)}, r"the sum 'HalfKP\+PP_3Wide', expected each of its sets"),
        ({"sets": ("HalfKP", "elsewhere.py:Set")}, r"elsewhere\.py"),
        ({"narrow": ("HalfKP",)}, "design.narrow: found 'HalfKP', expected one of Full_Threats_v16"),
        ({"hashes": {"HalfKP": 1}}, "design.hashes: found 'HalfKP'"),
    ):
        with pytest.raises(UserError, match=message):
            dataclasses.replace(SfnnV16.design, **change).with_full_names()
    with pytest.raises(ValueError, match="hash -1 for HalfKP"):
        dataclasses.replace(SfnnV16.design, hashes={"HalfKP": -1})


def test_sets_with_parameters_declared_sets_and_sets_in_folders(folder: Path, project_root: Path) -> None:
    """A design may name a set as a recipe does: without its parameters, or with its folder."""
    (folder / "sets").mkdir()
    shutil.copy(project_root / "examples" / "extending" / "my_features.py", folder / "sets")
    text = (
        Path("my_stockfish.py")
        .read_text()
        .replace(
            '"my_stockfish.py:QueensOnFiles", "Half',
            '"sets/my_features.py:KingDistance", "PieceSquare(planes=10)", "Half',
        )
    )
    text = re.sub(r"(?m)^ *(hashes=|# The engine).*\n", "", text)
    Path("my_stockfish.py").write_text(text)
    nnue("train", "recipe.yaml", "--run-dir", "run", f"model={{kind: {KIND}, l1: 32}}")
    plugins = [*PLUGIN, "--plugin", "sets/my_features.py"]
    registry.forget_plugins()
    missing = r"feature set 'sets/my_features\.py:KingDistance': .*--plugin sets/my_features\.py"
    with pytest.raises(UserError, match=missing):
        nnue("export", "run", "net.nnue", "--any-l1", *PLUGIN)
    nnue("export", "run", "net.nnue", "--any-l1", *plugins)
    check(Path("net.nnue"))


def test_a_class_from_outside_is_no_obstacle_for_files_of_other_nets(folder: Path) -> None:
    """Of a file without a record that fits a user's class as well as a built-in one, and beside a class that fails."""
    net = nets.parse({"kind": "small128"}, "test")
    saved = checkpoint.Checkpoint(net.architecture, {"model": net.model().state_dict()})
    write_net(dataclasses.replace(net_from_checkpoint(saved, "test"), description=b"not ours"), "plain.nnue")
    Path("others.py").write_text(OTHERS)
    for kind in ("others.py:Twin", "others.py:Broken", KIND):
        registry.load_plugin(kind.partition(":")[0])
        nets.parse({"kind": kind}, "test")
    notes: list[str] = []
    assert read_net("plain.nnue", note=notes.append).net.kind == "small128"
    skipped, alike = notes
    assert skipped.startswith("others.py:Broken is skipped: files cannot be compared with its layouts: ")
    assert "others.py:16: Broken.known: AttributeError" in skipped
    assert alike == (
        "plain.nnue: others.py:Twin and small128 have the same file layout; read as small128 (choose with --arch)"
    )
    assert read_net("plain.nnue", "others.py:Twin").net.kind == "others.py:Twin"
