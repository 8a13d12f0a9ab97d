"""The contract of penalties, their registry, and the sum of a recipe's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor

from nnue_trainer.base.foreign import returned
from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.nets.base import NnueModel, StackedModel
from nnue_trainer.registry import Registry
from nnue_trainer.schema import section


@section
class Penalty(ABC):
    """A term that is added to the mean loss of a training step, but not to validation losses."""

    reads_activations: ClassVar[bool] = False
    """whether `of` gets the activations of the first layer"""
    moves_weights: ClassVar[bool] = True
    """whether the gradient of `of` by a parameter may reach rows that the batch does not use"""

    def check(self, model: NnueModel, where: str) -> None:  # noqa: B027 (most penalties fit every net)
        """UserError, beginning with `where`, if the penalty does not fit the model. Called before the first step."""

    @abstractmethod
    def of(self, model: NnueModel, activations: Sequence[Tensor]) -> Tensor:
        """The term, a scalar fp32 on the device of the model, with its graph. `activations`: the outputs [B, N] of each
        first layer, both perspectives joined, if `reads_activations`. Must not wait for the device."""


PENALTIES: Registry[Penalty] = Registry("nnue_trainer.optim.penalties", lambda: Penalty, what="penalty")


class Penalties:
    """The penalties of a recipe for one model. The forward pass of a step runs within `watching`, and `of` gives their
    sum for this batch."""

    def __init__(self, penalties: Sequence[Penalty], model: NnueModel) -> None:
        self._penalties, self._model = penalties, model
        self._read = any(penalty.reads_activations for penalty in penalties)
        self._seen: list[Tensor] = []
        for number, penalty in enumerate(penalties):
            penalty.check(model, f"training.penalties.{number}")
        layers = any(isinstance(module, PerspectiveTransformer) for module in model.modules())
        if self._read and not layers:
            raise UserError("training.penalties: the net has no PerspectiveTransformer, whose activations they read")

    def of_copy(self, model: NnueModel) -> Penalties:
        """These penalties for a copy of the model."""
        return Penalties(self._penalties, model)

    def __bool__(self) -> bool:
        return bool(self._penalties)

    @property
    def dense(self) -> bool:
        """Whether gradients of weights are dense: rows cannot wait for a batch that uses them."""
        return any(penalty.moves_weights for penalty in self._penalties)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keeps the activations that the forward pass computes in here, for `of`."""
        self._seen = []
        if not self._read:
            yield
            return
        layers = [module for module in self._model.modules() if isinstance(module, PerspectiveTransformer)]
        handles = [layer.register_forward_hook(lambda *call: self._seen.append(call[2][0])) for layer in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def of(self, batch: Batch) -> Tensor:
        """The sum of the penalties for the batch that was watched, a scalar fp32."""
        if self._read and not self._seen:  # compiled, or with the engine's rounding
            with self._model.rounding(False), self.watching():
                if isinstance(self._model, StackedModel):
                    self._model.first_outputs(batch)
                else:
                    self._model(batch)
        seen, self._seen = self._seen, []
        total = torch.zeros((), dtype=torch.float32, device=batch.score.device)
        for penalty in self._penalties:
            term = penalty.of(self._model, seen)
            fits = isinstance(term, Tensor) and term.dim() == 0
            returned(penalty, "of", term, fits, "a tensor [], one number")
            total = total + term
        return total
