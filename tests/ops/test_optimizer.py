"""The optimizer operators against plain float64 code with explicit virtual rows, and against torch's own optimizers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.fused_optimizer import FusedOptimizer
from nnue_trainer.optim.parts import Part, given
from nnue_trainer.optim.update_rule import UpdateRule

RULES = {
    "adamw": UpdateRule("adam", (0.9, 0.99), 1e-6),
    "radam": UpdateRule("rectified", (0.9, 0.99), 1e-6),
    "ranger": UpdateRule("rectified", (0.8, 0.99), 1e-6, lookahead_every=3),
    "ranger_lite": UpdateRule("positive_negative", (0.9, 0.99), 1e-6, lookahead_every=3, lookahead_share=0.25),
    "stable_decay": UpdateRule("positive_negative", (0.9, 0.99), 1e-2, 1.0, 3, 0.25, stable_decay=True),
    "lion": UpdateRule("lion", (0.9, 0.95)),
    "schedule_free": UpdateRule("schedule_free", (0.9, 0.99), 1e-6, warmup=4, weight_power=0.5),
    "uncorrected": UpdateRule("adam", (0.9, 0.99), 1e-6, corrects_bias=False),
    "clipped": UpdateRule("adam", (0.9, 0.99), 1e-6, max_value=0.3),
}


# ---- the reference: every rule as it is written in its paper, one parameter at a time, in float64 -------------------


class Momentum:
    """How one parameter moves in step t, counted from 1: `change` is subtracted from it. `dtype`: in which the average
    is kept after the step."""

    def __init__(self, rule: UpdateRule, like: Tensor, dtype: torch.dtype | None = None):
        self.rule, self.dtype = rule, dtype or like.dtype
        self.averages = [torch.zeros_like(like), torch.zeros_like(like)]
        self.square = torch.zeros_like(like)

    def change(self, gradient: Tensor, t: int, lr: float) -> Tensor:
        (beta1, beta2), rule = self.rule.betas, self.rule
        gradient = gradient.clamp(-rule.max_value, rule.max_value)
        if rule.kind == "lion":
            direction = (beta1 * self.averages[0] + (1 - beta1) * gradient).sign()
            self.averages[0] = beta2 * self.averages[0] + (1 - beta2) * gradient
            return lr * direction
        self.square = beta2 * self.square + (1 - beta2) * gradient**2
        root = (self.square / (1 - beta2**t)).sqrt()
        if rule.kind == "schedule_free":
            return lr * gradient / (root + rule.eps)
        if rule.kind == "positive_negative":
            now, before = self.averages[t % 2], self.averages[1 - t % 2]
            now = self.averages[t % 2] = beta1**2 * now + (1 - beta1**2) * gradient
            noise = math.hypot(1 + rule.positive, rule.positive)
            estimate = ((1 + rule.positive) * now - rule.positive * before) / (1 - beta1 ** (t + t % 2))
            return lr / noise * estimate / (root + rule.eps)
        average = beta1 * self.averages[0] + (1 - beta1) * gradient
        self.averages[0] = average.to(self.dtype).double()
        if not rule.corrects_bias:
            return lr * average / (self.square.sqrt() + rule.eps)
        estimate = average / (1 - beta1**t)
        if rule.kind == "adam":
            return lr * estimate / (root + rule.eps)
        most = 2 / (1 - beta2) - 1
        length = most - 2 * t * beta2**t / (1 - beta2**t)
        if length <= 5:
            return lr * estimate
        rectified = math.sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length))
        return lr * rectified * estimate * math.sqrt(1 - beta2**t) / (self.square.sqrt() + rule.eps)


@dataclass
class Reference:
    """Does the same as FusedOptimizer, with weights and virtual rows as separate parameters."""

    parts: list[Part]
    rule: UpdateRule
    max_norm: float = math.inf
    t: int = 0
    weights: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        for part in self.parts:
            self.weights.append(part.rows(part.parameter.detach()).double().clone())
        self.slow = [w.clone() for w in self.weights]
        pairs = zip(self.parts, self.weights, strict=True)
        self.momentum = [Momentum(self.rule, w, part.average_dtype) for part, w in pairs]
        self.z = [w.clone() for w in self.weights]
        self.largest, self.weight_sum = 0.0, 0.0
        self.virtual = [self.shared(part, w) * 0 for part, w in zip(self.parts, self.weights, strict=True)]
        self.virtual_momentum = [Momentum(self.rule, v) for v in self.virtual]

    def shared(self, part: Part, rows: Tensor) -> Tensor:
        """The sum over rows that share a virtual row."""
        if not part.virtual_rows:
            return rows.new_zeros(0)
        return rows.view(-1, part.virtual_rows, *rows.shape[1:]).sum(0)

    def norm(self, gradients: list[Tensor]) -> float:
        own = sum(float((g.double() ** 2).sum()) for g in gradients)
        virtual = sum(
            float((self.shared(part, g.double()) ** 2).sum()) for part, g in zip(self.parts, gradients, strict=True)
        )
        return math.sqrt(own + virtual)

    def stable_lr(self, gradients: list[Tensor], lr: float) -> float:
        """The learning rate that decay is multiplied by: divided by the root of the mean of all squares."""
        if not self.rule.stable_decay:
            return lr
        own = [m for m in (*self.momentum, *self.virtual_momentum) if m.square.numel()]
        found = list(gradients) + [self.shared(part, g) for part, g in zip(self.parts, gradients, strict=True)]
        found = [g for g in found if g.numel()]
        beta2 = self.rule.betas[1]
        total = sum(float((beta2 * m.square + (1 - beta2) * g**2).sum()) for m, g in zip(own, found, strict=True))
        mean = total / sum(g.numel() for g in found) / (1 - beta2**self.t)
        return lr / max(self.rule.eps, math.sqrt(mean))

    def step(self, gradients: list[Tensor], lr: float) -> None:
        self.t += 1
        share = min(1.0, self.max_norm / (self.norm(gradients) + 1e-6))
        scaled = [gradient.double() * share for gradient in gradients]
        if self.rule.warmup:
            lr *= min(1.0, self.t / self.rule.warmup)
        stable_lr = self.stable_lr(scaled, lr)
        self.largest = max(self.largest, lr)
        now = self.t**self.rule.weight_power * self.largest**2
        self.weight_sum += now
        for i, part in enumerate(self.parts):
            gradient, weight, rate = scaled[i], self.weights[i], lr * part.rate
            before, decay = weight, stable_lr * part.rate * part.decay
            change = self.momentum[i].change(gradient, self.t, rate)
            if part.virtual_rows:
                shared = self.virtual_momentum[i].change(self.shared(part, gradient), self.t, rate)
                change = change + shared.repeat(len(weight) // part.virtual_rows, *[1] * (weight.dim() - 1))
            if self.rule.kind == "schedule_free":
                # x is the mean of all z; gradients are taken between the two.
                beta1, share_of_z = self.rule.betas[0], now / self.weight_sum
                x = (before - (1 - beta1) * self.z[i]) / beta1
                self.z[i] = (self.z[i] - change - decay * before).clamp(part.low, part.high)
                x = (1 - share_of_z) * x + share_of_z * self.z[i]
                self.weights[i] = (1 - beta1) * self.z[i] + beta1 * x
                continue
            weight = (weight * (1 - decay) - change).clamp(part.low, part.high)
            if self.rule.lookahead_every and self.t % self.rule.lookahead_every == 0:
                weight = self.slow[i] + self.rule.lookahead_share * (weight - self.slow[i])
                weight = weight.clamp(part.low, part.high)  # slow weights may have begun outside
                self.slow[i] = weight
            self.weights[i] = weight


# ---- samples --------------------------------------------------------------------------------------------------------


def parameter(*shape: int, seed: int, device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    g = torch.Generator().manual_seed(seed)
    return nn.Parameter((torch.randn(shape, generator=g, dtype=torch.float64) * 0.5).to(device, dtype))


def make_parts(device: torch.device, dtype: torch.dtype = torch.float32) -> list[Part]:
    """Virtual rows in every number, odd sizes, a range of rows with virtual rows beside one without, many parts."""
    tall = parameter(64 + 30, 24, seed=1, device=device, dtype=dtype)  # as threats behind king buckets
    parts = [
        Part("tall", tall, 0, 64, virtual_rows=2, decay=0.01, low=-0.8, high=0.7),
        Part("tall", tall, 64, 30, rate=0.5, low=-0.3, high=0.3),
        Part("wide", parameter(6, 2100, seed=2, device=device, dtype=dtype), virtual_rows=3, decay=0.1),
        Part("odd", parameter(80, 7, seed=3, device=device, dtype=dtype), virtual_rows=1),
        Part("psqt", parameter(24, 3, 5, seed=4, device=device, dtype=dtype), virtual_rows=24, rate=2.0),
        Part("long", parameter(9001, seed=5, device=device, dtype=dtype), decay=0.2),
        Part("scalar", parameter(seed=6, device=device, dtype=dtype), high=0.01),
        Part("none", parameter(0, 4, seed=7, device=device, dtype=dtype)),
    ]
    few = [
        Part(f"few{i}", parameter(i + 1, 4, seed=10 + i, device=device, dtype=dtype), decay=0.01 * i) for i in range(16)
    ]
    return parts + few


def parameters(parts: list[Part]) -> list[Tensor]:
    return list({id(part.parameter): part.parameter for part in parts}.values())


def set_gradients(parts: list[Part], seed: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> None:
    g = torch.Generator().manual_seed(1000 + seed)
    for p in parameters(parts):
        gradient = torch.randn(p.shape, generator=g, dtype=torch.float64) * scale
        gradient *= torch.rand(p.shape, generator=g, dtype=torch.float64) < 0.7  # features that no position has
        p.grad = None
        p.grad_dtype = dtype or p.dtype  # may be another type than the parameter's
        p.grad = gradient.to(p.device, dtype or p.dtype)


def gradients_of(parts: list[Part]) -> list[Tensor]:
    return [part.rows(part.parameter.grad).clone() for part in parts]  # type: ignore[arg-type]


def optimizer(parts: list[Part], rule: UpdateRule, lr: float = 2.0**-5, max_norm: float = math.inf) -> FusedOptimizer:
    return FusedOptimizer(parts, rule, torch.tensor(lr, device=parts[0].parameter.device), max_norm)


def loss_on(device: torch.device, value: float = 1.0) -> Tensor:
    return torch.tensor(value, device=device)


def assert_weights(parts: list[Part], reference: Reference, tolerance: float) -> None:
    for part, expected in zip(parts, reference.weights, strict=True):
        found = part.rows(part.parameter.detach()).double()
        message = partial("{}: {}".format, part.name)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, msg=message)


# ---- tests ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("max_norm", [math.inf, 20.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_its_float64_reference(
    device: torch.device, name: str, dtype: torch.dtype, max_norm: float
) -> None:
    parts = make_parts(device, dtype)
    reference = Reference(parts, RULES[name], max_norm)
    fused = optimizer(parts, RULES[name], max_norm=max_norm)
    for t in range(10):
        lr = 2.0 ** -(5 + t % 3)
        fused.lr.fill_(lr)
        set_gradients(parts, t)
        reference.step(gradients_of(parts), lr)
        fused.step(loss_on(device))
        expected = reference.norm(gradients_of(parts)) if math.isfinite(max_norm) else None
        if expected is not None:
            assert fused.numbers[fused_operators.NORM].item() == pytest.approx(expected, rel=1e-6)
    assert_weights(parts, reference, 2e-6 if dtype == torch.float32 else 1e-13)
    assert fused.step_count.item() == 10
    assert not fused.failed.item()
    assert any((part.rows(part.parameter) == part.high).any() for part in parts), "no weight has reached its bound"


@pytest.mark.parametrize("name", ["adamw", "radam"])
def test_rules_are_torchs(device: torch.device, name: str) -> None:
    rule, lr, decay = RULES[name], 2.0**-6, 0.05
    ours = Part("p", parameter(7, 5, seed=1, device=device, dtype=torch.float64), decay=decay)
    theirs = nn.Parameter(ours.parameter.detach().clone())
    fused = optimizer([ours], rule, lr)
    if name == "adamw":
        torchs: torch.optim.Optimizer = torch.optim.AdamW([theirs], lr, rule.betas, rule.eps, decay)
    else:
        torchs = torch.optim.RAdam([theirs], lr, rule.betas, rule.eps, decay, decoupled_weight_decay=True)
    for t in range(12):
        set_gradients([ours], t)
        theirs.grad = ours.parameter.grad.clone()  # type: ignore[union-attr]
        fused.step(loss_on(device))
        torchs.step()
    torch.testing.assert_close(ours.parameter, theirs, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_gradients_and_copies(device: torch.device, dtype: torch.dtype) -> None:
    """Gradients are taken as they are, moments stay float32, and the copy is the weight rounded once."""
    rule = RULES["ranger"]
    parts = make_parts(device)
    copies = {id(p): torch.full(p.shape, 7.0, dtype=dtype, device=device) for p in parameters(parts)}
    parts = [Part(**{**part.__dict__, "copy": copies[id(part.parameter)]}) for part in parts]
    reference, fused = Reference(parts, rule), optimizer(parts, rule)
    for t in range(4):
        set_gradients(parts, t, dtype)
        reference.step(gradients_of(parts), 2.0**-5)
        fused.step(loss_on(device))
        for p in parameters(parts):
            assert torch.equal(copies[id(p)], p.detach().to(dtype))
    assert_weights(parts, reference, 1e-6)


@pytest.fixture(params=["cpu", "emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    if request.param == "emulated":
        request.getfixturevalue("emulator")
        monkeypatch.setattr(fused_operators, "namespace", torch.ops.nnue_emulated)
    return torch.device("cuda" if request.param == "cuda" else "cpu")


SHORT = ["adamw", "radam", "ranger", "uncorrected", "clipped"]


def short_parts(device: torch.device) -> list[Part]:
    """Large and small parts with means in bfloat16, among others."""
    names = {"tall", "wide", "odd", "few6", "long"}
    return [replace(p, average_dtype=torch.bfloat16 if p.name in names else None) for p in make_parts(device)]


@pytest.mark.slow
@pytest.mark.parametrize("gradients", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SHORT)
def test_means_in_16_bits(place: torch.device, name: str, gradients: torch.dtype) -> None:
    """The float64 reference rounds them in each step. Sums that are close to the middle between two bfloat16 are
    rounded otherwise in float32: few elements differ, and by a part in 256 of a step."""
    parts = short_parts(place)
    reference, fused = Reference(parts, RULES[name], 20.0), optimizer(parts, RULES[name], max_norm=20.0)
    for t in range(6):
        set_gradients(parts, t, gradients)
        reference.step(gradients_of(parts), 2.0**-5)
        fused.step(loss_on(place))
    assert_weights(parts, reference, 2.0**-5 / 64)
    differs, elements = 0, 0
    for part, expected, momentum in zip(parts, reference.weights, reference.momentum, strict=True):
        mean = part.rows(fused.state[f"exp_avg/{part.name}"])
        assert mean.dtype == (part.average_dtype or torch.float32)
        assert fused.state[f"exp_avg_sq/{part.name}"].dtype == torch.float32
        if part.average_dtype is not None:
            torch.testing.assert_close(mean.double(), momentum.averages[0], rtol=2.0**-6, atol=1e-4)
        differs += int(((part.rows(part.parameter.detach()).double() - expected).abs() > 4e-6).sum())
        elements += expected.numel()
    assert differs < elements / 500
    assert all(tensor.dtype == torch.float32 for key, tensor in fused.state.items() if ".virtual" in key)


def test_unaligned_means_in_16_bits_give_the_same_bits(place: torch.device) -> None:
    """Rows of which 8 bytes of means cannot be loaded at a time, and rows of which they can."""
    bits = []
    for offset in (0, 1, 4):
        p = parameter(36, 20, seed=1, device=place)
        parts = [Part("p", p, virtual_rows=4, decay=0.1, average_dtype=torch.bfloat16)]
        fused = optimizer(parts, RULES["adamw"])
        mean = torch.zeros(36 * 20 + 4, dtype=torch.bfloat16, device=place)[offset : offset + 720].view(36, 20)
        fused.pairs[0][1].own[0] = mean
        fused._given = given(fused.pairs)
        for t in range(4):
            set_gradients(parts, t)
            fused.step(loss_on(place))
        assert mean.any()
        bits.append([p.detach().clone(), mean.clone()])
    for other in bits[1:]:
        assert all(torch.equal(a, b) for a, b in zip(bits[0], other, strict=True))


@pytest.mark.parametrize("name", ["ranger_lite", "lion", "schedule_free"])
def test_other_rules_refuse_means_in_16_bits(place: torch.device, name: str) -> None:
    part = Part("p", parameter(6, 4, seed=1, device=place), average_dtype=torch.bfloat16)
    fused = optimizer([part], RULES[name])
    if name == "schedule_free":  # its z starts as the weight
        fused.pairs[0][1].own[0] = part.parameter.detach().bfloat16()
        fused._given = given(fused.pairs)
    set_gradients([part], 0)
    with pytest.raises(RuntimeError, match=r"moments\[0\]: found bfloat16, expected float32 as weights\[0\]"):
        fused.step(loss_on(place))


def test_unaligned_parts_give_the_same_bits(device: torch.device) -> None:
    """A part whose rows cannot be loaded 16 bytes at a time is worked on element by element."""
    rule, bits = RULES["ranger_lite"], []
    for offset in (0, 1, 2):
        base = torch.zeros(36 * 20 + 4, device=device)
        weight = parameter(36, 20, seed=1, device=device).detach()
        p = nn.Parameter(base[offset : offset + 720].view(36, 20))
        with torch.no_grad():
            p.copy_(weight)
        parts = [Part("p", p, 0, 24, virtual_rows=4, decay=0.1), Part("p", p, 24, 12)]
        fused = optimizer(parts, rule)
        for t in range(4):
            set_gradients(parts, t)
            fused.step(loss_on(device))
        bits.append(p.detach().clone())
    assert torch.equal(bits[0], bits[1])
    assert torch.equal(bits[0], bits[2])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("max_norm", [math.inf, 1.0])
def test_equal_bits_every_time(device: torch.device, name: str, max_norm: float) -> None:
    results = []
    for run in range(3):
        torch.set_num_threads(1 + run)
        parts = make_parts(device)
        fused = optimizer(parts, RULES[name], max_norm=max_norm)
        for t in range(3):
            set_gradients(parts, t)
            fused.step(loss_on(device))
        results.append([p.detach().clone() for p in parameters(parts)] + list(fused.state.values()))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def poison_loss(parts: list[Part], loss: Tensor, value: float) -> None:
    loss.fill_(value)


def poison_first(parts: list[Part], loss: Tensor, value: float) -> None:
    parts[0].parameter.grad.view(-1)[777] = value  # type: ignore[union-attr]


def poison_scalar(parts: list[Part], loss: Tensor, value: float) -> None:
    next(part for part in parts if part.name == "scalar").parameter.grad.fill_(value)  # type: ignore[union-attr]


@pytest.mark.parametrize("poison", [poison_loss, poison_first, poison_scalar])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_step_changes_nothing(
    device: torch.device, poison: Callable[[list[Part], Tensor, float], None], value: float
) -> None:
    parts = make_parts(device)
    fused = optimizer(parts, RULES["ranger_lite"])
    for t in range(2):
        set_gradients(parts, t)
        fused.step(loss_on(device))
    before = [p.detach().clone() for p in parameters(parts)] + [s.clone() for s in fused.state.values()]
    for t in range(2, 5):
        set_gradients(parts, t)
        loss = loss_on(device)
        if t == 2:
            poison(parts, loss, value)
        fused.step(loss)
    assert fused.failed.item() == 1
    assert fused.step_count.item() == 2
    after = [*parameters(parts), *fused.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_covered_gradients_are_a_second_line_of_defence(device: torch.device, value: float) -> None:
    """The guard does not read a covered gradient; only its non-finite elements stay as they are."""
    rows, columns = 12, 8
    part = Part("p", parameter(rows, columns, seed=1, device=device), virtual_rows=4)
    other = Part("q", parameter(5, seed=2, device=device))
    fused = FusedOptimizer([part, other], RULES["adamw"], torch.tensor(2.0**-5, device=device), covered=["p"])
    before = part.parameter.detach().clone()
    set_gradients([part, other], 0)
    assert part.parameter.grad is not None
    part.parameter.grad.fill_(0.5)
    part.parameter.grad[5, 3] = value
    fused.step(loss_on(device))
    assert fused.failed.item() == 1
    assert fused.step_count.item() == 1
    moved = part.parameter.detach() != before
    assert not moved[5, 3]
    assert moved.sum() == rows * columns - 1
    assert all(s.isfinite().all() for s in fused.state.values())
    after = [p.detach().clone() for p in (part.parameter, other.parameter)]
    set_gradients([part, other], 1)
    fused.step(loss_on(device))
    assert all(torch.equal(a, b) for a, b in zip(after, (part.parameter, other.parameter), strict=True))


def test_large_gradients_are_finite(device: torch.device) -> None:
    """Their squares are not in float32, but the norm is a float64."""
    parts = make_parts(device)
    fused = optimizer(parts, RULES["adamw"], max_norm=1.0)
    set_gradients(parts, 0, scale=1e30)
    reference = Reference(parts, RULES["adamw"], 1.0)
    reference.step(gradients_of(parts), 2.0**-5)
    fused.step(loss_on(device))
    assert not fused.failed.item()
    assert_weights(parts, reference, 1e-6)


@pytest.mark.parametrize(("eps", "tolerance"), [(1e-8, 5e-7), (1e-20, 2e-5)])
@pytest.mark.parametrize("name", ["adamw", "ranger_lite"])
def test_moments_of_every_size(device: torch.device, name: str, eps: float, tolerance: float) -> None:
    """From nothing to the largest floats: roots and quotients are right without a branch for them."""
    squares = torch.cat([torch.zeros(1), 2.0 ** torch.arange(-120.0, 127.0)])
    averages = torch.cat([torch.zeros(1), 1.7 * 2.0 ** torch.arange(-100, 20.0), -(2.0 ** torch.arange(-60, 3.0))])
    grid = torch.cartesian_prod(averages, squares)
    part = Part("p", nn.Parameter(torch.zeros(len(grid), device=device)))
    rule = replace(RULES[name], eps=eps, lookahead_every=0)
    fused, reference = optimizer([part], rule), Reference([part], rule, math.inf)
    for key, tensor in fused.state.items():
        tensor.copy_(grid[:, 1 if "sq" in key else 0])
    reference.momentum[0].square = grid[:, 1].double().to(device)
    reference.momentum[0].averages = [grid[:, 0].double().to(device)] * 2
    part.parameter.grad = torch.zeros_like(part.parameter)
    reference.step(gradients_of([part]), 2.0**-5)
    fused.step(loss_on(device))
    found, expected = part.parameter.detach().double(), reference.weights[0]
    fits = expected.abs() < 3e38
    torch.testing.assert_close(found[fits], expected[fits], rtol=tolerance, atol=1e-43)


def test_parameters_without_gradient_stay(device: torch.device) -> None:
    parts = [Part(n, parameter(4, 4, seed=i, device=device), decay=0.5) for i, n in enumerate("ab")]
    fused = optimizer(parts, RULES["adamw"])
    set_gradients(parts, 0)
    parts[0].parameter.grad = None
    before = [part.parameter.detach().clone() for part in parts]
    fused.step(loss_on(device))
    assert torch.equal(parts[0].parameter, before[0])
    assert not torch.equal(parts[1].parameter, before[1])


def test_autograd_notices_a_step(device: torch.device) -> None:
    part = Part("p", parameter(4, 4, seed=1, device=device))
    fused = optimizer([part], RULES["adamw"])
    loss = (part.parameter * part.parameter.detach().clone().requires_grad_()).sum()
    set_gradients([part], 0)
    fused.step(loss_on(device))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def moments(**changed: torch.Tensor) -> list[torch.Tensor]:
    """The moments of one part: average, square, and the same of three virtual rows."""
    own = {"average": torch.zeros(6, 4), "square": torch.zeros(6, 4)}
    shared = {"shared_average": torch.zeros(3, 4), "shared_square": torch.zeros(3, 4)}
    return list((own | shared | changed).values())


def state(numbers: torch.Tensor | None = None) -> list[torch.Tensor]:
    numbers = torch.zeros(1, 16, dtype=torch.float64) if numbers is None else numbers
    return [torch.zeros(1, dtype=torch.int64), torch.zeros(()), numbers]


def constants(**changed: object) -> list[float]:
    return replace(UpdateRule(), **changed).constants(math.inf)  # type: ignore[arg-type]


def describe(**changed: object) -> int:
    arguments: dict[str, object] = {
        "device": torch.zeros(()),
        "rule": 0,
        "constants": constants(),
        "betas": [0.9, 0.999],
        "parts": [0.0, 1.0, 0.0, 1.0, 0.0, -1.0, 1.0, 0.0],
    }
    found: int = torch.ops.nnue._optimizer_describe(*(arguments | changed).values())
    return found


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rule": 5}, r"rule: found 5, expected 0 \(adam\), 1 \(rectified\), 2 \(positive_negative\), 3 \(lion\)"),
        ({"constants": [0.9]}, "constants: found 1 numbers, expected ten: eps, positive, lookahead_every"),
        ({"constants": constants(eps=0.0)}, "eps: found 0.0+, expected a number above 0"),
        ({"constants": constants(lookahead_every=0.5)}, "lookahead_every: found 0.50*, expected a whole number of"),
        ({"constants": [*constants()[:-1], 0.0]}, "max_norm: found 0.0+, expected a number above 0, or infinity"),
        ({"betas": [0.9]}, "betas: found 1 numbers, expected two for each group"),
        ({"betas": [0.9, 0.999, 1.0, 0.999]}, "beta1: found 1.0+, expected 0 <= beta1 < 1"),
        ({"parts": [1.0]}, "parts: found 1 numbers, expected eight for each part"),
        ({"parts": [1.0, 1.0, 0.0, 1.0, 0.0, -1.0, 1.0, 0.0]}, r"parts\[0\]: found 1.0+, expected a group below 1"),
        (
            {"parts": [0.0, 1.0, 0.0, 1.0, 0.0, 2.0, 1.0, 0.0]},
            r"parts\[5\]: found lowest weight 2.0+, expected at most the highest, 1.0+",
        ),
    ],
)
def test_wrong_descriptions_are_named(changed: dict[str, object], message: str) -> None:
    assert describe() == describe()
    with pytest.raises(RuntimeError, match="nnue::_optimizer_describe: " + message):
        describe(**changed)


def call_step(**changed: object) -> None:
    arguments: dict[str, object] = {
        "weights": [torch.zeros(6, 4)],
        "gradients": [torch.zeros(6, 4)],
        "moments": moments(),
        "copies": [torch.zeros(0)],
        "late": [],
        "rows": [],
        "state": state(),
        "loss": torch.zeros(()),
        "lr": torch.zeros(()),
        "also": [],
        "also_shared": [],
        "norm": None,
        "optimizer": describe(),
    }
    torch.ops.nnue._optimizer_step(*(arguments | changed).values())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gradients": []}, "gradients: found 0 items, expected 1, one for each part"),
        ({"gradients": [torch.zeros(4, 6)]}, r"gradients\[0\]: found shape \[4, 6\], expected shape \[6, 4\] of its"),
        ({"gradients": [torch.zeros(6, 4).double()]}, r"gradients\[0\]: found float64, expected float32"),
        (
            {"moments": moments(square=torch.zeros(4, 6).t())},
            r"moments\[1\]: found a tensor with gaps, expected a contiguous one",
        ),
        (
            {"moments": moments(average=torch.zeros(6, 4).half())},
            r"moments\[0\]: found float16, expected float32 as weights\[0\]",
        ),
        (
            {"moments": moments(shared_square=torch.zeros(4, 4))},
            r"moments\[3\]: found 4 virtual rows, expected a divisor of 6",
        ),
        ({"optimizer": -1}, "optimizer: found -1, expected a number that _optimizer_describe returned"),
        ({"optimizer": 2**40}, "optimizer: found 1099511627776, expected a number that _optimizer_describe returned"),
        ({"copies": [torch.zeros(6, 4)]}, r"copies\[0\]: found float32, expected float16 or bfloat16"),
        ({"copies": []}, "copies: found 0 items, expected 1, one for each part"),
        ({"state": state(torch.zeros(1, 16))}, "numbers: found float32, expected float64"),
        (
            {"state": state(torch.zeros(2, 16).double())},
            r"numbers: found shape \[2, 16\], expected shape \[G, K\] = \[1, 16\]",
        ),
        ({"state": []}, "state: found 0 tensors, expected three: step, failed and numbers"),
        ({"loss": torch.zeros(2)}, "loss: found 2 elements, expected one"),
        ({"late": [torch.zeros(6)]}, "late: found 1 items, expected 0, made, changes and history of each part"),
        ({"also": [torch.zeros(4, 2)]}, "also_shared: found 0 items, expected 1, as in also"),
        (
            {"also": [torch.zeros(4, 2)], "also_shared": [3]},
            r"also\[0\]: found 3 virtual rows, expected a divisor of 4",
        ),
    ],
)
def test_wrong_arguments_are_named(changed: dict[str, object], message: str) -> None:
    call_step()
    with pytest.raises(RuntimeError, match="nnue::_optimizer_step: " + message):
        call_step(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rule": 2}, "moments: found 4 items, expected 6, 6 for each part"),
        ({"constants": constants(lookahead_every=3)}, "moments: found 4 items, expected 5, 5 for each part"),
        (
            {"parts": [0.0, 1.0, 1.0, 1.0, 0.0, -1.0, 1.0, 0.0]},
            "late: found 0 items, expected 3, made, changes and history of each part",
        ),
    ],
)
def test_tensors_that_do_not_fit_the_description(changed: dict[str, object], message: str) -> None:
    with pytest.raises(RuntimeError, match="nnue::_optimizer_step: " + message):
        call_step(optimizer=describe(**changed))


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_emulated_kernels(emulator: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The CUDA kernels without a GPU: the reference's weights, and equal bits with another schedule."""
    monkeypatch.setattr(fused_operators, "namespace", torch.ops.nnue_emulated)
    results = []
    for schedule in (1, 2):
        emulator.emulator_configure(2 + schedule, schedule)
        parts = make_parts(torch.device("cpu"))
        copy = torch.zeros(parts[0].parameter.shape, dtype=torch.bfloat16)
        parts[:2] = [Part(**{**part.__dict__, "copy": copy}) for part in parts[:2]]
        reference = Reference(parts, RULES[name], 20.0)
        fused = optimizer(parts, RULES[name], max_norm=20.0)
        for t in range(6):
            set_gradients(parts, t, torch.float16 if t == 2 else None)
            reference.step(gradients_of(parts), 2.0**-5)
            fused.step(loss_on(copy.device))
        set_gradients(parts, 6)
        poison_first(parts, loss_on(copy.device), math.nan)
        fused.step(loss_on(copy.device))
        assert fused.failed.item() == 1
        assert fused.step_count.item() == 6
        assert_weights(parts, reference, 2e-6)
        assert torch.equal(copy, parts[0].parameter.detach().bfloat16())
        results.append([*parameters(parts), *fused.state.values()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.cuda
def test_a_graph_replays_steps(cuda: torch.device) -> None:
    """Learning rate, count and flag are read when the graph runs."""
    rule = RULES["ranger_lite"]
    results = []
    for graphed in (False, True):
        parts = make_parts(cuda)
        fused = optimizer(parts, rule, max_norm=20.0)
        loss = loss_on(cuda)
        set_gradients(parts, 0)
        fused.step(loss)
        graph = torch.cuda.CUDAGraph()
        if graphed:
            with torch.cuda.graph(graph):
                fused.step(loss)
        static = [p.grad for p in parameters(parts)]
        for t in range(1, 9):
            fused.lr.fill_(2.0**-t)
            set_gradients(parts, t)
            if graphed:
                for to, p in zip(static, parameters(parts), strict=True):
                    assert to is not None
                    to.copy_(p.grad)  # type: ignore[arg-type]
                if t == 7:
                    loss.fill_(math.nan)
                graph.replay()
            else:
                if t == 7:
                    loss.fill_(math.nan)
                fused.step(loss)
        assert fused.failed.item() == 1
        assert fused.step_count.item() == 7
        results.append([p.detach().clone() for p in parameters(parts)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
