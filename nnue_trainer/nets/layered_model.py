"""The float models of a layered net (nets/layered.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch
from nnue_trainer.data.piece_weights import weights_of_features
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerStacks, StackLayer
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.nets.base import INT16_MAX, StackedModel, VirtualRows, transformer, virtual_rows
from nnue_trainer.nets.layered_plan import Step
from nnue_trainer.nets.layered_sections import Layer
from nnue_trainer.nets.rounded_forward import log_odds, one_side, stack_entries

if TYPE_CHECKING:
    from nnue_trainer.nets.layered import Layered

# No clip of floats.
_MOST_FLOAT = 1e38


class LayeredModel(StackedModel):
    """The float model. Its parameters, all fp32, are feature_transformer.weight [F, hidden], feature_transformer.bias
    [hidden] and, with PSQT, feature_transformer.psqt [F, stacks]; and for each of layers.N and for output, weight
    [stacks, out, in] and bias [stacks, out]."""

    stack_table: Tensor
    feature_weights: Tensor | None

    def __init__(self, net: Layered) -> None:
        super().__init__(net)
        self.layered, self.plan = net, net.plan()
        layers = [
            _stack_layer(layer, step, self.plan.output)
            for layer, step in zip(net.layers, self.plan.layers, strict=True)
        ]
        self.stacks = LayerStacks(self.plan.steps[0].inputs, net.num_stacks, tuple(layers))
        self.feature_transformer = transformer(
            net.feature_set,
            net.hidden,
            net.activation,
            bound=self.plan.first_clip / net.quantisation.first.scale,
            psqt_buckets=net.num_stacks if net.psqt else 0,
        )
        self.layers = nn.ModuleList(
            StackedLinear(net.num_stacks, step.inputs, step.outputs) for step in self.plan.layers
        )
        self.output = StackedLinear(net.num_stacks, self.plan.output.inputs, self.plan.output.outputs)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("stack_table", torch.tensor(net.output_buckets.stacks, device=None), persistent=False)
        weights = net.output_buckets.piece_weights
        found = torch.from_numpy(np.append(weights_of_features(net.feature_set, weights), 0)) if weights else None
        self.register_buffer("feature_weights", found, persistent=False)

    def buckets(self, batch: Batch) -> Tensor:
        return self.stack_table[stack_entries(batch, self.feature_weights, len(self.stack_table))]

    def first_outputs(self, batch: Batch) -> FirstOutputs:
        bucket = self.buckets_of(batch)
        x, psqt = self.feature_transformer.of_batch(batch, bucket)
        return FirstOutputs(one_side(x, batch, self.layered.perspectives), psqt, bucket)

    @property
    def first_is_plain(self) -> bool:
        return self.layered.perspectives == "both"

    def linears(self) -> Sequence[nn.Module]:
        return *self.layers, self.output

    def factorised(self) -> dict[str, list[VirtualRows]]:
        net, shared = self.layered, {}
        if net.factorised and (rows := virtual_rows(net.feature_set)):
            shared = {f"feature_transformer.{name}": rows for name in (("weight", "psqt") if net.psqt else ("weight",))}
        if net.shared and net.num_stacks > 1:
            first = "layers.0" if net.layers else "output"
            shared |= {f"{first}.{part}": [VirtualRows(0, net.num_stacks, 1)] for part in ("weight", "bias")}
        return shared


class WhiteModel(LayeredModel):
    """The float model of a net with White's view only: its output is White's."""

    def forward(self, batch: Batch) -> Tensor:
        output = super().forward(batch)
        if self.rounded is not None:
            return output
        return torch.where(batch.black_to_move != 0, -output, output)


class WdlModel(LayeredModel):
    """The float model of a net with a head of win, draw and loss. `output` has three outputs: the logits."""

    def outputs(self, batch: Batch) -> Tensor:
        if self.rounded is not None:
            logits = self.rounded.outputs(self, batch)
        else:
            logits = self.stacks.outputs(self.first_outputs(batch), self.linears())
        if self.layered.perspectives == "white":  # Black's loss is White's win
            logits = torch.where(batch.black_to_move.unsqueeze(1) != 0, logits.flip(1), logits)
        return logits

    def score_of(self, outputs: Tensor) -> Tensor:
        return log_odds(outputs)

    def forward(self, batch: Batch) -> Tensor:
        if self.rounded is not None:
            return self.rounded(self, batch)
        return self.score_of(self.outputs(batch).float())

    def stacks_in_use(self) -> None:
        """There are no operators for several outputs."""


def _stack_layer(layer: Layer, step: Step, output: Step) -> StackLayer:
    """The float model's description of a layer. All inputs of the output layer must have one scale, that of the last
    layer's activations; `kept`, the output scale, converts the activations of an earlier layer to it."""
    end, kept = layer.outputs - 1, step.activated_one / output.unit if layer.to_output else None
    plus, minus = {"none": (None, None), "last": (end, None), "difference": (end - 1, end)}[layer.skip]
    low, high = -(INT16_MAX + 1.0), float(INT16_MAX if step.activation == "none" else step.clip)
    if step.is_float and step.activation == "none":
        low, high = -_MOST_FLOAT, _MOST_FLOAT
    return StackLayer(
        layer.outputs, layer.activated, layer.activation, high / step.clamped_one, low / step.clamped_one, step.square,
        plus, minus, kept,
    )  # fmt: skip
