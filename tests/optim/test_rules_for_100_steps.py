"""Every update rule of the registry for 100 steps against a reference in float64 that is written from its formulas, or
torch's own. The gradients depend on the weights, and the learning rate changes on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_optim import inputs
from test_rules import OneWeight, Stacked, config, muon_reference, train

from nnue_trainer.optim import OPTIMIZERS, Optimizer

STEPS, SIZE = 100, 6
LRS = [2.0**-6] * 40 + [2.0**-7] * 60  # whole in fp32, which the optimiser keeps them in
START = [0.9, -0.7, 0.3, -0.1, 1.4, -2.0]
_RANDOM = np.random.default_rng(7)
CURVE, NOISE = _RANDOM.normal(size=(SIZE, SIZE)), _RANDOM.normal(size=(STEPS, SIZE))
Array = np.ndarray
Reference = Callable[..., Array]


def gradient(weights: Array, step: int) -> Array:
    return np.asarray(CURVE @ np.tanh(CURVE.T @ weights) + 0.3 * NOISE[step])


def adamw(decay: float, betas: tuple[float, float], eps: float, corrects: bool = True) -> Array:
    w, m, v = np.array(START), np.zeros(SIZE), np.zeros(SIZE)
    for t, lr in enumerate(LRS, 1):
        g = gradient(w, t - 1)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        c1, c2 = (1 - betas[0] ** t, 1 - betas[1] ** t) if corrects else (1.0, 1.0)
        w = w * (1 - lr * decay) - lr * (m / c1) / (np.sqrt(v / c2) + eps)
    return w


def radam(decay: float, betas: tuple[float, float], eps: float, every: int = 0, share: float = 0.0) -> Array:
    """torch's; `every`: with lookahead."""
    w = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    slow, rule = (
        w.detach().clone(),
        torch.optim.RAdam([w], betas=betas, eps=eps, weight_decay=decay, decoupled_weight_decay=True),
    )
    for step, lr in enumerate(LRS):
        rule.param_groups[0]["lr"] = lr
        w.grad = torch.from_numpy(gradient(w.detach().numpy(), step))
        rule.step()
        if every and step % every == every - 1:
            slow += share * (w.detach() - slow)
            w.data.copy_(slow)
    return w.detach().numpy()


def ranger_lite(
    decay: float, betas: tuple[float, float], eps: float, p: float, every: int, share: float, stable: bool = False
) -> Array:
    w, slow = np.array(START), np.array(START)
    v, means = np.zeros(SIZE), [np.zeros(SIZE), np.zeros(SIZE)]
    for t, lr in enumerate(LRS, 1):
        g = gradient(w, t - 1)
        v = betas[1] * v + (1 - betas[1]) * g * g
        this, other = (0, 1) if t % 2 else (1, 0)
        means[this] = betas[0] ** 2 * means[this] + (1 - betas[0] ** 2) * g
        u = ((1 + p) * means[this] - p * means[other]) / math.sqrt((1 + p) ** 2 + p**2)
        c2 = 1 - betas[1] ** t
        by = max(eps, math.sqrt(np.mean(v / c2))) if stable else 1.0
        w = w * (1 - decay * lr / by)
        w = w - lr / (1 - betas[0] ** (2 * math.ceil(t / 2))) * u / (np.sqrt(v) / math.sqrt(c2) + eps)
        if t % every == 0:
            w = slow = slow + share * (w - slow)
    return w


def schedule_free(decay: float, betas: tuple[float, float], eps: float, warmup: int, power: float) -> Array:
    y, z, v = np.array(START), np.array(START), np.zeros(SIZE)
    largest = total = 0.0
    for t, lr in enumerate(LRS, 1):
        g = gradient(y, t - 1)
        v = betas[1] * v + (1 - betas[1]) * g * g
        rate = lr * min(1.0, t / warmup)
        largest = max(largest, rate)
        weight = t**power * largest**2
        total += weight
        c = weight / total
        d = g / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + decay * y
        y = (1 - c) * y + c * z + rate * (betas[0] * (1 - c) - 1) * d
        z = z - rate * d
    return np.asarray((y - (1 - betas[0]) * z) / betas[0])


def lion(decay: float, betas: tuple[float, float]) -> Array:
    w, m = np.array(START), np.zeros(SIZE)
    for step, lr in enumerate(LRS):
        g = gradient(w, step)
        w = w * (1 - lr * decay) - lr * np.sign(betas[0] * m + (1 - betas[0]) * g)
        m = betas[1] * m + (1 - betas[1]) * g
    return w


def momentum_sgd(decay: float, momentum: float) -> Array:
    w, m = np.array(START), np.zeros(SIZE)
    for step, lr in enumerate(LRS):
        g = gradient(w, step) + decay * w
        m = g if step == 0 else momentum * m + g
        w = w - lr * m
    return w


BETAS = {"betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.05}
NUMBERS = (0.05, (0.9, 0.99), 1e-6)
CASES: dict[str, tuple[dict[str, Any], Callable[[], Array]]] = {
    "adamw": ({"kind": "adamw", **BETAS}, lambda: adamw(*NUMBERS)),
    "adamw of bullet": ({"kind": "adamw", **BETAS, "correct_bias": False}, lambda: adamw(*NUMBERS, corrects=False)),
    "radam": ({"kind": "radam", **BETAS}, lambda: radam(*NUMBERS)),
    "ranger": ({"kind": "ranger", **BETAS, "lookahead_share": 0.25}, lambda: radam(*NUMBERS, every=6, share=0.25)),
    "ranger_lite": (
        {"kind": "ranger_lite", **BETAS, "positive": 0.8, "lookahead_steps": 7, "max_norm": None},
        lambda: ranger_lite(*NUMBERS, 0.8, 7, 0.5),
    ),
    "ranger_lite with stable decay": (
        {"kind": "ranger_lite", **BETAS, "stable_decay": True, "max_norm": None},
        lambda: ranger_lite(*NUMBERS, 1.0, 5, 0.5, stable=True),
    ),
    "schedule_free": (
        {"kind": "schedule_free", **BETAS, "warmup_steps": 9, "weight_power": 1.5},
        lambda: schedule_free(*NUMBERS, 9, 1.5),
    ),
    "lion": ({"kind": "lion", "betas": [0.9, 0.99], "weight_decay": 0.05}, lambda: lion(*NUMBERS[:2])),
    "muon with ranger": ({"kind": "muon", "others": "ranger", **BETAS}, lambda: radam(*NUMBERS, every=6, share=0.5)),
    "muon with ranger_lite": (
        {"kind": "muon", "others": "ranger_lite", **BETAS},
        lambda: ranger_lite(*NUMBERS, 1.0, 5, 0.5),
    ),
    "muon with lion": (
        {"kind": "muon", "others": "lion", "betas": [0.9, 0.99], "weight_decay": 0.05},
        lambda: lion(*NUMBERS[:2]),
    ),
    "torch": (
        {"kind": "torch", "name": "SGD", "options": {"momentum": 0.9, "weight_decay": 0.01}},
        lambda: momentum_sgd(0.01, 0.9),
    ),
}


def test_every_rule_of_the_registry_has_a_reference() -> None:
    """A new rule comes with one: here, or as Muon's, which is about matrices."""
    built_in = {name for name in OPTIMIZERS.kinds() if ":" not in name}
    assert built_in == {section["kind"] for section, _ in CASES.values()} | {"muon"}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_its_float64_reference_for_100_steps(name: str) -> None:
    section, reference = CASES[name]
    net = OneWeight(START)
    optimizer = Optimizer(net, config(**section, lr=LRS[0]))
    for step, lr in enumerate(LRS):
        optimizer.set_lr(lr)
        net.w.grad = torch.from_numpy(gradient(net.w.detach().numpy(), step))
        optimizer.step(torch.ones(()))
    with optimizer.with_net():
        np.testing.assert_allclose(net.w.detach().numpy(), reference(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("others", ["adamw", "radam"])
def test_muon_is_its_float64_reference_for_100_steps(others: str) -> None:
    ours, lr = Stacked(), 2.0**-8
    optimizer = Optimizer(ours, config(kind="muon", lr=lr, matrix_lr=2e-3, others=others))
    train(ours, optimizer, inputs(STEPS))
    expected = muon_reference(Stacked(), inputs(STEPS), lr, others)
    for key, tensor in expected.items():
        torch.testing.assert_close(ours.get_parameter(key).detach(), tensor, rtol=0, atol=1e-9)
