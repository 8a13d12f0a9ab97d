"""The first layer of every net: one feature transformer seen from both sides, activated and joined.

This is the only place where a model meets the sparse operators: `perspectives.perspective_transformer` is one fused
operator where there is one.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from nnue_trainer import perspectives
from nnue_trainer.data.batch import Batch

Activation = Literal["crelu", "screlu", "pairwise"]


class PerspectiveTransformer(nn.Module):
    """Accumulators of both perspectives, clipped to [0, 1], activated, side to move first.

    `weight` fp32 [num_features, num_outputs], `bias` fp32 [num_outputs], and with `psqt_buckets` > 0 also `psqt` fp32
    [num_features, psqt_buckets] (no bias). Weight and bias start uniform in ±sqrt(1 / num_features), `psqt` at 0.

    `activation`, on an accumulator a clipped to [0, 1]:
      crelu     a;   2 · num_outputs values
      screlu    a²;  2 · num_outputs values
      pairwise  a[j] · a[j + num_outputs / 2] · product_scale;  num_outputs values, num_outputs / 2 a perspective

    `block_size` is the number of features of one king bucket (all of them where there are none), if an index row's
    features lie in one bucket: it lets GPUs of compute capability 9.0 use the fused operator. `num_blocked`: how many
    features lie in king buckets, by default all; a row may hold any of those behind them (threats, pawn pairs).
    """

    psqt: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        num_outputs: int,
        activation: Activation,
        *,
        psqt_buckets: int = 0,
        product_scale: float = 1.0,
        block_size: int | None = None,
        num_blocked: int | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.product_scale = product_scale
        self.block_size = block_size
        self.num_blocked = num_blocked
        bound = math.sqrt(1 / num_features)
        self.weight = nn.Parameter(torch.empty(num_features, num_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_outputs).uniform_(-bound, bound))
        self.psqt = nn.Parameter(torch.zeros(num_features, psqt_buckets)) if psqt_buckets else None

    @property
    def num_outputs(self) -> int:
        """Length of the activated vector."""
        width = self.weight.shape[1]
        return width if self.activation == "pairwise" else 2 * width

    def forward(self, batch: Batch, bucket: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Activated vector fp32 [B, num_outputs]; with PSQT its half difference at `bucket` int64 [B], fp32 [B]."""
        if self.psqt is not None and bucket is None:
            raise ValueError("PerspectiveTransformer with PSQT columns needs the bucket of every position")
        result = perspectives.perspective_transformer(
            batch.white,
            batch.black,
            batch.black_to_move,
            self.weight,
            self.bias,
            activation=self.activation,
            scale=self.product_scale if self.activation == "pairwise" else 1.0,
            block_size=self.block_size,
            num_blocked=self.num_blocked,
            psqt=self.psqt,
            bucket=None if self.psqt is None else bucket,
        )
        return result if isinstance(result, tuple) else (result, None)
