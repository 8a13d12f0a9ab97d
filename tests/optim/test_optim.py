"""The optimiser against ordinary training with explicit virtual rows, weight limits and NaN."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from typed import grad_of, instance

from nnue_trainer import nets
from nnue_trainer.errors import UserError
from nnue_trainer.modules import PerspectiveTransformer
from nnue_trainer.nets.base import NnueModel, VirtualRows, WeightBound
from nnue_trainer.optim import AdamW, Optimizer, OptimizerConfig, Rule, TorchRule, Work, torch_rule
from nnue_trainer.optim.bounds import Bounds
from nnue_trainer.optim.fused import FusedRule
from nnue_trainer.optim.guard import Guard
from nnue_trainer.optim.parts import LARGEST_COPY
from nnue_trainer.optim.torch_rule import TorchOptimizer
from nnue_trainer.schema import section

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

    def factorised(self) -> dict[str, list[VirtualRows]]:
        return {"weight": [VirtualRows(0, GROUPS * ROWS, ROWS)]}


def inputs(steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(7, GROUPS * ROWS, generator=generator, dtype=torch.float64) for _ in range(steps)]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_factoriser_equals_explicit_virtual_rows(weight_decay):
    """Autograd through w[r] + v[r mod V] and torch's own AdamW, in float64."""
    lr, betas, eps = 2.0**-6, (0.9, 0.99), 1e-8
    net = Net()
    optimizer = Optimizer(net, AdamW(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

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
    optimizer = Optimizer(net, AdamW(lr=2.0**-7, factoriser=False, weight_decay=0.02))
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
    optimizer = Optimizer(net, AdamW(lr=0.25, factoriser=factoriser))
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
    optimizer = Optimizer(net, AdamW(factoriser=factoriser))
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
    one = Optimizer(first, AdamW())
    batches = [x.float() for x in inputs(6)]

    def run(net: Net, optimizer: Optimizer, xs: list[torch.Tensor]) -> None:
        for x in xs:
            loss = (net(x) - 1).square().mean()
            loss.backward()
            optimizer.step(loss)

    run(first, one, batches[:3])
    second.load_state_dict(first.state_dict())
    two = Optimizer(second, AdamW())
    two.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    run(first, one, batches[3:])
    run(second, two, batches[3:])
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.head, second.head)


def test_foreign_state_is_refused_by_name():
    optimizer = Optimizer(Net(), AdamW())
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"exp_avg/weight\.virtual is missing"):
        optimizer.load_state_dict({k: v for k, v in state.items() if k != "exp_avg/weight.virtual"})
    with pytest.raises(ValueError, match=r"exp_avg/head has shape \[2\], expected \[3\]"):
        optimizer.load_state_dict({**state, "exp_avg/head": torch.zeros(2)})


def test_rows_must_divide_evenly():
    class Odd(Net):
        def factorised(self) -> dict[str, list[VirtualRows]]:
            return {"weight": [VirtualRows(0, GROUPS * ROWS, 3)]}

    with pytest.raises(ValueError, match="weight: found 3 virtual rows for 20 rows"):
        Optimizer(Odd(), AdamW())


def test_the_learning_rate_follows_the_tensor():
    net = Net()
    optimizer = Optimizer(net, AdamW(lr=0.5, weight_decay=0.0))
    before = net.weight.detach().clone()
    optimizer.lr.fill_(0.0)
    loss = net(inputs(1)[0]).square().mean()
    loss.backward()
    optimizer.step(loss)
    assert torch.equal(net.weight, before)


class Undoes(Guard):
    """The guard of devices that the host does not wait for, on the CPU."""

    def reads_result(self) -> bool:
        return False


TORCH = sorted(name for name in torch_rule._classes() if name != "Muon")  # which takes matrices only
GUARDS = pytest.mark.parametrize("guard", [Guard, Undoes])


def torch_optimizer(name: str, **options: Any) -> TorchOptimizer:
    return TorchOptimizer(name=name, lr=2.0**-7, options=options)


def train(net: Net, optimizer: Optimizer, batches: list[torch.Tensor]) -> None:
    for x in batches:
        loss = (net(x) - 1).square().mean()
        loss.backward()
        optimizer.step(loss)


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("trained", [0, 3])
def test_every_optimiser_of_torch_resumes_bit_for_bit(name, trained):
    first, second = Net(torch.float32), Net(torch.float32)
    one = Optimizer(first, torch_optimizer(name))
    batches = [x.float() for x in inputs(6)]
    train(first, one, batches[:trained])
    state = {key: tensor.clone() for key, tensor in one.state_dict().items()}
    second.load_state_dict(first.state_dict())
    two = Optimizer(second, torch_optimizer(name))
    two.load_state_dict(state, good_steps=trained)
    train(first, one, batches[trained:])
    train(second, two, batches[trained:])
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.head, second.head)
    assert two.good_steps() == 6
    assert not torch.equal(first.weight, Net(torch.float32).weight)


@pytest.mark.parametrize("name", ["Adamax", "NAdam", "RAdam", "RMSprop", "SGD"])
def test_the_factoriser_serves_every_rule_that_adds(name):
    """Against the same optimiser of torch on explicit virtual rows under autograd."""
    net, explicit = Net(), Net()
    optimizer = Optimizer(net, torch_optimizer(name))
    virtual = nn.Parameter(torch.zeros(ROWS, OUTPUTS, dtype=torch.float64))
    plain = getattr(torch.optim, name)([explicit.weight, explicit.head, virtual], lr=2.0**-7)
    for x in inputs(20):
        train(net, optimizer, [x])
        plain.zero_grad()
        merged = explicit.weight + virtual.repeat(GROUPS, 1)
        (torch.tanh(x @ merged) @ explicit.head - 1).square().mean().backward()
        plain.step()
    assert virtual.abs().max() > 1e-3
    torch.testing.assert_close(net.weight, explicit.weight + virtual.repeat(GROUPS, 1), rtol=1e-9, atol=1e-11)


@GUARDS
@pytest.mark.parametrize("name", TORCH)
def test_the_guard_serves_every_rule(name, guard):
    net = Net()
    optimizer = Optimizer(net, torch_optimizer(name), guard=guard)
    train(net, optimizer, inputs(2))
    weights = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    moments = {key: tensor.clone() for key, tensor in optimizer.state_dict().items()}
    for poison in (float("nan"), 1.0):
        loss = net(inputs(1)[0]).square().mean()
        loss.backward()
        grad_of(net.head)[0] *= poison
        optimizer.step(loss.detach())
    assert optimizer.failed()
    assert optimizer.good_steps() == 2
    for key, tensor in net.state_dict().items():
        assert torch.equal(tensor, weights[key]), key
    for key, tensor in optimizer.state_dict().items():
        assert torch.equal(tensor, moments[key]), key


@pytest.mark.parametrize("name", ["RAdam", "SGD"])
def test_both_guards_are_the_same_training(name):
    nets = [Net(), Net()]
    for net, guard in zip(nets, (Guard, Undoes), strict=True):
        train(net, Optimizer(net, torch_optimizer(name), guard=guard), inputs(4))
    assert torch.equal(nets[0].weight, nets[1].weight)


@pytest.mark.parametrize("name", ["RAdam", "SGD"])
def test_the_learning_rate_reaches_torchs_optimisers(name):
    net = Net()
    optimizer = Optimizer(net, torch_optimizer(name))
    before = net.weight.detach().clone()
    optimizer.set_lr(0.0)
    train(net, optimizer, inputs(1))
    assert torch.equal(net.weight, before)
    optimizer.set_lr(0.5)
    train(net, optimizer, inputs(1))
    assert not torch.equal(net.weight, before)


def test_states_of_torchs_optimisers_are_checked_by_name():
    optimizer = Optimizer(Net(), torch_optimizer("RAdam"))
    trained = Net()
    other = Optimizer(trained, torch_optimizer("RAdam"))
    train(trained, other, inputs(1))
    state = other.state_dict()
    for change, message in (
        ({"rule.json": None}, r"tensor rule\.json is missing"),
        ({"rule.json": torch.tensor([1, 2], dtype=torch.uint8)}, r"tensor rule\.json is not JSON"),
        ({"rule.json": torch.tensor(list(b"[]"), dtype=torch.uint8)}, r"tensor exp_avg/.* is unknown"),
        ({"exp_avg/weight": None}, "tensor exp_avg/weight is missing"),
        ({"exp_avg/weight": torch.zeros(2)}, r"exp_avg/weight has shape \[2\], expected \[20, 3\]"),
        ({"momentum/weight": torch.zeros(2)}, "tensor momentum/weight is unknown"),
    ):
        changed = {key: value for key, value in (state | change).items() if value is not None}
        with pytest.raises(ValueError, match=message):
            Optimizer(Net(), torch_optimizer("RAdam")).load_state_dict(changed)
    before = {key: tensor.clone() for key, tensor in trained.state_dict().items()}
    optimizer.load_state_dict(state)
    assert torch.equal(trained.weight, before["weight"])


def test_an_optimiser_that_does_not_fit_the_net_is_one_line():
    with pytest.raises(UserError, match=r"^optimizer: Muon: Muon only supports 2D parameters") as caught:
        Optimizer(Net(), torch_optimizer("Muon"))
    assert "\n" not in str(caught.value)


class Counting(torch.optim.Optimizer):
    """An optimiser of a user: the count of steps is a number, and one parameter may have state that others lack."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                parameter.sub_(parameter.grad, alpha=group["lr"] / state["step"])


@section
class CountingConfig(OptimizerConfig):
    """With numbers in its state."""

    def rule(self, work: Work) -> Rule:
        return TorchRule(work, lambda groups: Counting(groups, {"lr": self.lr}))


def test_numbers_in_a_state_come_back_as_numbers():
    nets = [Net(), Net()]
    one, two = (Optimizer(net, CountingConfig()) for net in nets)
    train(nets[0], one, inputs(3))
    nets[1].load_state_dict(nets[0].state_dict())
    two.load_state_dict({key: tensor.clone() for key, tensor in one.state_dict().items()})
    for net, optimizer in zip(nets, (one, two), strict=True):
        train(net, optimizer, inputs(2))
    assert torch.equal(nets[0].weight, nets[1].weight)
    assert type(instance(TorchRule, one.rule).optimizer.state[nets[0].weight]["step"]) is int
    assert not one.rule.capturable


def test_only_some_rows_share_virtual_rows():
    """Rows 4 to 16 share four virtual rows, rows 16 to 20 two; rows 0 to 4 have none."""

    class Ranges(Net):
        def factorised(self) -> dict[str, list[VirtualRows]]:
            return {"weight": [VirtualRows(4, 12, 4), VirtualRows(16, 4, 2)]}

        def weight_bounds(self) -> Iterator[WeightBound]:
            yield WeightBound("weight", self.weight, -0.5, 0.5, 0, 16)
            yield WeightBound("weight", self.weight, -0.4, 0.4, 18)

    net, explicit = Ranges(), Net()
    with torch.no_grad():
        net.weight.mul_(0.1)
        explicit.weight.mul_(0.1)
    optimizer = Optimizer(net, AdamW(lr=2.0**-9, weight_decay=0.1))
    assert {key for key in optimizer.state_dict() if "virtual" in key and "step" in key} == {
        "step/weight.virtual.4",
        "step/weight.virtual.16",
    }
    a, b = (nn.Parameter(torch.zeros(n, OUTPUTS, dtype=torch.float64)) for n in (4, 2))
    adamw = torch.optim.AdamW([explicit.weight, explicit.head, a, b], lr=2.0**-9, weight_decay=0.1)

    def merged() -> torch.Tensor:
        return explicit.weight + torch.cat([torch.zeros(4, OUTPUTS), a.repeat(3, 1), b.repeat(2, 1)])

    for x in inputs(10):
        train(net, optimizer, [x])
        adamw.zero_grad()
        (torch.tanh(x @ merged()) @ explicit.head - 1).square().mean().backward()
        adamw.step()
    assert merged().abs().max() < 0.4, "within all bounds, so that clipping is not what is compared"
    torch.testing.assert_close(net.weight, merged(), rtol=1e-9, atol=1e-11)


def test_ranges_are_clipped_each_to_its_own_bound():
    class Ranges(Net):
        def factorised(self) -> dict[str, list[VirtualRows]]:
            return {"weight": [VirtualRows(4, 12, 4)]}

        def weight_bounds(self) -> Iterator[WeightBound]:
            yield WeightBound("weight", self.weight, -0.3, 0.3, 0, 18)
            yield WeightBound("weight", self.weight, -0.1, 0.2, 18)

    net = Ranges()
    train(net, Optimizer(net, AdamW(lr=0.25)), inputs(3))
    assert net.weight[:18].abs().max() == 0.3
    assert net.weight[18:].min() == -0.1
    assert net.weight[18:].max() == 0.2


@pytest.mark.parametrize("row", [0, 5, 19])
def test_the_guard_sees_rows_with_and_without_virtual_rows(row):
    class Ranges(Net):
        def factorised(self) -> dict[str, list[VirtualRows]]:
            return {"weight": [VirtualRows(4, 12, 4)]}

    net = Ranges()
    optimizer = Optimizer(net, AdamW())
    net(inputs(1)[0]).square().mean().backward()
    grad_of(net.weight)[row, 1] = float("inf")
    before = net.weight.detach().clone()
    optimizer.step(torch.tensor(1.0))
    assert optimizer.failed()
    assert torch.equal(net.weight, before)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (VirtualRows(12, 12, 4), "weight: found virtual rows for rows 12 to 24, expected rows within 0 to 20"),
        (VirtualRows(0, 20, 0), "weight: found 0 virtual rows for 20 rows"),
    ],
)
def test_ranges_that_do_not_fit(part, message):
    class Odd(Net):
        def factorised(self) -> dict[str, list[VirtualRows]]:
            return {"weight": [part]}

    with pytest.raises(ValueError, match=message):
        Optimizer(Odd(), AdamW())


def test_a_layer_is_replaced_without_the_others():
    """Bounds that pull weights back instead of clipping them; virtual rows, guard and rule stay."""

    class Soft(Bounds):
        def step(self, loss: torch.Tensor, inner: Any) -> None:
            inner()
            net.weight.detach().mul_(0.5)

        def take(self, *_: Any) -> tuple[float, float]:
            return -float("inf"), float("inf")

    net, plain = Net(limit=0.1), Net(limit=100.0)
    train(net, Optimizer(net, AdamW(), bounds=Soft), inputs(1))
    train(plain, Optimizer(plain, AdamW()), inputs(1))
    assert torch.equal(net.weight, plain.weight * 0.5)


@pytest.mark.parametrize("rows", [None, ROWS - 1], ids=["all rows", "some rows"])
def test_a_rule_may_take_the_work_of_the_layers_upon_itself(rows: int | None) -> None:
    """A rule like a fused operator: it gets the settings of the layers, and they do nothing, not even for a bound of
    some of the rows that share virtual rows."""
    seen: list[Work] = []

    class Fused(Rule):
        def step(self) -> None:
            (weight,) = [p for name, p in self.work.parameters.items() if name == "weight"]
            weight.fill_(7.0)

    @section
    class FusedConfig(OptimizerConfig):
        """All in one."""

        replaces = frozenset({"guard", "virtual_rows", "bounds"})

        def rule(self, work: Work) -> Rule:
            seen.append(work)
            return Fused(work)

    class Bounded(Net):
        def weight_bounds(self) -> Iterator[WeightBound]:
            yield WeightBound("weight", self.weight, -self.limit, self.limit, 0, rows)

    net = Bounded(limit=0.5)
    optimizer = Optimizer(net, FusedConfig())
    train(net, optimizer, inputs(1))
    assert (net.weight == 7.0).all()
    assert list(seen[0].parameters) == ["weight", "head"]
    assert seen[0].factorised == {"weight": [VirtualRows(0, 20, 4)]}
    assert [bound.high for bound in seen[0].bounds] == [0.5]


def test_copies_of_integers() -> None:
    """They are the rounded weights after every step, within what float16 holds, and change back to the weights."""
    model = nets.build({"kind": "simple", "hidden": 16})
    name, weight = "feature_transformer.weight", model.get_parameter("feature_transformer.weight")
    with torch.no_grad():
        weight.uniform_(-1, 1)
        weight[0, 0] = 20.0
    own = Optimizer(model, AdamW(lr=0.1), copies=True)
    copy, bounds = own._copies[name], {bound.name: bound.high for bound in model.weight_bounds()}
    own.copy_in_steps({name: 255.0})
    assert weight[0, 0].item() == pytest.approx(bounds[name])  # tighter than that of float16

    def check() -> None:
        integers = copy.detach().view(torch.float16).float()
        assert torch.equal(integers, torch.round(weight.detach() * 255.0))

    check()
    for step in range(3):
        copy.grad = torch.randn(copy.shape, generator=torch.Generator().manual_seed(step)).bfloat16()
        own.step(torch.tensor(1.0))
        check()
    with torch.no_grad():
        weight.mul_(0.5)
    own.load_state_dict(own.state_dict())
    check()
    own.copy_in_steps({})
    assert torch.equal(copy.detach(), weight.detach().bfloat16())


def test_copies_of_integers_have_bounds() -> None:
    model = PlainTransformer()
    own = Optimizer(model, AdamW(lr=0.5, clip_weights=True), copies=True)
    copy = own._copies["first.weight"]
    own.copy_in_steps({"first.weight": 1000.0})
    for _ in range(20):
        copy.grad = torch.full_like(copy, -1.0)
        own.step(torch.tensor(1.0))
    assert model.first.weight.max() == LARGEST_COPY / 1000
    assert copy.detach().view(torch.float16).max() == LARGEST_COPY


@pytest.mark.parametrize("name", ["first.weight", "a bound"])
@pytest.mark.parametrize("late", [False, True], ids=["copies", "late"])
def test_no_row_is_late_if_a_bound_is_for_some_that_share_virtual_rows(late: bool, name: str) -> None:
    """Such a bound is applied to these rows in every step, so no row is late, and the copy is rewritten. The name of
    the bound need not be that of the parameter."""

    class Bounded(PlainTransformer):
        def factorised(self) -> dict[str, list[VirtualRows]]:
            return {"first.weight": [VirtualRows(0, 4, 2)]}

        def weight_bounds(self) -> Iterator[WeightBound]:
            yield WeightBound(name, self.first.weight, -0.125, 0.125, 0, 3)

    model = Bounded()
    own = Optimizer(model, AdamW(lr=0.5), late=late, copies=not late)
    weight = model.first.weight
    assert weight is own.rule.work.parameters["first.weight"]
    assert not instance(FusedRule, own.rule).fused.late_rows
    trained = weight if late else own._copies["first.weight"]
    trained.grad = torch.full_like(trained, -1.0)
    own.step(torch.tensor(1.0))
    assert weight[:3].max() == 0.125
    assert weight[3:].max() > 0.125
    assert late or torch.equal(trained, weight.bfloat16())


def test_a_bound_of_some_rows_leaves_copies_of_other_parameters() -> None:
    class Bounded(PlainTransformer):
        def __init__(self) -> None:
            super().__init__()
            self.second = PerspectiveTransformer(5, 16, "crelu")

        def factorised(self) -> dict[str, list[VirtualRows]]:
            return {"first.weight": [VirtualRows(0, 4, 2)]}

        def weight_bounds(self) -> Iterator[WeightBound]:
            yield WeightBound("first.weight", self.first.weight, -0.125, 0.125, 0, 3)

    model = Bounded()
    own = Optimizer(model, AdamW(lr=0.5), copies=True)
    first, second = (own._copies[f"{name}.weight"] for name in ("first", "second"))
    with torch.no_grad():
        second.fill_(7.0)  # a step does not write it, as it has no gradient
    first.grad = torch.full_like(first, -1.0)
    own.step(torch.tensor(1.0))
    assert torch.equal(first, model.first.weight.bfloat16())
    assert (second == 7.0).all()


class PlainTransformer(NnueModel):
    """A feature transformer without bounds."""

    score_scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first = PerspectiveTransformer(5, 16, "crelu")

    @property
    def architecture(self) -> dict[str, Any]:
        return {"kind": "test"}

    def forward(self, batch: Any) -> torch.Tensor:
        raise NotImplementedError

    def weight_bounds(self) -> Iterator[WeightBound]:
        return iter(())
