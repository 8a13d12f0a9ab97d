"""The layered net: any feature sets → a first layer for both perspectives → any number of layers → 1.

A recipe states the parts: feature sets (also with your own king buckets), width and activation of the first layer,
output buckets, the layers, the head, and the quantisation of each. One plan (layered_plan.py) is derived from
the recipe. It decides the float model, the integers, their limits and the integer forward.

docs/layered-nets.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch
from nnue_trainer.data.features import feature_set as find_feature_set
from nnue_trainer.data.piece_weights import weights_of_features
from nnue_trainer.errors import UserError
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerStacks
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.nets.base import (
    INT16_MAX,
    INT32_MAX,
    NETS,
    Net,
    NetTensor,
    StackedModel,
    VirtualRows,
    transformer,
    virtual_rows,
)
from nnue_trainer.nets.integer_forward import (
    FirstLayer,
    IntegerForward,
    IntegerLayer,
    Skip,
)
from nnue_trainer.nets.layered_plan import Plan, Step, plan_of
from nnue_trainer.nets.layered_sections import (
    LIMITS,
    Input,
    Layer,
    OutputQuantisation,
    Quantisation,
)
from nnue_trainer.nets.meaning import (
    OUTPUT,
    OUTPUTS_OF_WDL,
    Key,
    NetMeaning,
    activations,
    buckets,
    first_activations,
    first_layer,
    layer_outputs,
    stacked,
)
from nnue_trainer.nets.output_buckets import OutputBuckets
from nnue_trainer.nets.rounded_forward import log_odds, one_side, stack_entries
from nnue_trainer.ops.reference import StackLayer
from nnue_trainer.schema import section

# The usual bound of 16-bit weights. With it, the sum of 32 weights at scale 255 stays within 16 bits, and so does the
# product of an activation at scale 255 and a weight at scale 64.
LARGEST_WEIGHT = 127 / 64

DTYPES = {"i8": "<i1", "i16": "<i2", "i32": "<i4", "f32": "<f4"}


def _weight(
    name: str,
    kind: str,
    shape: tuple[int, ...],
    scale: int,
    stated: int | None,
    option: str,
    steps: float | None = None,
    **source: Any,
) -> NetTensor:
    """Integer weights, i8 or i16, with the `scale` of the recipe, whose limit it states under `option`, or does not
    state. `steps`: the exact number of integer steps in 1.0, where that is not `scale`."""
    limit = LIMITS[kind]
    if stated is not None:
        limit = min(limit, stated)
    elif kind == "i16":
        limit = min(limit, math.floor(LARGEST_WEIGHT * scale))
    can_grow = option if limit < LIMITS[kind] else ""
    return NetTensor(name, DTYPES[kind], shape, steps or scale, limit, limit_option=can_grow, **source)


@NETS.register("layered")
@section
class Layered(Net):
    """Any feature sets → a first layer for both perspectives → any number of layers, chosen by output bucket → 1."""

    inputs: Annotated[
        list[Input], BeforeValidator(lambda value: [value] if isinstance(value, str | dict) else value)
    ] = Field(default=["Chess768"], min_length=1)
    """feature sets, side by side. Each is the name of a set, a sum of names (A+B), a section that defines a
    piece-square set with your own king buckets, or your own set: a name (my_features.py:MySet) or a section
    with a kind"""
    factorised: bool = True
    """a factoriser: all king buckets also share trained weights, which are added to the weights of each bucket; the
    exported net holds the sums, so it has the same size"""
    hidden: int = Field(default=256, ge=8, le=16384, multiple_of=8)
    """number of outputs of the first layer for each perspective: a multiple of 8, or of 16 with pairwise"""
    activation: Literal["crelu", "screlu", "pairwise"] = "screlu"
    """activation of the first layer. crelu: clamp to [0, 1]; screlu: clamp to [0, 1] and square; pairwise: clamp to
    [0, 1] and multiply the two halves of the outputs"""
    perspectives: Literal["both", "mover", "white"] = "both"
    """perspectives of the first layer. both: the side to move's, then the other side's; mover: only the side to move's;
    white: only White's, and the net's output is from White's view"""
    psqt: bool = False
    """PSQT columns, one for each output bucket: half the difference of their sums for the two perspectives is added
    directly to the net's output"""
    output_buckets: OutputBuckets = Field(default_factory=OutputBuckets)
    layers: list[Layer] = Field(default_factory=list, max_length=8)
    """layers between the first layer and the output layer, in order; empty: the output layer follows the first layer"""
    shared: bool = False
    """all output buckets also share trained weights of the layer after the first, which are added to the weights of
    each bucket; the exported net holds the sums"""
    quantisation: Quantisation = Field(default_factory=Quantisation)
    head: Literal["value", "wdl"] = "value"
    """outputs of the net. value: the score; wdl: three logits, of loss, draw and win, whose softmax are their
    probabilities. The score is then score_scale · ln(E / (1 − E)) of the expected points E = win + draw / 2"""
    score_scale: int = Field(default=400, ge=1, le=10000)
    """engine units for 1.0 of the net's output"""

    @model_validator(mode="after")
    def _check(self) -> Layered:
        try:
            find_feature_set(self.feature_set)
        except UserError as error:
            raise ValueError(str(error)) from None
        first = self.quantisation.first
        if self.activation == "pairwise" and self.hidden % 16:
            raise ValueError(f"hidden: found {self.hidden}, expected a multiple of 16 for pairwise")
        if first.product_shift and self.activation == "crelu":
            raise ValueError(
                f"quantisation.first.product_shift: found {first.product_shift}, but crelu makes no products; remove it"
            )
        plan, largest = self.plan(), self.plan().first_largest
        most = INT16_MAX if first.product_shift else INT16_MAX**2
        if largest > most:
            raise ValueError(
                f"products of the first layer may reach {largest}, expected at most {most}; raise "
                "quantisation.first.product_shift"
            )
        if self.psqt and self.perspectives != "both":
            raise ValueError(f"psqt: found perspectives: {self.perspectives}, expected perspectives: both")
        if self.psqt and plan.output.is_float:
            raise ValueError("psqt: found layers of floats, expected layers of integers")
        if self.head == "wdl" and (self.psqt or any(layer.skip != "none" for layer in self.layers)):
            what = "psqt" if self.psqt else "a skip connection"
            raise ValueError(f"head: found wdl with {what}, expected neither psqt nor skip connections")
        self._check_floats()
        if self.output_buckets.piece_weights:
            try:
                weights_of_features(self.feature_set, self.output_buckets.piece_weights)
            except UserError as error:
                raise ValueError(f"output_buckets: {error}") from None
        for number, step in enumerate(plan.steps):
            what = f"layers.{number}" if number < len(self.layers) else "quantisation.output"
            if step.is_float:
                break
            if step.one < 1 or (number < len(self.layers) and (step.clip < 1 or step.activated_one < 1)):
                raise ValueError(
                    f"{what}: 1.0 of its outputs is less than one integer step; raise scale or lower shift"
                )
            largest = step.largest
            allowed = INT16_MAX + (step.activation == "none")
            if number < len(self.layers) and largest > allowed:
                raise ValueError(f"{what}: activations may reach {largest}, expected at most {allowed}; raise shift")
        return self

    def _check_floats(self) -> None:
        """All layers behind floats are floats; so are all inputs of a layer."""
        floats = False
        for number, layer in enumerate(self.layers):
            if floats and layer.type != "f32":
                raise ValueError(f"layers.{number}.type: found {layer.type} after a float layer, expected f32")
            floats |= layer.is_float
            if layer.to_output and not layer.is_float and self.plan().output.is_float:
                raise ValueError(f"layers.{number}.to_output: found integers, but the output layer has floats")
        out = self.quantisation.output
        if floats and out.type != "f32":
            raise ValueError(f"quantisation.output.type: found {out.type} after a float layer, expected f32")

    # ---- what every net states ----

    @property
    def architecture(self) -> dict[str, Any]:
        """`Net.architecture` without limits, states and choices that have their default: the description of a net that
        uses none of them never changes."""
        data = super().architecture
        quantisation = data.get("quantisation", {})
        for part in (*data["layers"], *(quantisation[name] for name in ("first", "output") if name in quantisation)):
            if part.get("limit", 0) is None:
                del part["limit"]
        for part in data["layers"]:
            if part.get("bias_type") == "i32":
                del part["bias_type"]
        for name, usual in (("perspectives", "both"), ("head", "value")):
            if data.get(name) == usual:
                del data[name]
        for name in ("weights", "squares"):
            if not data.get("output_buckets", {}).get(name, True):
                del data["output_buckets"][name]
        for part in data["inputs"]:
            for key, default in (("states", []), ("virtual", "both")):
                if isinstance(part, dict) and part.get(key) == default:
                    del part[key]
        return data

    @property
    def feature_set(self) -> str:
        """The name of the whole feature set. Parts with king buckets come first, because the fused operators need
        that."""
        names = [part if isinstance(part, str) else part.name for part in self.inputs]
        parts = [part for name in names for part in find_feature_set(name).parts]
        return "+".join(part.name for part in sorted(parts, key=lambda part: part.bucket_size == 0))

    @property
    def num_stacks(self) -> int:
        return self.output_buckets.count

    @property
    def num_outputs(self) -> int:
        return 3 if self.head == "wdl" else 1

    def model(self) -> LayeredModel:
        if self.head == "wdl":
            return WdlModel(self)
        return LayeredModel(self) if self.perspectives != "white" else WhiteModel(self)

    def plan(self) -> Plan:
        """The layers of the integer net."""
        inputs = self.num_sides * (self.hidden // 2 if self.activation == "pairwise" else self.hidden)
        return plan_of(self.layers, self.quantisation, self.activation, inputs, self.num_outputs)

    @property
    def num_sides(self) -> int:
        """The number of perspectives."""
        return 2 if self.perspectives == "both" else 1

    # ---- the exported integers and their arithmetic ----

    def _names(self, tensor: str) -> list[str]:
        """The names of the parts of a first-layer tensor, one for each feature set: `tensor` itself if there is only
        one set, otherwise TENSOR.SET, numbered if several sets have the same short name."""
        parts = find_feature_set(self.feature_set).parts
        if len(parts) == 1:
            return [tensor]
        short = [part.short_name for part in parts]
        numbered = [
            f"{name}_{short[: index + 1].count(name)}" if short.count(name) > 1 else name
            for index, name in enumerate(short)
        ]
        return [f"{tensor}.{name}" for name in numbered]

    def tensors(self) -> Sequence[NetTensor]:
        parts, first = find_feature_set(self.feature_set).parts, self.quantisation.first
        tensors = []
        for name, part in zip(self._names("feature_transformer.weight"), parts, strict=True):
            kind = first.type if part.bucket_size else first.unbucketed_type
            tensors.append(
                _weight(
                    name,
                    kind,
                    (part.num_features, self.hidden),
                    first.scale,
                    first.limit,
                    "quantisation.first.limit",
                    parameter="feature_transformer.weight",
                    first_row=part.first_feature,
                )
            )
        bias, option = "feature_transformer.bias", "quantisation.first.limit"
        tensors.append(_weight(bias, "i16", (self.hidden,), first.scale, first.limit, option))
        if self.psqt:
            for name, part in zip(self._names("feature_transformer.psqt"), parts, strict=True):
                tensors.append(
                    NetTensor(
                        name,
                        "<i4",
                        (part.num_features, self.num_stacks),
                        self.plan().output.one,
                        INT32_MAX,
                        "feature_transformer.psqt",
                        part.first_feature,
                    )
                )
        return [*tensors, *self._layer_tensors()]

    def _layer_tensors(self) -> Iterator[NetTensor]:
        out = self.quantisation.output
        parts: list[Layer | OutputQuantisation] = [*self.layers, out]
        for number, (step, part) in enumerate(zip(self.plan().steps, parts, strict=True)):
            kind, bias, stated = part.type, part.bias_type, part.limit
            name = f"layers.{number}" if number < len(self.layers) else "output"
            shape, steps = (self.num_stacks, step.outputs), step.weight_scale
            bias = "f32" if step.is_float else bias
            option = f"{name}.limit" if number < len(self.layers) else "quantisation.output.limit"
            if kind == "f32":
                yield NetTensor(f"{name}.weight", DTYPES[kind], (*shape, step.inputs), steps, INT32_MAX)
            else:
                yield _weight(f"{name}.weight", kind, (*shape, step.inputs), part.scale, stated, option, steps)
            yield NetTensor(f"{name}.bias", DTYPES[bias], shape, step.one, LIMITS.get(bias, INT32_MAX))

    def meaning(self) -> NetMeaning:
        stacks = buckets(self.output_buckets.stacks, self.num_stacks, self.output_buckets.piece_weights)
        parameters = first_layer(self.feature_set, self.hidden, self.activation, stacks if self.psqt else None)
        facts = {"activation": self.activation, "score_scale": str(self.score_scale)}
        inputs, kept = first_activations(self.hidden, self.activation, self.perspectives), list[Key]()
        for number, layer in enumerate(self.layers):
            name = f"layers.{number}"
            outputs = layer_outputs(name, layer.outputs, layer.skipped)
            parameters |= stacked(name, name, inputs, outputs, stacks)
            inputs = activations(outputs.keys[: layer.activated], squares=layer.activation == "dual")
            facts[f"{name}.activation"] = "crelu" if layer.activation == "dual" else layer.activation
            if layer.to_output and layer is not self.layers[-1]:
                kept += inputs
        output = OUTPUTS_OF_WDL if self.head == "wdl" else OUTPUT
        return NetMeaning(parameters | stacked("output", "output", [*kept, *inputs], output, stacks), facts)

    def integer_forward(self) -> IntegerForward:
        plan, quantisation = self.plan(), self.quantisation.first
        first = FirstLayer(
            "feature_transformer.bias",
            tuple(self._names("feature_transformer.weight")),
            self.activation,
            plan.first_clip,
            quantisation.product_shift,
            psqt=tuple(self._names("feature_transformer.psqt")) if self.psqt else (),
            sides=self.perspectives,
        )
        layers, skips, kept = [], [], []
        for number, (layer, step) in enumerate(zip(self.layers, plan.layers, strict=True)):
            name, end = f"layers.{number}", step.outputs - 1
            layers.append(
                IntegerLayer(
                    f"{name}.weight",
                    f"{name}.bias",
                    step.outputs,
                    (number,),
                    step.divide,
                    layer.activated,
                    layer.activation,
                    step.shift,
                    step.square_shift,
                    step.clip,
                    step.factor,
                )
            )
            if layer.skip != "none":
                plus, minus = (end, None) if layer.skip == "last" else (end - 1, end)
                # Where the output is a float, it is 1.0 that `one` stands for.
                skips.append(Skip(number, plus, minus, plan.output.one, step.one))
            if layer.to_output and number < len(self.layers) - 1:
                kept.append(number + 1)
        output = IntegerLayer(
            "output.weight",
            "output.bias",
            self.num_outputs,
            (*kept, len(layers)),
            plan.output.divide,
            factor=plan.output.factor,
        )
        floats, wdl = plan.output.is_float, self.head == "wdl"
        return IntegerForward(
            first,
            (*layers, output),
            self.num_stacks,
            self.output_buckets.stacks,
            tuple(skips),
            multiply=self.score_scale if floats or wdl else 1,
            divide=plan.output.one if wdl else 1,
            score_multiply=1 if floats or wdl else self.score_scale,
            score_divide=1 if wdl else plan.output.one,
            head=self.head,
            piece_weights=self.output_buckets.piece_weights,
        )


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
        self.first_is_plain = net.perspectives == "both"
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
        first = super().first_outputs(batch)
        return first._replace(x=one_side(first.x, batch, self.layered.perspectives))

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
