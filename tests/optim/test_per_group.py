"""Rules of groups: each parameter moves as under its own rule alone, and a step is made by all rules or by none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field
from test_optim import Net, inputs

from nnue_trainer import nets, schema
from nnue_trainer.errors import UserError
from nnue_trainer.optim import AdamW, Optimizer, OptimizerConfig
from nnue_trainer.optim.base import OPTIMIZERS, Group, Rule, Work
from nnue_trainer.optim.per_group import PerGroup, by_value, replaces

FUSED = ["adamw", "radam", "ranger", "ranger_lite", "lion", "schedule_free", "muon"]


def section(kind: str, **fields: Any) -> OptimizerConfig:
    """A power of two as the rate, so that a factor of it is exact."""
    fields = {"lr": 2.0**-6} | ({"max_norm": None} if kind == "ranger_lite" else {}) | fields
    return OPTIMIZERS.parse({"kind": kind, **fields}, trusted=True)


def train(model: nets.NnueModel, optimizer: Optimizer, steps: int, first: int = 0) -> None:
    """Gradients that do not depend on the weights."""
    for step in range(first, first + steps):
        g = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=g)
        optimizer.set_lr(2.0**-6 if step < 3 else 2.0**-8)
        optimizer.step(torch.ones(()))


def net() -> nets.NnueModel:
    torch.manual_seed(5)
    return nets.build({"kind": "sfnnv5", "l1": 32})


@pytest.mark.parametrize("other", [*FUSED, "torch"])
@pytest.mark.parametrize("kind", [*FUSED, "torch"])
def test_each_parameter_moves_as_under_its_rule_alone(kind: str, other: str) -> None:
    def config(kind: str, rate: float, groups: list[Any]) -> OptimizerConfig:
        options = {"name": "SGD", "options": {"momentum": 0.5}} if kind == "torch" else {}
        return section(kind, lr=rate, groups=groups, factoriser=False, **options)

    rule = {"kind": other, "lr": 2.0**-8} | ({"name": "SGD", "options": {"momentum": 0.5}} if other == "torch" else {})
    if other == "ranger_lite":
        rule["max_norm"] = 2.0  # its default; the recipe's holds
    both, main, grouped = net(), net(), net()
    optimizer = Optimizer(both, config(kind, 2.0**-6, [{"match": "*.weight", "rule": rule}]))
    assert isinstance(optimizer.rule, PerGroup)
    train(both, optimizer, 7)
    train(main, Optimizer(main, config(kind, 2.0**-6, [])), 7)
    # The schedule is that of the recipe: a rate of 2⁻⁸ beside one of 2⁻⁶ is a quarter of it in each step.
    alone = Optimizer(grouped, config(other, 2.0**-8, []))
    for step in range(7):
        g = torch.Generator().manual_seed(step)
        for parameter in grouped.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=g)
        alone.set_lr(2.0**-8 if step < 3 else 2.0**-10)
        alone.step(torch.ones(()))
    with optimizer.with_net(), alone.with_net():
        for name, tensor in both.state_dict().items():
            if name.endswith(".weight"):
                assert torch.equal(tensor, grouped.state_dict()[name]), name
    for name, tensor in both.state_dict().items():
        if not name.endswith(".weight"):
            assert torch.equal(tensor, main.state_dict()[name]), name


def test_the_first_step_has_the_rate_of_the_rule() -> None:
    """Also where nothing has set a rate."""
    one, two = net(), net()
    divided = Optimizer(one, section("adamw", groups=[{"match": "*", "rule": {"kind": "adamw", "lr": 2.0**-9}}]))
    alone = Optimizer(two, section("adamw", lr=2.0**-9))
    for model, optimizer in ((one, divided), (two, alone)):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step(torch.ones(()))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name]), name


def test_muon_trains_virtual_rows_of_matrices_beside_a_rule_of_torch() -> None:
    def trained(config: OptimizerConfig) -> nets.NnueModel:
        torch.manual_seed(5)
        model = nets.build({"kind": "sfnnv16", "l1": 32})
        train(model, Optimizer(model, config), 4)
        return model

    groups = [{"match": "*", "rule": {"kind": "muon", "lr": 2.0**-6}}]
    one, two = trained(section("torch", name="SGD", groups=groups)), trained(section("muon"))
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, two.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kinds", [("torch", "schedule_free"), ("schedule_free", "torch")])
def test_an_average_without_its_virtual_rows_is_refused(kinds: tuple[str, str]) -> None:
    main, rule = ({"kind": kind} | ({"name": "SGD"} if kind == "torch" else {}) for kind in kinds)
    config = section(**main, groups=[{"match": "head" if main["kind"] == "schedule_free" else "weight", "rule": rule}])
    with pytest.raises(UserError, match="found 'schedule_free' with virtual rows beside a rule that is not fused"):
        Optimizer(Net(), config)


@schema.section
class Aliased(AdamW):
    """A section with a field of another name in recipes, and one whose default is made."""

    kind: ClassVar[str] = "aliased"
    lambda_: float = Field(default=0.5, alias="lambda")
    numbers: list[int] = Field(default_factory=lambda: [1])

    def rule(self, work: Work) -> Rule:
        assert (self.lambda_, self.numbers) == (0.25, [1])
        return super().rule(work)


def test_a_section_with_an_alias_is_a_rule_of_a_group() -> None:
    fields: dict[str, Any] = {"lambda": 0.25}
    config = replace(section("adamw"), groups=[Group(match="head", rule=Aliased(**fields))])
    assert isinstance(Optimizer(Net(), config).rule, PerGroup)


@pytest.mark.parametrize("main", ["adamw", "muon", "schedule_free", "torch"])
@pytest.mark.parametrize("other", ["ranger_lite", "muon", "schedule_free", "torch"])
def test_a_stopped_and_resumed_training_is_the_same(main: str, other: str) -> None:
    def make() -> tuple[nets.NnueModel, Optimizer]:
        options = {"name": "SGD", "options": {"momentum": 0.5}}
        rule = {"kind": other} | (options if other == "torch" else {})
        groups = [{"match": "feature_transformer.*", "rule": rule}]
        fields = (options if main == "torch" else {}) | {"factoriser": {main, other} != {"torch", "schedule_free"}}
        model = net()
        return model, Optimizer(model, section(main, groups=groups, **fields), late=True)

    (first, one), (second, two) = make(), make()
    train(first, one, 4)
    state = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    with one.with_net():
        second.load_state_dict(first.state_dict())
    two.load_state_dict(state, good_steps=4)
    train(first, one, 4, first=4)
    train(second, two, 4, first=4)
    assert (one.good_steps(), two.good_steps()) == (8, 8)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name]), name
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_a_state_with_other_tensors_is_refused_by_name() -> None:
    config = section("adamw", groups=[{"match": "head", "rule": {"kind": "schedule_free"}}])
    optimizer = Optimizer(Net(), config)
    state = optimizer.state_dict()
    assert "1/numbers/0" in state
    for name in ("2/numbers/0", "other/thing", "exp_avg/nothing"):
        with pytest.raises(ValueError, match=f"tensor {name} is unknown"):
            optimizer.load_state_dict({**state, name: torch.zeros(())})
    del state["z/head"]
    with pytest.raises(ValueError, match="tensor z/head is missing"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize("where", ["loss", "weight", "head"])
@pytest.mark.parametrize("owner", ["weight", "head"])
@pytest.mark.parametrize("rule", ["lion", "torch"])
def test_a_gradient_that_is_not_finite_stops_all_rules(where: str, owner: str, rule: str) -> None:
    options = {"name": "SGD", "options": {"momentum": 0.5}} if rule == "torch" else {}
    model = Net()
    optimizer = Optimizer(model, section("ranger", groups=[{"match": owner, "rule": {"kind": rule, **options}}]))

    def step(poison: bool) -> None:
        loss = model(inputs(1)[0]).square().mean()
        loss.backward()
        if poison and where == "loss":
            loss = loss * math.nan
        elif poison:
            getattr(model, where).grad[-1] = math.inf
        optimizer.step(loss.detach())

    step(False)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moments = {name: tensor.clone() for name, tensor in optimizer.state_dict().items()}
    step(True)
    step(False)
    assert (optimizer.failed(), optimizer.good_steps()) == (True, 1)
    for name, tensor in (model.state_dict() | optimizer.state_dict()).items():
        assert torch.equal(tensor, (weights | moments)[name]), name


@pytest.mark.parametrize("owner", ["weight", "head"])
def test_the_norm_is_that_of_all_gradients(owner: str) -> None:
    """Virtual rows included: the weight has some."""
    one, two = Net(), Net()
    plain = Optimizer(one, section("adamw", max_norm=2.0**-5, max_value=2.0**-7))
    groups = [{"match": owner, "rule": {"kind": "adamw", "lr": 2.0**-6}}]
    divided = Optimizer(two, section("adamw", max_norm=2.0**-5, max_value=2.0**-7, groups=groups))
    for x in inputs(5):
        for model, optimizer in ((one, plain), (two, divided)):
            loss = (model(x) - 1).square().mean()
            loss.backward()
            optimizer.step(loss.detach())
    torch.testing.assert_close(two.weight, one.weight, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(two.head, one.head, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"kind": "adamw", "max_norm": 1.0}, "the rule 'adamw' sets max_norm, expected it in optimizer"),
        ({"kind": "adamw", "factoriser": False}, "the rule 'adamw' sets factoriser, expected it in optimizer"),
        ({"kind": "adamw", "groups": [{"match": "*"}]}, "the rule 'adamw' sets groups, expected it in optimizer"),
        ({"kind": "ranger_lite", "stable_decay": True}, "'ranger_lite' has stable_decay, which needs all gradients"),
    ],
)
def test_what_belongs_to_all_rules_is_refused_in_one(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"optimizer.groups: .*{message}"):
        Optimizer(Net(), section("adamw", groups=[{"match": "head", "rule": rule}]))


def test_betas_of_groups_are_checked_by_the_rule_that_has_them() -> None:
    groups = [{"match": "head", "rule": {"kind": "schedule_free"}}, {"match": "*", "betas": [0.0, 0.9]}]
    with pytest.raises(UserError, match="the rule 'schedule_free': betas: found 0 as the first number"):
        Optimizer(Net(), section("adamw", groups=groups))


def test_what_the_rules_do_together() -> None:
    fused = section("adamw", groups=[{"match": "head", "rule": {"kind": "muon"}}])
    assert replaces(fused) == AdamW.replaces
    assert by_value(fused)
    assert not by_value(replace(fused, max_norm=1.0))
    torch_rule = {"kind": "torch", "name": "SGD"}
    assert replaces(section("adamw", groups=[{"match": "head", "rule": torch_rule}])) == frozenset()
