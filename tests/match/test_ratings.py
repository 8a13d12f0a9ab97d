"""Elo of nets and recipes from a tournament: known strengths are found, and errors hold what they promise."""

from itertools import combinations

import numpy as np
import pytest

from nnue_trainer.match.ratings import Ratings, normal_quantile, rate, student_inside, student_quantile
from nnue_trainer.match.result import Pairing


def tournament(rng: np.random.Generator, elo: np.ndarray, teams: list[int], rounds: int, drawn: float = 0.4) -> Ratings:
    """Games of nets with these strengths, paired as `nnue compare` pairs them. An opening favours one side, the same in
    all its games."""
    pairings = [Pairing(a, b) for a, b in combinations(range(len(teams)), 2) if teams[a] != teams[b]]
    bias = rng.normal(0, 60, rounds)
    for pairing in pairings:
        for favour in bias:
            points = 0
            for side in (1, -1):
                expected = 1 / (1 + 10 ** (-(elo[pairing.first] - elo[pairing.second] + side * favour) / 400))
                win = expected - drawn / 2
                points += 2 if (x := rng.random()) < win else 1 if x < win + drawn else 0
            pairing.points.append(points)
    found = rate(pairings, teams)
    assert found is not None
    return found


def test_quantiles() -> None:
    """Against printed tables."""
    assert normal_quantile(0.95) == pytest.approx(1.959964, abs=1e-6)
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 6: 2.4469, 9: 2.2622, 30: 2.0423}
    assert {n: round(student_quantile(0.95, n), 4) for n in table} == table
    assert student_inside(1.0, 1) == pytest.approx(0.5)


def test_strengths_are_found() -> None:
    rng = np.random.default_rng(3)
    teams = [0, 0, 1, 1, 2, 2]
    elo = np.array([-10.0, 10.0, 30, 50, -80, -40])
    found = tournament(rng, elo, teams, 2000)
    assert np.abs(np.array(found.nets) - elo).max() < 15
    by_pair = {(each.first, each.second): each for each in found.differences}
    assert by_pair[0, 1].elo == pytest.approx(40, abs=12)
    assert by_pair[0, 2].elo == pytest.approx(-60, abs=12)
    assert by_pair[1, 2].elo == pytest.approx(by_pair[0, 2].elo - by_pair[0, 1].elo)
    assert by_pair[1, 2].winner == 1
    assert by_pair[1, 2].stronger < 0.05
    assert found.seed_spread == pytest.approx(18, abs=8)
    assert found.against_first(0) is None


@pytest.mark.parametrize("spread", [0, 12, 40])
def test_equal_recipes_have_no_winner_at_the_stated_rate(spread: int) -> None:
    """Two recipes that differ only in their seeds, which give nets of different strength: at most 5 % of comparisons
    may name a winner. Errors of the games alone would name one far more often."""
    rng = np.random.default_rng(17 + spread)
    trials = 300
    winners = of_games = 0
    for _ in range(trials):
        found = tournament(rng, rng.normal(0, spread, 6), [0, 0, 0, 1, 1, 1], 40).differences[0]
        winners += found.winner is not None
        of_games += abs(found.elo) > found.of_games
    assert winners <= 0.05 * trials + 2 * (0.05 * 0.95 * trials) ** 0.5
    if spread >= 12:
        assert of_games > 0.15 * trials


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(5)
    teams, wins = [0, 0, 0, 1, 1, 1], 0
    for _ in range(40):
        elo = rng.normal(0, 8, 6) + np.array([0, 0, 0, 50, 50, 50])
        wins += tournament(rng, elo, teams, 60).differences[0].winner == 1
    assert wins >= 36


def test_one_net_each_counts_games_only() -> None:
    found = tournament(np.random.default_rng(1), np.array([0.0, 30.0]), [0, 1], 400)
    assert found.seed_spread is None
    (only,) = found.differences
    assert only.error == only.of_games
    assert 10 < only.error < 25


def test_few_games_are_not_certain() -> None:
    """One pair, a few equal ones, or only wins: an error that is not 0, and a finite Elo."""
    for points in ([2], [2, 2, 2], [4] * 20):
        found = rate([Pairing(0, 1, points)], [0, 1])
        assert found is not None
        (only,) = found.differences
        assert np.isfinite(only.elo)
        assert only.error > 30
        assert (only.winner == 0) == (points[0] == 4)
    assert rate([Pairing(0, 1, [2]), Pairing(0, 2, [])], [0, 1, 1]) is None
