"""Nets with several outputs: the head of win, draw and loss, and nets of users."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import nnue
from small_runs import last, split_sample, written

from nnue_trainer import nets
from nnue_trainer.data import RecordLoader, expand
from nnue_trainer.errors import UserError
from nnue_trainer.export import evaluate, read_net

HEAD: dict[str, Any] = {
    "kind": "layered", "hidden": 16, "head": "wdl", "output_buckets": {"count": 4}, "layers": [{"outputs": 8}],
}  # fmt: skip


@pytest.fixture(scope="module")
def data(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 4_000, 500)


def metrics(run: Path, event: str = "validation") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize("aware", [False, True])
def test_a_head_of_win_draw_and_loss_trains_resumes_and_is_exported(data: Path, tmp_path: Path, aware: bool) -> None:
    model = {**HEAD, "quantisation": {"qat": aware}}
    sections = {"lambda": {"kind": "constant", "value": 0.5}, "optimizer": {"kind": "adamw", "lr": 0.01}}
    recipe = written(tmp_path / "wdl.yaml", data, model=model, loss={"kind": "wdl"}, **sections)
    run = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", run)
    losses = [line["loss"] for line in metrics(run)]
    assert losses[-1] < losses[0] < 0.7
    assert metrics(run)[-1]["rank_correlation"] > 0.05  # of the scores that the head stands for
    resumed = tmp_path / "resumed"
    nnue("train", "--resume", run / "checkpoints" / "epoch-0001.safetensors", "--run-dir", resumed)
    for name, tensor in last(run).tensors["model"].items():
        assert torch.equal(tensor, last(resumed).tensors["model"][name]), name

    nnue("export", run, tmp_path / "net.nnue")
    net = read_net(tmp_path / "net.nnue")
    records = next(iter(RecordLoader([str(data / "val.binpack")], 200, seed=3))).numpy()
    score = evaluate(net, records).score
    floats = nets.build(last(run).architecture)
    floats.load_state_dict(last(run).tensors["model"])
    batch = expand(records, floats.feature_set)
    with torch.no_grad():
        p = torch.softmax(floats.outputs(batch).double(), dim=1).numpy()
        rounded = floats.rounded_forward()(floats, batch)
    points = p[:, 2] + p[:, 1] / 2
    expected = 400 * np.log(points / (1 - points))
    assert np.abs(score - expected).mean() < 5
    assert np.array_equal(np.rint(rounded.double().numpy() * 400), score)


def test_the_loss_of_the_validation_may_read_the_score(data: Path, tmp_path: Path) -> None:
    recipe = written(
        tmp_path / "wdl.yaml", data, model=HEAD, loss={"kind": "wdl"}, validation={"loss": {"kind": "sigmoid"}},
        training={"epochs": 1},
    )  # fmt: skip
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
    assert 0 < metrics(tmp_path / "run")[0]["loss"] < 0.25


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"loss": {"kind": "wdl"}}, "loss.kind: found 'wdl', which reads 3 outputs, but the net 'simple' gives 1"),
        ({"validation": {"loss": {"kind": "wdl"}}}, "validation.loss.kind: found 'wdl', which reads 3 outputs"),
    ],
)
def test_a_loss_of_other_outputs_is_refused(data: Path, tmp_path: Path, sections: dict[str, Any], words: str) -> None:
    recipe = written(tmp_path / "wdl.yaml", data, **sections)
    with pytest.raises(UserError) as caught:
        nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
    assert words in str(caught.value)
    assert not (tmp_path / "run").exists()


TWO = '''
from typing import ClassVar

import torch
from torch import nn

from nnue_trainer.losses import Loss, points
from nnue_trainer.nets.simple import Simple, SimpleModel
from nnue_trainer.schema import section


@section
class Two(Simple):
    """The score, and whether the game is drawn: that output is trained, but not exported."""

    num_outputs = 2
    training_only = ("drawn.",)

    def model(self):
        return TwoModel(self)


class TwoModel(SimpleModel):
    def __init__(self, net):
        super().__init__(net)
        self.drawn = nn.Linear(2 * net.hidden, 1)

    def outputs(self, batch):
        x = self.first_outputs(batch).x
        return torch.cat([self.output(x), self.drawn(x)], dim=1)

    def forward(self, batch):
        return self.score_of(self.outputs(batch))


@section
class OfBoth(Loss):
    reads: ClassVar[int] = 2

    def per_position(self, net, score, result, lam):
        target = lam * torch.sigmoid(score / 400) + (1 - lam) * points(result, net.dtype)
        drawn = nn.functional.binary_cross_entropy_with_logits(net[:, 1], (result == 0).float(), reduction="none")
        return (torch.sigmoid(net[:, 0]) - target).square() + 0.02 * drawn, None
'''


def test_a_net_of_a_user_may_have_outputs_that_are_not_exported(data: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "two.py"
    plugin.write_text(TWO)
    recipe = written(
        tmp_path / "two.yaml", data, model={"kind": f"{plugin}:Two", "hidden": 16}, loss={"kind": f"{plugin}:OfBoth"}
    )
    run = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", run)
    drawn = last(run).tensors["model"]["drawn.weight"]
    assert drawn.abs().max() > 0
    losses = [line["loss"] for line in metrics(run)]
    assert losses[-1] < losses[0]
    nnue("export", run, tmp_path / "net.nnue", "--plugin", plugin)
    assert "drawn.weight" not in read_net(tmp_path / "net.nnue").tensors
    nnue("check", run, "--limit", 5, "--data", data / "val.binpack", "--plugin", plugin)


def test_other_outputs_than_the_net_says_are_named(data: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "three.py"
    plugin.write_text(
        TWO.replace("num_outputs = 2", "num_outputs = 3").replace("ClassVar[int] = 2", "ClassVar[int] = 3")
    )
    recipe = written(
        tmp_path / "two.yaml", data, model={"kind": f"{plugin}:Two", "hidden": 16}, loss={"kind": f"{plugin}:OfBoth"}
    )
    with pytest.raises(UserError, match=r"TwoModel.outputs.*expected a tensor \[250, 3\]"):
        nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")


BUCKETS: dict[str, dict[str, Any]] = {
    "weights": {"count": 4, "rule": "weights", "weights": [0, 1, 1, 2, 4]},
    "squares": {"count": 3, "rule": "squares", "squares": {"K": [0] * 8 + [1] * 8 + [2] * 48}},
}


@pytest.mark.parametrize("rule", BUCKETS)
def test_nets_with_output_buckets_of_every_rule_train(data: Path, tmp_path: Path, rule: str) -> None:
    model = {
        "kind": "layered",
        "hidden": 16,
        "output_buckets": BUCKETS[rule],
        "quantisation": {"qat": True, "qat_from": 0.5},
    }
    recipe = written(tmp_path / "r.yaml", data, model=model, training={"epochs": 2})
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
    weight = last(tmp_path / "run").tensors["model"]["output.weight"]
    assert (weight[0] - weight[-1]).abs().max() > 1e-3
