"""The statistics of a match: Elo, its error, and sequential tests.

The unit is the pair of games: one opening, played with both colours. Its points are 0, ½, 1, 1½ or 2, so the results of
a match are five counts, from the lowest to the highest ("pentanomial"). Three counts are losses, draws and wins of
single games. All formulas are in docs/match.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Counts = Sequence[float]
"""Three or five counts, the fewest points first."""
EloModel = Literal["normalized", "logistic"]
MODELS: tuple[EloModel, ...] = ("normalized", "logistic")

__all__ = ["Plan", "Sprt", "Statistics", "elo", "expected_score", "llr", "plan", "statistics"]

NELO = 800 / math.log(10)
"""Normalised Elo of one standard deviation of a game."""
_Z = 1.959963984540054  # of a 95 % confidence interval
# Beyond about 230 normalised Elo, the iteration that finds the likeliest distribution has no solution in its first
# step.
_MOST_ELO = {"normalized": 200, "logistic": 1000}
_FEWEST = 1e-3  # takes the place of a count of 0 in a test


@dataclass(frozen=True)
class Statistics:
    """The figures of a match, from its counts. None: undefined for these counts. Elo is infinite if one side has no
    points. `elo_error` and `nelo_error` are half the 95 % confidence interval; `variance` is that of the
    points of a pair divided by 2, or of a game for three counts."""

    score: float
    variance: float
    standard_error: float
    elo: float
    elo_error: float
    nelo: float | None
    nelo_error: float | None
    los: float | None
    """likelihood of superiority: the probability that the first engine is the stronger one"""


@dataclass(frozen=True)
class Sprt:
    """A sequential probability ratio test of the hypotheses `elo0` and `elo1`, both in the unit of `model`."""

    elo0: float
    elo1: float
    alpha: float = 0.05
    """probability of accepting although elo0 is true"""
    beta: float = 0.05
    """probability of rejecting although elo1 is true"""
    model: EloModel = "normalized"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.elo0) and math.isfinite(self.elo1) and self.elo0 < self.elo1):
            raise ValueError(f"elo0 is {self.elo0:g} and elo1 {self.elo1:g}, expected elo0 < elo1")
        if self.model not in MODELS:
            raise ValueError(f"model is {self.model!r}, expected {' or '.join(MODELS)}")
        most = _MOST_ELO[self.model]
        if max(abs(self.elo0), abs(self.elo1)) > most:
            raise ValueError(f"elo0 is {self.elo0:g} and elo1 {self.elo1:g}, expected {self.model} Elo within ±{most}")
        if not (self.alpha > 0 and self.beta > 0 and self.alpha + self.beta < 1):
            raise ValueError(
                f"alpha is {self.alpha:g} and beta {self.beta:g}, expected positive numbers with a sum below 1"
            )

    @property
    def lower(self) -> float:
        """The LLR at which the test rejects elo1, or any lower one."""
        return math.log(self.beta / (1 - self.alpha))

    @property
    def upper(self) -> float:
        """The LLR at which the test accepts elo1, or any higher one."""
        return math.log((1 - self.beta) / self.alpha)

    def llr(self, counts: Counts) -> float:
        """The logarithm of the likelihood ratio of elo1 to elo0; 0 without results."""
        return llr(counts, self.elo0, self.elo1, self.model)

    def verdict(self, counts: Counts) -> Literal["accepted", "rejected"] | None:
        """The decision of the test about elo1; None until there is one."""
        ratio = self.llr(counts)
        return "accepted" if ratio >= self.upper else "rejected" if ratio <= self.lower else None


def regularised(counts: Counts) -> list[float]:
    """The counts with 0.001 in place of 0."""
    return [count or _FEWEST for count in counts]


def statistics(counts: Counts) -> Statistics:
    """The statistics of counts, at least one of which is not 0."""
    points, shares, total = _shares(counts)
    score, variance = _moments(points, shares)
    per_pair = len(counts) == 5
    error = math.sqrt(variance / total)
    scale = NELO / (math.sqrt(2 * variance) if per_pair else math.sqrt(variance)) if variance > 0 else None
    return Statistics(
        score=score,
        variance=variance,
        standard_error=error,
        elo=elo(score),
        elo_error=(elo(score + _Z * error) - elo(score - _Z * error)) / 2 if error else 0.0,
        nelo=(score - 0.5) * scale if scale is not None else None,
        nelo_error=_Z * error * scale if scale is not None else None,
        los=(1 + math.erf((score - 0.5) / error / math.sqrt(2))) / 2 if error else None,
    )


def elo(score: float) -> float:
    """The difference in Elo that makes this score expected; infinite from 0 down and from 1 up."""
    if score <= 0:
        return -math.inf
    return math.inf if score >= 1 else -400 * math.log10(1 / score - 1) + 0.0  # not -0.0


def expected_score(elo: float) -> float:
    """The expected points per game, 0 to 1, at this logistic Elo difference."""
    return 1 / (1 + 10 ** (-elo / 400))


def llr(counts: Counts, elo0: float, elo1: float, model: EloModel = "normalized") -> float:
    """The logarithm of the likelihood ratio of `elo1` to `elo0`, each with the most likely distribution of results that
    has it; 0 without results."""
    if not any(counts):
        return 0.0
    points, shares, total = _shares(regularised(counts))
    likeliest = _likeliest_logistic if model == "logistic" else _likeliest_normalized
    first, second = (likeliest(points, shares, elo) for elo in (elo0, elo1))
    return total * sum(p * math.log(b / a) for p, a, b in zip(shares, first, second, strict=True))


@dataclass(frozen=True)
class Plan:
    """The expected outcome of a test: the probability that it accepts elo1, and its length in games."""

    pass_probability: float
    games: float


def plan(test: Sprt, true_elo: float, *, draw_ratio: float, rms_bias: float = 0.0) -> Plan:
    """The expected outcome of `test` if the difference is `true_elo` (logistic). `draw_ratio` is the share of drawn
    games, `rms_bias` the root mean square of the openings' own advantage in Elo. The LLR is treated as Brownian motion.
    ValueError if no game would be decided."""
    variance = (1 - draw_ratio) / 4 - (expected_score(rms_bias) - 0.5) ** 2  # of a game, in pairs
    if variance <= 0:
        raise ValueError(f"draw ratio {draw_ratio:g} and bias {rms_bias:g} imply that no game is decided")
    scores = [
        expected_score(elo) if test.model == "logistic" else 0.5 + elo / NELO * math.sqrt(variance)
        for elo in (test.elo0, test.elo1)
    ]
    width = scores[1] - scores[0]
    drift = width * (expected_score(true_elo) - sum(scores) / 2) / variance
    spread = width * width / variance
    low, high = test.lower, test.upper
    slope = 2 * drift / spread
    if abs(slope) * (high - low) < 1e-6:  # no drift
        return Plan(-low / (high - low), -low * high / spread)
    passed = math.expm1(-slope * low) / (math.exp(-slope * low) - math.exp(-slope * high))
    return Plan(passed, (passed * high + (1 - passed) * low) / drift)


def _shares(counts: Counts) -> tuple[list[float], list[float], float]:
    """The points of each result from 0 to 1, its share, and the sum of the counts."""
    if len(counts) not in (3, 5) or min(counts) < 0 or not any(counts):
        raise ValueError(f"counts are {list(counts)}, expected three or five, none negative and one positive")
    total = sum(counts)
    return [i / (len(counts) - 1) for i in range(len(counts))], [count / total for count in counts], total


def _moments(points: Sequence[float], shares: Sequence[float]) -> tuple[float, float]:
    mean = sum(p * a for p, a in zip(shares, points, strict=True))
    return mean, sum(p * (a - mean) ** 2 for p, a in zip(shares, points, strict=True))


def _likeliest_logistic(points: Sequence[float], shares: Sequence[float], elo: float) -> list[float]:
    mean = expected_score(elo)
    return _tilted(shares, [a - mean for a in points])


def _likeliest_normalized(points: Sequence[float], shares: Sequence[float], elo: float) -> list[float]:
    """The distribution of the largest likelihood with (mean − ½) / deviation = t, by repeated linear constraints."""
    t = elo / NELO * (math.sqrt(2) if len(points) == 5 else 1)
    found = [1 / len(points)] * len(points)
    for _ in range(10):
        mean, variance = _moments(points, found)
        deviation = math.sqrt(variance)
        constraint = [a - 0.5 - 0.5 * t * deviation * (1 + ((a - mean) / deviation) ** 2) for a in points]
        before, found = found, _tilted(shares, constraint)
        if max(abs(a - b) for a, b in zip(before, found, strict=True)) < 1e-9:
            break
    return found


def _tilted(shares: Sequence[float], values: Sequence[float]) -> list[float]:
    """The distribution nearest to `shares` in which `values` have the mean 0."""
    lowest, highest = -1 / max(values), -1 / min(values)

    def mean(theta: float) -> float:
        return sum(p * v / (1 + theta * v) for p, v in zip(shares, values, strict=True))

    theta = _root(mean, lowest, highest)
    return [p / (1 + theta * v) for p, v in zip(shares, values, strict=True)]


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls from +∞ at `low` to −∞ at `high` is 0, to the last bit."""
    while low < (middle := (low + high) / 2) < high:
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return middle
