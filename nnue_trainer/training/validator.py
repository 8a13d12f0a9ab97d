"""Validation: the loss and the figures of a net on held-out positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from nnue_trainer.config import Recipe
from nnue_trainer.data.batch import Batch
from nnue_trainer.nets.activity import ActivityMeter
from nnue_trainer.parallel.sharding import Unsharded
from nnue_trainer.training.figures import Figures, in_order
from nnue_trainer.training.step_loss import StepLoss
from nnue_trainer.training.stopping import Stopped, Stopping


class Validator:
    """Validates the model of `loss`. A set that `stop` or another process ends raises `Stopped`."""

    def __init__(self, recipe: Recipe, loss: StepLoss, sharding: Unsharded, stop: Stopping) -> None:
        self._recipe, self._loss, self._sharding, self._stop = recipe, loss, sharding, stop

    def of(
        self, held_out: Callable[[], Iterable[Batch]], lam: float, meter: ActivityMeter | None = None
    ) -> tuple[float | None, dict[str, float]]:
        """The loss over all positions, None if there are none, and the fixed figures. In quantisation-aware training it
        always rounds, so that the losses of all epochs can be compared."""
        ranks, device, model = self._sharding.ranks, self._loss.device, self._loss.model
        kind = self._recipe.validation.loss or self._recipe.loss
        none = torch.zeros(2, dtype=torch.float64, device=device)
        sums: list[Tensor] = []  # of each batch: Σ weight · loss and Σ weight
        figures = Figures(device, self._recipe.validation.scale)
        with self._stop.interruptible(ranks.several):
            batches = iter(held_out())
        with torch.no_grad(), model.rounding(self._recipe.model.qat_config.qat):
            while True:
                # Not for each batch: ranks that compute different ones would wait for each other.
                turn = len(sums) % ranks.size == 0
                if ranks.several and turn and ranks.agree(self._stop.is_set(), False)[0]:
                    raise Stopped
                with self._stop.interruptible(ranks.several):
                    batch = next(batches, None)
                if batch is None:
                    break
                if not self._sharding.validates(len(sums)):
                    sums.append(none)
                    figures.skip()
                    continue
                batch = batch.to(device, non_blocking=False)
                score, outputs = self._loss.evaluated(self._sharding.forward, batch)
                net = outputs if kind.reads else score
                sums.append(torch.stack(kind.terms(net, batch.score, batch.result, lam, None, batch.spare)).double())
                figures.add(score, batch.score, batch.result)
                if meter is not None:
                    meter.add(batch)
        if not sums:
            return None, {}
        (loss, weight), _ = in_order(sums, self._sharding.of_all)
        return (float(loss / weight) if weight else None), figures.result(self._sharding.of_all)
