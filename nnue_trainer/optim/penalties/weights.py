"""A penalty on weights."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from nnue_trainer.errors import UserError, quoted
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim.penalties.base import PENALTIES, Penalty
from nnue_trainer.schema import section


@PENALTIES.register("weights")
@section
class WeightPenalty(Penalty):
    """The sum of the sizes or squares of weights. Its gradient goes through the optimizer's moments, unlike
    `optimizer.weight_decay`. Weights of a factoriser count as part of those that share them."""

    norm: Literal["l1", "l2"] = "l2"
    """l1: the sum of their sizes; l2: of their squares"""
    factor: float = Field(gt=0)
    """factor of that sum"""
    parameters: list[str] = Field(default=["*.weight"], min_length=1)
    """names or patterns of the parameters, as in optimizer.groups"""

    def check(self, model: NnueModel, where: str) -> None:
        names = [name for name, _ in model.named_parameters()]
        for pattern in self.parameters:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UserError(
                    f"{where}.parameters: {quoted(pattern)} matches no parameter, expected a pattern for "
                    f"{', '.join(names)}"
                )

    def of(self, model: NnueModel, activations: Sequence[Tensor]) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=next(model.parameters()).device)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and any(fnmatchcase(name, pattern) for pattern in self.parameters):
                total = total + (parameter.abs().sum() if self.norm == "l1" else parameter.square().sum())
        return self.factor * total
