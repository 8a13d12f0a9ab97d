"""The step with autograd, its loss, and the net's output for a validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from nnue_trainer.base import foreign
from nnue_trainer.data.batch import Batch
from nnue_trainer.losses import Loss
from nnue_trainer.losses.position_weights import PositionWeight
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.optim.penalties.base import Penalties
from nnue_trainer.training.parallel.sharding import Unsharded


@dataclass(eq=False)
class StepLoss:
    """The loss of each step of a model."""

    model: NnueModel
    loss: Loss
    lambdas: Mapping[int | None, Tensor]
    """λ by the buffer of a batch, fp32 on the device, a scalar or [B] of the whole batch"""
    penalties: Penalties
    weigher: PositionWeight | None
    """how much each position counts; None: all as the loss has it"""
    mixed: bool
    """compute the net in bfloat16"""
    is_compiled: bool = False
    """by torch.compile"""

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        forward = self.model if self.model.num_outputs == 1 else self.model.outputs
        self.forward: Callable[[Batch], Tensor] = torch.compile(forward) if self.is_compiled else forward

    def of_copy(self, model: NnueModel) -> StepLoss:
        """This loss for a copy of the model, on any device; not compiled."""
        return replace(self, model=model, penalties=self.penalties.of_copy(model), is_compiled=False)

    def terms(self, batch: Batch, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Σ weight · loss and Σ weight of a batch, fp32 scalars with their autograd graph: `Loss.terms`. `lam`: λ,
        fp32, a scalar or [B]."""
        loss, weigher = self.loss, self.weigher
        with self.penalties.watching():
            score, outputs = self.evaluated(self.forward, batch)
            weight = None if weigher is None else weigher.checked(batch)
            return loss.terms(outputs if loss.reads else score, batch.score, batch.result, lam, weight, batch.spare)

    def penalty(self, batch: Batch) -> Tensor | None:
        """The sum of the penalties, an fp32 scalar with its graph, for the batch whose `terms` were computed last; None
        if there are none."""
        if not self.penalties:
            return None
        with self.autocast():
            return self.penalties.of(batch)

    def autocast(self) -> torch.autocast:
        """The context in which the net is computed: bfloat16 where the precision is mixed."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed)

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


class AutogradStep:
    """PyTorch over the public modules, whose operators have derivatives: for every net, loss, penalty and optimiser."""

    kind: ClassVar[str] = "autograd"

    def __init__(self, loss: StepLoss, sharding: Unsharded, optimizer: Optimizer) -> None:
        self._loss, self._sharding, self._optimizer = loss, sharding, optimizer
        self._one = torch.ones((), dtype=torch.float32, device=loss.device)

    def prepare(self, batch: Batch) -> Batch:
        # torch.compile gets the whole forward pass, so no part of it is computed ahead.
        return batch if self._loss.is_compiled else self._loss.model.prepare(batch)

    def gradients(self, batch: Batch) -> Tensor:
        step, sharding, optimizer = self._loss, self._sharding, self._optimizer
        optimizer.free_gradients()
        weighted, weights = step.terms(batch, sharding.part_of(step.lambdas[batch.buffer]))
        loss = sharding.objective(weighted, weights, step.penalty(batch), len(batch))
        # Tensor.backward would import torch's compiler because of the gradient that it gets, which takes seconds.
        torch.ops.aten._backward(loss, [], self._one)
        return sharding.joined(loss, weights, optimizer.gradients)

    def update(self, loss: Tensor) -> None:
        self._optimizer.step(loss)
