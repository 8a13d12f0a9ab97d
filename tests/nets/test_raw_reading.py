"""Raw nets read back: what was written is evaluated as its .nnue file is, and exports to the same bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command import nnue
from net_support import random_checkpoint

from nnue_trainer.errors import UserError
from nnue_trainer.export import read_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint

BUCKETS: dict[str, Any] = {
    "kind": "layered",
    "inputs": [{"kings": [0] * 16 + [1] * 16, "mirror": "a-d"}, "PP_3Wide"],
    "hidden": 8,
    "psqt": True,
    "output_buckets": {"count": 2},
    "layers": [{"outputs": 4, "type": "i8"}],
}
NETS = {"simple": {"kind": "simple", "hidden": 8}, "layered": BUCKETS, "sfnnv9": {"kind": "sfnnv9", "l1": 32}}
TWO = {"kind": "layered", "hidden": 8, "output_buckets": {"count": 2}}
EXACT = """
align: 32
tensors:
  - {tensor: output.bias, type: i32, align: 16}
  - {tensor: output.weight, part: 1, type: i8}
  - {tensor: output.weight, part: 0, transpose: [1, 0], align: 64}
  - {tensor: feature_transformer.weight, transpose: [1, 0], pad_columns: 1000}
  - {tensor: feature_transformer.bias}
"""
FLOATS = EXACT.replace("feature_transformer.bias}", "feature_transformer.bias, type: f32}")
RESCALED = EXACT.replace("feature_transformer.bias}", "feature_transformer.bias, scale: 1000, type: i32}")

Made = Callable[..., None]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """net.nnue and net.bin of a random checkpoint, the latter by --format; a run; model.yaml with its architecture."""
    monkeypatch.chdir(tmp_path)

    def make(architecture: dict[str, Any], file_format: str) -> None:
        checkpoint.save("c.safetensors", random_checkpoint(architecture))
        checkpoint.save("run/checkpoints/best.safetensors", random_checkpoint(architecture))
        Path("model.yaml").write_text(yaml.safe_dump({"model": architecture}))
        Path("fens.txt").write_text("\n".join(CHECK_POSITIONS[:40]))
        nnue("export", "c.safetensors", "net.nnue", "--any-l1")
        nnue("export", "c.safetensors", "net.bin", "--any-l1", "--format", file_format)

    return make


def scores(*arguments: str) -> list[int]:
    lines = nnue("eval", *arguments, "--fens", "fens.txt", "--json").splitlines()
    return [json.loads(line)["score"] for line in lines if line.startswith("{")]


@pytest.mark.parametrize("name", NETS)
def test_a_raw_net_is_read_back(name: str, made: Made) -> None:
    made(NETS[name], "raw")
    expected = scores("net.nnue")
    assert len(set(expected)) > 20
    assert scores("c.safetensors") == scores("run") == expected  # of a checkpoint what would be exported
    for model in ("model.yaml", "c.safetensors", "run", "net.nnue"):
        assert scores("net.bin", "--format", "raw", "--model", model) == expected
    assert "note" not in nnue("import", "net.bin", "again.safetensors", "--format", "raw", "--model", "model.yaml")
    nnue("export", "again.safetensors", "again.bin", "--any-l1", "--format", "raw")
    assert Path("again.bin").read_bytes() == Path("net.bin").read_bytes()
    nnue("export", "again.safetensors", "again.nnue", "--any-l1")
    assert Path("again.nnue").read_bytes() == Path("net.nnue").read_bytes()


@pytest.mark.parametrize("layout", [EXACT, FLOATS, RESCALED], ids=["exact", "floats", "rescaled"])
def test_a_layout_of_ones_own_is_read_back(layout: str, made: Made, tmp_path: Path) -> None:
    """The file of the layout defines the net."""
    (tmp_path / "mine.yaml").write_text(layout + f"model: {json.dumps(TWO)}\n")
    made(TWO, "mine.yaml")
    found, expected = scores("net.bin", "--format", "mine.yaml"), scores("net.nnue")
    assert found == expected, "floats and finer steps round to the same integers"
    output = nnue("import", "net.bin", "again.safetensors", "--format", "mine.yaml")
    assert ("not in the net's type and scale" in output) == (layout != EXACT)
    assert "exported again" not in output
    nnue("export", "again.safetensors", "again.bin", "--format", "mine.yaml")
    assert Path("again.bin").read_bytes() == Path("net.bin").read_bytes()
    if layout == FLOATS:
        before, after = (checkpoint.load(f"{name}.safetensors").tensors["model"] for name in ("c", "again"))
        key = "feature_transformer.bias"
        assert np.array_equal(before[key].numpy(), after[key].numpy())


def test_truncated_numbers_are_cut_to_themselves_again(made: Made, tmp_path: Path) -> None:
    layout = EXACT.replace("feature_transformer.bias}", "feature_transformer.bias, scale: 49, rounding: truncate}")
    (tmp_path / "mine.yaml").write_text(layout)
    made(TWO, "mine.yaml")
    data = bytearray(Path("net.bin").read_bytes())
    steps, at = np.array([-40, -7, -1, 0, 1, 6, 29, 49], "<i2"), 64 + 2 * 8 * 1000
    data[at : at + 16] = steps.tobytes()
    Path("net.bin").write_bytes(data)
    output = nnue("import", "net.bin", "again.safetensors", "--format", "mine.yaml", "--model", "model.yaml")
    assert "exported again" not in output
    again = checkpoint.load("again.safetensors").tensors["model"]["feature_transformer.bias"].numpy()
    np.testing.assert_allclose(again, (steps + 0.5 * np.sign(steps)) / 49, rtol=1e-6)
    nnue("export", "again.safetensors", "again.bin", "--format", "mine.yaml")
    assert Path("again.bin").read_bytes() == Path("net.bin").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["net.bin", "--format", "raw"], "--format raw: does not describe the net: give --model FILE"),
        (["net.bin", "--format", "mine.yaml"], "--format mine.yaml: does not describe the net: give --model FILE"),
        (["net.nnue", "--model", "model.yaml", "--arch", "sfnnv9"], "--model and --arch both give the architecture"),
        (["net.bin"], "a raw net, which has no version, is read with --format raw --model FILE"),
        (["net.bin", "--format", "raw", "--model", "mine.yaml"], "mine.yaml: found no section model"),
        (["net.bin", "--format", "raw", "--model", "none.yaml"], "none.yaml: No such file"),
        (
            ["cut.bin", "--format", "raw", "--model", "model.yaml"],
            "cut.bin: 12,415 bytes, expected 12,416 for this net",
        ),
        (["long.bin", "--format", "raw", "--model", "model.yaml"], "long.bin: 12,417 bytes, expected 12,416"),
        (
            ["tiny.bin", "--format", "raw", "--model", "model.yaml"],
            "tensors.0: feature_transformer.weight ends at byte",
        ),
        (["none.bin", "--format", "raw", "--model", "model.yaml"], "none.bin: cannot read the net: No such file"),
        ([".", "--format", "raw", "--model", "model.yaml"], "cannot read the net: found a folder"),
        (["net.bin", "--format", "mine.yaml", "--model", "model.yaml"], "after output.bias: 8 bytes of padding at 8"),
        (
            ["net.bin", "--format", "wrong.yaml"],
            "wrong.yaml: model: architecture.hidden: found 9, expected a multiple of 8",
        ),
        (["net.bin", "--format", "none.py:Class", "--model", "model.yaml"], "none.py"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str, made: Made, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(EXACT)
    (tmp_path / "wrong.yaml").write_text("model: {kind: layered, hidden: 9}")
    made(TWO, "raw")
    whole = Path("net.bin").read_bytes()
    for name, data in (("cut", whole[:-1]), ("long", whole + b"\0"), ("tiny", whole[:100])):
        Path(f"{name}.bin").write_bytes(data)
    with pytest.raises(UserError) as caught:
        nnue("eval", *arguments, "--fens", "fens.txt")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_padding_and_a_header_of_another_program_are_kept(made: Made, tmp_path: Path) -> None:
    made(TWO, "raw")
    data = Path("net.bin").read_bytes()
    (tmp_path / "mine.yaml").write_text("skip: 64\n")
    for head, filler, layout in ((b"", b"bullet", "raw"), (b"\xfe" * 64, b"filler", "mine.yaml")):
        file = head + data[: -len(filler)] + filler
        Path("net.bin").write_bytes(file)
        Path("again.bin").unlink(missing_ok=True)
        Path("again.safetensors").unlink(missing_ok=True)
        output = nnue("import", "net.bin", "again.safetensors", "--format", layout, "--model", "model.yaml")
        assert "exported again" not in output
        nnue("export", "again.safetensors", "again.bin", "--format", layout)
        assert Path("again.bin").read_bytes() == file


def test_a_file_is_padded_as_bullet_pads_it(made: Made, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("{padding: bullet, skip: 3}\n")
    made(TWO, "raw")
    zeros = Path("net.bin").read_bytes()
    for name in ("net.bin", "net.nnue"):
        Path(name).unlink()
    made(TWO, "mine.yaml")
    padded = Path("net.bin").read_bytes()
    assert len(padded) % 64 == 0
    size = sum(tensor.nbytes for tensor in read_net("net.nnue").tensors.values())
    assert padded[: 3 + size] == b"\0\0\0" + zeros[:size]
    missing = padded[3 + size :]
    assert missing == (b"bullet" * 11)[: len(missing)]


def test_the_model_of_a_layout_is_held_against_the_checkpoint(made: Made, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(EXACT + "model: {kind: layered, hidden: 16}\n")
    with pytest.raises(
        UserError, match=r"mine\.yaml: model: found another net than that of c\.safetensors \(layered\)"
    ):
        made(TWO, "mine.yaml")


def test_numbers_beyond_the_nets_are_refused(made: Made, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(EXACT)
    made(TWO, "mine.yaml")
    data = bytearray(Path("net.bin").read_bytes())
    data[:4] = (40_000).to_bytes(4, "little")
    Path("net.bin").write_bytes(data)
    with pytest.raises(UserError, match=r"net\.bin: output\.bias has 40000, expected -32768 … 32767 of the net"):
        scores("net.bin", "--format", "mine.yaml", "--model", "model.yaml")
