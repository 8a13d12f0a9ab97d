"""Penalties on activations and weights: their values, and runs with them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import nnue
from needs import ROOT
from small_runs import last, split_sample, written

from nnue_trainer import nets
from nnue_trainer.data import expand, records_from_fens
from nnue_trainer.errors import UserError
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.optim.penalties import PENALTIES, Penalty
from nnue_trainer.optim.penalties.base import Penalties

VECTOR = json.loads((ROOT / "tests" / "vectors" / "training" / "loss.json").read_text("utf-8"))["activation_penalty"]


@pytest.fixture(scope="module")
def data(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 4_000, 500)


def penalty(**section: Any) -> Penalty:
    return PENALTIES.parse(section, trusted=False)


def test_a_penalty_on_activations_is_the_references() -> None:
    model = nets.build({"kind": "simple", "hidden": 8})
    a = torch.tensor([VECTOR["activations"]], dtype=torch.float64, requires_grad=True)
    for norm in ("l1", "l2"):
        found = penalty(kind="activations", norm=norm, factor=VECTOR["coefficient"]).of(model, [a])
        assert found.item() == pytest.approx(VECTOR[f"{norm}_mean"], rel=1e-6)
        (gradient,) = torch.autograd.grad(found, a)
        each = VECTOR["l1_gradient_each"] * (a.sign() if norm == "l1" else 2 * a)
        torch.testing.assert_close(gradient, each.detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("activation", ["screlu", "pairwise"])
def test_penalties_see_the_first_layer_of_the_step(activation: str, aware: bool) -> None:
    torch.manual_seed(0)
    model: Any = nets.build({"kind": "layered", "hidden": 16, "activation": activation, "layers": [{"outputs": 4}]})
    batch = expand(records_from_fens(list(CHECK_POSITIONS)), model.feature_set)
    of_weights = penalty(kind="weights", factor=0.1, parameters=["layers.*"])
    penalties = Penalties([penalty(kind="activations", factor=0.5), of_weights], model)
    with model.rounding(aware), penalties.watching():
        model(batch)
    found = penalties.of(batch)
    x, _ = model.feature_transformer.of_batch(batch)
    expected = 0.5 * x.mean() + 0.1 * sum(p.square().sum() for n, p in model.named_parameters() if n[:7] == "layers.")
    torch.testing.assert_close(found, expected)
    weight = model.feature_transformer.weight
    torch.testing.assert_close(*(torch.autograd.grad(term, weight)[0].to_dense() for term in (found, expected)))
    assert not model.feature_transformer._forward_hooks


RUNS: dict[str, dict[str, Any]] = {
    "none": {},
    "activations": {"penalties": [{"kind": "activations", "factor": 50.0}]},
    "weights": {
        "penalties": [{"kind": "weights", "norm": "l1", "factor": 0.001, "parameters": ["*transformer.weight"]}]
    },
}


def test_penalties_train_resume_and_leave_the_validation_loss(data: Path, tmp_path: Path) -> None:
    ends, first = {}, {}
    for name, training in RUNS.items():
        nnue(
            "train",
            "--config",
            written(tmp_path / f"{name}.yaml", data, training=training),
            "--run-dir",
            tmp_path / name,
        )
        ends[name] = last(tmp_path / name).tensors["model"]
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        first[name] = {line["event"]: line["loss"] for line in reversed(lines)}
        if training:
            epoch = tmp_path / name / "checkpoints" / "epoch-0001.safetensors"
            nnue("train", "--resume", epoch, "--run-dir", tmp_path / f"{name}-resumed")
            again = last(tmp_path / f"{name}-resumed").tensors["model"]
            assert all(torch.equal(tensor, again[key]) for key, tensor in ends[name].items())
    model: Any = nets.build({"kind": "simple", "hidden": 16})
    batch = expand(records_from_fens(list(CHECK_POSITIONS)), model.feature_set)
    mean = {}
    for name, tensors in ends.items():
        model.load_state_dict(tensors)
        mean[name] = model.feature_transformer.of_batch(batch)[0].mean().item()
    assert mean["activations"] < 0.8 * mean["none"]
    size = {name: tensors["feature_transformer.weight"].abs().sum() for name, tensors in ends.items()}
    assert size["weights"] < 0.95 * size["none"]
    assert first["activations"]["train"] > first["none"]["train"] + 0.1  # with the penalty
    assert first["activations"]["validation"] < first["none"]["validation"] + 0.1  # without it


def test_a_stage_may_have_penalties_of_its_own(data: Path, tmp_path: Path) -> None:
    recipe = written(tmp_path / "two.yaml", data, training=RUNS["activations"] | {"epochs": 1})
    stages = "stages=[{name: a}, {name: b, carry: optimizer, training: {penalties: []}}]"
    nnue("train", "--config", recipe, stages, "--run-dir", tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "train"]
    assert losses[0] > 0.2 > losses[-1]


def test_a_pattern_of_no_parameter_is_named(data: Path, tmp_path: Path) -> None:
    training = {"penalties": [{"kind": "weights", "factor": 1e-3, "parameters": ["layer.*"]}]}
    recipe = written(tmp_path / "wrong.yaml", data, training=training)
    with pytest.raises(
        UserError, match=r"training.penalties.0.parameters: 'layer.\*' matches no parameter.*output.weight"
    ):
        nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
