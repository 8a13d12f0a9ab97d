"""Raw nets: bullet's simple nets to the byte, user-defined layouts, and the errors for wrong ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from net_support import random_checkpoint
from typer.testing import CliRunner

from nnue_trainer import config
from nnue_trainer.cli.main import app
from nnue_trainer.errors import UserError
from nnue_trainer.export import net_from_checkpoint
from nnue_trainer.files import checkpoint
from nnue_trainer.nets.simple import Simple
from nnue_trainer.nnue_file import raw
from nnue_trainer.nnue_file.formats import ExportedTensor

KINGS = [0] * 16 + [1] * 16
SIMPLE = {"kind": "simple", "hidden": 8}
BUCKETS = {
    "kind": "layered",
    "inputs": {"kings": KINGS, "mirror": "a-d"},
    "hidden": 8,
    "output_buckets": {"count": 8, "rule": "bullet"},
}


class Exporter:
    """Saves a random checkpoint of an architecture, exports it, and returns (its integers, its floats, the file)."""

    output = ""
    """what the last export printed"""

    def __call__(self, architecture: dict[str, Any], *options: str, layout: str = "", recipe: Any = None) -> Any:
        source = random_checkpoint(architecture)
        source.recipe = recipe
        checkpoint.save("c.safetensors", source)
        if layout:
            Path("mine.yaml").write_text(layout)
        result = CliRunner().invoke(app, ["export", "c.safetensors", "net.bin", "--overwrite", *options])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        self.output = result.output
        net = net_from_checkpoint(source, "c")
        floats = {name: value.numpy() for name, value in source.tensors["model"].items()}
        return net.tensors, floats, Path("net.bin").read_bytes()


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exporter:
    monkeypatch.chdir(tmp_path)
    return Exporter()


def test_a_simple_net_is_as_bullet_writes_it(export: Exporter) -> None:
    tensors, floats, data = export(SIMPLE, "--format", "raw")
    order = ("feature_transformer.weight", "feature_transformer.bias", "output.weight", "output.bias")
    l0w, l0b, l1w, l1b = (tensors[name] for name in order)
    assert {tensor.dtype.str for tensor in (l0w, l0b, l1w, l1b)} == {"<i2"}
    used = 2 * (768 * 8 + 8 + 16 + 1)
    assert data[:used] == b"".join(tensor.tobytes() for tensor in (l0w, l0b, l1w, l1b))
    assert data[used:] == bytes(-used % 64)
    assert len(data) % 64 == 0
    # Element by element, at the scales that engines divide by: QA, QA, QB, QA · QB.
    words = np.frombuffer(data, "<i2")
    assert words[5 * 8 + 3] == round(float(floats["feature_transformer.weight"][5, 3]) * 255)
    assert words[768 * 8 + 2] == round(float(floats["feature_transformer.bias"][2]) * 255)
    assert words[769 * 8 + 9] == round(float(floats["output.weight"][0, 9]) * 64)
    assert words[771 * 8] == round(float(floats["output.bias"][0]) * 255 * 64)


def test_output_buckets_lie_bucket_after_bucket_and_king_buckets_too(export: Exporter) -> None:
    _, floats, data = export(BUCKETS, "--format", "raw")
    words = np.frombuffer(data, "<i2")
    l0w, l0b = words[: 2 * 768 * 8].reshape(2, 768, 8), words[2 * 768 * 8 :][:8]
    l1w, l1b = words[2 * 768 * 8 + 8 :][: 8 * 16].reshape(8, 16), words[2 * 768 * 8 + 8 + 128 :][:8]
    np.testing.assert_array_equal(
        l0w, np.rint(floats["feature_transformer.weight"].astype(np.float64) * 255).reshape(2, 768, 8)
    )
    np.testing.assert_array_equal(l0b, np.rint(floats["feature_transformer.bias"].astype(np.float64) * 255))
    np.testing.assert_array_equal(l1w, np.rint(floats["output.weight"][:, 0].astype(np.float64) * 64))
    np.testing.assert_array_equal(l1b, np.rint(floats["output.bias"][:, 0].astype(np.float64) * 255 * 64))


LAYOUT = """
# Output first, its weights input by input, then the accumulator at another scale.
align: 32
tensors:
  - {tensor: output.bias, type: i32, align: 16}
  - {tensor: output.weight, part: 1, type: i8}
  - {tensor: output.weight, part: 0, type: f32, align: 64}
  - {tensor: feature_transformer.weight, transpose: [1, 0], pad_columns: 1000}
  - {tensor: feature_transformer.bias, scale: 181, rounding: truncate, type: i32}
"""
TWO = {"kind": "layered", "hidden": 8, "output_buckets": {"count": 2}}


def test_a_layout_of_ones_own(export: Exporter) -> None:
    tensors, floats, data = export(TWO, "--format", "mine.yaml", layout=LAYOUT)
    assert data[:8] == tensors["output.bias"].astype("<i4").tobytes()
    assert data[8:16] == bytes(8)
    assert data[16:32] == tensors["output.weight"][1].astype("i1").tobytes()
    assert data[32:96] == floats["output.weight"][0].astype("<f4").tobytes()
    assert data[96:128] == bytes(32)
    columns = np.frombuffer(data, "<i2", 8 * 1000, 128).reshape(8, 1000)
    np.testing.assert_array_equal(columns[:, :768], tensors["feature_transformer.weight"].T)
    assert not columns[:, 768:].any()
    bias = np.frombuffer(data, "<i4", 8, 128 + 2 * 8 * 1000)
    np.testing.assert_array_equal(bias, np.trunc(floats["feature_transformer.bias"].astype(np.float64) * 181))
    assert len(data) == -(-(128 + 16000 + 32) // 32) * 32


def test_halves() -> None:
    """The vectors of bullet's `round()` and of its cut, which are Rust's own; halves to even numbers by default."""
    values = [0.0, 0.5 / 255, -0.5 / 255, 1.5 / 255, 0.999, -0.999, 1.98, -1.98, 128.49, 0.0019607843]
    expected: dict[Literal["nearest", "away", "truncate"], list[int]] = {
        "truncate": [0, 0, 0, 1, 254, -254, 504, -504, 32764, 0],
        "away": [0, 1, -1, 2, 255, -255, 505, -505, 32765, 0],
        "nearest": [0, 0, 0, 2, 255, -255, 505, -505, 32765, 0],
    }
    tensor = ExportedTensor("w", np.zeros(len(values), "<i2"), 1.0, lambda: np.array(values))
    net: Any = SimpleNamespace(tensors=[tensor], head=b"", tail=b"")  # an Exported with what a raw file needs
    for rounding, integers in expected.items():
        line = raw.RawTensor(tensor="w", scale=255, rounding=rounding)
        data = raw.Raw(tensors=[line], align=1).to_bytes(net, "here")
        assert np.frombuffer(data, "<i2").tolist() == integers, rounding


def test_export_lists_what_lies_where(export: Exporter) -> None:
    """An engine's author reads offsets, types and the order of dimensions off it: those of the file, not of the net."""
    layout = """
align: 64
tensors:
  - {tensor: output.weight, part: 1, type: f32}
  - {tensor: output.weight, part: 0, transpose: [1, 0], type: i8, pad_columns: 4}
  - {tensor: feature_transformer.bias, align: 64}
  - {tensor: feature_transformer.weight, type: i32, scale: 1000}
  - {tensor: output.bias}
"""
    architecture = {**BUCKETS, "output_buckets": {"count": 2, "rule": "bullet"}}
    tensors, floats, data = export(architecture, "--format", "mine.yaml", layout=layout)
    assert export.output.splitlines()[1:] == [
        "  byte 0: part 1 of output.weight: f32 [1, 16], 1 steps in 1.0",
        "  byte 64: part 0 of output.weight: i8 [16, 4], 64 steps in 1.0",
        "  byte 128: feature_transformer.bias: i16 [8], 255 steps in 1.0",
        "  byte 192: feature_transformer.weight: i32 [1536, 8], 1000 steps in 1.0",
        "  byte 49,344: output.bias: i16 [2, 1], 16320 steps in 1.0",
    ]
    assert data[128:144] == tensors["feature_transformer.bias"].tobytes()
    assert data[49344:49348] == tensors["output.bias"].tobytes()
    assert data[:64] == floats["output.weight"][1].tobytes()


def test_the_recipe_carries_the_format(export: Exporter) -> None:
    _, _, plain = export(SIMPLE, "--format", "raw")
    recipe = {"export": {"kind": "raw"}}
    assert export(SIMPLE, recipe=recipe)[2] == plain
    assert export(SIMPLE, "--format", "nnue", recipe=recipe)[2][:4] == bytes.fromhex("0153544e")
    data = {"model": SIMPLE, "data": {"train": ["x"]}, "loss": {"kind": "sigmoid"}}
    parsed = config.parse(data, ["export={kind: raw, align: 128}"])
    assert config.parse(data, []).export.kind == "nnue"
    assert "kind: raw" in config.to_yaml(parsed)
    assert "align: 128" in config.to_yaml(parsed)
    with pytest.raises(UserError, match=r"override 'export.algn=5': export.algn: unknown key"):
        config.parse({**data, "export": {"kind": "raw"}}, ["export.algn=5"])


NAMES = "feature_transformer.weight, feature_transformer.bias, output.weight, output.bias"


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("tensors: 5", "mine.yaml: tensors: found 5, expected a list"),
        ("- 5", "mine.yaml: found [5], expected a section of keys"),
        ("tensors: [", "mine.yaml:1:"),
        ("kind: raww", "mine.yaml: kind: found 'raww', expected one of nnue, onnx, raw, or path/to/file.py:Class"),
        ("tensor: []", "mine.yaml: tensor: unknown key (did you mean 'tensors'?)"),
        ("tensors: [{tensor: l0w}]", f"mine.yaml: tensors.0.tensor: found 'l0w', expected one of {NAMES}"),
        (
            "tensors: [{tensor: output.bias, type: i64}]",
            "tensors.0.type: found \"i64\", expected 'i8', 'i16'",
        ),
        ("tensors: [{tensor: output.bias}]", "mine.yaml: tensors: no entry for feature_transformer.weight"),
        (
            "tensors: [{tensor: output.bias, part: 2}]",
            "tensors.0.part: found 2, expected 0 … 1 of output.bias",
        ),
        (
            "tensors: [{tensor: output.bias}, {tensor: output.bias, part: 1}]",
            "mine.yaml: tensors.1: part 1 of output.bias is given twice",
        ),
        (LAYOUT.replace("part: 1, ", "part: 0, "), "mine.yaml: tensors.2: part 0 of output.weight is given twice"),
        (
            LAYOUT.replace("  - {tensor: output.weight, part: 1, type: i8}\n", ""),
            "mine.yaml: tensors: no entry for part 1 of output.weight",
        ),
        (LAYOUT.replace("[1, 0]", "[0, 0]"), "tensors.3.transpose: found [0, 0], expected each of 0 … 1 once"),
        (LAYOUT.replace("type: i8", "type: i8, scale: 4096"), "mine.yaml: tensors.1: part 1 of output.weight[0, "),
        (LAYOUT.replace("scale: 181", "scale: 0"), "mine.yaml: tensors.4.scale: found 0, expected greater than 0"),
    ],
)
def test_wrong_layouts_are_one_line_and_leave_nothing(
    export: Exporter, layout: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        export(TWO, "--format", "mine.yaml", layout=layout)
    assert "\n" not in str(caught.value)
    assert words in str(caught.value)
    assert not (tmp_path / "net.bin").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "bullet"], "--format: kind: found 'bullet', expected one of nnue, onnx, raw"),
        (["--format", "nowhere.yaml"], "nowhere.yaml: No such file or directory"),
        (["--header"], "--header: expected --format raw with it, found format nnue"),
    ],
)
def test_wrong_options_are_one_line(export: Exporter, options: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        export(TWO, *options)
    assert words in str(caught.value)


def test_a_net_gets_only_the_arguments_that_a_format_states(
    export: Exporter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Own nets may write files for their own engine, and need no `skip` and `align`."""
    monkeypatch.setattr(Simple, "header", lambda self, *, include, namespace: f"// {include} {namespace}\n")
    monkeypatch.setattr(Simple, "rust", lambda self: "// own\n")
    export(SIMPLE, "--format", "raw", "--header", "--rust", "--header-namespace", "mine")
    assert (tmp_path / "net.h").read_text() == "// nnue.h mine\n"
    assert (tmp_path / "net.rs").read_text() == "// own\n"
    seen: dict[str, object] = {}
    monkeypatch.setattr(Simple, "header", lambda self, **options: seen.update(options) or "// own\n")
    layout = "skip: 8\nalign: 16\nheader: true\n"
    export(SIMPLE, "--format", "mine.yaml", layout=layout)
    assert seen == {"include": "nnue.h", "namespace": "", "skip": 8, "align": 16}


def test_a_format_of_ones_own(export: Exporter, project_root: Path) -> None:
    plugin = project_root / "examples" / "extending" / "my_format.py"
    tensors, _, data = export(TWO, "--plugin", str(plugin), "--format", "my_format.py:Labelled")
    assert data[:8] == b"MINE\x04\x00\x00\x00"
    sizes = [2 * 768 * 8, 2 * 8, 2 * 2 * 16, 2 * 2]
    assert len(data) == 8 + sum(sizes) + 4 * len(sizes)
    assert data[12 : 12 + sizes[0]] == tensors["feature_transformer.weight"].tobytes()
    assert data[-4:] == tensors["output.bias"].tobytes()
