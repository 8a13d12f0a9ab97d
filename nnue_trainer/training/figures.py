"""Validation figures that do not depend on loss and λ, so that all runs can be compared; and which validation is the
best one (`training.best_by`): by the loss or a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from nnue_trainer.errors import UserError
from nnue_trainer.losses import NO_SCORE

LOSS = "loss"
OfAll = Callable[[Tensor], Tensor]


def alone(part: Tensor) -> Tensor:
    """[…] → [1, …]: the tensors of all processes where there is one."""
    return part.unsqueeze(0)


_MEANS = {"score_cross_entropy": "lowest", "result_cross_entropy": "lowest", "result_accuracy": "highest"}
FIGURES = _MEANS | {"rank_correlation": "highest", "even_rank_correlation": "highest"}
"""the figures of `Figures`, and which value is the best"""
_RANKED = 1 << 20  # positions that the rank correlation is of, at most


class Figures:
    """Gathers the figures of one validation on a device. `scale`: engine units; the expected points of a score s are
    1/(1 + e^(−s/scale)), for the net and for the data.

    | figure | what it is |
    |---|---|
    | score_cross_entropy | of the net's expected points against those of the data's score, mean over scored positions |
    | result_cross_entropy | of the net's expected points against the result (0, ½, 1), mean over all positions |
    | result_accuracy | share of the decided games in which the net is above 0 for the side that won |
    | rank_correlation | Spearman's, of the net's and the data's scores, over the first 1,048,576 scored positions |
    | even_rank_correlation | the same over those of them whose score gives expected points between 1/3 and 2/3 |
    """

    def __init__(self, device: torch.device, scale: float):
        self._scale = scale
        self._none = torch.zeros(6, dtype=torch.float64, device=device)
        self._sums: list[Tensor] = []  # three pairs of (sum, positions) for each batch
        self._ranked: list[Tensor] = []  # fp32 [2, positions] of each batch: scores of the net and of the data
        self._left = _RANKED

    def add(self, net: Tensor, score: Tensor, result: Tensor) -> None:
        """`net` [B]: scores of the net in engine units; `score` and `result` [B] as in `Loss.terms`."""
        logits, scored = net.double() / self._scale, score != NO_SCORE
        of_score = torch.sigmoid(torch.where(scored, score, 0).double() / self._scale)
        by_score = functional.binary_cross_entropy_with_logits(logits, of_score, reduction="none")
        by_result = functional.binary_cross_entropy_with_logits(logits, result.double() * 0.5 + 0.5, reduction="none")
        decided = result != 0
        right = decided & (torch.sign(net) == result)
        sums = (
            (by_score * scored).sum(), scored.sum().double(),
            by_result.sum(), torch.full_like(self._none[0], len(net)),
            right.sum().double(), decided.sum().double(),
        )  # fmt: skip
        self._sums.append(torch.stack(sums))
        kept = scored.nonzero()[: self._left, 0]
        self._ranked.append(torch.stack([net[kept].float(), score[kept].float()]))
        self._left -= len(kept)

    def skip(self) -> None:
        """In the place of `add`, for a batch that another process adds."""
        self._sums.append(self._none)
        self._ranked.append(self._none[:0].float().view(2, 0))

    def result(self, of_all: OfAll = alone) -> dict[str, float]:
        """The figures by name; those that no position counts for are left out. Waits for the device. `of_all` stacks
        the tensors of the processes, each of which has added some of the batches; the figures are the same for any
        number of them."""
        if not self._sums:
            return {}
        sums, counts = in_order(self._sums, of_all)
        found = {name: total / count for name, total, count in zip(_MEANS, sums[::2], sums[1::2], strict=True) if count}
        ranked = self._all_ranked([int(row[1]) for row in counts], of_all)
        even = ranked[1].abs() <= self._scale * math.log(2)
        for name, part in (("rank_correlation", ranked), ("even_rank_correlation", ranked[:, even])):
            correlation = spearman(*part)
            if math.isfinite(correlation):
                found[name] = correlation
        return found

    def _all_ranked(self, scored: list[int], of_all: OfAll) -> Tensor:
        """The first positions of all processes in the order of the batches, until this many scored ones."""
        ends = [min(end, _RANKED) for end in accumulate(scored)]
        every = self._none.new_zeros(2, ends[-1] if ends else 0, dtype=torch.float32)
        for own, begin, end in zip(self._ranked, [0, *ends], ends, strict=False):
            if own.shape[1]:
                every[:, begin:end] = own[:, : end - begin]
        return of_all(every).sum(0)


def in_order(sums: Sequence[Tensor], of_all: OfAll) -> tuple[list[float], list[list[float]]]:
    """The sum of what all batches have, float64 [n] each, in the order of the batches, and what each of them has; zeros
    stand for a batch of another process."""
    rows = of_all(torch.stack(list(sums))).sum(0).cpu()
    total = torch.zeros_like(rows[0])
    for row in rows:
        total += row
    return total.tolist(), rows.tolist()


def spearman(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation of two tensors [n]; NaN if one of them has no order: all of one value, or n < 2."""
    if len(a) < 2:
        return math.nan
    return torch.corrcoef(torch.stack([ranks(a), ranks(b)]))[0, 1].item()


def ranks(values: Tensor) -> Tensor:
    """The place of each value in their order, float64 from 1 on; equal ones share the mean of their places."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.double().cumsum(0)
    places: Tensor = (last - (counts.double() - 1) / 2)[inverse]
    return places


@dataclass(frozen=True)
class BestBy:
    """The loss or a figure, of data.validation, or of a further set as SET/loss or SET/FIGURE. UserError if there is
    no such figure or set."""

    name: str
    sets: Collection[str]
    """names of the further sets"""

    def __post_init__(self) -> None:
        known = [LOSS, *FIGURES]
        known += [f"{name}/{each}" for name in self.sets for each in known]
        if self.name not in known:
            raise UserError(f"training.best_by: found {self.name!r}, expected one of {', '.join(known)}")

    def value(self, loss: float, figures: Mapping[str, float]) -> float | None:
        """The value in a validation; None if no position counts for the figure, or if it or the loss is not finite."""
        found = loss if self.name == LOSS else figures.get(self.name)
        return found if found is not None and math.isfinite(found) and math.isfinite(loss) else None

    def is_better(self, value: float | None, best: float | None) -> bool:
        """Whether `value` is better than the best one before; None: there is none."""
        if value is None or best is None:
            return value is not None
        return value > best if FIGURES.get(self.name.rpartition("/")[2]) == "highest" else value < best
