"""Optimisers of others: a run that is stopped and resumed is the run that was never stopped, or is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from made_up import trainer
from test_optim import Net, inputs, train
from typed import instance

from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.optim import Optimizer, OptimizerConfig, Rule, TorchRule, Work
from nnue_trainer.optim.base import OPTIMIZERS
from nnue_trainer.schema import section
from nnue_trainer.training.resuming import resume


def schedulefree(groups: Any, lr: float) -> torch.optim.Optimizer:
    package = pytest.importorskip("schedulefree")
    made = package.AdamWScheduleFree(groups, lr=lr, warmup_steps=3)
    made.train()
    return made


def lion(groups: Any, lr: float) -> torch.optim.Optimizer:
    return pytest.importorskip("lion_pytorch").Lion(groups, lr=lr)


def prodigy(groups: Any, lr: float) -> torch.optim.Optimizer:
    return pytest.importorskip("prodigyopt").Prodigy(groups, lr=1.0, d0=lr)


def lookahead(groups: Any, lr: float) -> torch.optim.Optimizer:
    """Wraps another optimiser."""
    package = pytest.importorskip("pytorch_optimizer")
    return package.Lookahead(package.AdaBelief(groups, lr=lr), k=4)


def ranger(groups: Any, lr: float) -> torch.optim.Optimizer:
    return pytest.importorskip("pytorch_optimizer").Ranger21(groups, lr=lr, num_iterations=40)


def nadam(groups: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.NAdam(groups, lr=lr, decoupled_weight_decay=True)


MAKERS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (schedulefree, lion, prodigy, lookahead, ranger, nadam)
}


@section
class OfOthers(OptimizerConfig):
    """One of `MAKERS`."""

    name: str = "nadam"

    def rule(self, work: Work) -> Rule:
        return TorchRule(work, lambda groups: MAKERS[self.name](groups, self.lr))


@pytest.fixture(autouse=True, scope="module")
def registered():
    """Other tests list the optimisers that the package has."""
    OPTIMIZERS.register("of_others")(OfOthers)
    yield
    del OPTIMIZERS._classes["of_others"]


@pytest.mark.parametrize("stop", [7, 10])
@pytest.mark.parametrize("name", MAKERS)
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, name, stop):
    options = (f"optimizer={{kind: of_others, name: {name}, lr: 0.01, factoriser: false}}",)
    whole = trainer(tmp_path / "whole", *options)
    for _ in range(20):
        whole.advance()
    first = trainer(tmp_path / "first", *options)
    for _ in range(stop):
        first.advance()
    path = tmp_path / "stopped.safetensors"
    checkpoint.save(path, first.checkpoint())
    second = trainer(tmp_path / "second", *options)
    resume(second, checkpoint.load(path), path)
    for _ in range(20 - stop):
        second.advance()
    expected, found = whole.checkpoint().tensors, second.checkpoint().tensors
    for group in ("model", "optimizer"):
        assert expected[group].keys() == found[group].keys()
        for key, tensor in expected[group].items():
            assert torch.equal(tensor, found[group][key]), key
    assert not torch.equal(first.model.state_dict()["output.weight"], whole.model.state_dict()["output.weight"])


class Decaying(torch.optim.Optimizer):
    """`where` it keeps the count that decides its next step."""

    count = 0

    def __init__(self, groups: Any, where: str, speed: float = 1.0) -> None:
        super().__init__(groups, {"lr": 0.1, "speed": speed})
        self.where, self.steps = where, 0
        self.nested: dict[str, list[Any]] = {"steps": [0, math.inf]}
        hidden = [0]

        def closed() -> int:
            hidden[0] += 1
            return hidden[0]

        self.closed = closed

    def _next(self) -> int:
        if self.where == "group":
            self.param_groups[0]["steps"] = self.param_groups[0].get("steps", 0) + 1
            return self.param_groups[0]["steps"]
        if self.where == "nested":
            self.nested["steps"][0] += 1
            return self.nested["steps"][0]
        if self.where == "attribute":
            self.steps += 1
            return self.steps
        return self.closed()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as people write them
        number = self._next()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"] * group["speed"] / number)


@section
class DecayingConfig(OptimizerConfig):
    """With a count at some place."""

    where: str = "group"
    speed: float = 1.0

    def rule(self, work: Work) -> Rule:
        return TorchRule(work, lambda groups: Decaying(groups, self.where, self.speed))


@pytest.mark.parametrize("where", ["group", "nested", "attribute"])
def test_a_count_is_saved_wherever_it_is(where):
    nets = [Net(), Net()]
    one, two = (Optimizer(net, DecayingConfig(where=where)) for net in nets)
    train(nets[0], one, inputs(3))
    nets[1].load_state_dict(nets[0].state_dict())
    two.load_state_dict({key: tensor.clone() for key, tensor in one.state_dict().items()})
    for net, optimizer in zip(nets, (one, two), strict=True):
        train(net, optimizer, inputs(2))
    assert torch.equal(nets[0].weight, nets[1].weight)


def test_what_cannot_be_saved_is_refused_at_the_start():
    DecayingConfig.kind = "decaying"
    with pytest.raises(UserError, match=r"^optimizer decaying: a resumed run would not be the same: after 7 steps, "):
        Optimizer(Net(), DecayingConfig(where="closure"))


def test_a_rule_that_keeps_a_number_to_itself_is_refused_at_the_start():
    class Forgetful(Rule):
        steps = 0

        def step(self) -> None:
            self.steps += 1
            for parameter in self.work.parameters.values():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad / self.steps)

    @section
    class ForgetfulConfig(OptimizerConfig):
        """Its state is empty."""

        def rule(self, work: Work) -> Rule:
            return Forgetful(work)

    ForgetfulConfig.kind = "forgetful"
    with pytest.raises(UserError, match=r"forgetful: a resumed run would not be the same.*Rule\.state_dict"):
        Optimizer(Net(), ForgetfulConfig())


def test_a_changed_option_reaches_a_resumed_run():
    """Options that no step has changed come from the recipe, not from the checkpoint."""
    net = Net()
    one = Optimizer(net, DecayingConfig(speed=1.0))
    train(net, one, inputs(3))
    two = Optimizer(Net(), DecayingConfig(speed=0.5))
    two.load_state_dict(one.state_dict())
    group = instance(TorchRule, two.rule).optimizer.param_groups[0]
    assert (group["speed"], group["steps"]) == (0.5, 3)
