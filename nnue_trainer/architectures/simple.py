"""The simple net: piece-square features → hidden layer, one accumulator a perspective → one output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from nnue_trainer.architectures.base import NnueModel, WeightBound
from nnue_trainer.architectures.config import SimpleConfig
from nnue_trainer.data.batch import Batch
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.quantization.scales import SIMPLE as SCALES
from nnue_trainer.schema import to_data

NUM_FEATURES = {"Chess768": 768}


class SimpleNet(NnueModel):
    """Parameters: feature_transformer.{weight [768, hidden], bias [hidden]},
    output.{weight [1, 2 · hidden], bias [1]}."""

    def __init__(self, config: SimpleConfig) -> None:
        super().__init__()
        self.config = config
        self.feature_set = config.feature_set
        self.score_scale = float(config.score_scale)
        self.feature_transformer = PerspectiveTransformer(
            NUM_FEATURES[config.feature_set],
            config.hidden,
            config.activation,
            block_size=NUM_FEATURES[config.feature_set],
        )
        self.output = nn.Linear(2 * config.hidden, 1)
        nn.init.zeros_(self.output.bias)

    @property
    def architecture(self) -> dict[str, Any]:
        return to_data(self.config)

    def forward(self, batch: Batch) -> Tensor:
        x, _ = self.feature_transformer(batch)
        y: Tensor = self.output(x)
        return y.squeeze(1)

    def weight_bounds(self) -> Iterator[WeightBound]:
        for name, parameter in self.named_parameters():
            limit = SCALES.float_limit(name)
            if limit is not None:
                yield WeightBound(name, parameter, -limit, limit)
