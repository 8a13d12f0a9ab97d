"""Training with late rows gives the same weights, and they are up to date whenever they are read in between."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typed import instance, present

from nnue_trainer import nets
from nnue_trainer.data import Batch, Loader
from nnue_trainer.modules import PerspectiveTransformer
from nnue_trainer.nets.base import NnueModel, StackedModel
from nnue_trainer.optim import AdamW, Optimizer
from nnue_trainer.optim.base import OptimizerConfig
from nnue_trainer.optim.fused import FusedRule
from nnue_trainer.optim.fused_optimizer import LateRows
from nnue_trainer.optim.muon import Muon
from nnue_trainer.optim.ranger import Ranger, RangerLite

NETS = [
    {"kind": "sfnnv5", "l1": 32},
    {"kind": "sfnnv16", "l1": 32},  # features without virtual rows, and with narrower bounds
]
WEIGHT = "feature_transformer.weight"
STEPS = 20  # more than the window has


@pytest.fixture(scope="module", params=NETS, ids=lambda net: net["kind"])
def batches(request: pytest.FixtureRequest, project_root: Path) -> tuple[dict[str, object], list[Batch]]:
    net = request.param
    loader = Loader([project_root / "samples" / "train.binpack"], nets.build(net).feature_set, 16, shuffle=False)
    taken = []
    for batch in loader:
        taken.append(batch.clone())
        if len(taken) == STEPS + 5:
            break
    loader.close()
    return net, taken


def start(net: dict[str, object], config: OptimizerConfig, late: bool) -> tuple[NnueModel, Optimizer]:
    torch.manual_seed(1)
    model = nets.build(net)
    return model, Optimizer(model, config, late=late)


def advance(model: NnueModel, optimizer: Optimizer, batches: list[Batch], first: int = 0) -> None:
    for t, batch in enumerate(batches, first):
        optimizer.set_lr(1e-3 / (1 + t % 3))
        loss = (model(batch) - batch.result).square().mean()
        loss.backward()
        optimizer.step(loss)


def assert_equal_states(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def weight_of(model: NnueModel) -> Tensor:
    """The weight as it is in memory: its rows are not brought up to date."""
    return present(dict.__getitem__(instance(nn.Module, model.feature_transformer)._parameters, "weight"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [AdamW(weight_decay=0.1), RangerLite(), Ranger(), Muon(exp_avg_dtype="bf16")],
    ids=lambda c: c.kind,
)
def test_checkpoints_are_those_of_the_dense_path(
    batches: tuple[dict[str, object], list[Batch]], config: OptimizerConfig
) -> None:
    net, data = batches
    dense, late = start(net, config, False), start(net, config, True)
    assert isinstance(late[1].rule, FusedRule)
    assert late[1].rule.fused.late_rows.keys() == {WEIGHT}
    for model, optimizer in (dense, late):
        advance(model, optimizer, data[:STEPS])
    assert not torch.equal(weight_of(late[0]), weight_of(dense[0])), "no row was late"
    assert_equal_states(dense[0].state_dict(), late[0].state_dict())
    assert_equal_states(dense[1].state_dict(), late[1].state_dict())
    # A run that continues from here, one way from the other's state, ends with the same bits.
    again, optimizer = start(net, config, True)
    again.load_state_dict({name: t.clone() for name, t in dense[0].state_dict().items()})
    optimizer.load_state_dict({name: t.clone() for name, t in dense[1].state_dict().items()})
    for one, its in (dense, late, (again, optimizer)):
        advance(one, its, data[STEPS:], STEPS)
    for one, its in (late, (again, optimizer)):
        assert_equal_states(dense[0].state_dict(), one.state_dict())
        assert_equal_states(dense[1].state_dict(), its.state_dict())


READERS: dict[str, Callable[[NnueModel, Optimizer, Batch], Tensor]] = {
    "attribute": lambda model, optimizer, batch: instance(PerspectiveTransformer, model.feature_transformer).weight,
    "parameters": lambda model, optimizer, batch: dict(model.named_parameters())[WEIGHT],
    "get_parameter": lambda model, optimizer, batch: model.get_parameter(WEIGHT),
    "state_dict": lambda model, optimizer, batch: model.state_dict()[WEIGHT],
    "deep copy": lambda model, optimizer, batch: copy.deepcopy(model).get_parameter(WEIGHT),
    "bounds": lambda model, optimizer, batch: (
        next(b.parameter for b in model.weight_bounds() if b.name == WEIGHT)
        if any(b.name == WEIGHT for b in model.weight_bounds())
        else next(b.parameter for b in model.weight_bounds() if b.parameter.shape == weight_of(model).shape)
    ),
    "state of the optimiser": lambda model, optimizer, batch: (optimizer.state_dict(), weight_of(model))[1],
    "finite": lambda model, optimizer, batch: (optimizer.finite(), weight_of(model))[1],
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_finds_all_rows_up_to_date(batches: tuple[dict[str, object], list[Batch]], reader: str) -> None:
    net, data = batches
    dense, late = start(net, AdamW(), False), start(net, AdamW(), True)
    for model, optimizer in (dense, late):
        advance(model, optimizer, data[:7])
    expected = weight_of(dense[0]).detach()
    assert not torch.equal(weight_of(late[0]), expected)
    assert torch.equal(READERS[reader](*late, data[7]).detach(), expected)
    # Reading the weight does not change how training continues.
    for model, optimizer in (dense, late):
        advance(model, optimizer, data[7:10])
    assert_equal_states(dense[0].state_dict(), late[0].state_dict())


class Unread(LateRows):
    """Rows of a weight that must not be read."""

    def __init__(self) -> None:
        pass

    def settle(self, *, gradient: bool = False) -> None:
        raise AssertionError("the weight has been read")


@pytest.mark.parametrize("net", NETS, ids=lambda net: net["kind"])
def test_layers_that_round_do_not_read_the_weight(net: dict[str, object]) -> None:
    """In quantisation-aware training on a GPU, that would update all rows in each step."""
    model = nets.build(net)
    assert isinstance(model, StackedModel)
    model.set_rounding(True)
    transformer = instance(PerspectiveTransformer, model.feature_transformer)
    transformer.update_late(Unread())
    with pytest.raises(AssertionError, match="the weight has been read"):
        _ = transformer.weight
    with torch.enable_grad():
        model.layers_for(torch.zeros(4, dtype=torch.int64), None)


def test_validation_sees_the_dense_net(batches: tuple[dict[str, object], list[Batch]]) -> None:
    net, data = batches
    dense, late = start(net, AdamW(), False), start(net, AdamW(), True)
    outputs = []
    for model, optimizer in (dense, late):
        advance(model, optimizer, data[:9])
        with torch.no_grad():
            outputs.append([model(batch) for batch in data[9:]])
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


def test_gradients_have_the_rows_of_the_batch(batches: tuple[dict[str, object], list[Batch]]) -> None:
    net, data = batches
    model, optimizer = start(net, AdamW(), True)
    advance(model, optimizer, data[:2])
    model(data[2]).square().mean().backward()
    gradient = weight_of(model).grad
    assert gradient is not None
    assert gradient.is_sparse
    assert 0 < gradient._values().shape[0] < len(gradient) / 4


def test_a_net_whose_loss_reads_the_weight(batches: tuple[dict[str, object], list[Batch]]) -> None:
    """A penalty on all weights gives every row a gradient."""
    net, data = batches
    dense, late = start(net, AdamW(), False), start(net, AdamW(), True)
    for model, optimizer in (dense, late):
        advance(model, optimizer, data[:4])
        for batch in data[4:7]:
            loss = model(batch).square().mean() + model.get_parameter(WEIGHT).abs().mean()
            loss.backward()
            optimizer.step(loss)
        advance(model, optimizer, data[7:12])
    assert_equal_states(dense[0].state_dict(), late[0].state_dict())


def test_gradients_of_several_batches_add_up(batches: tuple[dict[str, object], list[Batch]]) -> None:
    net, data = batches
    dense, late = start(net, AdamW(), False), start(net, AdamW(), True)
    for model, optimizer in (dense, late):
        for first in range(0, 12, 3):
            for batch in data[first : first + 3]:
                loss = model(batch).square().mean()
                loss.backward()
            optimizer.step(loss)
    assert_equal_states(dense[0].state_dict(), late[0].state_dict())
