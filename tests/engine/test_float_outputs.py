"""How far the outputs of float layers are from the exact ones, in ulp of fp32: of the evaluator, of `nnue.h` and of
training with rounding. docs/layered-nets.md states the numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from inference_support import built, exported, positions, program_scores

from nnue_trainer import _data, data, nets
from nnue_trainer.export import checkpoint_from_net, read_net
from nnue_trainer.export.evaluate import compiled_forward
from nnue_trainer.modules.straight_through import Rule, ste_round
from nnue_trainer.nets import rounded_forward
from nnue_trainer.nets.integer_forward import IntegerForward, IntegerLayer, first_activations

pytestmark = pytest.mark.compiler

SCALE = 2**26  # scores are then the outputs, not rounded where these are in ±[1/8, 16)
COUNT = 1000
OUTPUT = {"output": {"type": "f32"}}
INPUTS = {"kings": [0, 1, 2, 2] + [1] * 4 + [2] * 24, "mirror": "a-d"}
KINDS: dict[str, dict[str, Any]] = {
    "the output": {"quantisation": OUTPUT},
    "the output after whole products": {"activation": "pairwise", "quantisation": OUTPUT},
    "crelu": {"activation": "crelu", "layers": [{"outputs": 16, "type": "f32", "activation": "crelu"}]},
    "screlu": {"layers": [{"outputs": 16, "type": "f32", "activation": "screlu", "clip": 3}]},
    "dual": {"layers": [{"outputs": 16, "type": "f32", "activation": "dual", "skip": "difference"}]},
    "none": {"layers": [{"outputs": 16, "type": "f32", "activation": "none", "to_output": True}]},
    "bytes with biases of floats": {
        "activation": "pairwise",
        "layers": [
            {"outputs": 16, "type": "i8", "bias_type": "f32", "activation": "dual", "skip": "last"},
            {"outputs": 32, "type": "f32", "activation": "crelu", "clip": 6},
        ],
        "quantisation": {"first": {"product_shift": 9}, **OUTPUT},
    },
    "words with biases of floats": {
        "activation": "crelu",
        "layers": [
            {"outputs": 16, "type": "i16", "bias_type": "f32", "activation": "screlu"},
            {"outputs": 16, "type": "f32", "activation": "none"},
        ],
    },
}


def exact_outputs(
    forward: IntegerForward, tensors: dict[str, npt.NDArray[Any]], batch: data.Batch
) -> tuple[npt.NDArray[np.longdouble], npt.NDArray[np.longdouble]]:
    """The output for each position, of sums with 64 bits of mantissa, and the ulp of all that is summed up in it: the
    last layer's output and skip connections. Activations are rounded to fp32, as they are everywhere."""
    stack = forward.stack(batch)
    vectors: list[npt.NDArray[np.longdouble]] = [first_activations(forward, tensors, batch).astype(np.longdouble)]
    output, ulp = np.zeros(len(batch), np.longdouble), np.zeros(len(batch), np.longdouble)
    for number, layer in enumerate(forward.layers):
        x = np.concatenate([vectors[vector] for vector in layer.inputs], axis=1)
        weight = tensors[layer.weight].reshape(forward.num_stacks, layer.outputs, -1)[stack].astype(np.longdouble)
        bias = tensors[layer.bias].reshape(forward.num_stacks, layer.outputs)[stack].astype(np.longdouble)
        assert layer.factor is not None
        y = (weight[:, :, : x.shape[1]] * x[:, np.newaxis]).sum(axis=2) * np.longdouble(layer.factor) + bias
        for skip in forward.skips:
            if skip.layer == number:
                assert (skip.multiply, skip.divide) == (1, 1)
                minus = np.zeros_like(output) if skip.minus is None else y[:, skip.minus]
                output += y[:, skip.plus] - minus
                ulp += ulp_of(y[:, skip.plus]) + (skip.minus is not None) * ulp_of(minus)
        vectors.append(activated(layer, y[:, : layer.activated].astype(np.float32)).astype(np.longdouble))
    return output + y[:, 0], ulp + ulp_of(y[:, 0])


def ulp_of(values: npt.NDArray[np.longdouble]) -> npt.NDArray[np.longdouble]:
    return np.spacing(np.abs(values).astype(np.float32)).astype(np.longdouble)


def activated(layer: IntegerLayer, y: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    most = np.float32(layer.clip)
    clamped = np.minimum(np.maximum(y, np.float32(0)), most)
    return {
        "crelu": clamped,
        "screlu": clamped * clamped,
        "dual": np.concatenate([np.minimum(y * y, most), clamped], axis=1),
        "none": y,
    }[layer.activation]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_outputs_of_float_layers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = {"kind": "layered", "inputs": INPUTS, "hidden": 64, "quantisation": OUTPUT}
    architecture |= {"output_buckets": {"count": 4}, **KINDS[name]}
    file = exported(architecture, tmp_path)
    fens = positions("val.binpack", COUNT, tmp_path / "fens.txt")
    net = read_net(tmp_path / "net.nnue")
    records = data.records_from_fens(fens.read_text().splitlines()[2:])
    batch = data.expand(records, net.net.integer_feature_set)
    forward = net.net.integer_forward()
    assert forward is not None
    exact, ulp = exact_outputs(forward, net.tensors, batch)
    imported = checkpoint_from_net(net, "net")
    model = nets.build(imported.architecture)
    model.load_state_dict(imported.tensors["model"])
    floats = data.expand(records, model.feature_set)

    def but_for_the_score(x: torch.Tensor, rule: Rule, factor: float = 1.0) -> torch.Tensor:
        return x if rule == "trunc" else ste_round(x, rule, factor)

    monkeypatch.setattr(rounded_forward, "ste_round", but_for_the_score)
    with torch.no_grad():
        plain = model(floats).numpy()
        with model.rounding(True):
            trained = model(floats).numpy()
    # The scale of scores by that which shows outputs.
    sharper = replace(forward, multiply=SCALE)
    evaluator = _data.Evaluator(compiled_forward(sharper, net.net.integer_feature_set, net.tensors))
    evaluated = evaluator.evaluate_records(records, False, 1, "")[3] / SCALE
    header = file.with_suffix(".h").read_text()
    assert header.count("kMultiply = 400,") == 1
    file.with_suffix(".h").write_text(header.replace("kMultiply = 400,", f"kMultiply = {SCALE},"))
    program = built("eval", file, "-O1 -march=native")
    in_engine = np.array(program_scores(program, file, fens)) / SCALE

    sharp = (abs(exact) >= 1 / 8) & (abs(exact) < 16)
    assert sharp.mean() > 0.5

    assert np.array_equal(evaluated, in_engine)
    # Each output that is summed up is rounded once, and what training returns once more. The score cuts bits below
    # 1 / SCALE of a sum with a skip connection.
    cut = 1 / SCALE if forward.skips else 0
    assert (np.maximum(abs(evaluated - exact) - cut, 0) <= 0.5 * ulp)[sharp].all()
    assert (abs(trained - exact) <= 0.5 * ulp + ulp_of(exact))[sharp].all()
    if "bytes" not in name:  # there, activations are whole numbers
        assert (abs(plain - exact) < 200 * ulp)[sharp].all()
