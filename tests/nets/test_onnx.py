"""ONNX graphs of nets, run by onnxruntime, which has no code of ours."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import nnue
from net_support import random_checkpoint

from nnue_trainer import data, nets
from nnue_trainer.errors import UserError
from nnue_trainer.export import checkpoint_from_net, read_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint

FENS = list(CHECK_POSITIONS)
NETS: dict[str, dict[str, Any]] = {
    "simple": {"kind": "simple", "hidden": 16},
    "sfnnv5": {"kind": "sfnnv5", "l1": 32},
    "sfnnv16": {"kind": "sfnnv16", "l1": 32},
    "sfnnv16 with other stacks": {"kind": "sfnnv16", "l1": 32, "output_buckets": {"count": 12, "rule": "queens"}},
    "layered": {
        "kind": "layered",
        "inputs": [{"kings": [0] * 16 + [1] * 16, "mirror": "a-d"}, "PP_3Wide"],
        "hidden": 16,
        "activation": "crelu",
        "psqt": True,
        "output_buckets": {"count": 4, "rule": "bullet"},
        "layers": [{"outputs": 8, "activation": "dual", "skip": "last"}, {"outputs": 4, "activation": "screlu"}],
    },
    "white and weights": {
        "kind": "layered",
        "hidden": 16,
        "perspectives": "white",
        "output_buckets": {"count": 4, "rule": "weights", "weights": [0, 1, 1, 2, 4, 1, 1, 2, 3, 5]},
        "layers": [{"outputs": 8, "type": "f32"}],
        "quantisation": {"output": {"type": "f32"}},
    },
}


def run(path: str, features: str) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    assert session.get_modelmeta().custom_metadata_map["feature_set"] == features
    batch = data.expand(data.records_from_fens(FENS), features)
    names = [one.name for one in session.get_inputs()]
    assert names[:4] == ["white", "black", "black_to_move", "piece_count"]
    assert names[4:] in ([], ["material"])
    inputs = {name: getattr(batch, name).numpy().astype(np.int64) for name in names}
    (scores,) = session.run(["score"], inputs)
    alone = session.run(["score"], {name: values[:1] for name, values in inputs.items()})[0]
    np.testing.assert_allclose(alone, scores[:1], rtol=1e-5, atol=1e-3)
    return scores


def floats(architecture: dict[str, Any], tensors: dict[str, torch.Tensor]) -> np.ndarray:
    model = nets.build(architecture)
    model.load_state_dict(tensors)
    with torch.no_grad():
        return model(data.expand(data.records_from_fens(FENS), model.feature_set)).numpy() * model.score_scale


@pytest.mark.slow
@pytest.mark.onnx
@pytest.mark.parametrize("name", NETS)
def test_a_graph_computes_what_the_model_computes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = nets.build(NETS[name])
    model.load_state_dict(random_checkpoint(NETS[name]).tensors["model"])
    with torch.no_grad():
        for bound in model.weight_bounds():
            bound.parameter[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
    source = checkpoint.Checkpoint(model.architecture, {"model": model.state_dict()})
    checkpoint.save("c.safetensors", source)
    nnue("export", "c.safetensors", "net.onnx", "--format", "onnx", "--any-l1")
    expected = floats(source.architecture, source.tensors["model"])
    assert expected.std() > 1
    features = nets.build(NETS[name]).feature_set
    np.testing.assert_allclose(run("net.onnx", features), expected, rtol=1e-4, atol=1e-5 * expected.std())


@pytest.mark.onnx
def test_rounded_weights_are_those_of_the_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.save("c.safetensors", random_checkpoint(NETS["simple"]))
    Path("rounded.yaml").write_text("kind: onnx\nrounded: true\n")
    nnue("export", "c.safetensors", "net.onnx", "--format", "rounded.yaml")
    nnue("export", "c.safetensors", "net.nnue")
    rounded = checkpoint_from_net(read_net("net.nnue"), "net")
    expected = floats(rounded.architecture, rounded.tensors["model"])
    np.testing.assert_allclose(run("net.onnx", "Chess768"), expected, rtol=1e-4, atol=1e-5 * expected.std())


def test_without_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.save("c.safetensors", random_checkpoint(NETS["simple"]))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError) as caught:
        nnue("export", "c.safetensors", "net.onnx", "--format", "onnx")
    assert str(caught.value) == "format onnx: needs the package onnx: pip install 'torch-nnue[onnx]'"
    assert not Path("net.onnx").exists()
    Path("x.onnx").write_bytes(b"x")
    Path("m.yaml").write_text("model: {kind: simple}\n")
    with pytest.raises(UserError, match=r"x\.onnx: files of format onnx cannot be read back"):
        nnue("eval", "x.onnx", "--format", "onnx", "--model", "m.yaml", "--fen", FENS[0])
