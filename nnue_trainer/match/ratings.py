"""Elo of nets and of recipes from a tournament between teams: a team has the nets of one recipe with several seeds.

Nets get the Elo that explains all pairs of games best (Bradley and Terry). A recipe's Elo is the mean of its nets'. Its
error counts what another seed would change: it is never less than the error of the games, and never less than that of
Student's t-test of the nets. All formulas are in docs/comparing-recipes.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nnue_trainer.match.result import Pairing

Floats = npt.NDArray[np.float64]

_SCALE = math.log(10) / 400  # of Elo in the logistic function
_DRAWN = 0.5  # drawn pairs that are added to each pairing, so that a net that loses all games has a finite Elo
_FEWEST = 0.25  # deviation of one more pair in each pairing, so that a few equal results do not look certain
_ROUNDS = 10  # from here on the games of an opening count as one observation
LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """The Elo by which the second of two teams is better than the first. `error` is half the 95 % confidence interval,
    `of_games` what it would be if other seeds gave the same nets. `stronger`: the probability that the second is."""

    first: int
    second: int
    elo: float
    error: float
    of_games: float
    stronger: float

    @property
    def winner(self) -> int | None:
        """The team that is stronger at this level of confidence."""
        if abs(self.elo) <= self.error:
            return None
        return self.second if self.elo > 0 else self.first


@dataclass(frozen=True)
class Ratings:
    """`nets`: Elo of each net, with a mean of 0 in team 0. `seed_spread`: the standard deviation of the Elo of nets of
    one team, without what games add to it; None with one net in each team. `differences`: of each two teams."""

    nets: list[float]
    net_errors: list[float]
    """half the 95 % interval of a net's Elo by the games, against the mean of all nets"""
    seed_spread: float | None
    differences: list[Difference]

    def against_first(self, team: int) -> Difference | None:
        """The difference between team 0 and this one."""
        return next((found for found in self.differences if found.first == 0 and found.second == team), None)


def rate(pairings: Sequence[Pairing], teams: Sequence[int]) -> Ratings | None:
    """The ratings of a tournament. `teams`: the team of each net, numbered from 0. None while a pairing has no pair of
    games that is over."""
    if not pairings or not all(pairing.points for pairing in pairings):
        return None
    elo, covariance = _nets(pairings, len(teams))
    team_of = np.asarray(teams)
    sizes = np.bincount(team_of)
    elo = elo - elo[team_of == 0].mean()
    centred = elo - (np.bincount(team_of, elo) / sizes)[team_of]
    freedom = len(teams) - len(sizes)
    between = float(centred @ centred) / freedom if freedom else 0.0
    differences = []
    for a in range(len(sizes)):
        for b in range(a + 1, len(sizes)):
            contrast = (team_of == b) / sizes[b] - (team_of == a) / sizes[a]
            variances = float(contrast @ covariance @ contrast), between * (1 / sizes[a] + 1 / sizes[b])
            differences.append(_difference(a, b, float(contrast @ elo), *variances, freedom))
    own = np.eye(len(teams)) - 1 / len(teams)
    errors = normal_quantile(LEVEL) * np.sqrt(np.diag(own @ covariance @ own.T))
    games = _within(covariance, team_of) / freedom if freedom else 0.0
    spread = math.sqrt(max(between - games, 0.0)) if freedom else None
    return Ratings(elo.tolist(), errors.tolist(), spread, differences)


def _difference(first: int, second: int, elo: float, games: float, nets: float, freedom: int) -> Difference:
    """The test of a difference. `games` and `nets`: its variance by the games alone, and by the Elo of the nets."""
    of_games = normal_quantile(LEVEL) * math.sqrt(games)
    of_nets = student_quantile(LEVEL, freedom) * math.sqrt(nets) if freedom else 0.0
    tails = [math.erfc(abs(elo) / math.sqrt(2 * games)) / 2]
    if freedom and nets > 0:
        tails.append((1 - student_inside(abs(elo) / math.sqrt(nets), freedom)) / 2)
    tail = max(tails)
    return Difference(first, second, elo, max(of_games, of_nets), of_games, 1 - tail if elo > 0 else tail)


def _within(covariance: Floats, team_of: npt.NDArray[np.int64]) -> float:
    """The mean of the sum of squares within teams that only the errors of the games give."""
    centring = np.eye(len(team_of)) - (team_of[:, None] == team_of) / np.bincount(team_of)[team_of][:, None]
    return float(np.trace(centring @ covariance @ centring.T))


def _nets(pairings: Sequence[Pairing], nets: int) -> tuple[Floats, Floats]:
    """Elo of the nets, [nets], and the covariance of its errors, [nets, nets]; both up to a constant that all share."""
    # Of each pair of games: its nets, the first one's points (0 to 1) and the number of its opening.
    counts = [len(pairing.points) for pairing in pairings]
    nets_of_pairings = np.array([(pairing.first, pairing.second) for pairing in pairings]).T
    first, second = np.repeat(nets_of_pairings, counts, axis=1)
    score = np.concatenate([np.asarray(pairing.points, float) / 4 for pairing in pairings])
    opening = np.concatenate([np.arange(count) for count in counts])
    a, b = np.append(first, nets_of_pairings[0]), np.append(second, nets_of_pairings[1])
    points = np.append(score, np.full(len(pairings), 0.5))
    weight = np.append(np.ones(len(score)), np.full(len(pairings), _DRAWN))
    elo = np.zeros(nets)
    for _ in range(100):
        expected = 1 / (1 + np.exp(-_SCALE * (elo[a] - elo[b])))
        pull = weight * (points - expected)
        gradient = np.bincount(a, pull, nets) - np.bincount(b, pull, nets)
        curvature = weight * _SCALE * expected * (1 - expected)
        hessian = np.zeros((nets, nets))
        for i, j, sign in ((a, a, 1), (b, b, 1), (a, b, -1), (b, a, -1)):
            np.add.at(hessian, (i, j), sign * curvature)
        inverse = np.linalg.pinv(hessian, hermitian=True)
        step = inverse @ gradient
        elo += np.clip(step, -200, 200)
        if np.abs(step).max() < 1e-9:
            break
    # Games of the same opening are not independent: their deviations are added up before they are squared.
    deviation = pull[: len(score)]
    rounds = int(opening.max()) + 1
    group, groups = (opening, rounds) if rounds >= _ROUNDS else (np.arange(len(score)), len(score))
    sums = np.zeros((groups, nets))
    np.add.at(sums, (group, first), deviation)
    np.add.at(sums, (group, second), -deviation)
    noise = sums.T @ sums * (groups / max(groups - 1, 1))
    for pairing in pairings:
        apart = np.zeros(nets)
        apart[[pairing.first, pairing.second]] = _FEWEST, -_FEWEST
        noise += np.outer(apart, apart)
    return elo, inverse @ noise @ inverse


def normal_quantile(inside: float) -> float:
    """The number of standard deviations on both sides of the mean that holds this share of a normal distribution."""
    return _inverse(lambda x: math.erf(x / math.sqrt(2)), inside)


def student_quantile(inside: float, freedom: int) -> float:
    """The number of standard errors on both sides of 0 that holds this share of Student's t."""
    return _inverse(lambda x: student_inside(x, freedom), inside)


def student_inside(t: float, freedom: int) -> float:
    """The probability that |Student's t| is at most `t`."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, 0.0) if freedom % 2 else (1.0, 0.0)
    for k in range(1 + freedom % 2, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if freedom % 2 else sine * total


def _inverse(rising: Callable[[float], float], value: float) -> float:
    low, high = 0.0, 1e4
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return middle
