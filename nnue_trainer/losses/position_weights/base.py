"""The contract of weights of positions, and the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from nnue_trainer.base.foreign import returned
from nnue_trainer.data.batch import Batch
from nnue_trainer.registry import Registry
from nnue_trainer.schema import section


@section
class PositionWeight(ABC):
    """A weight for each position. It multiplies the weight of the loss; the loss of a batch is the weighted mean."""

    @property
    def reads_records(self) -> bool:
        """Whether `of` reads `Batch.records`, or `Batch.field`, which needs them. On a CPU the records are then
        expanded between the steps, not ahead of them."""
        return False

    @abstractmethod
    def of(self, batch: Batch) -> Tensor:
        """The weights, fp32 [B] on the device of the batch, 0 or more. Must not wait for the device."""

    @property
    def uses_spare(self) -> bool:
        """Whether `of` reads `batch.spare`, the spare bytes of data files, uint8 [B, bytes] (docs/data-formats.md). A
        class attribute `uses_spare: ClassVar[bool] = True` is enough."""
        return False

    def checked(self, batch: Batch) -> Tensor:
        """`of`, fp32 [B]. UserError naming the class where `of` returns something else."""
        weight = self.of(batch)
        fits = isinstance(weight, Tensor) and weight.shape == batch.score.shape and weight.dtype == torch.float32
        returned(self, "of", weight, fits, f"a tensor float32 {list(batch.score.shape)}")
        return weight


POSITION_WEIGHTS: Registry[PositionWeight] = Registry(
    "nnue_trainer.losses.position_weights", lambda: PositionWeight, what="weight of positions"
)
