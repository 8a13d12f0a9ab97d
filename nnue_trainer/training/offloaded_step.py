"""A training step on a device for which this project has no kernels, such as Apple's MPS or a GPU with ROCm."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError, first_line
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.training.autograd_step import StepLoss
from nnue_trainer.training.parallel.sharding import Unsharded


class OffloadedStep:
    """PyTorch's operators compute forward and backward pass on `device`, from a copy of the model. Loader, optimiser,
    validation and checkpoints stay on the CPU. So each step copies the weights to the device, and the gradients back,
    and the device needs only fp32 and integers."""

    kind: ClassVar[str] = "offloaded"

    def __init__(self, loss: StepLoss, sharding: Unsharded, optimizer: Optimizer, device: torch.device) -> None:
        """`loss`: of the model on the CPU. UserError if the device cannot hold the model."""
        self._model, self._optimizer, self._sharding, self._device = loss.model, optimizer, sharding, device
        self._lambdas = loss.lambdas
        try:
            self._copy = copy.deepcopy(loss.model).to(device)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise UserError(f"training.device: {device}: cannot hold the net: {first_line(error)}") from None
        self._loss = loss.of_copy(self._copy)
        self._trained = [
            (own, copied)
            for own, copied in zip(loss.model.parameters(), self._copy.parameters(), strict=True)
            if own.requires_grad
        ]

    def prepare(self, batch: Batch) -> Batch:
        return batch

    def gradients(self, batch: Batch) -> Tensor:
        self._optimizer.free_gradients()
        with torch.no_grad():
            for own, copied in self._tensors():
                copied.copy_(own)
        step = self._loss
        moved = Batch._of({name: value.to(self._device) for name, value in batch.fields().items()})
        weighted, weights = step.terms(moved, self._lambdas[batch.buffer].to(self._device))
        loss = self._sharding.objective(weighted, weights, step.penalty(moved), len(batch))
        found = torch.autograd.grad(loss, [copied for _, copied in self._trained], allow_unused=True)
        with torch.no_grad():
            for (own, _), gradient in zip(self._trained, found, strict=True):
                own.grad = None if gradient is None else gradient.to(own.device)
            for own, copied in zip(self._model.buffers(), self._copy.buffers(), strict=True):
                own.copy_(copied)  # a net may change its buffers in a forward pass
            return loss.detach().to("cpu")

    def update(self, loss: Tensor) -> None:
        self._optimizer.step(loss)

    def _tensors(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Parameters and buffers of the model, each with its copy on the device."""

        def of(model: NnueModel) -> list[Tensor]:
            return [*model.parameters(), *model.buffers()]

        return zip(of(self._model), of(self._copy), strict=True)
