"""A linear layer with one set of weights a bucket: position b uses set `bucket[b]`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class StackedLinear(nn.Module):
    """`weight` fp32 [num_stacks, out_features, in_features], `bias` fp32 [num_stacks, out_features].

    All stacks start identical, as one `nn.Linear` would.
    """

    def __init__(self, num_stacks: int, in_features: int, out_features: int) -> None:
        super().__init__()
        first = nn.Linear(in_features, out_features)
        self.weight = nn.Parameter(first.weight.detach().repeat(num_stacks, 1, 1))
        self.bias = nn.Parameter(first.bias.detach().repeat(num_stacks, 1))

    def forward(self, x: Tensor, bucket: Tensor) -> Tensor:
        """x fp32 [B, in_features], bucket int64 [B] → fp32 [B, out_features]."""
        num_stacks, out_features, in_features = self.weight.shape
        # One product for all stacks, then a choice: no shape depends on the data, so nothing waits for the device and
        # the layer compiles and captures; the layers are thin, so the unused outputs are cheap.
        every = F.linear(x, self.weight.view(-1, in_features), self.bias.view(-1)).view(-1, num_stacks, out_features)
        index = bucket.view(-1, 1, 1).expand(-1, 1, out_features)
        return torch.gather(every, 1, index).squeeze(1)
