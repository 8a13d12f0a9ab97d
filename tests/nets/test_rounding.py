"""The forward pass with the engine's rounding: the integers of every net, and a gradient that goes straight through."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as fwAD
from net_support import random_checkpoint
from test_layered import ALL
from typed import grad_of, present

from nnue_trainer import data, nets, registry
from nnue_trainer.data import Batch, Filters, Loader, RecordLoader
from nnue_trainer.errors import UserError
from nnue_trainer.export import evaluate, net_from_checkpoint, to_bytes
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.modules import PerspectiveTransformer, stacked_linear
from nnue_trainer.modules.straight_through import (
    Rule,
    Steps,
    integer_linear,
    integer_parameters,
    integers,
    ste_round,
)
from nnue_trainer.nets import NnueModel, rounded_forward
from nnue_trainer.nets.rounded_forward import QatConfig
from nnue_trainer.ops import capabilities
from nnue_trainer.optim import AdamW, Optimizer

pytestmark = pytest.mark.usefixtures("one_thread")

POSITIONS = 700
STOCKFISH = [kind for kind in nets.NETS.kinds() if kind.startswith("sfnn") or kind == "small128"]
NETS: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind, "l1": 32} for kind in STOCKFISH},
    "wide sfnnv9": {"kind": "sfnnv9", "l1": 256},
    "wide sfnnv17": {"kind": "sfnnv17", "l1": 128},
    "sfnnv5 with other layers": {"kind": "sfnnv5", "l1": 64, "l2": 24, "l3": 40},
    "sfnnv17 with other layers": {"kind": "sfnnv17", "l1": 64, "l2": 44, "l3": 7},
    "sfnnv5 with other stacks": {"kind": "sfnnv5", "l1": 32, "output_buckets": {"count": 5, "rule": "bullet"}},
    "simple screlu": {"kind": "simple", "hidden": 512},
    "simple crelu": {"kind": "simple", "hidden": 32, "activation": "crelu"},
    **{f"layered {name}": architecture for name, architecture in ALL.items()},
}


@pytest.fixture(scope="module")
def records(project_root: Path) -> np.ndarray:
    options: dict[str, Any] = {"shuffle": False, "filters": Filters.none()}
    with RecordLoader([project_root / "samples" / "val.binpack"], POSITIONS, **options) as loader:
        return next(iter(loader)).numpy().copy()


def made(architecture: dict[str, Any]) -> tuple[NnueModel, Checkpoint]:
    """A model whose activations are clipped at either end and in between, with weights that reach their limits."""
    checkpoint = random_checkpoint(architecture)
    model = nets.build(architecture)
    model.load_state_dict(checkpoint.tensors["model"])
    with torch.no_grad():
        for bound in model.weight_bounds():
            last = None if bound.rows is None else bound.first_row + bound.rows
            bound.parameter[bound.first_row : last].clamp_(bound.low, bound.high)
        transformer = model.feature_transformer
        if isinstance(transformer, PerspectiveTransformer) and transformer.psqt is not None:
            transformer.psqt.mul_(3.0)
    return model, Checkpoint(model.architecture, {"model": model.state_dict()})


def expanded(records: np.ndarray, feature_set: str) -> Batch:
    return data.expand(records, feature_set)


@pytest.mark.parametrize("name", NETS)
def test_it_is_the_score_of_the_integers(name: str, records: np.ndarray) -> None:
    model, checkpoint = made(NETS[name])
    net = net_from_checkpoint(checkpoint, name, any_l1=True)
    score = evaluate(net, expanded(records, net.net.integer_feature_set)).score
    batch = expanded(records, net.net.feature_set)
    with torch.no_grad():
        floating = model(batch).double().numpy() * model.score_scale
        with model.rounding(True):
            rounded = model(batch).double().numpy() * model.score_scale
        again = model(batch).double().numpy() * model.score_scale
    assert len(np.unique(score)) > POSITIONS / 10
    assert np.abs(rounded - score).max() < 1e-3
    assert np.abs(floating - score).max() > 1, "floats are not the integers by themselves"
    np.testing.assert_array_equal(again, floating)


@pytest.mark.parametrize("name", ["simple screlu", "layered buckets"])
def test_training_sums_squares_in_fp32(name: str, records: np.ndarray) -> None:
    """Which is off by a unit now and then, and not more."""
    model, _ = made(NETS[name])
    model.set_rounding(True)
    batch = expanded(records, model.feature_set)
    with torch.no_grad():
        exact = model(batch) * model.score_scale
    difference = (model(batch).detach() * model.score_scale - exact).abs()
    assert difference.max() < 1.1
    assert (difference > 0.5).float().mean() < 0.02


@pytest.mark.parametrize("name", NETS)
def test_without_its_rounding_it_is_the_float_model(name: str, records: np.ndarray, monkeypatch) -> None:
    """Units, scales and clips agree, in the forward pass and in every gradient."""

    def smooth(x: torch.Tensor, rule: str, factor: float = 1.0) -> torch.Tensor:
        return x if factor == 1.0 else x.detach() + factor * (x - x.detach())

    def in_steps(parameters: list[torch.Tensor], tables: list[list[Steps]], *, clipped: bool = True) -> list[Any]:
        found = []
        for parameter, table in zip(parameters, tables, strict=True):
            parts = [steps.of(parameter[steps.first_row :][: steps.rows]).float() for steps in table]
            whole = torch.cat(parts)
            found.append(whole if clipped else whole.detach() + parameter - parameter.detach())
        return found

    model, _ = made(NETS[name])
    batch = expanded(records[:200], model.feature_set)
    gradients = []
    for rounding in (False, True):
        if rounding:
            monkeypatch.setattr(rounded_forward, "ste_round", smooth)
            monkeypatch.setattr(rounded_forward, "integer_parameters", in_steps)
            model.set_rounding(True)
        model.zero_grad()
        output = model(batch)
        (output * torch.linspace(0.2, 1, len(output))).sum().backward()
        gradients.append((output.detach(), {n: grad_of(p).clone() for n, p in model.named_parameters()}))
    (plain, plain_gradients), (rounded, rounded_gradients) = gradients
    torch.testing.assert_close(rounded, plain, rtol=1e-3, atol=1e-3 * plain.abs().max().item())
    for parameter, gradient in plain_gradients.items():
        size = gradient.abs().max().item()
        assert size > 0, parameter
        # At the edge of a clip one of the two may be on the other side.
        difference = (rounded_gradients[parameter] - gradient).norm() / gradient.norm()
        assert difference < 5e-3, parameter


def test_export_rounds_the_same_weights() -> None:
    """This includes values whose product with the scale is on the other side of one half in float64."""
    model, checkpoint = made({"kind": "simple", "hidden": 64})
    tensor = present(model.net).tensors()[0]
    assert tensor.name == "feature_transformer.weight"
    weight = checkpoint.tensors["model"][tensor.name]
    halves = (torch.arange(weight.numel()).reshape(weight.shape) % 500 - 250 + 0.5) / 255
    weight.copy_(halves)
    exact = np.rint(weight.double().numpy() * 255)
    found = net_from_checkpoint(checkpoint, "c").tensors[tensor.name]
    assert (exact != found).any()
    np.testing.assert_array_equal(integer_parameters([weight], [[tensor.steps]])[0].numpy(), found)


def test_rows_have_their_own_limits() -> None:
    weight = torch.tensor([[0.2, 9.0], [0.3, -9.0], [-9.0, 0.45]])
    ranges = [Steps(0, 2, 10.0, 127, False), Steps(2, 1, 10.0, 5, False)]
    (found,) = integer_parameters([weight], [ranges])
    assert found.tolist() == [[2, 90], [3, -90], [-5, 4]]


def test_gradients_go_straight_through_and_stop_at_a_clip() -> None:
    weight = torch.tensor([0.26, 2.0, -0.1, -3.0, 1.27], requires_grad=True)
    steps = integers(weight, Steps(0, 5, 100.0, 127, False))
    assert steps.tolist() == [26, 127, -10, -127, 127]
    steps.sum().backward()
    assert grad_of(weight).tolist() == [100, 0, 100, 0, 100]
    x = torch.tensor([-1.5, 1.5, 2.5], requires_grad=True)
    rules: dict[Rule, list[int]] = {"floor": [-2, 1, 2], "trunc": [-1, 1, 2], "round": [-2, 2, 2]}
    for rule, expected in rules.items():
        x.grad = None
        y = ste_round(x, rule, 3.0)
        assert y.tolist() == expected
        y.sum().backward()
        assert grad_of(x).tolist() == [3, 3, 3]


@pytest.mark.parametrize("wide", [False, True])
def test_linear_is_exact_and_has_the_gradient_of_torch(wide: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 65_026, (7, 2048), generator=generator).float().requires_grad_()
    weight = torch.randint(-127, 128, (3, 2048), generator=generator).float().requires_grad_()
    expected = x.detach().long() @ weight.detach().long().t()
    y = integer_linear(x, weight, wide=wide, factor=4.0)
    assert (y.long() == expected).all() == wide, "fp32 cannot hold these"
    up = torch.randn(7, 3, generator=generator)
    y.backward(up.to(y.dtype))
    torch.testing.assert_close(x.grad, 4 * up @ weight)
    torch.testing.assert_close(weight.grad, up.t() @ x)


@pytest.mark.parametrize("name", ["sfnnv5", "sfnnv16", "simple screlu", "layered deep", "layered whole products"])
def test_a_cpu_computes_the_own_stack_alone(name: str, records: np.ndarray, monkeypatch) -> None:
    """With the same result as all stacks and a choice, which compilers and graphs for others get."""
    model, _ = made(NETS[name])
    model.set_rounding(True)
    batch, found = expanded(records[:200], model.feature_set), []
    for own in (True, False):
        if own:
            monkeypatch.setattr(rounded_forward, "integer_linear", None)  # not called
        else:
            monkeypatch.undo()
            monkeypatch.setattr(stacked_linear, "is_fused", lambda x, weight: False)
        model.zero_grad()
        output = model(batch)
        (output * torch.linspace(0.2, 1, len(output))).sum().backward()
        found.append((output.detach(), [grad_of(p).clone() for p in model.parameters()]))
    (one, gradients), (other, expected) = found
    if "simple" not in name and "products" not in name:
        assert torch.equal(one, other)
    assert (one - other).abs().max() * model.score_scale < 1.1
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert (gradient - wanted).norm() <= 2e-6 * wanted.norm()


@pytest.mark.parametrize("name", ["sfnnv5", "sfnnv16", "simple screlu", "layered deep"])
def test_autocast_changes_nothing(name: str, records: np.ndarray) -> None:
    model, _ = made(NETS[name])
    model.set_rounding(True)
    batch = expanded(records[:100], model.feature_set)
    with torch.no_grad():
        expected = model(batch)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(batch)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sfnnv16", "layered deep"])
def test_it_compiles(name: str, records: np.ndarray) -> None:
    """One compiled function serves before and after the rounding begins, as in a run."""
    model, _ = made(NETS[name])
    batch = expanded(records[:64], model.feature_set)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for rounding in (False, True):
        model.set_rounding(rounding)
        results = []
        for forward in (model, compiled):
            model.zero_grad()
            output = forward(batch)
            output.square().sum().backward()
            results.append((output.detach(), [grad_of(p).clone() for p in model.parameters()]))
        (eager, eager_gradients), (found, gradients) = results
        torch.testing.assert_close(found, eager, rtol=1e-5, atol=1e-5)
        for one, other in zip(gradients, eager_gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * max(other.abs().max().item(), 1e-9))


@pytest.mark.cuda
@pytest.mark.parametrize("name", NETS)
def test_cuda_gives_the_same_scores(name: str, records: np.ndarray) -> None:
    model, _ = made(NETS[name])
    model.set_rounding(True)
    batch = expanded(records, model.feature_set)
    with torch.no_grad():
        expected = model(batch)
        found = model.to("cuda")(batch.to("cuda")).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_qat_is_no_part_of_the_architecture() -> None:
    """A net trained with qat is the same net: files, and checkpoints from before, do not have the key."""
    for kind in ("sfnnv16", "simple", "layered"):
        plain = nets.parse({"kind": kind}, "test")
        aware = nets.parse({"kind": kind, "quantisation": {"qat": True, "qat_from": 0.8}}, "test")
        assert (aware.qat_config.qat, aware.qat_config.qat_from) == (True, 0.8)
        assert not plain.qat_config.qat
        assert aware.architecture == plain.architecture
        assert "qat" not in str(plain.architecture)
    model, checkpoint = made({"kind": "small128"})
    trained = nets.build({"kind": "small128", "quantisation": {"qat": True}})
    trained.load_state_dict(model.state_dict())
    again = Checkpoint(trained.architecture, {"model": trained.state_dict()})
    assert to_bytes(net_from_checkpoint(checkpoint, "a")) == to_bytes(net_from_checkpoint(again, "b"))


def test_when_it_begins() -> None:
    assert [QatConfig(qat=True, qat_from=0.5).active(step, 5) for step in range(5)] == [False] * 3 + [True] * 2
    assert QatConfig(qat=True).active(0, 5)
    assert not QatConfig(qat_from=0.5).active(4, 5)
    with pytest.raises(UserError, match=r"qat_from: found 1\.0, expected less than 1"):
        nets.parse({"kind": "simple", "quantisation": {"qat_from": 1.0}}, "test")


def test_a_net_from_outside_says_that_it_cannot() -> None:
    registry.load_plugin(Path(__file__).parent / "my_net.py")
    kind = "my_net.py:MyNet"
    model = nets.build({"kind": kind, "hidden": 8})
    with pytest.raises(
        UserError, match=r"MyNet: quantisation-aware training is not possible: the net does not define integer_forward"
    ):
        model.set_rounding(True)
    with pytest.raises(UserError, match=r"quantisation: unknown key"):
        nets.parse({"kind": kind, "quantisation": {"qat": True}}, "test")


def test_a_step_uses_the_rounded_weights_and_moves_the_others(project_root: Path) -> None:
    """Far smaller updates than a step of the integers add up: the parameters stay floats."""
    torch.manual_seed(0)
    model = nets.build({"kind": "sfnnv5", "l1": 32})
    model.set_rounding(True)
    optimizer = Optimizer(model, AdamW(lr=1e-5))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with Loader([project_root / "samples" / "val.binpack"], model.feature_set, 256, seed=1, threads=1) as loader:
        batch = next(iter(loader))
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step(loss)
    for name, parameter in model.named_parameters():
        moved = (parameter.detach() - before[name]).abs()
        assert 0 < moved.max() < 1e-3, name


def test_parameters_with_tangents_take_no_operators(monkeypatch: pytest.MonkeyPatch, records: np.ndarray) -> None:
    model, _ = made(NETS["sfnnv5"])
    forward, batch = model.rounded_forward(), expanded(records[:2], model.feature_set)
    monkeypatch.setattr(capabilities, "machine_of", lambda device: capabilities.gpu(90))
    with fwAD.dual_level(), monkeypatch.context() as patch:
        assert forward._takes_operators(model, batch.white)
        own = {name: parameter.detach() for name, parameter in model.named_parameters()}
        dual = {name: fwAD.make_dual(parameter, torch.ones_like(parameter)) for name, parameter in own.items()}
        patch.setattr(model, "get_parameter", dual.__getitem__)
        assert not forward._takes_operators(model, batch.white)
