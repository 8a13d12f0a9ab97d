"""A penalty on the activations of the first layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim.penalties.base import PENALTIES, Penalty
from nnue_trainer.schema import section


@PENALTIES.register("activations")
@section
class ActivationPenalty(Penalty):
    """The mean of the first layer's outputs, of both perspectives, after their activation (of pairwise: the products),
    or of their squares. It makes more of them 0, which engines with sparse inference skip."""

    reads_activations: ClassVar[bool] = True
    moves_weights: ClassVar[bool] = False

    norm: Literal["l1", "l2"] = "l1"
    """l1: the mean of their sizes; l2: of their squares"""
    factor: float = Field(gt=0)
    """factor of that mean"""

    def of(self, model: NnueModel, activations: Sequence[Tensor]) -> Tensor:
        sizes = [a.float().abs() if self.norm == "l1" else a.float().square() for a in activations]
        total = sum((size.sum() for size in sizes[1:]), sizes[0].sum())
        return self.factor * total / sum(size.numel() for size in sizes)
