"""The fused rules in the trainer's optimiser, and what its guard may leave out."""

from __future__ import annotations

import math

import pytest
import torch
from test_optim import Net, inputs
from torch import nn

from nnue_trainer import nets
from nnue_trainer.ops import perspectives
from nnue_trainer.ops.reference import Activation
from nnue_trainer.optim import AdamW, Optimizer
from nnue_trainer.optim.base import OptimizerConfig
from nnue_trainer.optim.fused import FusedConfig, FusedRule
from nnue_trainer.optim.muon import Muon
from nnue_trainer.optim.parts import Moments
from nnue_trainer.optim.ranger import Ranger, RangerLite


def run(config: OptimizerConfig, net: Net, optimizer: Optimizer, xs: list[torch.Tensor]) -> None:
    for x in xs:
        loss = (net(x) - 1).square().mean()
        loss.backward()
        optimizer.step(loss)


@pytest.mark.parametrize(
    "config", [RangerLite(lr=2.0**-6, lookahead_steps=3), Ranger(lr=2.0**-6, lookahead_steps=2, max_norm=0.1)]
)
def test_state_moves_to_another_optimiser_bit_for_bit(config: OptimizerConfig) -> None:
    """In the middle of lookahead, with the other average next."""
    first, second, xs = Net(), Net(), inputs(9)
    one = Optimizer(first, config)
    run(config, first, one, xs[:4])
    second.load_state_dict(first.state_dict())
    two = Optimizer(second, config)
    two.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    run(config, first, one, xs[4:])
    run(config, second, two, xs[4:])
    assert torch.equal(first.weight, second.weight)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_counts_that_differ_are_refused_by_name() -> None:
    optimizer = Optimizer(Net(), AdamW())
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"tensor step/head: found 3, expected 0, as in step/weight"):
        optimizer.load_state_dict({**state, "step/head": torch.tensor(3.0)})


@pytest.mark.parametrize("kind", [AdamW, Muon, Ranger])
def test_means_in_16_bits_are_those_of_the_feature_transformer(
    kind: type[FusedConfig], caplog: pytest.LogCaptureFixture
) -> None:
    """A state with either kind of means is read into the other, with a line for the mean."""
    name = "exp_avg/feature_transformer.weight"
    model = nets.build({"kind": "sfnnv5", "l1": 32})
    full, short = Optimizer(model, kind()), Optimizer(model, kind(exp_avg_dtype="bf16"))
    assert [key for key, tensor in short.state_dict().items() if tensor.dtype == torch.bfloat16] == [name]
    words = {m.words for o in (full, short) for m in own_rows(o)}
    assert words == ({4.0, 3.5} if kind is Ranger else {3.0, 2.5})
    values = torch.randn(full.state_dict()[name].shape, generator=torch.Generator().manual_seed(1))
    full.state_dict()[name].copy_(values)

    short.load_state_dict(full.state_dict())
    full.load_state_dict(short.state_dict())
    full.load_state_dict(full.state_dict())
    assert [record.message for record in caplog.records] == [
        f"{name}: converted from torch.float32 to torch.bfloat16",
        f"{name}: converted from torch.bfloat16 to torch.float32",
    ]
    assert torch.equal(full.state_dict()[name], values.bfloat16().float())


def own_rows(optimizer: Optimizer) -> list[Moments]:
    assert isinstance(optimizer.rule, FusedRule)
    return [moments for part, moments in optimizer.rule.fused.pairs if part.name == "feature_transformer.weight"]


def test_the_largest_gradient_is_covered() -> None:
    model = nets.build({"kind": "sfnnv5", "l1": 32})
    assert model.covered_gradients() == {"feature_transformer.weight"}


def test_rows_that_are_trained_alike_are_one_part() -> None:
    """Threats and pawn pairs, which have the same bounds; king-bucketed rows have virtual rows."""
    model = nets.build({"kind": "sfnnv17", "l1": 32})
    rule = Optimizer(model, RangerLite()).rule
    assert isinstance(rule, FusedRule)
    parts = [part for part in rule.fused.parts if part.name == "feature_transformer.weight"]
    assert [(part.first, part.size, part.virtual_rows) for part in parts] == [(0, 24576, 768), (24576, 64368, 0)]


@pytest.mark.parametrize("activation", ["crelu", "screlu", "pairwise"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_wrong_weight_gradient_makes_the_bias_gradient_wrong(activation: Activation, value: float) -> None:
    """So the guard reads only the gradient of the bias."""
    g = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 40, (30, 6), generator=g, dtype=torch.int32)
    black_to_move = torch.zeros(30, dtype=torch.uint8)
    found = 0
    for place in range(0, 30 * 32, 31):
        weight = nn.Parameter(torch.rand(40, 32, generator=g) * 0.3 - 0.1)
        bias = nn.Parameter(torch.rand(32, generator=g) * 0.5)
        out = perspectives.perspective_transformer(
            rows, rows.flip(0), black_to_move, weight, bias, activation=activation
        )
        assert isinstance(out, torch.Tensor)
        grad = torch.randn(out.shape, generator=g)
        grad.view(-1)[place] = value
        out.backward(grad)
        assert weight.grad is not None
        assert bias.grad is not None
        if not weight.grad.isfinite().all():
            found += 1
            assert not bias.grad.isfinite().all()
    assert found > 5
