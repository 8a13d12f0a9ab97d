"""Several weights multiplied."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from nnue_trainer.data.batch import Batch
from nnue_trainer.losses.position_weights.base import POSITION_WEIGHTS, PositionWeight
from nnue_trainer.schema import section


@POSITION_WEIGHTS.register("product")
@section
class Product(PositionWeight):
    """The product of other weights."""

    parts: list[Annotated[PositionWeight, POSITION_WEIGHTS]] = Field(min_length=1)
    """the weights"""

    @property
    def reads_records(self) -> bool:
        return any(part.reads_records for part in self.parts)

    @property
    def uses_spare(self) -> bool:
        return any(part.uses_spare for part in self.parts)

    def of(self, batch: Batch) -> Tensor:
        weight = self.parts[0].checked(batch)
        for part in self.parts[1:]:
            weight = weight * part.checked(batch)
        return weight
