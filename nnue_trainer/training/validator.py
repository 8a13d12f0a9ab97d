"""Validation: the loss and the figures of a net on held-out positions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.losses import Loss
from nnue_trainer.nets.activity import ActivityMeter, reach_figures
from nnue_trainer.optim import Optimizer
from nnue_trainer.training.autograd_step import StepLoss
from nnue_trainer.training.batches import Stopped, Stopping
from nnue_trainer.training.figures import Figures, in_order
from nnue_trainer.training.parallel.sharding import Unsharded
from nnue_trainer.training.state import RunState

HeldOutBatches = Callable[[], Iterable[Batch]]


@dataclass(eq=False)
class Validator:
    """Validates the model of `evaluation`. A set that `stop` or another process ends raises `Stopped`."""

    evaluation: StepLoss
    sharding: Unsharded
    optimizer: Optimizer
    stop: Stopping
    state: RunState
    held_out: HeldOutBatches | None
    """returns the same validation batches at each call; None: no validation"""
    more: Mapping[str, HeldOutBatches]
    """more sets of held-out positions, by name"""
    loss: Loss
    """of validations"""
    lambda_at: Callable[[int], float]
    """λ of a validation after a step"""
    follows: bool
    """λ is the step's, so that losses of different epochs cannot be compared"""
    scale: float
    """engine units of `Figures`"""
    rounds: bool
    """validate with the engine's rounding, always, so that the losses of all epochs can be compared"""
    files: str
    """names for messages"""

    def validate(self) -> float | None:
        """The loss over all validation positions; None without validation. Sets the figures of the state. UserError if
        there are no positions."""
        state, loss, lam = self.state, None, self.lambda_at(self.state.step)
        state.fixed_figures = {}
        with self.optimizer.with_net():
            if self.held_out is not None:
                model, sharding = self.evaluation.model, self.sharding
                meter = ActivityMeter(model)
                loss, state.fixed_figures = self._of(self.held_out, lam, meter)
                state.net_figures = sharding.figures(meter.figures(sharding.of_all) | reach_figures(model))
                if loss is None:
                    raise UserError(f"{self.files}: no positions to validate on")
            for name, held_out in self.more.items():
                of_set, figures = self._of(held_out, lam)
                if of_set is None:
                    raise UserError(f"validation.sets.{name}: no positions to validate on")
                state.fixed_figures |= {f"{name}/{key}": value for key, value in ({"loss": of_set} | figures).items()}
        return loss

    def warm_up(self) -> None:
        """Validates on a batch of each rank and drops the result: otherwise the first validation would wait for its
        kernels to be loaded."""
        if (held_out := self.held_out) is not None:
            meter = ActivityMeter(self.evaluation.model)
            first = self.sharding.ranks.size
            self._of(lambda: itertools.islice(held_out(), first), self.lambda_at(self.state.step), meter)

    def _of(
        self, held_out: HeldOutBatches, lam: float, meter: ActivityMeter | None = None
    ) -> tuple[float | None, dict[str, float]]:
        """The loss over all positions, None if there are none, and the fixed figures."""
        ranks, device, model, kind = self.sharding.ranks, self.evaluation.device, self.evaluation.model, self.loss
        none = torch.zeros(2, dtype=torch.float64, device=device)
        sums: list[Tensor] = []  # of each batch: Σ weight · loss and Σ weight
        figures = Figures(device, self.scale)
        batches = self.stop.wait(lambda: iter(held_out()), ranks.several)
        with torch.no_grad(), model.rounding(self.rounds):
            while True:
                # Not for each batch: ranks that compute different ones would wait for each other.
                turn = len(sums) % ranks.size == 0
                if ranks.several and turn and ranks.agree(self.stop.is_set(), False)[0]:
                    raise Stopped
                batch = self.stop.wait(lambda: next(batches, None), ranks.several)
                if batch is None:
                    break
                if not self.sharding.validates(len(sums)):
                    sums.append(none)
                    figures.skip()
                    continue
                batch = batch.to(device, non_blocking=False)
                score, outputs = self.evaluation.evaluated(self.sharding.forward, batch)
                net = outputs if kind.reads else score
                sums.append(torch.stack(kind.terms(net, batch.score, batch.result, lam, None, batch.spare)).double())
                figures.add(score, batch.score, batch.result)
                if meter is not None:
                    meter.add(batch)
        if not sums:
            return None, {}
        (loss, weight), _ = in_order(sums, self.sharding.of_all)
        return (float(loss / weight) if weight else None), figures.result(self.sharding.of_all)
