"""The simple net: piece-square features → hidden layer, one accumulator per perspective → one output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch
from nnue_trainer.data.features import feature_set
from nnue_trainer.modules.layer_stacks import LayerStacks
from nnue_trainer.nets.base import (
    INT16_MAX,
    NETS,
    Net,
    NetTensor,
    StackedModel,
    transformer,
)
from nnue_trainer.nets.integer_forward import PIECE_COUNTS, FirstLayer, IntegerForward, IntegerLayer
from nnue_trainer.nets.meaning import OUTPUT, NetMeaning, buckets, first_activations, first_layer, stacked
from nnue_trainer.nets.rounded_forward import QatConfig
from nnue_trainer.schema import section

# Accumulators count QA to the unit, output weights QB. The range of 127 / 64 = 1.98 keeps an accumulator of 32 pieces
# and a product activation · weight within 16 bits, which is what engines with 16-bit SIMD need.
QA = 255
QB = 64


@NETS.register("simple")
@section
class Simple(Net):
    """Features → hidden layer, seen from both sides → 1."""

    feature_set: Literal["Chess768"] = "Chess768"
    """input features"""
    hidden: Annotated[int, Field(ge=8, le=16384, multiple_of=8)] = 256
    """outputs of the feature transformer per perspective, a multiple of 8"""
    activation: Literal["crelu", "screlu"] = "screlu"
    """activation of the hidden layer. crelu: clamp to [0, 1]; screlu: clamp to [0, 1] and square"""
    score_scale: Annotated[int, Field(ge=1, le=10000)] = 400
    """engine units in one unit of output"""
    quantisation: QatConfig = Field(default_factory=QatConfig)

    def model(self) -> SimpleModel:
        return SimpleModel(self)

    def tensors(self) -> Sequence[NetTensor]:
        features = feature_set(self.feature_set).num_features
        return (
            NetTensor("feature_transformer.weight", "<i2", (features, self.hidden), QA, QA * 127 // QB),
            NetTensor("feature_transformer.bias", "<i2", (self.hidden,), QA, QA * 127 // QB),
            NetTensor("output.weight", "<i2", (1, 2 * self.hidden), QB, 127),
            NetTensor("output.bias", "<i2", (1,), QA * QB, INT16_MAX),
        )

    def integer_forward(self) -> IntegerForward:
        first = FirstLayer("feature_transformer.bias", ("feature_transformer.weight",), self.activation, QA)
        output = IntegerLayer("output.weight", "output.bias", 1, (0,), QA if self.activation == "screlu" else 1)
        return IntegerForward(first, (output,), score_multiply=self.score_scale, score_divide=QA * QB)

    def meaning(self) -> NetMeaning:
        one = buckets([0] * PIECE_COUNTS, 1)
        parameters = first_layer(self.feature_set, self.hidden, self.activation)
        parameters |= stacked("output", "output", first_activations(self.hidden, self.activation), OUTPUT, one)
        return NetMeaning(parameters, {"activation": self.activation, "score_scale": str(self.score_scale)})


class SimpleModel(StackedModel):
    """Parameters: feature_transformer.{weight [F, hidden], bias [hidden]},
    output.{weight [1, 2 · hidden], bias [1]}."""

    first_is_plain = True

    def __init__(self, net: Simple) -> None:
        super().__init__(net)
        self.feature_transformer = transformer(net.feature_set, net.hidden, net.activation)
        self.output = nn.Linear(2 * net.hidden, 1, device=None, dtype=torch.float32)
        self.stacks = LayerStacks(2 * net.hidden, 1)
        nn.init.zeros_(self.output.bias)

    def buckets(self, batch: Batch) -> Tensor:
        return torch.zeros_like(batch.piece_count, dtype=torch.int64)

    def linears(self) -> Sequence[nn.Module]:
        return (self.output,)
