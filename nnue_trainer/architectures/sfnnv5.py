"""SFNNv5 and its wider and narrower sisters (SFNNv6 … SFNNv9, the small net) in floating point.

One in floating point is what the integers call 127 (activations) and 600 · 16 (output), so `clamp(…, 0, 1)` here is
`clamp(…, 0, 127)` there. Products of two activations carry 127/128: the engine divides them by 128, not by 127.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nnue_trainer.architectures.base import NnueModel, WeightBound
from nnue_trainer.architectures.config import SfnnV5Config
from nnue_trainer.data.batch import Batch
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.quantization.scales import SFNNV5 as SCALES
from nnue_trainer.schema import to_data

BUCKETS = 8
KING_BUCKETS = 32
SQUARES = 64
PLANES = 12
ROWS_PER_KING_BUCKET = PLANES * SQUARES
NUM_FEATURES = KING_BUCKETS * ROWS_PER_KING_BUCKET
L2 = 15
L3 = 32
PRODUCT_SCALE = 127 / 128
# Engine units; planes alternate own, enemy.
MATERIAL = {"pawn": 126, "knight": 781, "bishop": 825, "rook": 1276, "queen": 2538, "king": 0}


def material_psqt(score_scale: float) -> Tensor:
    """PSQT rows that count material: fp32 [NUM_FEATURES, BUCKETS], own pieces positive, enemy pieces negative."""
    planes = torch.tensor([sign * value for value in MATERIAL.values() for sign in (1, -1)]) / score_scale
    return planes.repeat_interleave(SQUARES).repeat(KING_BUCKETS).unsqueeze(1).repeat(1, BUCKETS)


class SfnnV5(NnueModel):
    """Parameters: feature_transformer.{weight [24576, l1], bias [l1], psqt [24576, 8]}; fc0 l1 → 15 + 1 skip,
    fc1 30 → 32, fc2 32 → 1, each {weight [8, out, in], bias [8, out]}."""

    feature_set = "HalfKAv2_hm"
    score_scale = 600.0

    def __init__(self, config: SfnnV5Config) -> None:
        super().__init__()
        self.config = config
        self.feature_transformer = PerspectiveTransformer(
            NUM_FEATURES,
            config.l1,
            "pairwise",
            psqt_buckets=BUCKETS,
            product_scale=PRODUCT_SCALE,
            block_size=ROWS_PER_KING_BUCKET,
        )
        self.fc0 = StackedLinear(BUCKETS, config.l1, L2 + 1)
        self.fc1 = StackedLinear(BUCKETS, 2 * L2, L3)
        self.fc2 = StackedLinear(BUCKETS, L3, 1)
        assert self.feature_transformer.psqt is not None
        with torch.no_grad():
            self.feature_transformer.psqt.copy_(material_psqt(self.score_scale))
            nn.init.zeros_(self.fc2.bias)

    @property
    def architecture(self) -> dict[str, Any]:
        return to_data(self.config)

    def forward(self, batch: Batch) -> Tensor:
        bucket = batch.bucket
        x, psqt = self.feature_transformer(batch, bucket)
        y0 = self.fc0(x, bucket)
        hidden, skip = y0[:, :L2], y0[:, L2]
        squared = (hidden.square() * PRODUCT_SCALE).clamp(max=1.0)
        y1 = self.fc1(torch.cat([squared, hidden.clamp(0.0, 1.0)], dim=1), bucket)
        output: Tensor = self.fc2(y1.clamp(0.0, 1.0), bucket).squeeze(1) + skip + psqt
        return output

    def weight_bounds(self) -> Iterator[WeightBound]:
        for name, parameter in self.named_parameters():
            limit = SCALES.float_limit(name)
            if limit is not None:
                yield WeightBound(name, parameter, -limit, limit)

    def factorised(self) -> dict[str, int]:
        return {
            "feature_transformer.weight": ROWS_PER_KING_BUCKET,
            "feature_transformer.psqt": ROWS_PER_KING_BUCKET,
        }
