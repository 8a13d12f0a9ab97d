"""The feature transformer as a module: the first, sparse layer of a net."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nnue_trainer.ops import functional


class FeatureTransformer(nn.Module):
    """A linear layer over sparse inputs: `num_features` binary (or weighted) features → `num_outputs`.

    `weight` [num_features, num_outputs] and `bias` [num_outputs] start uniform in ±sqrt(1 / num_features).

    Args:
        num_features: F, the size of the feature set.
        num_outputs: N, the width of the accumulator.
        device, dtype: of the parameters; float32 unless given.

    Raises:
        ValueError: a size is less than 1.
    """

    def __init__(
        self,
        num_features: int,
        num_outputs: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("num_features", num_features), ("num_outputs", num_outputs)):
            if size < 1:
                raise ValueError(f"FeatureTransformer: {name}: found {size}, expected at least 1")
        self.num_features = num_features
        self.num_outputs = num_outputs
        self.weight = nn.Parameter(torch.empty(num_features, num_outputs, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_outputs, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values, uniform in ±sqrt(1 / num_features), for `weight` and `bias`."""
        bound = math.sqrt(1 / self.num_features)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, indices: Tensor, values: Tensor | None = None) -> Tensor:
        """int32 [B, K] rows of active features, the first −1 ends a row → [B, num_outputs] in the weight's dtype."""
        return functional.feature_transformer(indices, self.weight, self.bias, values)

    def extra_repr(self) -> str:
        dtype = "" if self.weight.dtype == torch.float32 else f", dtype={self.weight.dtype}"
        return f"num_features={self.num_features}, num_outputs={self.num_outputs}{dtype}"
