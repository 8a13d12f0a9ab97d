"""λ against values worked out by hand, and the one sign: λ is the share of the score."""

import pytest
import torch

from nnue_trainer.lambdas import LAMBDAS
from nnue_trainer.losses import LOSSES

PER_EPOCH, EPOCHS = 10, 10


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
        ({"kind": "cosine", "start": 1.0, "end": 0.5}, {0: 1.0, 25: 0.75 + 0.25 * 0.5**0.5, 50: 0.75, 100: 0.5}, 0.5),
    ],
)
def test_lambdas(schedule, values, final):
    parsed = LAMBDAS.parse(schedule, may_import=False)
    for step, lam in values.items():
        assert parsed.lambda_at(step, PER_EPOCH, EPOCHS) == pytest.approx(lam, rel=1e-12), step
    assert parsed.final_lambda(PER_EPOCH, EPOCHS) == final


@pytest.mark.parametrize("kind", sorted(LOSSES.kinds()))
def test_lambda_is_the_share_of_the_score_in_every_loss(kind):
    """Score says won, the game was lost: at λ = 1 a high output is right, at λ = 0 a low one."""
    loss = LOSSES.parse({"kind": kind}, may_import=False)
    score, result = torch.full((1,), 2000), torch.full((1,), -1)
    high, low = torch.full((1,), 2000.0), torch.full((1,), -2000.0)
    at_one, at_zero = ([loss.terms(net, score, result, lam)[0] for net in (high, low)] for lam in (1.0, 0.0))
    assert at_one[0] < at_one[1]
    assert at_zero[0] > at_zero[1]
