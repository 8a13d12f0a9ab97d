"""Losses against formulas written again, position by position in Python floats."""

import json
import math

import pytest
import torch
from needs import ROOT
from pydantic import ValidationError
from typed import grad_of

from nnue_trainer.data import Batch
from nnue_trainer.losses import NO_SCORE, SigmoidLoss, mean
from nnue_trainer.losses.cross_entropy import CrossEntropyLoss
from nnue_trainer.losses.position_weights import POSITION_WEIGHTS
from nnue_trainer.losses.wdl import WdlLoss
from nnue_trainer.losses.win_rate import WinRateLoss
from nnue_trainer.nets import integer_forward
from nnue_trainer.nets.rounded_forward import log_odds

VECTORS = json.loads((ROOT / "tests" / "vectors" / "training" / "loss.json").read_text("utf-8"))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def reference_win_rate(loss: WinRateLoss, nets, scores, results, lam) -> float:
    total = weights = 0.0
    for net, score, result in zip(nets, scores, results, strict=True):
        if abs(score) >= 31755:
            magnitude = loss.proven_base + loss.proven_decay ** (32000 - abs(score)) * loss.proven_scale
            score = math.copysign(magnitude, score)
        qf = 0.5 * (
            1 + sigmoid((net - loss.in_offset) / loss.in_scaling) - sigmoid((-net - loss.in_offset) / loss.in_scaling)
        )
        pf = 0.5 * (
            1
            + sigmoid((score - loss.out_offset) / loss.out_scaling)
            - sigmoid((-score - loss.out_offset) / loss.out_scaling)
        )
        outcome = {-1: 0.0, 0: 0.5, 1: 1.0}[result]
        target = lam * pf + (1 - lam) * outcome
        term = abs(target - qf) ** loss.power
        if qf > target:
            term *= 1 + loss.qp_asymmetry
        weight = 1 + (2**loss.weight_boost - 1) * ((pf - 0.5) ** 2 * pf * (1 - pf)) ** loss.weight_power
        total += weight * term
        weights += weight
    return total / weights


SCORES = [0, 1, -1, 35, -270, 400, -1200, 10000, 31754, 31755, -31755, 31990, -32000, 32000, 77, -345]
NETS = [0.0, 12.5, -80.25, 300.0, -270.0, 410.5, -900.0, 5000.0, 4000.0, 3500.0, -4100.0, 6.0, -3.0, 1e4, 76.5, 345.0]
RESULTS = [0, 1, -1, 1, -1, 0, 0, 1, 1, 1, -1, 1, -1, 1, 0, 1]


def evaluate(loss, lam, nets=NETS) -> torch.Tensor:
    weighted, weights = loss.terms(
        torch.as_tensor(nets, dtype=torch.float64),
        torch.tensor(SCORES, dtype=torch.int16),
        torch.tensor(RESULTS, dtype=torch.int8),
        lam,
    )
    return weighted / weights


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "loss",
    [
        WinRateLoss(),
        WinRateLoss(qp_asymmetry=0.18),
        WinRateLoss(weight_boost=1.5, weight_power=0.7),
        WinRateLoss(in_offset=250, in_scaling=300, out_offset=280, out_scaling=390, power=2.0),
        WinRateLoss(proven_base=3000, proven_scale=5000, proven_decay=0.9, power=1.7),
    ],
)
def test_win_rate_loss_equals_the_formula(loss, lam):
    assert evaluate(loss, lam).item() == pytest.approx(reference_win_rate(loss, NETS, SCORES, RESULTS, lam), rel=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.75, 1.0])
def test_sigmoid_loss_equals_the_formula(lam):
    loss = SigmoidLoss(scale=380, power=2.5)
    expected = [
        abs(sigmoid(net / 380) - (lam * sigmoid(score / 380) + (1 - lam) * (result + 1) / 2)) ** 2.5
        for net, score, result in zip(NETS, SCORES, RESULTS, strict=True)
    ]
    assert evaluate(loss, lam).item() == pytest.approx(sum(expected) / len(expected), rel=1e-12)


def test_the_default_loss_of_known_positions():
    """Worked by hand: net 0 and score 0 are both worth half a point; λ = 0 compares with the result alone."""
    loss = WinRateLoss()
    one = loss.terms(torch.zeros(1, dtype=torch.float64), torch.zeros(1), torch.ones(1), 0.0)
    assert one[0].item() == pytest.approx(0.5**2.5, rel=1e-15)
    same = loss.terms(torch.zeros(1, dtype=torch.float64), torch.zeros(1), torch.ones(1), 1.0)
    assert same[0].item() == 0.0


@pytest.mark.parametrize("loss", [WinRateLoss(qp_asymmetry=0.2, weight_boost=1.0), SigmoidLoss(power=2.5)])
def test_gradients(loss):
    nets = torch.tensor(NETS, dtype=torch.float64) / 10 + 3.7
    assert torch.autograd.gradcheck(lambda net: evaluate(loss, 0.6, net), (nets.requires_grad_(),))


def test_the_gradient_at_a_perfect_output_is_zero():
    net = torch.zeros(4, requires_grad=True)
    weighted, _ = WinRateLoss(weight_boost=1.0).terms(net, torch.zeros(4), torch.zeros(4), 1.0)
    weighted.backward()
    assert torch.equal(grad_of(net), torch.zeros(4))


def test_extreme_scores_stay_finite_in_fp32():
    net = torch.tensor([-3e5, 3e5, 0.0], requires_grad=True)
    loss = WinRateLoss(weight_boost=1.0)
    weighted, weights = loss.terms(
        net, torch.tensor([32767, -32768, 32002], dtype=torch.int16), torch.tensor([1, -1, 0]), 0.5
    )
    (weighted / weights).backward()
    assert torch.isfinite(weighted)
    assert torch.isfinite(grad_of(net)).all()


def test_proven_wins_nearer_to_mate_score_higher():
    compressed = WinRateLoss().compress_proven(torch.tensor([31754.0, 31755.0, 31999.0, 32000.0, -32000.0]))
    assert compressed[0] == 31754
    assert compressed[1] == pytest.approx(4000, abs=1e-3)
    assert compressed[2:].tolist() == pytest.approx([4000 + 0.85 * 4000, 8000, -8000])


@pytest.mark.parametrize("loss", [WinRateLoss(), WinRateLoss(weight_boost=1.5), SigmoidLoss()])
@pytest.mark.parametrize("lam", [0.0, 0.25, 1.0])
def test_a_position_without_a_score_is_trained_on_its_result_alone(loss, lam):
    """32002 means "no score", not a win: the position has the weight that its result has beside a score."""
    nets = torch.tensor([10.0, -300.0, 77.0], dtype=torch.float64, requires_grad=True)
    scores, results = torch.tensor([40, 32002, -5], dtype=torch.int16), torch.tensor([1, -1, 0], dtype=torch.int8)
    got = torch.stack(loss.terms(nets, scores, results, lam))
    others = torch.stack(loss.terms(nets[[0, 2]], scores[[0, 2]], results[[0, 2]], lam))
    alone = torch.stack(loss.terms(nets[[1]], torch.zeros(1, dtype=torch.int16), results[[1]], 0.0))
    torch.testing.assert_close(got, others + (1 - lam) * alone, rtol=1e-14, atol=0)
    if lam == 1:
        mean(*got).backward()
        assert grad_of(nets)[1] == 0


def test_a_batch_of_no_weight_teaches_nothing():
    net = torch.randn(4, requires_grad=True)
    loss = mean(*WinRateLoss(weight_boost=1.0).terms(net, torch.full((4,), 32002), torch.ones(4), 1.0))
    loss.backward()
    assert loss == 0
    assert torch.equal(grad_of(net), torch.zeros(4))


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def results(case):
    return (2 * tensor(case["result"]) - 1).to(torch.int8)


@pytest.mark.parametrize("case", VECTORS["win_rate"], ids=lambda case: case["name"])
def test_win_rate_loss_is_the_reference_trainers(case):
    loss = WinRateLoss(
        in_offset=case["io"], in_scaling=case["isc"], out_offset=case["oo"], out_scaling=case["osc"],
        power=case["power"], qp_asymmetry=case["asym"], weight_boost=case["w1"], weight_power=case["w2"],
    )  # fmt: skip
    net, score = tensor(case["net"]), torch.tensor(case["score"], dtype=torch.int16)
    assert mean(*loss.terms(net, score, results(case), case["lam_"])).item() == pytest.approx(case["loss"], rel=1e-12)
    one, weight = loss.per_position(net, score.double(), results(case), torch.full_like(net, case["lam_"]))
    columns = tensor(case["per_position"])
    torch.testing.assert_close(one, columns[:, 3], rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(torch.ones_like(net) if weight is None else weight, columns[:, 4], rtol=1e-12, atol=0)


@pytest.mark.parametrize("case", VECTORS["bullet"], ids=lambda case: f"power {case['power']}")
def test_sigmoid_loss_is_bullets(case):
    """bullet divides by the number of positions; a weighted mean divides by the sum of weights."""
    loss = SigmoidLoss(scale=case["eval_scale"], power=case["power"])
    net = tensor(case["output"]) * case["eval_scale"]
    terms = (net, torch.tensor(case["score"]), results(case), 1 - case["wdl"])
    assert mean(*loss.terms(*terms)).item() == pytest.approx(case["mean_unweighted"], rel=1e-12)
    weighted, weights = loss.terms(*terms, tensor(case["weight"]))
    assert (weighted / len(net)).item() == pytest.approx(case["mean_weighted"], rel=1e-12)
    assert (weighted / weights).item() == pytest.approx(case["weighted_over_sum_of_weights"], rel=1e-12)


def test_cross_entropy_is_0_at_best_and_has_its_gradient():
    loss = CrossEntropyLoss(scale=350.0)
    score = torch.tensor([0, 120, -900, 30000], dtype=torch.int16)
    result = torch.tensor([0, 1, -1, 1], dtype=torch.int8)
    perfect, _ = loss.per_position(score.double(), score.double(), result, torch.ones(4, dtype=torch.float64))
    assert perfect.abs().max() < 1e-12
    net = tensor([10.0, -300.0, 40.0, 900.0]).requires_grad_()
    one, _ = loss.per_position(net, score.double(), result, torch.full((4,), 0.25, dtype=torch.float64))
    assert (one > 0).all()
    one.sum().backward()
    target = 0.25 * torch.sigmoid(score.double() / 350) + 0.75 * (result.double() / 2 + 0.5)
    torch.testing.assert_close(net.grad, (torch.sigmoid(net.detach() / 350) - target) / 350)


@pytest.mark.parametrize("case", VECTORS["wdl_head"], ids=lambda case: str(case["logits_loss_draw_win"]))
def test_a_head_of_win_draw_and_loss_is_the_references(case):
    logits = tensor([case["logits_loss_draw_win"]]).requires_grad_()
    result, one = torch.tensor([case["target_index"] - 1], dtype=torch.int8), torch.tensor([0], dtype=torch.int16)
    found = mean(*WdlLoss().terms(logits, one, result, 0.0))
    assert found.item() == pytest.approx(case["cross_entropy"], rel=1e-12)
    (gradient,) = torch.autograd.grad(found, logits)
    torch.testing.assert_close(gradient[0], tensor(case["gradient"]), rtol=1e-12, atol=1e-15)
    assert (400 * log_odds(logits)).item() == pytest.approx(case["score_400"], rel=1e-12, abs=1e-12)
    assert torch.sigmoid(log_odds(logits)).item() == pytest.approx(case["expected"], rel=1e-12)
    assert integer_forward.log_odds(logits.detach().numpy())[0] == pytest.approx(log_odds(logits).item(), abs=1e-12)


@pytest.mark.parametrize("case", VECTORS["wdl_head_soft"], ids=lambda case: str(case["logits"]))
def test_soft_targets_of_win_draw_and_loss_are_the_references(case, monkeypatch):
    target = tensor([case["target"]])
    monkeypatch.setattr(WdlLoss, "target", lambda *_: target)
    one, _ = WdlLoss().per_position(tensor([case["logits"]]), *tensor([[0.0], [0.0], [0.0]]))
    assert one.item() == pytest.approx(case["kl"], rel=1e-12)
    entropy = -torch.special.xlogy(target, target).sum()
    assert (one + entropy).item() == pytest.approx(case["cross_entropy"], rel=1e-12)


def test_the_target_of_win_draw_and_loss():
    score, result = tensor([600.0, -90.0]), torch.tensor([-1, 0], dtype=torch.int8)
    target = WdlLoss(offset=250, scaling=300).target(score, result, tensor([0.75, 0.25]))
    won, lost = sigmoid(350 / 300), sigmoid(-850 / 300)
    assert target[0].tolist() == pytest.approx([0.75 * lost + 0.25, 0.75 * (1 - won - lost), 0.75 * won])
    won, lost = sigmoid(-340 / 300), sigmoid(-160 / 300)
    assert target[1].tolist() == pytest.approx([0.25 * lost, 0.25 * (1 - won - lost) + 0.75, 0.25 * won])
    perfect, lam = target.log().requires_grad_(), tensor([0.75, 0.25])
    for loss in (WdlLoss(offset=250, scaling=300, points=2.0), WdlLoss(offset=250, scaling=300, cross_entropy=0.1)):
        assert loss.per_position(perfect, score, result, lam)[0].abs().max() < 1e-12
    apart = perfect.detach() + tensor([[0.3, 0.0, -0.2]])
    only = WdlLoss(offset=250, scaling=300, points=2.0, cross_entropy=0.0).per_position(apart, score, result, lam)[0]
    error = torch.sigmoid(log_odds(apart)) - target[:, 2] - target[:, 1] / 2
    torch.testing.assert_close(only, 2 * error.square())


def test_weights_of_positions():
    batch = Batch.allocate(4, 1)
    batch.piece_count.copy_(torch.tensor([2, 10, 20, 32]))
    batch.score.copy_(torch.tensor([0, -500, 2000, NO_SCORE]))
    batch.result.copy_(torch.tensor([-1, 0, 1, 1]))

    def of(**section):
        return POSITION_WEIGHTS.parse(section, trusted=False).of(batch).tolist()

    pieces = {"kind": "knots", "by": "pieces", "knots": [[4, 0.0], [16, 1.0], [24, 0.5]]}
    score = {"kind": "knots", "by": "score", "knots": [[0, 1.0], [1000, 0.0]]}
    assert of(**pieces) == pytest.approx([0.0, 0.5, 0.75, 0.5])
    assert of(**score) == pytest.approx([1.0, 0.5, 0.0, 1.0])
    assert of(kind="knots", by="result", knots=[[-1, 2.0], [0, 1.0], [1, 3.0]]) == pytest.approx([2.0, 1.0, 3.0, 3.0])
    assert of(kind="product", parts=[pieces, score]) == pytest.approx([0.0, 0.25, 0.0, 0.5])
    for wrong in ([[1, 1.0], [1, 2.0]], [[1, -1.0]], []):
        with pytest.raises(ValidationError):
            of(kind="knots", by="pieces", knots=wrong)
