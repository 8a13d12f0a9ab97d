"""The figures of a net that the trainer records, and that computing them changes nothing."""

import json

import numpy as np
import pytest
import torch
from analysis_support import recipe
from typed import instance, present

from nnue_trainer import data, nets
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint
from nnue_trainer.modules import PerspectiveTransformer
from nnue_trainer.nets import activity
from nnue_trainer.nets.activity import ActivityMeter, LayerMeter, reach_figures, weight_reach
from nnue_trainer.training import validator as validator_module
from nnue_trainer.training.run import train

ARCHITECTURES = [
    {"kind": "simple", "hidden": 16},
    {"kind": "layered", "inputs": ["HalfKAv2_hm"], "hidden": 16, "activation": "crelu", "output_buckets": {"count": 4}},
    {"kind": "sfnnv5", "l1": 32},
]


def model_of(architecture):
    torch.manual_seed(3)
    model = nets.build(architecture)
    with torch.no_grad():
        layer = instance(PerspectiveTransformer, model.feature_transformer)
        layer.weight.mul_(20)
        layer.bias[2], layer.bias[5] = -100.0, 100.0
    return model


def batch_for(model):
    return data.expand(data.records_from_fens(list(CHECK_POSITIONS)), model.feature_set)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a["kind"])
def test_counts_equal_those_of_one_accumulator_after_the_other(architecture):
    model = model_of(architecture)
    batch, layer = batch_for(model), instance(PerspectiveTransformer, model.feature_transformer)
    meter = ActivityMeter(model, of_batch=30)
    meter.add(batch.head(30))
    meter.add(batch.head(40))  # every second one
    found = present(meter.result())

    weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
    sums = np.array([
        bias + weight[[i for i in row if i >= 0]].sum(0)
        for rows in (batch.white, batch.black)
        for row in [*rows[:30].tolist(), *rows[:40:2].tolist()]
    ])  # fmt: skip
    assert found.positions == 50
    assert found.positive.numpy() == pytest.approx((sums > 0).mean(0))
    assert found.saturated.numpy() == pytest.approx((sums >= layer.bound).mean(0))
    assert found.largest.numpy() == pytest.approx(np.abs(sums).max(0), rel=1e-4)
    seen = np.clip(sums, 0, layer.bound)
    if layer.activation == "pairwise":
        half = seen.shape[1] // 2
        seen = seen[:, :half] * seen[:, half:]
    assert found.zeros == pytest.approx((seen == 0).mean())
    assert found.dead[2]
    assert found.stuck[5]
    figures = meter.figures()
    assert figures["dead_neurons"] == pytest.approx((sums <= 0).all(0).mean())
    assert figures["stuck_neurons"] > 0


def test_large_batches_are_looked_at_in_parts(monkeypatch):
    model = model_of(ARCHITECTURES[0])
    whole = ActivityMeter(model)
    whole.add(batch_for(model))
    monkeypatch.setattr(activity, "_CHUNK_BYTES", 4 * 16 * 7)
    parts = ActivityMeter(model)
    parts.add(batch_for(model))
    assert whole.figures() == parts.figures()


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a["kind"])
def test_reach_is_in_units_of_the_limit(architecture, monkeypatch):
    monkeypatch.setattr(activity, "_ROWS_BYTES", 4096)  # in parts
    model = model_of(architecture)
    bounds = list(model.weight_bounds())
    name, parameter, low, high, *_ = next(b for b in bounds if b.name == "feature_transformer.weight")
    with torch.no_grad():
        parameter.mul_(0.3 * high / parameter.abs().max())
        parameter[0, :4] = torch.tensor([low, high, high, 0.5 * high])
    found = {reach.name: reach for reach in weight_reach(model)}
    rows = next(reach for reach in found if reach.startswith(name))
    assert found[rows].reach == pytest.approx(1.0)
    assert found[rows].at_limit == pytest.approx(3 / parameter.numel())
    figures = reach_figures(model)
    assert figures[f"reach/{rows}"] == found[rows].reach
    assert len(figures) == 2 * len(bounds)


def test_layers_are_watched_and_left_alone():
    model = model_of(ARCHITECTURES[1])
    meter = LayerMeter(model)
    with torch.no_grad(), meter.watching():
        model(batch_for(model))
    (found,) = meter.result()
    assert found.name == "output"
    # Neuron 2 is dead and 5 is stuck, in both perspectives and in each stack in use.
    assert found.dead >= 2 * 4
    assert found.inputs == 4 * 32
    assert found.at_top >= 1 / 16
    assert not any(module._forward_pre_hooks for module in model.modules())
    with torch.no_grad():
        model(batch_for(model))
    assert meter.result() == [found]


def test_a_validation_writes_the_figures_down(trained):
    lines = [json.loads(line) for line in (trained() / "metrics.jsonl").read_text().splitlines()]
    records = [line for line in lines if line["event"] == "validation"]
    assert len(records) == 3
    for record in records:
        assert 0 <= record["dead_neurons"] <= 1
        assert 0 < record["reach/feature_transformer.weight"] <= 1.0000001
        assert record["at_limit/output.weight"] >= 0
    assert all(line["pass"] >= 1 for line in lines if line["event"] == "train")


def test_looking_changes_no_bit_of_the_training(tmp_path, trained, project_root, monkeypatch):
    monkeypatch.setattr(ActivityMeter, "add", lambda self, batch: None)
    monkeypatch.setattr(validator_module, "reach_figures", lambda model: {})
    train(recipe(project_root), tmp_path / "run")
    files = [folder / "checkpoints" / "last.safetensors" for folder in (trained(), tmp_path / "run")]
    assert checkpoint.load(files[0]).state == checkpoint.load(files[1]).state
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_checkpoint_says_what_it_was_made_on(trained):
    state = checkpoint.load(trained() / "checkpoints" / "last.safetensors", groups=()).state
    assert state["environment"]["torch"] == torch.__version__
    assert state["environment"]["device"].startswith("CPU")
