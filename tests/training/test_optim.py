"""The optimiser against ordinary training with explicit virtual rows, weight limits and NaN."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from nnue_trainer.architectures.base import NnueModel, WeightBound
from nnue_trainer.optim import Optimizer, OptimizerConfig

GROUPS, ROWS, OUTPUTS = 5, 4, 3


class Net(NnueModel):
    """x @ weight, through a curve; weight [G·V, N] factorised."""

    score_scale = 1.0

    def __init__(self, dtype: torch.dtype = torch.float64, limit: float = 100.0):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(GROUPS * ROWS, OUTPUTS, generator=generator, dtype=dtype))
        self.head = nn.Parameter(torch.randn(OUTPUTS, generator=generator, dtype=dtype))
        self.limit = limit

    @property
    def architecture(self) -> dict[str, Any]:
        return {"kind": "test"}

    def forward(self, batch: Any) -> torch.Tensor:
        return torch.tanh(batch @ self.weight) @ self.head

    def weight_bounds(self) -> Iterator[WeightBound]:
        yield WeightBound("weight", self.weight, -self.limit, self.limit)

    def factorised(self) -> dict[str, int]:
        return {"weight": ROWS}


def inputs(steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(7, GROUPS * ROWS, generator=generator, dtype=torch.float64) for _ in range(steps)]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_factoriser_equals_explicit_virtual_rows(weight_decay):
    """Autograd through w[r] + v[r mod V] and torch's own AdamW, in float64."""
    lr, betas, eps = 2.0**-6, (0.9, 0.99), 1e-8
    net = Net()
    optimizer = Optimizer(net, OptimizerConfig(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    explicit = Net()
    virtual = nn.Parameter(torch.zeros(ROWS, OUTPUTS, dtype=torch.float64))
    adamw = torch.optim.AdamW(
        [explicit.weight, explicit.head, virtual], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, foreach=False
    )
    for x in inputs(40):
        loss = (net(x) - 1).square().mean()
        loss.backward()
        optimizer.step(loss)

        adamw.zero_grad()
        merged = explicit.weight + virtual.repeat(GROUPS, 1)
        (torch.tanh(x @ merged) @ explicit.head - 1).square().mean().backward()
        adamw.step()

    merged = explicit.weight + virtual.repeat(GROUPS, 1)
    assert virtual.abs().max() > 0.05, "virtual rows must have moved for this to prove anything"
    torch.testing.assert_close(net.weight, merged, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(net.head, explicit.head, rtol=1e-9, atol=1e-11)


def test_without_the_factoriser_it_is_torchs_adamw():
    net, plain = Net(), Net()
    optimizer = Optimizer(net, OptimizerConfig(lr=2.0**-7, factoriser=False, weight_decay=0.02))
    adamw = torch.optim.AdamW(plain.parameters(), lr=2.0**-7, weight_decay=0.02)
    for x in inputs(10):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step(loss)
        adamw.zero_grad()
        plain(x).square().mean().backward()
        adamw.step()
    torch.testing.assert_close(net.weight, plain.weight, rtol=1e-12, atol=0)


@pytest.mark.parametrize("factoriser", [True, False])
def test_weights_stay_in_range(factoriser):
    net = Net(limit=0.5)
    optimizer = Optimizer(net, OptimizerConfig(lr=0.25, factoriser=factoriser))
    for x in inputs(5):
        loss = (net(x) - 5).square().mean()
        loss.backward()
        optimizer.step(loss)
        assert net.weight.abs().max() <= 0.5
    assert net.head.abs().max() > 0.5, "no limit is declared for this one"


@pytest.mark.parametrize("where", ["loss", "weight", "head"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("factoriser", [True, False])
def test_a_non_finite_step_changes_nothing_and_is_remembered(where, value, factoriser):
    net = Net()
    optimizer = Optimizer(net, OptimizerConfig(factoriser=factoriser))
    batches = inputs(5)

    def step(poison: bool) -> None:
        loss = net(batches[0]).square().mean()
        loss.backward()
        if poison and where == "loss":
            loss = loss * value
        elif poison:
            getattr(net, where).grad[-1] = value
        optimizer.step(loss.detach())

    step(False)
    step(False)
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    moments = {name: tensor.clone() for name, tensor in optimizer.state_dict().items()}
    assert not optimizer.failed()
    step(True)
    step(False)  # the failure sticks: what is saved is the last good step
    assert optimizer.failed()
    assert optimizer.good_steps() == 2
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    for name, tensor in optimizer.state_dict().items():
        assert torch.equal(tensor, moments[name]), name


def test_state_moves_to_another_optimiser_bit_for_bit():
    first, second = Net(torch.float32), Net(torch.float32)
    one = Optimizer(first, OptimizerConfig())
    batches = [x.float() for x in inputs(6)]

    def run(net: Net, optimizer: Optimizer, xs: list[torch.Tensor]) -> None:
        for x in xs:
            loss = (net(x) - 1).square().mean()
            loss.backward()
            optimizer.step(loss)

    run(first, one, batches[:3])
    second.load_state_dict(first.state_dict())
    two = Optimizer(second, OptimizerConfig())
    two.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    run(first, one, batches[3:])
    run(second, two, batches[3:])
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.head, second.head)


def test_foreign_state_is_refused_by_name():
    optimizer = Optimizer(Net(), OptimizerConfig())
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"exp_avg/weight\.virtual is missing"):
        optimizer.load_state_dict({k: v for k, v in state.items() if k != "exp_avg/weight.virtual"})
    with pytest.raises(ValueError, match=r"exp_avg/head has shape \[2\], expected \[3\]"):
        optimizer.load_state_dict({**state, "exp_avg/head": torch.zeros(2)})


def test_rows_must_divide_evenly():
    class Odd(Net):
        def factorised(self) -> dict[str, int]:
            return {"weight": 3}

    with pytest.raises(ValueError, match="weight: 20 rows cannot share 3 virtual rows evenly"):
        Optimizer(Odd(), OptimizerConfig())


def test_the_learning_rate_follows_the_tensor():
    net = Net()
    optimizer = Optimizer(net, OptimizerConfig(lr=0.5, weight_decay=0.0))
    before = net.weight.detach().clone()
    optimizer.lr.fill_(0.0)
    loss = net(inputs(1)[0]).square().mean()
    loss.backward()
    optimizer.step(loss)
    assert torch.equal(net.weight, before)
