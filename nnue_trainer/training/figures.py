"""Figures of a validation that mean the same in every run, whatever loss and λ it is trained with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from nnue_trainer.losses import NO_SCORE

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
    """

    def __init__(self, device: torch.device, scale: float):
        self._scale = scale
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)  # three pairs of (sum, positions)
        self._ranked: list[tuple[Tensor, Tensor]] = []
        self._left = _RANKED

    def add(self, net: Tensor, score: Tensor, result: Tensor) -> None:
        """`net` [B]: scores of the net in engine units; `score` and `result` [B] as in `Loss.terms`."""
        logits, scored = net.double() / self._scale, score != NO_SCORE
        of_score = torch.sigmoid(torch.where(scored, score, 0).double() / self._scale)
        by_score = functional.binary_cross_entropy_with_logits(logits, of_score, reduction="none")
        by_result = functional.binary_cross_entropy_with_logits(logits, result.double() * 0.5 + 0.5, reduction="none")
        decided = result != 0
        right = decided & (torch.sign(net) == result)
        self._sums += torch.stack(
            [
                (by_score * scored).sum(), scored.sum().double(),
                by_result.sum(), torch.full_like(self._sums[0], len(net)),
                right.sum().double(), decided.sum().double(),
            ]
        )  # fmt: skip
        if self._left > 0:
            kept = scored.nonzero()[: self._left, 0]
            self._ranked.append((net[kept].float(), score[kept].float()))
            self._left -= len(kept)

    def result(self) -> dict[str, float]:
        """The figures by name; those that no position counts for are left out. Waits for the device."""
        names = ("score_cross_entropy", "result_cross_entropy", "result_accuracy")
        sums = self._sums.tolist()
        found = {name: total / count for name, total, count in zip(names, sums[::2], sums[1::2], strict=True) if count}
        if self._ranked:
            net, score = (torch.cat(parts) for parts in zip(*self._ranked, strict=True))
            if len(net) > 1:
                correlation = torch.corrcoef(torch.stack([ranks(net), ranks(score)]))[0, 1].item()
                if correlation == correlation:  # all of one value have no order
                    found["rank_correlation"] = correlation
        return found


def ranks(values: Tensor) -> Tensor:
    """The place of each value in their order, float64 from 1 on; equal ones share the mean of their places."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.double().cumsum(0)
    places: Tensor = (last - (counts.double() - 1) / 2)[inverse]
    return places
