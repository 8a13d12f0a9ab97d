"""The float model of a Stockfish net."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch
from nnue_trainer.data.features import FeaturePart
from nnue_trainer.data.features import feature_set as find_feature_set
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.nets.base import Net, StackedModel, VirtualRows, transformer, virtual_rows
from nnue_trainer.nets.stockfish_design import MATERIAL, SCORE_SCALE, SQUARES, Design


def material_psqt(part: FeaturePart) -> Tensor:
    """PSQT rows of a piece-square part that count material: fp32 [num_features, 1], own pieces positive, enemy pieces
    negative."""
    planes = torch.zeros(part.bucket_size // SQUARES, dtype=torch.float32, device="cpu")
    values = [sign * value for value in MATERIAL for sign in (1, -1)]
    planes[: 2 * len(MATERIAL)] = torch.tensor(values, dtype=torch.float32, device="cpu") / SCORE_SCALE
    rows = planes.repeat_interleave(SQUARES).repeat(part.num_features // part.bucket_size)
    return rows.unsqueeze(1)


class StockfishModel(StackedModel):
    """Parameters: feature_transformer.{weight [F, l1], bias [l1], psqt [F, stacks]}; fc0, fc1, fc2, each {weight
    [stacks, out, in], bias [stacks, out]}."""

    first_is_plain = True
    stack_table: Tensor

    def __init__(self, net: Net, facts: Design, l1: int) -> None:
        super().__init__(net)
        d = self.facts = facts
        features = find_feature_set(net.feature_set)
        self.features = features
        self.feature_transformer = transformer(
            features,
            l1,
            "pairwise" if d.pairwise else "crelu",
            bound=d.clip / d.transformer_one,
            product_scale=d.transformer_one**2 / 2**d.product_shift / d.one,
            psqt_buckets=d.stacks if d.psqt else 0,
        )
        (in0, out0), (in1, out1), (in2, out2) = d.layers(l1)
        self.fc0 = StackedLinear(d.stacks, in0, out0)
        self.fc1 = StackedLinear(d.stacks, in1, out1)
        self.fc2 = StackedLinear(d.stacks, in2, out2)
        self.stacks = d.layer_stacks(l1)
        if d.queens or d.table:
            self.register_buffer("stack_table", torch.tensor(d.stack_table, device=None), persistent=False)
        with torch.no_grad():
            if self.feature_transformer.psqt is not None:
                for part in features.parts:
                    if part.bucket_size:
                        rows = self.feature_transformer.psqt[part.first_feature :][: part.num_features]
                        rows.copy_(material_psqt(part))
            nn.init.zeros_(self.fc2.bias)

    def buckets(self, batch: Batch) -> Tensor:
        if self.facts.queens or self.facts.table:
            return self.stack_table[batch.stack_entry]
        return batch.bucket if self.facts.stacks > 1 else torch.zeros_like(batch.bucket)

    def linears(self) -> Sequence[nn.Module]:
        return self.fc0, self.fc1, self.fc2

    def factorised(self) -> dict[str, list[VirtualRows]]:
        names = ["feature_transformer.weight", *(["feature_transformer.psqt"] if self.facts.psqt else [])]
        shared = {name: rows for name in names if (rows := virtual_rows(self.features))}
        if self.facts.shared_fc0:
            shared |= {f"fc0.{part}": [VirtualRows(0, self.facts.stacks, 1)] for part in ("weight", "bias")}
        return shared
