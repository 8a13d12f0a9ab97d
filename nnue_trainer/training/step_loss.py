"""The loss of a training step: λ, the net's output, the terms of the recipe's loss, and penalties."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nnue_trainer.base import foreign
from nnue_trainer.config import Recipe
from nnue_trainer.data.batch import Batch
from nnue_trainer.losses import Loss
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.penalties.base import Penalties
from nnue_trainer.training.stages import StageOfRun


class StepLoss:
    """The loss of each step of a stage."""

    def __init__(self, recipe: Recipe, stage: StageOfRun, model: NnueModel, penalties: Penalties) -> None:
        self.recipe, self.stage, self.model, self.penalties = recipe, stage, model, penalties
        self.device = next(model.parameters()).device
        forward = model if model.num_outputs == 1 else model.outputs
        self.forward: Callable[[Batch], Tensor] = torch.compile(forward) if recipe.training.compile else forward
        self.is_compiled = recipe.training.compile
        # λ as the loss gets it, by the buffer of the batch, because the next step's is set while this one runs: fp32, a
        # scalar for the step, or with jitter [batch_size], one for each position.
        self._lambdas: dict[int | None, Tensor] = {}
        self._steps_ahead = stage.first_step

    @property
    def loss_kind(self) -> Loss:
        """The loss of the recipe."""
        return self.recipe.loss

    def terms(self, batch: Batch, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Σ weight · loss and Σ weight of a batch, fp32 scalars with their autograd graph: `Loss.terms`. `lam`: λ,
        fp32, a scalar or [B]."""
        with self.penalties.watching():
            (score, outputs), weigher, loss = (
                self.evaluated(self.forward, batch),
                self.recipe.position_weight,
                self.loss_kind,
            )
            weight = None if weigher is None else weigher.checked(batch)
            return loss.terms(outputs if loss.reads else score, batch.score, batch.result, lam, weight, batch.spare)

    def penalty(self, batch: Batch) -> Tensor | None:
        """The sum of the recipe's penalties, an fp32 scalar with its graph, for the batch whose `terms` were computed
        last; None if there are none."""
        if not self.penalties:
            return None
        with self.autocast():
            return self.penalties.of(batch)

    def autocast(self) -> torch.autocast:
        """The context in which the net is computed: bfloat16 where the precision is mixed."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.training.precision == "mixed")

    def evaluated(self, forward: Callable[[Batch], Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        """The net's scores in engine units, fp32 [B], and its outputs, fp32 [B, n] where it has n > 1."""
        count = self.model.num_outputs
        with self.autocast():
            outputs = forward(batch)
        shape = (*batch.score.shape, count) if count > 1 else batch.score.shape
        fits = isinstance(outputs, Tensor) and outputs.shape == shape
        foreign.returned(self.model, "outputs" if count > 1 else "forward", outputs, fits, f"a tensor {list(shape)}")
        outputs = outputs.float()
        score = outputs if count == 1 else self.model.score_of(outputs)
        return score * self.model.score_scale, outputs

    # ---- λ ----

    def lambda_at(self, step: int) -> float:
        """λ of a step, before its jitter."""
        return self.recipe.lambda_.of(self.stage.now(step))

    def lambda_values(self, batch: Batch) -> Tensor:
        """λ of the step with this batch on the device: fp32, a scalar or one for each position of the whole batch."""
        if batch.buffer not in self._lambdas:
            size = (self.recipe.data.batch_size,) if self.recipe.lambda_.jitter > 0 else ()
            self._lambdas[batch.buffer] = torch.zeros(size, dtype=torch.float32, device=self.device)
        return self._lambdas[batch.buffer]

    def set_lambda(self, batch: Batch, step: int) -> None:
        """Sets λ of a step, which has this batch."""
        lambdas, now = self.lambda_values(batch), self.stage.now(step)
        lam = self.recipe.lambda_.of_batch(now, self.stage.jitter_seed, lambdas.numel(), self.device)
        if isinstance(lam, float):
            lambdas.fill_(lam)
        else:
            lambdas.copy_(lam)

    def set_lambda_ahead(self, batch: Batch) -> None:
        """Sets λ of the next step; called with each batch that is fetched. One more is fetched than there are steps."""
        if batch.buffer is not None:
            self.set_lambda(batch, min(self._steps_ahead, self.stage.end - 1))
        self._steps_ahead += 1

    def continue_from(self, step: int) -> None:
        """The next batch that is fetched is that of this step."""
        self._steps_ahead = step
