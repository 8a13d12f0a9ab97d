"""The definition of a net: one small protocol that the trainer, the files, the exporter and the evaluator use.

A net is one class in one file, registered by name (`NETS`). The class is a section: its fields are the keys of a recipe
under `model`, and what checkpoints and net files carry as the architecture. Its methods give

- `model()`: the net in floating point, to train;
- `tensors()`: its integers, each with scale, limit and the range of rows of the parameter that it is made of, in the
  order of the file;
- `integer_forward()`: what an engine computes with those integers, as data that the evaluator runs. A net that does not
  fit the stages of such a description gives `evaluate()` and `score()` in Python instead;
- `layouts()`: the file layouts that it may have, for nets that other engines read. The default is the container of
  this project.

No code outside that file depends on which net it has.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nnue_trainer.base.defaults import torch_defaults
from nnue_trainer.base.foreign import returned
from nnue_trainer.data.batch import Batch, Plan, plan_of
from nnue_trainer.data.features import FeatureSet
from nnue_trainer.data.features import feature_set as find_feature_set
from nnue_trainer.data.piece_weights import weights_of_features
from nnue_trainer.errors import UserError
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerCall, LayerStacks
from nnue_trainer.modules.perspective_transformer import Activation, PerspectiveTransformer
from nnue_trainer.nets.integer_forward import INT16_MAX as INT16_MAX
from nnue_trainer.nets.integer_forward import IntegerForward, RawValues, reference
from nnue_trainer.nets.integer_forward import accumulate as accumulate  # for nets with arithmetic in Python
from nnue_trainer.nets.integer_forward import tdiv as tdiv
from nnue_trainer.nets.meaning import NetMeaning
from nnue_trainer.nets.net_tensor import NetTensor as NetTensor
from nnue_trainer.nets.rounded_forward import QatConfig, RoundedForward
from nnue_trainer.nnue_file.layout import FileLayout, own_layout
from nnue_trainer.registry import Registry
from nnue_trainer.schema import section, to_data, validate

INT8_MAX = 2**7 - 1
INT32_MAX = 2**31 - 1


class WeightBound(NamedTuple):
    """The closed range `[low, high]` in which `rows` rows of a parameter, starting at `first_row`, must stay so that
    the net can be exported. `rows` None means all the following rows. The trainer clips the rows to this range."""

    name: str
    parameter: nn.Parameter
    low: float
    high: float
    first_row: int = 0
    rows: int | None = None

    @property
    def end(self) -> int:
        """The row after its last one. A scalar has one row."""
        if self.rows is not None:
            return self.first_row + self.rows
        return len(self.parameter) if self.parameter.dim() else 1

    def covers_only_some_of(self, shared: VirtualRows) -> bool:
        """Whether the bound covers some, but not all, of these rows."""
        return 0 < min(self.end, shared.end) - max(self.first_row, shared.first) < shared.rows


class VirtualRows(NamedTuple):
    """A range of rows of a parameter that shares virtual rows: row `first + r`, r < `rows`, belongs to virtual row
    r mod `virtual`. `rows` is a multiple of `virtual`."""

    first: int
    rows: int
    virtual: int

    @property
    def end(self) -> int:
        """The row after its last one."""
        return self.first + self.rows


class Net(ABC):
    """A net. Subclasses are sections, registered in `NETS`."""

    kind: ClassVar[str]

    if TYPE_CHECKING:
        # Nets state these as fields of their section, or as properties.
        @property
        def feature_set(self) -> str:
            """Input features of the float model, a set or a sum "A+B" (`nnue_trainer.data`)."""

        @property
        def score_scale(self) -> float:
            """Engine units in 1.0 of the float model's output."""

    @abstractmethod
    def model(self) -> NnueModel:
        """The net in floating point, freshly initialised (torch's global generator)."""

    @abstractmethod
    def tensors(self) -> Sequence[NetTensor]:
        """The integers, in the order of the file."""

    def integer_forward(self) -> IntegerForward | None:
        """The integer arithmetic of an engine, as data. None for a net that defines `evaluate` and `score` in Python;
        such a net is evaluated slowly."""
        return None

    def _described(self) -> IntegerForward:
        forward = self.integer_forward()
        if forward is None:
            raise NotImplementedError(
                f"{type(self).__name__}: found neither integer_forward() nor evaluate() and score(), expected one of "
                "them (docs/own-nets.md)"
            )
        return forward

    def evaluate(self, tensors: Mapping[str, np.ndarray], batch: Batch) -> RawValues:
        """The integer arithmetic of an engine, in NumPy. `tensors` are those of `tensors()`, by name; the index rows
        of `batch` are of `integer_feature_set`. `export.evaluate` computes the same, and faster."""
        return reference(self._described(), tensors, batch)

    def score(self, psqt_raw: np.ndarray, positional_raw: np.ndarray) -> np.ndarray:
        """Engine units, side to move's view, of raw values int64."""
        return self._described().score(psqt_raw, positional_raw)

    @property
    def num_outputs(self) -> int:
        """How many outputs `NnueModel.outputs` gives the loss."""
        return 1

    @property
    def training_only(self) -> tuple[str, ...]:
        """Prefixes of parameters that are trained, but are not part of the net: for a further output,
        for example. They are in checkpoints and not in net files."""
        return ()

    @property
    def qat_config(self) -> QatConfig:
        """Whether training computes as the engine will: the field `quantisation` of a net that can."""
        found = getattr(self, "quantisation", None)
        return found if isinstance(found, QatConfig) else QatConfig()

    @property
    def name(self) -> str:
        """The name of nets of this architecture."""
        return self.kind

    @property
    def integer_feature_set(self) -> str:
        """The features of the integers, where engines count them otherwise than the float model does."""
        return self.feature_set

    @property
    def num_stacks(self) -> int:
        """How many layer stacks there are; `bucket` chooses among them."""
        return 1

    def bucket(self, batch: Batch) -> np.ndarray:
        """int64 [B]: the stack of each position, as the integer forward defines it. Without one, the number of
        pieces chooses among several stacks, as in Stockfish."""
        forward = self.integer_forward()
        if forward is not None:
            weights = forward.piece_weights
            return forward.stack(batch, weights_of_features(self.integer_feature_set, weights) if weights else None)
        return batch.bucket.numpy() if self.num_stacks > 1 else np.zeros(len(batch), np.int64)

    @property
    def accumulator_limit(self) -> int:
        """The largest magnitude of an accumulator that the engine holds without wrapping around."""
        return INT16_MAX

    @property
    def unreadable(self) -> str | None:
        """The reason why no engine reads this net, in words that follow "architecture."; None if an engine reads it.
        Such a net is exported only on request."""
        return None

    @property
    def engines(self) -> str:
        """The engines that read files of this net, as a sentence for messages."""
        return f"no Stockfish reads nets of kind {self.kind}"

    @classmethod
    def of_other_sizes(cls, version: int, transformer_hash: int) -> Iterable[Net]:
        """The nets of this kind whose files may have this version and this hash after the description, with the sizes
        that follow from the hash: for the message about a file whose net is none of `known()`."""
        return ()

    @property
    def name_with_sizes(self) -> str:
        """A name that `named` reads, with all sizes that a net of this kind can have other than usual: the example in
        the message about a file whose net is none of `known()`."""
        return self.name

    @classmethod
    def named(cls, name: str) -> Net | None:
        """The net of this kind that has this name and is none of `known()`."""
        return None

    def layouts(self) -> Sequence[FileLayout]:
        """The files that the net may lie in; the first is the one that is written."""
        own = own_layout([tensor.piece() for tensor in self.tensors()])
        return [own, own.in_zlib()]

    def header(self, **options: Any) -> str | None:
        """The sizes of the net as a C++ header for an engine of your own, which reads the raw file; None: `nnue export`
        writes that of examples/engine (`engine_header`), whose arguments these are. `skip` and `align` are given only
        where the format has other values than their defaults."""
        return None

    def rust(self, **options: Any) -> str | None:
        """`header` as a Rust file (`engine_rust`)."""
        return None

    def meaning(self) -> NetMeaning | None:
        """The meaning of the parameters of `model()`, so that weights of other nets can start this net, and its
        weights can start others. None: only weights of the same architecture fit."""
        return None

    @classmethod
    def known(cls) -> Iterable[Net]:
        """Nets of this class that may lie in files without a record of the architecture."""
        return ()

    @property
    def architecture(self) -> dict[str, Any]:
        """The net as plain JSON data; `parse` makes it again. How it is trained (`qat_config`) is not part of it."""
        data = {"kind": self.kind, **to_data(self)}
        if self.qat_config is getattr(self, "quantisation", None):
            rest = {key: value for key, value in data.pop("quantisation").items() if key not in to_data(QatConfig())}
            data |= {"quantisation": rest} if rest else {}
        return data


class NnueModel(nn.Module, ABC):
    """A net in floating point.

    `feature_set` is the name of the index rows it takes (`nnue_trainer.data`); `score_scale` the number of engine units
    in one unit of output (600 for Stockfish nets, 400 for simple ones).
    """

    feature_set: str
    score_scale: float
    rounded: RoundedForward | None
    """the forward pass with the engine's rounding, while `forward` is to compute that"""

    def __init__(self, net: Net | None = None) -> None:
        """`net` is the section that the model is made from. A model of no registered net, which trains but cannot be
        exported, overrides `architecture` and `weight_bounds` instead."""
        super().__init__()
        self.net = net
        self.rounded = None
        if net is not None:
            self.feature_set = net.feature_set
            self.score_scale = float(net.score_scale)

    @property
    def architecture(self) -> dict[str, Any]:
        """The architecture as plain JSON data; `nets.build` makes the same model from it."""
        assert self.net is not None
        return self.net.architecture

    def layers_are_fused(self, device: torch.device) -> bool:
        """Whether operators compute all layers after the feature transformer and the loss on this device, in fp32
        whatever their inputs are."""
        return False

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """Output fp32 [B] for the side to move; `score_scale ·` output is the engine's score.

        While `self.rounded` is set, the output is `self.rounded(self, batch)`."""

    @property
    def num_outputs(self) -> int:
        """The number of outputs of the net, n."""
        return 1 if self.net is None else self.net.num_outputs

    def outputs(self, batch: Batch) -> Tensor:
        """The outputs for a loss that reads several (`Loss.reads`): those of `forward` for a net with one output,
        otherwise fp32 [B, num_outputs], from which `score_of` computes the output of `forward`."""
        output: Tensor = self(batch)
        return output

    def score_of(self, outputs: Tensor) -> Tensor:
        """The output of `forward`, fp32 [B], from several `outputs` [B, num_outputs]. By default the first of them."""
        return outputs[:, 0]

    def prepare(self, batch: Batch) -> Batch:
        """The batch with everything that the forward pass needs and that depends only on the batch: on CUDA the plans
        of the feature transformers, and which of their rows it has. Training does this for the next batch while the
        step of this one runs."""
        dtype = None if self.rounded is None else self.rounded.weight_dtype(self)
        plans = (
            plan
            for module in self.modules()
            if isinstance(module, PerspectiveTransformer)
            for plan in (module.plan(batch, dtype), module.marks(batch))
        )
        return replace(batch, plans=tuple(plan for plan in plans if plan is not None))

    def rounded_forward(self) -> RoundedForward:
        """The forward pass with the engine's rounding, for this model on its current device. UserError for a net that
        does not define it."""
        try:
            if self.net is None:
                raise ValueError("the model belongs to no net in NETS")
            net = self.net
            return RoundedForward(net.integer_forward(), net.tensors(), net.integer_feature_set, net.score_scale, self)
        except ValueError as error:
            name = type(self).__name__ if self.net is None else self.net.name
            raise UserError(f"{name}: quantisation-aware training is not possible: {error}") from None

    def set_rounding(self, on: bool) -> None:
        """Sets whether `forward` computes as the engine does. UserError in the same cases as `rounded_forward`."""
        if on != (self.rounded is not None):
            self.rounded = self.rounded_forward() if on else None

    @contextmanager
    def rounding(self, on: bool) -> Iterator[None]:
        """Calls `set_rounding`, and restores the previous state at the end."""
        before = self.rounded
        self.set_rounding(on)
        try:
            yield
        finally:
            self.rounded = before

    def weight_bounds(self) -> Iterator[WeightBound]:
        """Rows of parameters with a limited range: by default the limits of the net's integers."""
        parameters = dict(self.named_parameters())
        for tensor in self.net.tensors() if self.net is not None else ():
            if tensor.limit < INT32_MAX:  # nothing real comes near a limit of 32 bits
                name, limit = tensor.source_parameter, tensor.limit / tensor.scale
                # A rank may have fewer of them (nnue_trainer.training.parallel).
                whole = tensor.source_shape[0] >= parameters[name].shape[0]
                rows = None if whole else tensor.source_shape[0]
                yield WeightBound(name, parameters[name], -limit, limit, tensor.first_row, rows)

    def covered_gradients(self) -> frozenset[str]:
        """Names of parameters whose gradients hold no term that is missing from the gradient of another parameter.

        The weight of a feature transformer is such a parameter: its gradient is made of row gradients, and the
        gradient of the bias contains all of them. So the non-finite guard need not read the largest gradient of all.
        """
        named = self.named_modules()
        return frozenset(f"{name}.weight" for name, module in named if isinstance(module, PerspectiveTransformer))

    def factorised(self) -> dict[str, list[VirtualRows]]:
        """Ranges of rows of parameters that share virtual rows, by parameter.

        The virtual rows are never part of the forward pass: the optimiser carries them as extra moments and adds their
        update to every row that shares them, which is the same training (the gradient of a virtual row is the sum over
        its rows) at no cost in the forward.
        """
        return {}


class StackedModel(NnueModel):
    """A net of a first layer and of layers after it, with one set of weights per stack."""

    stacks: LayerStacks
    feature_transformer: PerspectiveTransformer
    first_is_plain: bool = False
    """whether `first_outputs` gives the outputs of `first_layer()` as they are, its PSQT part for the stack of each
    position. Then training may call the operators of the layers itself; otherwise it uses torch's autograd"""

    @abstractmethod
    def buckets(self, batch: Batch) -> Tensor:
        """The stack of each position, int64 [B]."""

    def buckets_of(self, batch: Batch) -> Tensor:
        """The stack of each position, int64 [B], as the net's outputs are computed now: from `buckets`, or from the
        engine's table while `forward` is to round. Not computed again for a batch that was prepared."""
        found = plan_of(batch.white, batch.plans, self._buckets_key)
        if found is not None:
            return found.data  # type: ignore[no-any-return]
        return self.buckets(batch) if self.rounded is None else self.rounded.buckets(batch)

    @property
    def _buckets_key(self) -> tuple[str, bool]:
        return "buckets", self.rounded is not None

    def first_outputs(self, batch: Batch) -> FirstOutputs:
        """The output of the first layer, by default that of `feature_transformer`."""
        bucket = self.buckets_of(batch)
        x, psqt = self.feature_transformer.of_batch(batch, bucket)
        return FirstOutputs(x, psqt, bucket)

    @abstractmethod
    def linears(self) -> Sequence[nn.Module]:
        """The other layers, as `LayerStacks.forward` takes them."""

    def first_layer(self) -> PerspectiveTransformer | None:
        """The feature transformer, if `first_outputs` gives its activated vector as it is, and `linears()[0]` reads
        that and nothing else: then each of several GPUs may have some of its columns. None for any other net."""
        found = [module for module in self.modules() if isinstance(module, PerspectiveTransformer)]
        return found[0] if len(found) == 1 and found[0].num_outputs == self.stacks.inputs else None

    def layers_are_fused(self, device: torch.device) -> bool:
        return type(self).forward is StackedModel.forward and self.stacks.may_be_fused(device)

    def forward(self, batch: Batch) -> Tensor:
        if self.rounded is not None:
            return self.rounded(self, batch)
        return self.stacks.forward(self.first_outputs(batch), self.linears(), self.stacks.order_of(batch))

    def prepare(self, batch: Batch) -> Batch:
        batch, stacks = super().prepare(batch), self.stacks_in_use()
        if stacks is None or not stacks.may_be_fused(batch.white.device):
            return batch
        buckets = self.buckets_of(batch)
        plans = Plan(self._buckets_key, buckets, batch.white), stacks.plan(batch, buckets)
        return replace(batch, plans=(*batch.plans, *plans))

    def output_of(self, first: FirstOutputs) -> Tensor:
        """The net's output, fp32 [B], from that of the first layer, in torch's operators."""
        if self.rounded is not None:
            return self.rounded.output_of(self, first)
        return self.stacks.outputs(first, self.linears()).squeeze(1)

    def layers_for(self, bucket: Tensor, order: Tensor | None = None) -> LayerCall:
        """The layers after the first as `forward` computes them, for positions with these stacks, in two parts
        (`LayerCall.sums`). `order`: `LayerStacks.order` of them, if there is one. ValueError if the net cannot be
        computed in two parts."""
        if self.rounded is not None:
            return self.rounded.layers_for(self, bucket, order)
        return self.stacks.call(self.linears(), bucket, order)

    def first_of(self, batch: Batch) -> FirstOutputs:
        """The output of the first layer as `forward` computes it now, rounded or not."""
        return self.first_outputs(batch) if self.rounded is None else self.rounded.first_outputs(self, batch)

    def stacks_in_use(self) -> LayerStacks | None:
        """The layers that the operators may compute: those of the engine's integers while `forward` is to round."""
        return self.stacks if self.rounded is None else self.rounded.stacks


def _net() -> type[Net]:
    return Net


NETS: Registry[Net] = Registry("nnue_trainer.nets", _net, what="net")
"""All nets: `kind` in a recipe's `model`."""


@section
class _Carrier:
    architecture: Annotated[Net, NETS]


def parse(data: Mapping[str, Any], where: str) -> Net:
    """The net that plain JSON `data` describes. UserError names `where`, the key, and the values found and expected.

    Never imports a file: a class from outside is found only if `--plugin` or a recipe brought it in."""
    return validate(_Carrier, {"architecture": dict(data)}, lambda _: where).architecture


def build(architecture: Mapping[str, Any] | Net, device: torch.device | str = "cpu") -> NnueModel:
    """A freshly initialised model (torch's global generator), fp32 on `device`, whatever torch's defaults are.
    UserError names the wrong key of plain data."""
    net = parse(architecture, "nets.build") if isinstance(architecture, Mapping) else architecture
    with torch_defaults(device):
        model = net.model()
    returned(net, "model", model, isinstance(model, NnueModel), "an NnueModel")
    return model


# ---- For the float models of nets ------------------------------------------------------------------------------------


def transformer(
    features: str | FeatureSet,
    num_outputs: int,
    activation: Activation,
    *,
    bound: float = 1.0,
    product_scale: float = 1.0,
    psqt_buckets: int = 0,
) -> PerspectiveTransformer:
    """The first layer of a net: sizes and king buckets come from the feature set. The weights of each part of a sum
    start uniform in ±sqrt(1 / its number of features)."""
    chosen = find_feature_set(features)
    bucket_size, num_bucketed = king_buckets(chosen) or (None, None)
    layer = PerspectiveTransformer(
        chosen.num_features,
        num_outputs,
        activation,
        psqt_buckets=psqt_buckets,
        bound=bound,
        product_scale=product_scale,
        bucket_size=bucket_size,
        num_bucketed=num_bucketed,
    )
    if len(chosen.parts) > 1:
        with torch.no_grad():
            for part in chosen.parts:
                rows = layer.weight[part.first_feature : part.first_feature + part.num_features]
                rows.mul_(math.sqrt(chosen.num_features / part.num_features))
    return layer


def king_buckets(features: FeatureSet) -> tuple[int, int] | None:
    """(features of a king bucket, features in king buckets) where one part is bucketed and comes first, as the fused
    operators need it; None for other sets."""
    bucketed = [part for part in features.parts if part.bucket_size]
    if len(bucketed) != 1 or bucketed[0] is not features.parts[0]:
        return None
    return bucketed[0].bucket_size, bucketed[0].num_features


def virtual_rows(features: str | FeatureSet) -> list[VirtualRows]:
    """The row ranges of a first layer's parameters that share virtual rows."""
    return [
        VirtualRows(part.first_feature + begin, part.virtual_span, part.num_virtual)
        for part in find_feature_set(features).parts
        if part.num_virtual
        for begin in range(0, part.num_features, part.virtual_span)
    ]
