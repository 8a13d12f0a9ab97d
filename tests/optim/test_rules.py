"""Every update rule against the reference trainers' numbers, groups of parameters, clipping, and exact resumes."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from needs import ROOT
from pydantic import ValidationError
from test_optim import OUTPUTS, ROWS, Net, inputs
from torch import Tensor, nn
from typed import grad_of

from nnue_trainer.errors import UserError
from nnue_trainer.modules import StackedLinear
from nnue_trainer.nets.base import VirtualRows
from nnue_trainer.optim import OPTIMIZERS, Optimizer, OptimizerConfig, Work
from nnue_trainer.optim.muon import Muon, MuonRule, orthogonal

VECTORS = json.loads((ROOT / "tests" / "vectors" / "training" / "optimisers.json").read_text(encoding="utf-8"))


def config(**section: Any) -> OptimizerConfig:
    return OPTIMIZERS.parse(section, trusted=False)


def work(parameter: nn.Parameter, lr: float, name: str = "w", **more: Any) -> Work:
    return Work({name: parameter}, torch.tensor(lr, dtype=torch.float64), torch.zeros(()), **more)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "adamw": (VECTORS["adamw"], {"kind": "adamw"}, {}),
    "bullet_adamw": (VECTORS["bullet_adamw"], {"kind": "adamw", "correct_bias": False}, {}),
    "lion": (VECTORS["lion"], {"kind": "lion"}, {}),
    "ranger_lite": (VECTORS["ranger_lite"][0], {"kind": "ranger_lite", "max_norm": None}, {"lookahead": True}),
    "stable_decay": (
        VECTORS["ranger_lite"][1],
        {"kind": "ranger_lite", "max_norm": None, "stable_decay": True},
        {"lookahead": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rules_give_the_reference_trainers_weights(name: str) -> None:
    case, section, more = CASES[name]
    decay = case.get("weight_decay", case.get("stable_weight_decay"))
    section = section | {"lr": case["lr"], "betas": case["betas"], "weight_decay": decay}
    section |= {"eps": case["eps"]} if "eps" in case else {}
    if more:
        section |= dict(zip(("lookahead_steps", "lookahead_share"), case["lookahead"], strict=True))
    if "clip" in case:
        section["groups"] = [{"match": "w", "min_weight": -case["clip"], "max_weight": case["clip"]}]
    net = OneWeight(VECTORS["start"])
    optimizer = Optimizer(net, config(**section))
    optimizer.rule.fused.lr = torch.tensor(case["lr"], dtype=torch.float64)  # type: ignore[attr-defined]
    tolerance = 1e-6 if name == "bullet_adamw" else 1e-14  # bullet computes in float32
    for gradient, expected in zip(VECTORS["gradients"], case["weights"], strict=True):
        net.w.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step(torch.ones(()))
        assert net.w.tolist() == pytest.approx(expected, rel=0, abs=tolerance)


@pytest.mark.parametrize("case", VECTORS["schedule_free"], ids=lambda case: f"warmup {case['warmup']}")
def test_schedule_free_gives_the_reference_trainers_weights(case: dict[str, Any]) -> None:
    net = OneWeight(VECTORS["start"])
    section = {key: case[key] for key in ("lr", "weight_decay", "betas", "eps")}
    optimizer = Optimizer(net, config(kind="schedule_free", warmup_steps=case["warmup"], **section))
    optimizer.rule.fused.lr = torch.tensor(case["lr"], dtype=torch.float64)  # type: ignore[attr-defined]
    for gradient, expected in zip(VECTORS["gradients"], case["states"], strict=True):
        net.w.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step(torch.ones(()))
        assert net.w.tolist() == pytest.approx(expected["y"], abs=1e-14)
        assert optimizer.state_dict()["z/w"].tolist() == pytest.approx(expected["z"], abs=1e-14)
        with optimizer.with_net():
            assert net.w.tolist() == pytest.approx(expected["x"], abs=1e-13)
        assert net.w.tolist() == pytest.approx(expected["y"], abs=1e-14)


@pytest.mark.parametrize("step_size", ["original", "match_rms_adamw"])
def test_muon_gives_the_reference_trainers_weights(step_size: str) -> None:
    for case in (VECTORS["muon"], VECTORS["muon"] | VECTORS["muon"]["tall"]):
        if step_size not in case or ("tall" not in case and step_size != "original"):
            continue
        matrix = nn.Parameter(torch.tensor(case["start"], dtype=torch.float64))
        section = Muon(lr=1.0, matrix_lr=case["lr"], matrix_decay=case["weight_decay"], step_size=step_size)  # type: ignore[arg-type]
        rule = section.rule(work(matrix, 1.0, matrices=frozenset("w")))
        assert isinstance(rule, MuonRule)
        if case["start"] == VECTORS["muon"]["tall"]["start"] and step_size != "original":
            continue
        for gradient, expected in zip(case["gradients"], case[step_size], strict=True):
            matrix.grad = torch.tensor(gradient, dtype=torch.float64)
            rule.loss = torch.ones(())
            with torch.no_grad():
                rule.step()
            torch.testing.assert_close(matrix, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_clipping_is_the_reference() -> None:
    """Plain SGD of lr 1 moves by the gradient that is left."""
    for key, option in (("clip_by_norm", "max_norm"), ("clip_by_value", "max_value")):
        case = VECTORS[key]
        net = OneWeight([0.0] * 6)
        limit = case.get("max_norm", case.get("limit"))
        optimizer = Optimizer(net, config(kind="torch", name="SGD", lr=1.0, **{option: limit}))
        net.w.grad = torch.tensor(case["gradient"], dtype=torch.float64)
        optimizer.step(torch.ones(()))
        assert (-net.w).tolist() == pytest.approx(case["result"], rel=1e-6)


class OneWeight(Net):
    def __init__(self, start: list[float]) -> None:
        super().__init__()
        del self.weight, self.head
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def weight_bounds(self) -> Iterator[Any]:
        yield from ()

    def factorised(self) -> dict[str, list[VirtualRows]]:
        return {}


# ---- a net with everything, for 100 steps ----------------------------------------------------------------------------


class Stacked(Net):
    """The test net with stacks of matrices, which share a virtual one."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype)
        torch.manual_seed(4)
        self.stack = StackedLinear(2, OUTPUTS, 4).to(dtype)

    def forward(self, batch: Any) -> Tensor:
        hidden = torch.tanh(batch @ self.weight)
        both = torch.einsum("bi,soi->bso", hidden, self.stack.weight) + self.stack.bias
        return torch.tanh(both).sum((1, 2)) + hidden @ self.head

    def factorised(self) -> dict[str, list[VirtualRows]]:
        return super().factorised() | {"stack.weight": [VirtualRows(0, 2, 1)]}


def train(net: Net, optimizer: Optimizer, batches: list[Tensor]) -> None:
    for x in batches:
        loss = (net(x.to(net.weight.dtype)) - 1).square().mean()
        loss.backward()
        optimizer.step(loss.detach())


def muon_reference(net: Stacked, batches: list[Tensor], lr: float, others: str) -> dict[str, Tensor]:
    """Muon for the stacks, torch's AdamW or RAdam for the rest, with explicit virtual parameters."""
    virtual = nn.Parameter(torch.zeros(ROWS, OUTPUTS, dtype=torch.float64))
    shared = nn.Parameter(torch.zeros(1, *net.stack.weight.shape[1:], dtype=torch.float64))
    rest = [net.weight, net.head, net.stack.bias, virtual]
    rule: torch.optim.Optimizer
    if others == "radam":
        rule = torch.optim.RAdam(rest, lr=lr, eps=1e-8, weight_decay=0.01, decoupled_weight_decay=True)
    else:
        rule = torch.optim.AdamW(rest, lr=lr, eps=1e-8, weight_decay=0.01)
    momenta = {net.stack.weight: torch.zeros_like(net.stack.weight), shared: torch.zeros_like(shared)}
    for x in batches:
        hidden = torch.tanh(x @ (net.weight + virtual.repeat(len(net.weight) // ROWS, 1)))
        both = torch.einsum("bi,soi->bso", hidden, net.stack.weight + shared) + net.stack.bias
        loss = (torch.tanh(both).sum((1, 2)) + hidden @ net.head - 1).square().mean()
        rule.zero_grad()
        for matrix in momenta:
            matrix.grad = None
        loss.backward()
        rule.step()
        with torch.no_grad():
            for matrix, momentum in momenta.items():
                assert matrix.grad is not None
                momentum.mul_(0.95).add_(0.05 * matrix.grad)
                update = 0.05 * matrix.grad + 0.95 * momentum
                size = math.sqrt(max(1.0, matrix.shape[-2] / matrix.shape[-1]))
                for s in range(len(matrix)):
                    u = update[s] / update[s].norm()
                    left, values, right = torch.linalg.svd(u, full_matrices=False)
                    for _ in range(5):  # the iteration acts on singular values alone
                        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
                    matrix[s] = matrix[s] * (1 - 2e-3 * 0.1) - 2e-3 * size * left @ values.diag() @ right
    return {
        "weight": (net.weight + virtual.repeat(len(net.weight) // ROWS, 1)).detach(),
        "stack.weight": (net.stack.weight + shared).detach(),
        "stack.bias": net.stack.bias.detach(),
    }


def test_orthogonal_of_stacks_is_that_of_each() -> None:
    stacks = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = orthogonal(stacks)
    for one, all_of_it in zip(stacks, together, strict=True):
        torch.testing.assert_close(orthogonal(one), all_of_it)
        values = torch.linalg.svdvals(all_of_it)
        assert ((values > 0.6) & (values < 1.3)).all()


RULES: dict[str, dict[str, Any]] = {
    "adamw": {"kind": "adamw"},
    "radam": {"kind": "radam"},
    "ranger": {"kind": "ranger", "max_value": 0.01},
    "stable": {"kind": "ranger_lite", "stable_decay": True, "weight_decay": 1e-3},
    "lion": {"kind": "lion"},
    "schedule_free": {"kind": "schedule_free", "warmup_steps": 5, "weight_decay": 0.01},
    "muon": {"kind": "muon", "max_norm": 0.5},
    "muon_lion": {"kind": "muon", "others": "lion"},
    "muon_ranger_lite": {"kind": "muon", "others": "ranger_lite", "max_norm": 0.5},
    "torch": {"kind": "torch", "name": "NAdam", "max_norm": 0.5, "max_value": 0.1},
    "groups": {"kind": "adamw", "groups": [{"match": "st*", "betas": [0.8, 0.9]}, {"match": "head", "frozen": True}]},
}


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_a_resumed_rule_is_the_same_to_the_bit(name: str, average: bool) -> None:
    if average and name == "schedule_free":
        pytest.skip("has a separate mean")
    batches, ends = inputs(24), []
    for stops in (False, True):
        net = Stacked(torch.float32)
        optimizer = Optimizer(net, config(**RULES[name]), averages=average)
        for step, x in enumerate(batches):
            if stops and step == 13:
                with optimizer.with_net():
                    weights = {k: v.clone() for k, v in net.state_dict().items()}
                    state = {k: v.clone() for k, v in optimizer.state_dict().items()}
                net = Stacked(torch.float32)
                net.load_state_dict(weights)
                optimizer = Optimizer(net, config(**RULES[name]), averages=average)
                optimizer.load_state_dict(state, good_steps=step)
            train(net, optimizer, [x])
            if average and step % 3 == 0:
                optimizer.average(0.1)
        with optimizer.with_net():
            ends.append({k: v.clone() for k, v in (net.state_dict() | optimizer.state_dict()).items()})
    assert ends[0].keys() == ends[1].keys()
    for key, tensor in ends[0].items():
        assert torch.equal(tensor, ends[1][key]), key


# ---- groups ----------------------------------------------------------------------------------------------------------


def after(steps: int, **section: Any) -> Stacked:
    net = Stacked()
    train(net, Optimizer(net, config(**section)), inputs(steps))
    return net


@pytest.mark.parametrize("kind", [{"kind": "adamw"}, {"kind": "torch", "name": "AdamW"}])
def test_groups_change_lr_decay_and_betas(kind: dict[str, Any]) -> None:
    """One group of everything is the same as other numbers for everything, virtual rows included."""
    lr, group = 2.0**-6, {"match": "*", "lr_factor": 0.25, "weight_decay": 0.5, "betas": [0.5, 0.75]}
    found = after(7, **kind, lr=lr, groups=[group])
    if kind["kind"] == "torch":
        expected = after(7, **kind, lr=lr / 4, options={"weight_decay": 0.5, "betas": [0.5, 0.75]})
    else:
        expected = after(7, **kind, lr=lr / 4, weight_decay=0.5, betas=[0.5, 0.75])
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [{"kind": "adamw"}, {"kind": "muon"}, {"kind": "torch", "name": "AdamW"}])
def test_groups_freeze_and_limit(kind: dict[str, Any]) -> None:
    groups = [
        {"match": "weight", "frozen": True},
        {"match": "stack.*", "min_weight": -0.1, "max_weight": 0.2},
        {"match": "stack.bias", "max_weight": 0.05},
    ]
    start, end = Stacked(), after(5, **kind, lr=0.25, groups=groups)
    assert torch.equal(start.weight, end.weight)
    assert not torch.equal(start.head, end.head)
    weights, biases = end.stack.weight.detach(), end.stack.bias.detach()
    assert weights.min() == -0.1
    assert -0.1 <= biases.min() <= biases.max() <= 0.05
    assert start.stack.bias.max() > 0.05


def test_a_frozen_parameter_keeps_moments_and_stays_out_of_norms() -> None:
    net = Stacked()
    optimizer = Optimizer(net, config(kind="ranger_lite", groups=[{"match": "weight", "frozen": True}]))
    train(net, optimizer, inputs(3))
    state = optimizer.state_dict()
    assert not state["exp_avg/weight"].any()
    assert not state["exp_avg/weight.virtual"].any()
    assert state["exp_avg/head"].any()
    x = inputs(4)[3]
    loss = (net(x) - 1).square().mean()
    loss.backward()
    others = [p.grad for n, p in net.named_parameters() if n != "weight"]
    squares = sum(float(g.square().sum()) for g in others if g is not None)
    squares += float(grad_of(net.get_parameter("stack.weight")).sum(0).square().sum())
    optimizer.step(loss.detach())
    assert optimizer.rule.fused.numbers[8].item() == pytest.approx(math.sqrt(squares))  # type: ignore[attr-defined]


def test_wrong_groups_are_named() -> None:
    with pytest.raises(UserError, match=r"groups.0.match: 'nothing\*' matches no parameter, .* of weight, head"):
        Optimizer(Net(), config(kind="adamw", groups=[{"match": "nothing*"}]))
    with pytest.raises(UserError, match="found betas, but SGD has none"):
        Optimizer(Net(), config(kind="torch", name="SGD", groups=[{"match": "*", "betas": [0.9, 0.9]}]))
    with pytest.raises(UserError, match="schedule_free, which averages weights itself"):
        Optimizer(Net(), config(kind="schedule_free"), averages=True)
    for section in (
        {"kind": "ranger_lite", "stable_decay": True, "max_value": 1.0},
        {"kind": "schedule_free", "betas": [0.0, 0.9]},
        {"kind": "adamw", "groups": [{"match": "*", "min_weight": 1.0, "max_weight": 0.0}]},
    ):
        with pytest.raises(ValidationError):
            config(**section)
