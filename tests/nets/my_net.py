"""A user's own net, in one file: king buckets, a SCReLU layer, output buckets. docs/own-nets.md shows it."""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from nnue_trainer.data import feature_set
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.nets import Net, NetTensor, NnueModel, RawValues
from nnue_trainer.nets.base import accumulate, tdiv, transformer, virtual_rows
from nnue_trainer.schema import section

QA, QB, BUCKETS = 255, 64, 8


@section
class MyNet(Net):
    """HalfKAv2_hm → hidden → 8 output buckets."""

    hidden: Annotated[int, Field(ge=8, multiple_of=8)] = 64
    """outputs of the feature transformer per perspective"""

    feature_set = "HalfKAv2_hm"
    score_scale = 400.0
    num_stacks = BUCKETS

    def model(self) -> NnueModel:
        return MyModel(self)

    def tensors(self):
        features = feature_set(self.feature_set).num_features
        return (
            NetTensor("feature_transformer.weight", "<i2", (features, self.hidden), QA, 32767),
            NetTensor("feature_transformer.bias", "<i2", (self.hidden,), QA, 32767),
            NetTensor("output.weight", "<i1", (BUCKETS, 1, 2 * self.hidden), QB, 127),
            NetTensor("output.bias", "<i4", (BUCKETS, 1), QA * QB, 2**31 - 1),
        )

    def evaluate(self, tensors, batch):
        weights = [(0, tensors["feature_transformer.weight"])]
        sides = accumulate(batch, tensors["feature_transformer.bias"], weights)
        x = np.concatenate([np.clip(side, 0, QA) for side in sides], axis=1)
        raw = x.astype(np.int64) @ tensors["output.weight"][:, 0].astype(np.int64).T + tensors["output.bias"][:, 0]
        return RawValues(np.zeros_like(raw), raw)

    def score(self, psqt_raw, positional_raw):
        return tdiv(positional_raw * 400, QA * QB)


class MyModel(NnueModel):
    def __init__(self, net: MyNet) -> None:
        super().__init__(net)
        self.feature_transformer = transformer(net.feature_set, net.hidden, "crelu")
        self.output = StackedLinear(BUCKETS, 2 * net.hidden, 1)

    def forward(self, batch) -> torch.Tensor:
        x, _ = self.feature_transformer.of_batch(batch)
        return self.output(x, batch.bucket).squeeze(1)

    def factorised(self):
        return {"feature_transformer.weight": virtual_rows(self.feature_set)}
