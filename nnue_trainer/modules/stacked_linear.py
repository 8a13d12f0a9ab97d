"""A linear layer with one set of weights per bucket, and the choice of each position's bucket."""

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
        # One product for all stacks, and then a choice. No shape depends on the data, so nothing waits for the device,
        # and the layer can be compiled and captured. The layers are thin, so the unused outputs are cheap.
        every = F.linear(x, self.weight.view(-1, in_features), self.bias.view(-1)).view(-1, num_stacks, out_features)
        return choose(every, bucket)

    def extra_repr(self) -> str:
        num_stacks, out_features, in_features = self.weight.shape
        return f"num_stacks={num_stacks}, in_features={in_features}, out_features={out_features}"


def choose(every: Tensor, bucket: Tensor) -> Tensor:
    """Row `bucket[b]` of `every[b]`: fp32 [B, num_stacks, n], int64 [B] → fp32 [B, n].

    This is a masked sum with one term, because the gradient of a gather is a scatter. Where that has to be
    deterministic on CUDA, it sorts its indices, which takes 0.36 ms of a 2.7 ms SFNNv5 step on an H200.
    """
    mask = bucket.unsqueeze(1) == torch.arange(every.shape[1], device=every.device)
    return torch.where(mask.unsqueeze(2), every, 0.0).sum(1)
