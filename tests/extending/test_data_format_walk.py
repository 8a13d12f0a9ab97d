"""The walk "A data format" of docs/own-data.md: converted to and from, printed, trained on, interrupted, resumed."""

import gzip
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Unpack

import numpy as np
import pytest
from typer.testing import CliRunner

from nnue_trainer import registry
from nnue_trainer.cli.main import app
from nnue_trainer.data import Filters, LoaderOptions, PositionReader, RecordLoader
from nnue_trainer.data.formats import DATA_FORMATS
from nnue_trainer.data.formats.base import format_named
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.training.trainer import Trainer

FILE = "my_data_format.py"
KIND = f"{FILE}:Squares"
RECIPE = """
model: {kind: simple, hidden: 16}
data: {train: [train.squares], validation: [val.binpack], batch_size: 512, shuffle_buffer: 4096,
       validation_positions: 500, formats: [{kind: my_data_format.py:Squares}]}
loss: {kind: sigmoid}
training: {epochs: 2, positions_per_epoch: 2560, device: cpu}
logging: {every_steps: 5, tensorboard: false}
"""


def nnue(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def everything(path: str | Path, **options: Unpack[LoaderOptions]) -> np.ndarray:
    usual: LoaderOptions = {"shuffle": False, "drop_last": False, "filters": Filters.none()}
    return np.concatenate([batch.numpy().copy() for batch in RecordLoader(path, 4096, **(usual | options))])


@pytest.fixture
def folder(project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the format's file, a recipe, and the training sample in the format and as a binpack."""
    for name in ("train.binpack", "val.binpack"):
        (tmp_path / name).symlink_to(project_root / "samples" / name)
    shutil.copy(project_root / "examples" / "extending" / FILE, tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    nnue("data", "convert", "train.binpack", "train.squares", "--plugin", FILE)
    registry.forget_plugins()
    return tmp_path


def test_convert_there_and_back_changes_nothing(folder):
    assert (folder / "train.squares").read_bytes()[:4] == b"SQRS"
    registry.forget_plugins()
    nnue("data", "convert", "train.squares", "back.binpack", "--from", KIND)
    nnue("data", "convert", "train.binpack", "ours.binpack")
    assert (folder / "back.binpack").read_bytes() == (folder / "ours.binpack").read_bytes()
    nnue("data", "convert", "train.binpack", "named.bin", "--to", KIND)
    assert (folder / "named.bin").read_bytes() == (folder / "train.squares").read_bytes()


@pytest.mark.slow
def test_a_class_among_the_built_in_ones_is_a_built_in_format(folder, project_root, monkeypatch):
    """One file in nnue_trainer/data/formats is all that a built-in format in Python needs."""
    squares = DATA_FORMATS.find(KIND)
    monkeypatch.setattr(squares, "__module__", "nnue_trainer.data.formats.squares")
    monkeypatch.setattr(DATA_FORMATS, "_classes", DATA_FORMATS._classes | {"squares": squares})
    monkeypatch.setattr(DATA_FORMATS, "_outside", {})
    monkeypatch.setattr(squares, "kind", "squares")
    registry.forget_plugins()
    nnue("data", "convert", "train.binpack", "by_name.squares")
    nnue("data", "convert", "train.binpack", "by_option.data", "--to", "squares")
    assert (folder / "by_name.squares").read_bytes() == (folder / "by_option.data").read_bytes()
    assert json.loads(nnue("data", "info", "by_option.data", "--json"))["format"] == "squares"


@pytest.mark.slow
def test_it_is_read_by_every_tool_plain_and_compressed(folder):
    (folder / "renamed.data.gz").write_bytes(gzip.compress((folder / "train.squares").read_bytes()))
    ours = json.loads(nnue("data", "info", "train.binpack", "--json"))
    for name in ("train.squares", "renamed.data.gz"):
        info = json.loads(nnue("data", "info", name, "--json", "--plugin", FILE))
        assert info["format"] == KIND
        assert info["statistics"] == ours["statistics"]
    first = nnue("data", "head", "train.squares", "-n", 3, "--plugin", FILE)
    assert first == nnue("data", "head", "train.binpack", "-n", 3)
    nnue("data", "filter", "train.squares", "quiet.squares", "--quiet", "--plugin", FILE)
    nnue("data", "filter", "train.binpack", "quiet.binpack", "--quiet")
    np.testing.assert_array_equal(
        everything("quiet.squares", formats=[format_named(KIND)]), everything("quiet.binpack")
    )


@pytest.mark.slow
def test_a_loader_gives_the_same_positions_and_goes_on_where_it_was(folder):
    squares = format_named(KIND)
    np.testing.assert_array_equal(everything("train.squares", formats=[squares]), everything("train.binpack"))
    whole = list(RecordLoader("train.squares", 512, formats=[squares], shuffle_buffer=2048, seed=3))
    loader = RecordLoader("train.squares", 512, formats=[squares], shuffle_buffer=2048, seed=3)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    assert state["order"]["formats"] == [{"kind": KIND, "score_scale": 1.0}]
    assert state["order"]["files"][0][1] == (folder / "train.squares").stat().st_size
    second = RecordLoader("train.squares", 512, formats=[squares], shuffle_buffer=2048, seed=3, threads=3)
    second.load_state_dict(state)
    for one, two in zip(whole[5:], second, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    halved = DATA_FORMATS.parse({"kind": KIND, "score_scale": 0.5}, trusted=False)
    with pytest.raises(UserError, match=r"loader state: formats was .*1\.0.*now it is .*0\.5"):
        RecordLoader("train.squares", 512, formats=[halved], shuffle_buffer=2048, seed=3).load_state_dict(state)
    built_in = RecordLoader("train.binpack", 512, shuffle_buffer=2048, seed=3)
    with pytest.raises(UserError, match="loader state: f"):
        built_in.load_state_dict(state)


@pytest.mark.slow
def test_a_recipe_trains_on_it_and_resumes_to_the_bit(folder, monkeypatch):
    nnue("train", "--config", "recipe.yaml", "--run-dir", "whole")
    advance = Trainer.advance

    def interrupted(self: Trainer) -> None:
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", interrupted)
        nnue("train", "--config", "recipe.yaml", "--run-dir", "parts")
    registry.forget_plugins()
    with pytest.raises(UserError, match=rf"files do not make it import code: name the file with --plugin {FILE}$"):
        nnue("train", "--resume", "parts")
    assert "resumed at step" in nnue("train", "--resume", "parts", "--plugin", FILE)
    one, two = (checkpoint.load(f"{run}/checkpoints/last.safetensors") for run in ("whole", "parts"))
    assert one.state == two.state
    for group, tensors in one.tensors.items():
        for name, tensor in tensors.items():
            assert tensor.equal(two.tensors[group][name]), f"{group}/{name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"SQRT" + data[4:], "bad.squares: does not begin with SQRS"),
        (lambda data: data[:-5], "bad.squares: ends inside of a record of 76 bytes: it is truncated"),
        (lambda data: data[:4] + bytes(64) + data[68:], "bad.squares: position 0: not one king of each side"),
        (lambda data: data[:74] + b"\xff\x7f" + data[76:], r"bad.squares: position 0: move .* is not possible in "),
    ],
)
def test_what_is_wrong_is_one_line(folder, damage, message):
    (folder / "bad.squares").write_bytes(damage((folder / "train.squares").read_bytes()))
    for command in (["data", "info", "bad.squares"], ["data", "convert", "bad.squares", "out.binpack"]):
        with pytest.raises(UserError, match=message) as caught:
            nnue(*command, "--plugin", FILE)
        assert "\n" not in str(caught.value)
    assert not (folder / "out.binpack").exists()
    with pytest.raises(UserError, match=message):
        everything("bad.squares", formats=[format_named(KIND)])


def test_positions_that_are_wrong_can_be_left_out(folder):
    data = bytearray((folder / "train.squares").read_bytes())
    data[4 + 76 * 7 : 4 + 76 * 7 + 64] = bytes(64)
    (folder / "bad.squares").write_bytes(data)
    with PositionReader("bad.squares", format=KIND, skip_bad=True) as reader:
        records = np.concatenate(list(reader))
    assert reader.skipped == 1
    assert reader.first_skipped == "bad.squares: position 7: not one king of each side"
    np.testing.assert_array_equal(records, np.delete(everything("train.binpack"), 7, axis=0))


def test_a_format_that_cannot_write_says_so(folder):
    (folder / "reads.py").write_text(
        "from nnue_trainer.data.formats import DataFormat\n"
        "from nnue_trainer.schema import section\n\n\n"
        "@section\n"
        "class Reads(DataFormat):\n"
        '    """Reads only."""\n\n'
        "    def read(self, file):\n"
        "        return {}[3]\n"
    )
    with pytest.raises(UserError, match=r"out\.x: data format reads\.py:Reads can be read, but not written"):
        nnue("data", "convert", "train.binpack", "out.x", "--to", "reads.py:Reads")
    assert not (folder / "out.x").exists()
    with pytest.raises(UserError, match=r"train\.squares: .*reads\.py:10: Reads\.read: KeyError: 3"):
        nnue("data", "convert", "train.squares", "out.binpack", "--from", "reads.py:Reads")


def test_the_guide_has_it(project_root):
    guide = (project_root / "docs" / "own-data.md").read_text(encoding="utf-8")
    assert f"(../examples/extending/{FILE})" in guide
