"""Fits a logistic curve of the scores to the results: its scale and offset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnue_trainer.base.arrays import Floats


@dataclass(frozen=True)
class Curve:
    """points = 1 / (1 + exp(−(score − offset) / scale)); `likelihood` is the logarithm of that of the data, in nats."""

    scale: float
    offset: float
    likelihood: float

    def __call__(self, score: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(-np.clip((score - self.offset) / self.scale, -500, 500))))


def fit_curve(score: Floats, points: Floats, count: Floats, *, with_offset: bool = True) -> Curve | None:
    """The curve that most likely gives `points` of `count` positions with each `score`, by Newton's method on
    1 / scale and −offset / scale; None if the data does not decide it."""
    used = count > 0
    if not used.any() or not np.abs(score[used]).max(initial=0) > 0:
        return None
    unit = float(np.sqrt((count * score**2).sum() / count.sum()))
    inputs = np.stack([score / unit, np.ones(len(score))])[: 2 if with_offset else 1]
    weights = np.zeros(len(inputs))
    for _ in range(100):
        expected = 1 / (1 + np.exp(-np.clip(weights @ inputs, -500, 500)))
        curvature = (inputs * (count * expected * (1 - expected))) @ inputs.T
        if np.linalg.eigvalsh(curvature)[0] <= 1e-12 * count.sum():
            return None  # perfectly separated: no finite scale
        step = np.clip(np.linalg.solve(curvature, inputs @ (count * (points - expected))), -2, 2)
        weights += step
        if np.abs(step).max() < 1e-10:
            break
    if weights[0] <= 0:
        return None
    expected = np.clip(expected, 1e-300, 1 - 1e-16)
    likelihood = float((count * (points * np.log(expected) + (1 - points) * np.log(1 - expected))).sum())
    offset = float(-weights[1] / weights[0]) * unit if with_offset else 0.0
    return Curve(unit / float(weights[0]), offset, likelihood)
