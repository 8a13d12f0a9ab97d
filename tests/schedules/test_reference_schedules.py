"""Learning rates and λ against the schedules of the reference trainers: tests/vectors/training."""

import json
import math
from typing import Any

import pytest
import torch
from needs import ROOT
from torch import Tensor
from typed import instance

from nnue_trainer.schedules import LAMBDAS, SCHEDULES, RunStep
from nnue_trainer.schedules.jitter import BatchJitter, add_jitter, autoregressive

VECTORS = ROOT / "tests" / "vectors" / "training"
LAMBDA = json.loads((VECTORS / "lambda.json").read_text(encoding="utf-8"))
RATES = json.loads((VECTORS / "learning_rate.json").read_text(encoding="utf-8"))
BATCHES = 6  # batches of a superbatch


def one_step_epochs(step: int, steps: int) -> RunStep:
    return RunStep(step, 1, steps)


@pytest.mark.parametrize("case", LAMBDA["schedules"], ids=lambda case: case["name"])
def test_lambda(case: dict[str, Any]) -> None:
    cycles = "schedule_steps" in case
    section = {"start": case["start"], "end": case["end"], "steps": case.get("schedule_steps")}
    kind = {"kind": "linear"}
    if cycles:
        kind = {"kind": "cycle", "height": case.get("delta", 0.0), "peak": case.get("pct", 0.3)}
    schedule = LAMBDAS.parse(kind | section, trusted=False)
    for step, lam, factor in case["rows"]:
        now = one_step_epochs(step, case["run_steps"])
        assert schedule.of(now) == pytest.approx(lam, abs=1e-15), step
        if cycles:
            assert schedule.cycle(now) == pytest.approx(factor, abs=1e-15), step


@pytest.mark.parametrize("case", LAMBDA["jitter"], ids=lambda case: f"scaled={case['scaled_by_cycle']}")
def test_jitter_of_lambda_with_given_normal_numbers(case: dict[str, Any]) -> None:
    states = list(autoregressive(case["normals_batch"], case["batch_std"], case["decay"]))
    assert states == pytest.approx(case["batch_state"], rel=1e-14)
    for lam, cycle, state, normals, expected in zip(
        case["lambda_before"], case["cycle"], states, case["normals_sample"], case["lambda_of_samples"], strict=True
    ):
        scale = cycle if case["scaled_by_cycle"] else 1.0
        numbers = torch.tensor(normals, dtype=torch.float64)
        found = add_jitter(lam + scale * state, scale * case["sample_std"], numbers)
        assert found.tolist() == pytest.approx(expected, abs=1e-15)


def test_jitter_of_batches_is_a_function_of_seed_and_step() -> None:
    """Made from the middle, backwards, or one after the other, the numbers are the same; they have their law."""
    one = BatchJitter(5, 0.01, 0.9)
    forward = [one.at(step) for step in range(20_000)]
    assert [BatchJitter(5, 0.01, 0.9).at(step) for step in (9_000, 4_096, 4_095, 0)] == [
        forward[step] for step in (9_000, 4_096, 4_095, 0)
    ]
    assert [one.at(step) for step in (3, 2)] == [forward[3], forward[2]]
    values = torch.tensor(forward, dtype=torch.float64)
    assert values.std().item() == pytest.approx(0.01, rel=0.1)
    lagged = torch.corrcoef(torch.stack([values[1:], values[:-1]]))[0, 1].item()
    assert lagged == pytest.approx(0.9, abs=0.02)
    assert BatchJitter(6, 0.01, 0.9).at(3) != forward[3]


def test_jitter_is_scaled_by_the_cycle() -> None:
    section = {"kind": "cycle", "start": 0.5, "end": 0.5, "height": 0.0, "peak": 0.5, "scale_jitter": True}
    jitter = {"jitter": 0.02, "jitter_law": "normal", "batch_jitter": 0.01}
    schedule = LAMBDAS.parse(section | jitter, trusted=False)
    assert instance(Tensor, schedule.of_batch(one_step_epochs(0, 100), 1, 5)).tolist() == [0.5] * 5
    middle = instance(Tensor, schedule.of_batch(one_step_epochs(50, 100), 1, 10_000))
    shift = BatchJitter(1, 0.01, 0.999).at(50)
    assert middle.mean().item() == pytest.approx(0.5 + shift, abs=0.001)
    assert middle.std().item() == pytest.approx(0.02, rel=0.05)
    quarter = instance(Tensor, schedule.of_batch(one_step_epochs(25, 100), 1, 10_000))
    assert quarter.std().item() == pytest.approx(0.01, rel=0.05)
    batch_only = LAMBDAS.parse(section | {"batch_jitter": 0.01}, trusted=False)
    assert batch_only.of_batch(one_step_epochs(50, 100), 1, 5) == 0.5 + shift


@pytest.mark.parametrize("case", RATES["one_cycle"]["cases"], ids=lambda case: f"{case['total_steps']}")
def test_one_cycle(case: dict[str, Any]) -> None:
    start = case["lr"] / case["start_div"]
    section = {"start_lr": start, "final_lr": start / case["final_div"], "rise": case["rise"]}
    own = SCHEDULES.parse({"kind": "one_cycle", "steps": case["total_steps"]} | section, trusted=False)
    whole = SCHEDULES.parse({"kind": "one_cycle"} | section, trusted=False)
    for step, lr in case["rows"]:
        # A cycle has its own length, whether the run is shorter or longer.
        for run in (10, 10_000_000):
            assert own.of(one_step_epochs(step, run), case["lr"]) == pytest.approx(lr, rel=1e-12), step
        assert whole.of(one_step_epochs(step, case["total_steps"]), case["lr"]) == pytest.approx(lr, rel=1e-12), step
    # The same way for λ.
    lam = LAMBDAS.parse(
        {"kind": "one_cycle", "start": start, "top": case["lr"], "end": start / case["final_div"]}
        | {"rise": case["rise"], "steps": case["total_steps"]},
        trusted=False,
    )
    for step, lr in case["rows"]:
        assert lam.of(one_step_epochs(step, 10)) == pytest.approx(lr, abs=1e-15), step


def test_per_epoch() -> None:
    case = RATES["per_epoch"]
    section = {"kind": "exponential", "gamma": case["gamma"]}
    rates = SCHEDULES.parse(section, trusted=False)
    lambdas = LAMBDAS.parse(section | {"start": case["lr"]}, trusted=False)
    for epoch, value in case["rows"]:
        now = RunStep(epoch * 7, 7, 800)
        assert rates.of(now, case["lr"]) == pytest.approx(value, abs=1e-15)
        assert lambdas.of(now) == pytest.approx(value, abs=1e-15)


LINE = {"stairs": "end"}
OURS_OF_BULLET = {
    "constant 1e-3": (1e-3, {"kind": "constant"}),
    "drop start 1e-3 gamma 0.1 drop 3": (1e-3, {"kind": "drops", "epochs": [3], "gamma": 0.1}),
    "step start 1e-3 gamma 0.3 step 4": (1e-3, {"kind": "step", "epochs": 4, "gamma": 0.3}),
    "linear 1e-3 to 1e-6 final 40": (1e-3, LINE | {"kind": "linear", "final_lr": 1e-6, "steps": 40 * BATCHES}),
    "cosine 1e-3 to 2.4e-6 final 40": (1e-3, LINE | {"kind": "cosine", "final_lr": 2.4e-6, "steps": 40 * BATCHES}),
    "exponential 1e-3 to 1e-6 final 40": (
        1e-3,
        LINE | {"kind": "exponential", "gamma": 1e-3 ** (1 / 40), "epochs": 40},
    ),
    "warmup 5 batches of constant 1e-3": (1e-3, {"kind": "constant", "warmup_steps": 5, "warmup": "hyperbola"}),
    "sequence linear 1e-4 to 5e-3 final 4, then cosine 5e-3 to 1e-5 final 36, after 4": (
        5e-3,
        {
            "kind": "sequence",
            "parts": [
                {"epochs": 4, "lr": 1e-4, "schedule": LINE | {"kind": "linear", "final_lr": 5e-3}},
                {"epochs": 36, "schedule": LINE | {"kind": "cosine", "final_lr": 1e-5}},
            ],
        },
    ),
}


@pytest.mark.parametrize("case", RATES["bullet_lr"]["cases"], ids=lambda case: case["schedule"])
def test_learning_rates_of_bullet(case: dict[str, Any]) -> None:
    lr, section = OURS_OF_BULLET[case["schedule"]]
    schedule = SCHEDULES.parse(section, trusted=False)
    for batch, superbatch, expected in case["rows"]:
        found = schedule.of(RunStep((superbatch - 1) * BATCHES + batch, BATCHES, 40), lr)
        assert found == pytest.approx(expected, rel=1e-9), (batch, superbatch)


WDL_OF_BULLET = {
    "linear 0.2 to 0.5": {"kind": "linear", "start": 0.8, "end": 0.5, "stairs": "begin", "steps": 40 * BATCHES},
    "warmup 5 of constant 0.3": {"kind": "constant", "value": 0.7, "warmup_steps": 5, "warmup": "hyperbola"},
    "sequence constant 0.2, then linear 0.2 to 1, after 10": {
        "kind": "sequence",
        "parts": [
            {"epochs": 10, "lambda": {"kind": "constant", "value": 0.8}},
            {
                "epochs": 31,
                "lambda": {"kind": "linear", "start": 0.8, "end": 0.0, "stairs": "begin", "steps": 30 * BATCHES},
            },
        ],
    },
}


@pytest.mark.parametrize("case", RATES["bullet_wdl"]["cases"], ids=lambda case: case["schedule"])
def test_wdl_of_bullet(case: dict[str, Any]) -> None:
    schedule = LAMBDAS.parse(WDL_OF_BULLET[case["schedule"]], trusted=False)
    for batch, superbatch, _, expected in case["rows"]:
        now = RunStep((superbatch - 1) * BATCHES + batch, BATCHES, case["final_superbatch"])
        assert schedule.of(now) == pytest.approx(expected, abs=1e-12), (batch, superbatch)


def test_a_stage_that_continues_a_schedule_counts_its_steps_and_epochs() -> None:
    """4 epochs of 10 steps, then 3 epochs of 20."""
    first, second = RunStep(39, 10, 7, total=100), RunStep(40, 20, 7, first_step=40, first_epoch=4, total=100)
    assert (first.epoch, second.epoch, second._replace(step=59).epoch, second._replace(step=60).epoch) == (3, 4, 4, 5)
    assert (first.steps, second.steps, second._replace(total=None).steps) == (100, 100, 100)
    sequence = SCHEDULES.parse(
        {
            "kind": "sequence",
            "parts": [
                {"epochs": 5, "schedule": {"kind": "constant"}, "lr": 1.0},
                {"epochs": 2, "schedule": {"kind": "linear", "final_lr": 0.0}, "lr": 0.5},
            ],
        },
        trusted=False,
    )
    values = [sequence.of(second._replace(step=step), 9.0) for step in (40, 59, 60, 80, 99)]
    assert values == [1.0, 1.0, 0.5, 0.25, pytest.approx(0.5 / 40)]
    stairs = SCHEDULES.parse({"kind": "linear", "final_lr": 0.0, "stairs": "begin"}, trusted=False)
    assert stairs.of(second._replace(step=75), 1.0) == pytest.approx(0.4)
    assert math.isclose(stairs.of(second._replace(step=80), 1.0), 0.2)
