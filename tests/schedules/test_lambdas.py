"""λ against values worked out by hand, and the one sign: λ is the share of the score."""

import pytest
import torch

from nnue_trainer.losses import LOSSES
from nnue_trainer.schedules import LAMBDAS, RunStep
from nnue_trainer.schedules.lambdas import JITTER_STREAM
from nnue_trainer.stats.random import Philox

PER_EPOCH, EPOCHS = 10, 10
END = RunStep(PER_EPOCH * EPOCHS, PER_EPOCH, EPOCHS)


@pytest.mark.parametrize(
    ("schedule", "values", "final"),
    [
        ({"kind": "constant", "value": 0.3}, {0: 0.3, 99: 0.3}, 0.3),
        ({"kind": "linear", "start": 1.0, "end": 0.6}, {0: 1.0, 50: 0.8, 100: 0.6, 120: 0.6}, 0.6),
        ({"kind": "linear", "start": 1.0, "end": 0.6, "steps": 10}, {5: 0.8, 10: 0.6, 99: 0.6}, 0.6),
        ({"kind": "linear", "start": 1.0, "end": 0.6, "steps": 1000}, {100: 0.96}, 0.6),
        ({"kind": "linear", "start": 0.5, "end": 0.5, "bump": 0.2}, {0: 0.5, 25: 0.6, 50: 0.7, 100: 0.5}, 0.5),
        ({"kind": "linear", "start": 0.9, "end": 0.9, "bump": 0.5}, {50: 1.0}, 0.9),
        ({"kind": "linear", "start": 0.1, "end": 0.1, "bump": -0.5}, {50: 0.0}, 0.1),
        ({"kind": "cycle", "start": 0.9, "end": 0.5, "height": -0.2, "peak": 0.25}, {25: 0.6, 100: 0.5, 120: 0.5}, 0.5),
        ({"kind": "one_cycle", "top": 0.5, "end": 0.8, "rise": 0.26}, {0: 1.0, 25: 0.5, 99: 0.8, 120: 0.8}, 0.8),
        ({"kind": "exponential", "start": 0.8, "gamma": 0.5, "epochs": 2}, {9: 0.8, 10: 0.4, 20: 0.2, 99: 0.2}, 0.2),
        ({"kind": "step", "start": 0.8, "epochs": 5, "gamma": 0.5}, {49: 0.8, 50: 0.4, 99: 0.4}, 0.2),
        ({"kind": "drops", "start": 0.8, "epochs": [1, 3], "gamma": 0.5}, {9: 0.8, 10: 0.4, 30: 0.2}, 0.2),
        (
            {
                "kind": "sequence",
                "parts": [
                    {"epochs": 4, "lambda": {"kind": "linear", "end": 0.6}},
                    {"epochs": 4, "lambda": {"kind": "constant", "value": 0.3}},
                ],
            },
            {0: 1.0, 20: 0.8, 40: 0.3, 99: 0.3},
            0.3,
        ),
        ({"kind": "constant", "value": 0.5, "warmup_steps": 5}, {0: 0.9, 3: 0.6, 4: 0.5, 9: 0.5}, 0.5),
        ({"kind": "cosine", "start": 1.0, "end": 0.5}, {0: 1.0, 25: 0.75 + 0.25 * 0.5**0.5, 50: 0.75, 100: 0.5}, 0.5),
    ],
)
def test_lambda(schedule, values, final):
    parsed = LAMBDAS.parse(schedule, trusted=False)
    for step, lam in values.items():
        assert parsed.of(RunStep(step, PER_EPOCH, EPOCHS)) == pytest.approx(lam, rel=1e-12), step
    assert parsed.final_of(END) == final


def outputs(loss, score):
    """The input of a loss from a net with this score: the score, or the logits of loss, draw and win."""
    return torch.stack([-score / 200, torch.zeros_like(score), score / 200], dim=1) if loss.reads == 3 else score


@pytest.mark.parametrize("kind", sorted(LOSSES.kinds()))
def test_lambda_is_the_share_of_the_score_in_every_loss(kind):
    """The score is won, the game was lost: at λ = 1 a high output is right, at λ = 0 a low one."""
    loss = LOSSES.parse({"kind": kind}, trusted=False)
    score, result = torch.full((1,), 2000), torch.full((1,), -1)
    high, low = (outputs(loss, torch.full((1,), score)) for score in (2000.0, -2000.0))
    at_one, at_zero = ([loss.terms(net, score, result, lam)[0] for net in (high, low)] for lam in (1.0, 0.0))
    assert at_one[0] < at_one[1]
    assert at_zero[0] > at_zero[1]


def test_jitter_is_even_around_the_schedule_and_known_by_seed_step_and_position():
    schedule = LAMBDAS.parse({"kind": "constant", "value": 0.6, "jitter": 0.2}, trusted=False)
    lam = schedule.of_positions(0.6, 7, 3, 10_000)
    assert lam.dtype == torch.float32
    assert 0.4 <= lam.min() < 0.401
    assert 0.799 < lam.max() <= 0.8
    assert lam.mean().item() == pytest.approx(0.6, abs=4 * 0.2 / 3**0.5 / 100)
    assert torch.histc(lam, 10, 0.4, 0.8).sub(1000).abs().max() < 5 * 1000**0.5
    assert torch.equal(lam, schedule.of_positions(0.6, 7, 3, 10_000))
    for other in (schedule.of_positions(0.6, 8, 3, 10_000), schedule.of_positions(0.6, 7, 4, 10_000)):
        assert abs(torch.corrcoef(torch.stack([lam, other]))[0, 1]) < 0.05
    # The numbers of a step follow those of the step before.
    both = Philox(7, JITTER_STREAM, 30_000).uniform(20_000, 0.4, 0.8)
    assert torch.equal(torch.cat([lam, schedule.of_positions(0.6, 7, 4, 10_000)]), both)
    at_one = schedule.of_positions(1.0, 7, 3, 10_000)
    assert at_one.max() == 1
    assert (at_one == 1).float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert schedule.final_of(END) == 0.6


@pytest.mark.parametrize("kind", sorted(LOSSES.kinds()))
def test_losses_take_a_lambda_for_each_position(kind):
    """The loss equals the sum of the losses of single positions, each with its own λ; one has no score."""
    loss = LOSSES.parse({"kind": kind}, trusted=False)
    generator = torch.Generator().manual_seed(1)
    net, score = (torch.randn(50, generator=generator) * 500 for _ in range(2))
    net = outputs(loss, net)
    score[3] = 32002
    result, lam = torch.randint(-1, 2, (50,), generator=generator), torch.rand(50, generator=generator)
    found = loss.terms(net, score, result, lam)
    single = [loss.terms(net[i : i + 1], score[i : i + 1], result[i : i + 1], lam[i].item()) for i in range(50)]
    for part, sums in zip(found, zip(*single, strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack(sums).sum())


@pytest.mark.cuda
def test_cuda_has_the_same_jitter():
    schedule = LAMBDAS.parse({"kind": "constant", "jitter": 0.3}, trusted=False)
    assert torch.equal(schedule.of_positions(0.5, 1, 2, 1000, "cuda").cpu(), schedule.of_positions(0.5, 1, 2, 1000))
