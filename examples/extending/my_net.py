"""Your own net: king buckets, a first layer for both perspectives, a second layer, one output."""

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from nnue_trainer.data import Batch, feature_set, piece_square_set
from nnue_trainer.nets import (
    FirstLayer,
    IntegerForward,
    IntegerLayer,
    Net,
    NetTensor,
    NnueModel,
    QatConfig,
    VirtualRows,
    transformer,
    virtual_rows,
)
from nnue_trainer.schema import section

QA, QB = 255, 64  # integer steps in 1.0: of activations, and of the weights after the first layer
KINGS = [0, 0, 1, 1, 2, 2, 2, 2, *[3] * 24]  # files a–d, rank by rank: the board is mirrored


@section
class TwoLayers(Net):
    """768 by 4 king buckets, mirrored → hidden, for both perspectives → second → 1, clipped to [0, 1] in between."""

    hidden: Annotated[int, Field(ge=8, le=4096, multiple_of=8)] = 64
    """outputs of the first layer per perspective, a multiple of 8"""
    second: Annotated[int, Field(ge=1, le=256)] = 16
    """outputs of the second layer"""
    quantisation: QatConfig = Field(default_factory=QatConfig)

    feature_set = piece_square_set(kings=KINGS, mirror="a-d")
    score_scale = 400.0

    def model(self) -> NnueModel:
        return TwoLayersModel(self)

    def tensors(self) -> tuple[NetTensor, ...]:
        features = feature_set(self.feature_set).num_features
        return (
            NetTensor("first.weight", "<i2", (features, self.hidden), QA, 2 * QA),  # 32 pieces fit 16 bits
            NetTensor("first.bias", "<i2", (self.hidden,), QA, 2 * QA),
            NetTensor("second.weight", "<i1", (self.second, 2 * self.hidden), QB, 127),
            NetTensor("second.bias", "<i4", (self.second,), QA * QB, 2**31 - 1),
            NetTensor("output.weight", "<i1", (1, self.second), QB, 127),
            NetTensor("output.bias", "<i4", (1,), QA * QB, 2**31 - 1),
        )

    def integer_forward(self) -> IntegerForward:
        first = FirstLayer("first.bias", ("first.weight",), "crelu", clip=QA)
        second = IntegerLayer(
            "second.weight", "second.bias", self.second, inputs=(0,), activated=self.second, shift=6, clip=QA
        )
        output = IntegerLayer("output.weight", "output.bias", 1, inputs=(1,))
        return IntegerForward(first, (second, output), score_multiply=400, score_divide=QA * QB)


class TwoLayersModel(NnueModel):
    def __init__(self, net: TwoLayers) -> None:
        super().__init__(net)
        self.first = transformer(net.feature_set, net.hidden, "crelu")
        self.second = nn.Linear(2 * net.hidden, net.second)
        self.output = nn.Linear(net.second, 1)

    def forward(self, batch: Batch) -> Tensor:
        if self.rounded is not None:  # quantisation-aware training, and `nnue check`
            return self.rounded(self, batch)
        x, _ = self.first.of_batch(batch)  # fp32 [B, 2 · hidden], side to move first
        y: Tensor = self.output(self.second(x).clamp(0, 1))
        return y.squeeze(1)

    def factorised(self) -> dict[str, list[VirtualRows]]:
        return {"first.weight": virtual_rows(self.feature_set)}
