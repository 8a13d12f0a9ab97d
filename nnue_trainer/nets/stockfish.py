"""The nets of Stockfish, SFNNv1 … SFNNv18 and the small net.

They are one family: a feature transformer seen from both sides, then three layers, in one, eight or 32 stacks. A
row of facts, `Design`, distinguishes one net from another; sizes, hashes, file layout, scales, float model and integer
forward follow from it. A new version is one more class with its row; a new property becomes a field of `Design`.

Units. One of the float model is `transformer_one` in accumulators, `one` in activations of layers, 600 · 16 in the
output. An activation is a product of two clipped accumulators, shifted down, and a square likewise; where the shift
does not match the unit exactly (128 for 127), the float model carries the quotient.

The file to the byte: docs/net-files.md. The arithmetic in words: docs/net-arithmetic.md.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch
from nnue_trainer.data.features import FeaturePart, expand
from nnue_trainer.data.features import feature_set as find_feature_set
from nnue_trainer.data.fields import pack
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerStacks, StackLayer
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.nets.base import (
    INT8_MAX,
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
    MATERIALS,
    PIECE_COUNTS,
    FirstLayer,
    IntegerForward,
    IntegerLayer,
    Skip,
    by_queens,
    stack_table,
)
from nnue_trainer.nets.meaning import (
    OUTPUT,
    NetMeaning,
    activations,
    buckets,
    first_activations,
    first_layer,
    layer_outputs,
    stacked,
)
from nnue_trainer.nets.output_buckets import OutputBuckets
from nnue_trainer.nets.rounded_forward import QatConfig
from nnue_trainer.nnue_file.layout import Block, Coding, FileLayout, Word
from nnue_trainer.ops.perspectives import FusedCall
from nnue_trainer.schema import section, validate

SQUARES = 64
WHITE_KING, BLACK_KING = 10, 11
SCORE_SCALE = 600
OUTPUT_STEPS = 16  # of an engine unit in PSQT columns and in the output of the layers
# Engine units; planes of a piece-square set alternate own, enemy. Kings count nothing.
MATERIAL = (126, 781, 825, 1276, 2538)

# What engines hash of a feature set, and the set that is trained for it: there both kings have planes of their own.
FEATURE_HASH = {
    "HalfKP": 0x5D69D5B8,
    "HalfKAv2": 0x5F234CB8,
    "HalfKAv2_hm_11": 0x7F234CB8,
    "K32Q2_11": 0x32B5E284,
    "K16Q2_11": 0x32B5E284,
    "Full_Threats_v2": 0x8F234CB9,
    "Full_Threats_v10": 0x8F234CB8,
    "Full_Threats_v11": 0x8F234CB8,
    "Full_Threats_v12": 0x8F234CB8,
    "Full_Threats_v14": 0x8F234CB8,
    "Full_Threats_v16": 0x2E6B9D04,
    "PP_3Wide": 0x86F2B1DD,
}
TRAINED = {"HalfKAv2_hm_11": "HalfKAv2_hm", "K32Q2_11": "K32Q2", "K16Q2_11": "K16Q2"}

V2020 = 0x7AF32F16
V2021 = 0x7AF32F20
V2026 = 0x6A448AFA


@dataclass(frozen=True)
class Design:
    """The differences between Stockfish nets."""

    sets: tuple[str, ...]
    """feature sets, in the order of the file"""
    layouts: tuple[str, ...]
    """of the file, see `StockfishNet._transformer_blocks`; the first is the one that is written"""
    version: int = V2021
    l2: int = 16
    """outputs of fc0, those of the skip connection among them"""
    l3: int = 32
    """outputs of fc1"""
    stacks: int = 8
    """1; 8: by the number of pieces; with `queens` four times as many; with `table` any number up to 64"""
    queens: bool = False
    """stacks also depend on which sides have queens"""
    table: tuple[int, ...] = ()
    """the stack for each number of pieces, 33 numbers, or for each number and `Batch.material`, 33 · 16 numbers;
    empty: by the two rules above"""
    narrow: tuple[str, ...] = ()
    """sets with buckets whose weights are bytes; those of sets without buckets always are"""
    psqt: bool = True
    """PSQT columns beside the accumulators"""
    pairwise: bool = True
    """products of clipped halves instead of clipped values"""
    transformer_one: int = 127
    """integer of an accumulator that is 1.0"""
    clip: int = 127
    """largest activation of an accumulator before the product"""
    product_shift: int = 7
    one: int = 127
    """integer of an activation that is 1.0"""
    doubled: bool = False
    """the engine doubles weights and biases of the transformer in 16 bits when it loads them"""
    fc0_scale: int = 64
    skip: int = 1
    """outputs of fc0 that go straight to the result: one is added, of two the second is subtracted from the first"""
    squared: bool = True
    """fc1 sees the squares of its inputs as well"""
    dual: bool = False
    """as `squared`, and also the outputs of fc1; skip outputs take part, and fc2 sees the inputs of fc1 too"""
    shared_fc0: bool = False
    """fc0 is trained with a part that all stacks share"""
    output_scale: int | None = None
    """integer steps in 1.0 of the layers' output before it is turned into sixteenths of engine units; None: it is
    computed in those"""
    zlib: bool = False
    """the engine also reads its raw layout in a zlib stream"""
    sums_parts: bool = False
    """the engine divides PSQT and layers together by 16, not each"""

    def __post_init__(self) -> None:
        if self.table:
            if len(self.table) not in (PIECE_COUNTS, PIECE_COUNTS * MATERIALS) or self.queens:
                raise ValueError(
                    f"a design with a table of {len(self.table)} stacks and queens={self.queens}, expected "
                    f"{PIECE_COUNTS} or {PIECE_COUNTS * MATERIALS} stacks and queens=False"
                )
            if not 0 <= min(self.table) <= max(self.table) < self.stacks:
                raise ValueError(f"a design whose table has stack {max(self.table)}, expected 0 … {self.stacks - 1}")
            return
        expected = (4, 32) if self.queens else (1, 8)
        if self.stacks not in expected:
            raise ValueError(
                f"a design with {self.stacks} stacks, expected {expected[0]} or {expected[1]} with "
                f"queens={self.queens}, or a table"
            )

    @property
    def stack_table(self) -> tuple[int, ...]:
        """The stack of a position: a table of `integer_forward.stack_table`."""
        if self.table:
            return stack_table(self.table) if len(self.table) == PIECE_COUNTS else self.table
        groups = self.stacks // 4 if self.queens else self.stacks
        by_pieces = [max(pieces - 1, 0) * groups // 32 for pieces in range(PIECE_COUNTS)]
        return stack_table(by_pieces, by_queens if self.queens else None)

    @property
    def fc2_scale(self) -> float:
        return SCORE_SCALE * OUTPUT_STEPS / self.one if self.output_scale is None else self.output_scale / self.one

    @property
    def result_one(self) -> int:
        return SCORE_SCALE * OUTPUT_STEPS if self.output_scale is None else self.output_scale

    @property
    def hidden(self) -> int:
        """Outputs of fc0 that fc1 sees."""
        return self.l2 if self.dual else self.l2 - self.skip

    def layers(self, l1: int) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of fc0, fc1 and fc2."""
        second = self.hidden * (2 if self.squared else 1)
        third = second + 2 * self.l3 if self.dual else self.l3
        return ((l1 if self.pairwise else 2 * l1, self.l2), (second, self.l3), (third, 1))

    def layer_stacks(self, l1: int) -> LayerStacks:
        """The layers of the float model."""
        largest, square = INT8_MAX / self.one, self.one / 128
        plus, minus = {0: (None, None), 1: (self.l2 - 1, None), 2: (self.l2 - 2, self.l2 - 1)}[self.skip]
        first = StackLayer(
            self.l2, self.hidden, "dual" if self.squared else "crelu", largest, square=square, plus=plus, minus=minus,
            output_scale=1.0 if self.dual else None,
        )  # fmt: skip
        second = StackLayer(self.l3, self.l3, "dual" if self.dual else "crelu", largest, square=square)
        return LayerStacks(self.layers(l1)[0][0], self.stacks, (first, second))


def pad32(n: int) -> int:
    return -(-n // 32) * 32


_MOST_WIDTH = 16384
_FIRST_HASH = "feature transformer hash"
Width = Annotated[int, Field(ge=32, le=_MOST_WIDTH, multiple_of=32)]
Outputs = Annotated[int | None, Field(ge=1, le=1024)]


@section
class StockfishNet(Net):
    """One of Stockfish's nets."""

    design: ClassVar[Design]
    note: ClassVar[str] = ""

    l1: Width
    """outputs of the feature transformer per perspective, a multiple of 32; Stockfish reads only the version's
    width"""
    l2: Outputs = None
    """outputs of the first layer after the transformer, including those of the skip connection: 16 is 15+1; null: the
    version's size, the only one that Stockfish reads"""
    l3: Outputs = None
    """outputs of the second layer after the transformer; null: the version's size, the only one that Stockfish reads"""
    output_buckets: OutputBuckets | None = None
    """the stacks of layers, and the PSQT columns, by pieces and queens; null: those of the version, which alone
    Stockfish reads"""
    quantisation: QatConfig = Field(default_factory=QatConfig)

    @model_validator(mode="after")
    def _check(self) -> StockfishNet:
        skip = self._of_version.skip
        if self.l2 is not None and self.l2 <= skip:
            raise ValueError(f"l2: found {self.l2}, expected more than the {skip} that the skip connection takes")
        if self.output_buckets is not None and self.output_buckets.rule in ("weights", "squares"):
            raise ValueError(
                f"output_buckets.rule: found {self.output_buckets.rule}, expected one by pieces and queens: stockfish, "
                "bullet, queens or table (kind: layered has all rules)"
            )
        return self

    # ---- what it is ----

    @cached_property
    def facts(self) -> Design:
        d = self._of_version
        l2, l3 = d.l2 if self.l2 is None else self.l2, d.l3 if self.l3 is None else self.l3
        if (l2, l3) != (d.l2, d.l3):
            d = replace(d, l2=l2, l3=l3)
        if self._has_own_stacks:
            assert self.output_buckets is not None
            d = replace(d, stacks=self.output_buckets.count, queens=False, table=self.output_buckets.stacks)
        return d

    @property
    def _of_version(self) -> Design:
        return self.design

    @cached_property
    def _has_own_stacks(self) -> bool:
        """Whether the stacks are not those of the version."""
        own, d = self.output_buckets, self._of_version
        return own is not None and (own.count, own.stacks) != (d.stacks, d.stack_table)

    @property
    def architecture(self) -> dict[str, Any]:
        """As for every net, without sizes and stacks that are those of the version."""
        data, d = super().architecture, self._of_version
        for name, usual in (("l2", d.l2), ("l3", d.l3)):
            if data[name] in (None, usual):
                del data[name]
        if not self._has_own_stacks:
            del data["output_buckets"]
        return data

    def _other_sizes(self) -> list[tuple[str, int, int]]:
        """Sizes of layers that are not those of the version: name, size, that of the version."""
        d, own = self._of_version, self.facts
        sizes = (("l2", own.l2, d.l2), ("l3", own.l3, d.l3))
        return [(name, size, usual) for name, size, usual in sizes if size != usual]

    @property
    def feature_set(self) -> str:
        return "+".join(TRAINED.get(name, name) for name in self._order())

    @property
    def integer_feature_set(self) -> str:
        return "+".join(self._order())

    @property
    def score_scale(self) -> float:
        return float(SCORE_SCALE)

    @property
    def qat_config(self) -> QatConfig:
        return self.quantisation

    @property
    def num_stacks(self) -> int:
        return self.facts.stacks

    @property
    def accumulator_limit(self) -> int:
        return INT16_MAX // 2 if self.facts.doubled else INT16_MAX

    @property
    def name(self) -> str:
        name = self.kind if self.l1 == _default_width(type(self)) else f"{self.kind}-l1-{self.l1}"
        return name + self._sizes_in_name()

    @property
    def name_with_sizes(self) -> str:
        return f"{self.kind}-l1-{self.l1}-l2-{self.facts.l2}-l3-{self.facts.l3}"

    def _sizes_in_name(self) -> str:
        sizes = "".join(f"-{name}-{size}" for name, size, _ in self._other_sizes())
        return f"{sizes}-stacks-{self.facts.stacks}" if self._has_own_stacks else sizes

    @property
    def unreadable(self) -> str | None:
        width = _default_width(type(self))
        if self.l1 != width:
            return f"l1 is {self.l1}, which no Stockfish reads; expected {width}"
        return self._unread_layers()

    def _unread_layers(self) -> str | None:
        for name, size, usual in self._other_sizes():
            return f"{name} is {size}, which no Stockfish reads; expected {usual}"
        if self._has_own_stacks:
            own, usual = self.output_buckets, self._of_version.stacks
            assert own is not None
            return (
                f"output_buckets are {own.count} by rule {own.rule}, which no Stockfish reads; expected none, for the "
                f"{usual} of the version"
            )
        return None

    @classmethod
    def known(cls) -> Iterable[Net]:
        make: Any = cls  # every version has a default width
        return (make(),)

    @classmethod
    def of_other_sizes(cls, version: int, transformer_hash: int) -> Iterable[Net]:
        for net in cls.known():
            for layout in net.layouts():
                words = {item.label: item.value for item in layout.items if isinstance(item, Word)}
                l1 = (transformer_hash ^ words[_FIRST_HASH] ^ 2 * _default_width(cls)) // 2
                if layout.version == version and 32 <= l1 <= _MOST_WIDTH and l1 % 32 == 0:
                    return (validate(cls, {"l1": l1}, lambda _: cls.kind),)
        return ()

    @classmethod
    def named(cls, name: str) -> Net | None:
        sizes = name.removeprefix(cls.kind)
        if not re.fullmatch("(-l[123]-[0-9]+)+", sizes) or sizes == name:
            return None
        data = {"l1": _default_width(cls)} | {key: int(size) for key, size in re.findall("(l[123])-([0-9]+)", sizes)}
        net: Net = validate(cls, data, lambda _: f"--arch {name}")
        return net

    def model(self) -> StockfishModel:
        return StockfishModel(self)

    def meaning(self) -> NetMeaning:
        d, activation = self.facts, "pairwise" if self.facts.pairwise else "crelu"
        stacks = buckets(d.stack_table, d.stacks)
        outputs = [layer_outputs("layers.0", d.l2, d.skip), layer_outputs("layers.1", d.l3, 0)]
        first = activations(outputs[0].keys[: d.hidden], squares=d.squared)
        second = activations(outputs[1].keys, squares=d.dual)
        parameters = first_layer(self.feature_set, self.l1, activation, stacks if d.psqt else None)
        parameters |= stacked("fc0", "layers.0", first_activations(self.l1, activation), outputs[0], stacks)
        parameters |= stacked("fc1", "layers.1", first, outputs[1], stacks)
        parameters |= stacked("fc2", "output", [*first, *second] if d.dual else second, OUTPUT, stacks)
        facts = {"activation": activation, "score_scale": str(SCORE_SCALE)}
        return NetMeaning(parameters, facts | {f"layers.{layer}.activation": "crelu" for layer in range(2)})

    def _order(self) -> tuple[str, ...]:
        """The sets in the order of index rows: king buckets first, as the fused operators need them."""
        sets = self.facts.sets
        bucketed = [name for name in sets if find_feature_set(name).parts[0].bucket_size]
        return (*bucketed, *(name for name in sets if name not in bucketed))

    # ---- integers ----

    def tensors(self) -> Sequence[NetTensor]:
        return _tensors(self)

    def _part(self, tensor: str, name: str) -> str:
        """What the part of a tensor that belongs to a set is called."""
        return tensor if len(self.facts.sets) == 1 else f"{tensor}.{name}"

    def _tensors(self) -> Iterator[NetTensor]:
        d, one = self.facts, self.facts.transformer_one
        trained = {part.name: part for part in find_feature_set(self.feature_set).parts}
        limit = self.accumulator_limit
        yield NetTensor("feature_transformer.bias", "<i2", (self.l1,), one, limit)
        for name in d.sets:
            part = trained[TRAINED.get(name, name)]
            read = find_feature_set(name).parts[0]
            source = king_plane_rows(part, read) if name in TRAINED else None
            range_of_rows = {"first_row": part.first_feature, "rows": part.num_features}
            is_wide = part.bucket_size > 0 and name not in d.narrow
            dtype, limit = ("<i2", self.accumulator_limit) if is_wide else ("<i1", INT8_MAX)
            yield NetTensor(
                self._part("feature_transformer.weight", name),
                dtype,
                (read.num_features, self.l1),
                one,
                limit,
                "feature_transformer.weight",
                source=source,
                **range_of_rows,
            )
            if d.psqt:
                yield NetTensor(
                    self._part("feature_transformer.psqt", name),
                    "<i4",
                    (read.num_features, d.stacks),
                    SCORE_SCALE * OUTPUT_STEPS,
                    INT32_MAX,
                    "feature_transformer.psqt",
                    source=source,
                    **range_of_rows,
                )
        scales = (d.fc0_scale, 64, d.fc2_scale)
        ones = (d.fc0_scale * d.one, 64 * d.one, d.result_one)
        for layer, (inputs, outputs) in enumerate(d.layers(self.l1)):
            yield NetTensor(f"fc{layer}.bias", "<i4", (d.stacks, outputs), ones[layer], INT32_MAX)
            yield NetTensor(
                f"fc{layer}.weight",
                "<i1",
                (d.stacks, outputs, pad32(inputs)),
                scales[layer],
                INT8_MAX,
                columns=inputs,
            )

    def integer_forward(self) -> IntegerForward:
        return _integer_forward(self)

    def _integer_forward(self) -> IntegerForward:
        d = self.facts
        parts = find_feature_set(self.integer_feature_set).parts

        def named(tensor: str) -> tuple[str, ...]:
            return tuple(self._part(tensor, part.name) for part in parts)

        first = FirstLayer(
            "feature_transformer.bias",
            named("feature_transformer.weight"),
            "pairwise" if d.pairwise else "crelu",
            # An engine that doubles does it in 16 bits, so that a sum beyond 16,383 wraps around.
            2 * d.clip if d.doubled else d.clip,
            (d.product_shift + 2 if d.doubled else d.product_shift) if d.pairwise else 0,
            1 if d.doubled else 0,
            named("feature_transformer.psqt") if d.psqt else (),
        )

        def layer(number: int, inputs: tuple[int, ...], shift: int, squared: bool, activated: int) -> IntegerLayer:
            _, outputs = d.layers(self.l1)[number]
            return IntegerLayer(
                f"fc{number}.weight",
                f"fc{number}.bias",
                outputs,
                inputs,
                activated=activated,
                # The square loses the sign: negatives count as well.
                activation="dual" if squared else "crelu",
                shift=shift,
                square_shift=7 if squared else 0,
                clip=INT8_MAX,
            )

        layers = (
            layer(0, (0,), d.fc0_scale.bit_length() - 1, d.squared, d.hidden),
            layer(1, (1,), 6, d.dual, d.l3),
            layer(2, (1, 2) if d.dual else (2,), 0, False, 0),
        )
        steps = SCORE_SCALE * OUTPUT_STEPS
        skips: tuple[Skip, ...] = ()
        if d.skip:
            plus, minus = (d.l2 - 1, None) if d.skip == 1 else (d.l2 - 2, d.l2 - 1)
            # Where the output is in sixteenths of engine units, fc0 still counts 64 · 127 to the unit, and the
            # engine's product has 32 bits.
            skips = (
                (Skip(0, plus, minus, steps, d.fc0_scale * d.one, wraps=True),)
                if d.output_scale is None
                else (Skip(0, plus, minus),)
            )
        return IntegerForward(
            first,
            layers,
            d.stacks,
            d.stack_table,
            skips,
            1 if d.output_scale is None else steps,
            1 if d.output_scale is None else d.output_scale,
            score_divide=OUTPUT_STEPS,
            score_apart=not d.sums_parts,
        )

    # ---- the file ----

    def layouts(self) -> Sequence[FileLayout]:
        return _layouts(self)

    def _layouts(self) -> Iterator[FileLayout]:
        d = self.facts
        tensors = {tensor.name: tensor for tensor in self.tensors()}
        h = 0xEC42E90D ^ 2 * self.l1
        layers = d.layers(self.l1)
        for layer, (_, outputs) in enumerate(layers):
            h = (0xCC03DAE4 + outputs) ^ h >> 1 ^ (h << 31 & 0xFFFFFFFF)
            if layer < len(layers) - 1:
                h = h + 0x538D24C7 & 0xFFFFFFFF
        if d.table:
            # No program may read the file with the stacks of a version.
            h ^= zlib.crc32(bytes(d.stack_table))
        for name in d.layouts:
            features = 0
            # Nets with threats were hashed by their first set alone at the beginning.
            for feature_set in d.sets[:1] if name.endswith("first hash") else d.sets:
                features = (features << 1 & 0xFFFFFFFF | features >> 31) ^ FEATURE_HASH[feature_set]
            transformer_hash = features ^ 2 * self.l1
            items: list[Word | Block] = [Word(_FIRST_HASH, transformer_hash)]
            items += self._transformer_blocks(name.split()[0], tensors)
            for stack in range(d.stacks):
                items.append(Word(f"stack {stack} hash", h))
                for layer in range(len(layers)):
                    for part in ("bias", "weight"):
                        items.append(Block((tensors[f"fc{layer}.{part}"].piece(stack),)))
            layout = FileLayout(name, d.version, transformer_hash ^ h, tuple(items))
            yield layout
            if d.zlib and name == "raw":
                yield layout.in_zlib()

    def _transformer_blocks(self, layout: str, tensors: Mapping[str, NetTensor]) -> list[Block]:
        """raw: everything as it is. leb: everything compressed. thr0, thr1: the PSQT columns of all sets in one block
        at the end, and in thr0 the weights of all sets in one. thr2: set by set. From thr1 on bytes are not compressed.
        huffman: as thr2, and every array is coded.
        """
        d = self.facts

        def block(*names: str, compressed: bool) -> Block:
            coding: Coding = "huffman" if layout == "huffman" else "leb128" if compressed else "raw"
            return Block(tuple(tensors[name].piece() for name in names), coding)

        weights = [self._part("feature_transformer.weight", name) for name in d.sets]
        psqt = [self._part("feature_transformer.psqt", name) for name in d.sets] if d.psqt else []
        blocks = [block("feature_transformer.bias", compressed=layout != "raw")]
        match layout:
            case "raw" | "leb":
                blocks += [block(name, compressed=layout == "leb") for name in [*weights, *psqt]]
            case "thr0":
                blocks += [block(*weights, compressed=True), block(*psqt, compressed=True)]
            case "thr1":
                blocks += [block(name, compressed=tensors[name].limit > INT8_MAX) for name in weights]
                blocks.append(block(*psqt, compressed=True))
            case "thr2" | "huffman":
                for number, name in enumerate(weights):
                    blocks.append(block(name, compressed=tensors[name].limit > INT8_MAX))
                    blocks += [block(name, compressed=True) for name in psqt[number : number + 1]]
        return blocks


@cache
def _tensors(net: StockfishNet) -> tuple[NetTensor, ...]:
    return tuple(net._tensors())


@cache
def _layouts(net: StockfishNet) -> tuple[FileLayout, ...]:
    return tuple(net._layouts())


@cache
def _integer_forward(net: StockfishNet) -> IntegerForward:
    return net._integer_forward()


def _default_width(kind: type[StockfishNet]) -> int:
    """Of the version; every one has its own."""
    fields: dict[str, dataclasses.Field[int]] = vars(kind)["__dataclass_fields__"]
    width = fields["l1"].default
    assert isinstance(width, int)
    return width


def king_plane_rows(trained: FeaturePart, read: FeaturePart) -> np.ndarray:
    """For each feature with a plane for both kings, the one with planes of their own that it takes, int64 [F].

    The shared plane takes the enemy king's rows, except on the squares of the own king that the bucket stands for: no
    position shows the difference, as these squares touch each other."""
    buckets = trained.num_features // trained.bucket_size
    planes = trained.bucket_size // SQUARES
    own_king, enemy_king = planes - 2, planes - 1
    rows = np.arange(trained.num_features).reshape(buckets, planes, SQUARES)
    merged = rows[:, : planes - 1].copy()
    merged[:, own_king] = rows[:, enemy_king]
    for bucket, square in _own_kings(trained.name, own_king):
        for state in range(trained.num_states):
            row = bucket // trained.num_states * trained.num_states + state
            merged[row, own_king, square] = rows[row, own_king, square]
    assert merged.size == read.num_features
    return np.asarray(merged.reshape(-1))


def _own_kings(name: str, plane: int) -> set[tuple[int, int]]:
    """(bucket, square) for each square of the own king: where its feature lies, which is in this plane."""
    (part,) = find_feature_set(name).parts
    boards = np.zeros((SQUARES, SQUARES), np.uint8)
    for king in range(SQUARES):
        boards[king, king], boards[king, king ^ 63] = 1 + WHITE_KING, 1 + BLACK_KING
    rows = expand(pack(boards, np.zeros(SQUARES, bool), scores=0, results=0), name).white.numpy()
    places = rows % part.bucket_size
    found = (rows >= 0) & (places // SQUARES == plane)
    return set(zip((rows[found] // part.bucket_size).tolist(), (places[found] % SQUARES).tolist(), strict=True))


def material_psqt(part: FeaturePart) -> Tensor:
    """PSQT rows of a piece-square part that count material: fp32 [num_features, 1], own pieces positive, enemy pieces
    negative."""
    planes = torch.zeros(part.bucket_size // SQUARES)
    planes[: 2 * len(MATERIAL)] = torch.tensor([sign * value for value in MATERIAL for sign in (1, -1)]) / SCORE_SCALE
    rows = planes.repeat_interleave(SQUARES).repeat(part.num_features // part.bucket_size)
    return rows.unsqueeze(1)


class StockfishModel(StackedModel):
    """Parameters: feature_transformer.{weight [F, l1], bias [l1], psqt [F, stacks]}; fc0, fc1, fc2, each {weight
    [stacks, out, in], bias [stacks, out]}."""

    stack_table: Tensor

    def __init__(self, net: StockfishNet) -> None:
        super().__init__(net)
        d = self.facts = net.facts
        features = find_feature_set(net.feature_set)
        self.features = features
        self.feature_transformer = transformer(
            features,
            net.l1,
            "pairwise" if d.pairwise else "crelu",
            bound=d.clip / d.transformer_one,
            product_scale=d.transformer_one**2 / 2**d.product_shift / d.one,
            psqt_buckets=d.stacks if d.psqt else 0,
        )
        (in0, out0), (in1, out1), (in2, out2) = d.layers(net.l1)
        self.fc0 = StackedLinear(d.stacks, in0, out0)
        self.fc1 = StackedLinear(d.stacks, in1, out1)
        self.fc2 = StackedLinear(d.stacks, in2, out2)
        self.stacks = d.layer_stacks(net.l1)
        if d.queens or d.table:
            self.register_buffer("stack_table", torch.tensor(d.stack_table), persistent=False)
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

    def first_outputs(self, batch: Batch) -> FirstOutputs:
        bucket = self.buckets_of(batch)
        x, psqt = self.feature_transformer(batch, bucket)
        return FirstOutputs(x, psqt, bucket)

    def first_call(self, batch: Batch, bucket: Tensor) -> FusedCall | None:
        return self.feature_transformer.fused_call(batch, bucket)

    def linears(self) -> Sequence[nn.Module]:
        return self.fc0, self.fc1, self.fc2

    def factorised(self) -> dict[str, list[VirtualRows]]:
        names = ["feature_transformer.weight", *(["feature_transformer.psqt"] if self.facts.psqt else [])]
        shared = {name: rows for name in names if (rows := virtual_rows(self.features))}
        if self.facts.shared_fc0:
            shared |= {f"fc0.{part}": [VirtualRows(0, self.facts.stacks, 1)] for part in ("weight", "bias")}
        return shared


# ---- the versions ----------------------------------------------------------------------------------------------------
# Where the files of two nets look alike (SFNNv4 and SFNNv5), the reader takes the later net. The docstring of a class
# describes what is new in the version; its `Design` is the same for the program.


@NETS.register("sfnnv1")
@section
class SfnnV1(StockfishNet):
    """HalfKP → 256×2 → 32 → 32 → 1 (Stockfish 12, 13)."""

    design: ClassVar = Design(
        ("HalfKP",), ("raw", "leb"), V2020, l2=32, stacks=1, psqt=False, pairwise=False, skip=0, squared=False,
        sums_parts=True,
    )  # fmt: skip
    l1: Width = 256


@NETS.register("sfnnv2")
@section
class SfnnV2(StockfishNet):
    """HalfKAv2 → 512×2, 8 PSQT columns → 8 stacks of 16 → 32 → 1 (Stockfish 14)."""

    design: ClassVar = replace(SfnnV1.design, sets=("HalfKAv2",), version=V2021, l2=16, stacks=8, psqt=True)
    l1: Width = 512


@NETS.register("sfnnv3")
@section
class SfnnV3(StockfishNet):
    """HalfKAv2_hm → 1024×2 → 8 → 32 → 1 (Stockfish 14.1)."""

    design: ClassVar = replace(SfnnV2.design, sets=("HalfKAv2_hm_11",), l2=8)
    l1: Width = 1024


@NETS.register("sfnnv4")
@section
class SfnnV4(StockfishNet):
    """HalfKAv2_hm → 1024 pairwise → 15+1 → 32 → 1 (Stockfish 15)."""

    design: ClassVar = replace(SfnnV3.design, l2=16, pairwise=True, skip=1)
    l1: Width = 1024


@NETS.register("sfnnv5")
@section
class SfnnV5(StockfishNet):
    """HalfKAv2_hm → l1 pairwise, + 8 PSQT columns → 8 stacks of 15+1 → [x², x] 30 → 32 → 1 (Stockfish 15.1).

    Early versions named all later nets of this shape so; `l1` distinguishes them: 1536 is SFNNv6, 2048 SFNNv7, 2560
    SFNNv8, 3072 SFNNv9, 128 the small net.
    """

    design: ClassVar = replace(SfnnV4.design, squared=True)
    l1: Width = 1024
    """outputs of the feature transformer per perspective, a multiple of 32: 1024 SFNNv5, 1536 SFNNv6, 2048 SFNNv7,
    2560 SFNNv8, 3072 SFNNv9, 128 the small net"""

    @property
    def _of_version(self) -> Design:
        return self._version().design

    @property
    def name(self) -> str:
        name = self._version().kind if self.l1 in self._widths() else f"sfnnv5-l1-{self.l1}"
        return name + self._sizes_in_name()

    @property
    def unreadable(self) -> str | None:
        if self.l1 in self._widths():
            return self._unread_layers()
        read = ", ".join(f"{l1} ({version.kind})" for l1, version in sorted(self._widths().items()))
        return f"l1 is {self.l1}, which no Stockfish reads; expected one of {read}"

    def _version(self) -> type[StockfishNet]:
        return self._widths().get(self.l1, SfnnV6)

    @staticmethod
    def _widths() -> dict[int, type[StockfishNet]]:
        return {_default_width(v): v for v in (SfnnV5, SfnnV6, SfnnV7, SfnnV8, SfnnV9, Small128)}


@NETS.register("sfnnv6")
@section
class SfnnV6(StockfishNet):
    """SFNNv5 with 1536 (Stockfish 16)."""

    design: ClassVar = replace(SfnnV5.design, layouts=("leb", "raw"))
    l1: Width = 1536


@NETS.register("sfnnv7")
@section
class SfnnV7(StockfishNet):
    """SFNNv5 with 2048."""

    design: ClassVar = SfnnV6.design
    l1: Width = 2048


@NETS.register("sfnnv8")
@section
class SfnnV8(StockfishNet):
    """SFNNv5 with 2560 (Stockfish 16.1)."""

    design: ClassVar = SfnnV6.design
    l1: Width = 2560


@NETS.register("sfnnv9")
@section
class SfnnV9(StockfishNet):
    """SFNNv5 with 3072 (Stockfish 17, 17.1, which double the feature transformer in 16 bits)."""

    design: ClassVar = replace(SfnnV8.design, doubled=True, sums_parts=False)
    l1: Width = 3072


@NETS.register("small128")
@section
class Small128(StockfishNet):
    """SFNNv5 with 128: the small net of Stockfish 16.1 … 18."""

    design: ClassVar = SfnnV9.design
    l1: Width = 128


@NETS.register("sfnnv10")
@section
class SfnnV10(StockfishNet):
    """Threats + HalfKAv2_hm → 1024 pairwise → 15+1 → [x², x] 30 → 32 → 1 (Stockfish 18)."""

    design: ClassVar = replace(
        SfnnV9.design, sets=("Full_Threats_v10", "HalfKAv2_hm_11"), layouts=("thr1 first hash", "thr0 first hash"),
        doubled=False, transformer_one=255, clip=255, product_shift=9,
    )  # fmt: skip
    l1: Width = 1024


@NETS.register("sfnnv11")
@section
class SfnnV11(StockfishNet):
    """SFNNv10 without threats to kings."""

    design: ClassVar = replace(
        SfnnV10.design, sets=("Full_Threats_v11", "HalfKAv2_hm_11"), layouts=("thr1 first hash",)
    )
    l1: Width = 1024


@NETS.register("sfnnv12")
@section
class SfnnV12(StockfishNet):
    """SFNNv11 without threats by kings."""

    design: ClassVar = replace(SfnnV11.design, sets=("Full_Threats_v12", "HalfKAv2_hm_11"))
    l1: Width = 1024


@NETS.register("sfnnv13")
@section
class SfnnV13(StockfishNet):
    """SFNNv12 with a first layer of 31+1."""

    design: ClassVar = replace(SfnnV12.design, l2=32, layouts=("thr1", "thr1 first hash"))
    l1: Width = 1024


@NETS.register("sfnnv14")
@section
class SfnnV14(StockfishNet):
    """SFNNv13 with threats of pawns that include the square ahead of them."""

    design: ClassVar = replace(SfnnV13.design, sets=("Full_Threats_v14", "HalfKAv2_hm_11"), layouts=("thr1",))
    l1: Width = 1024


@NETS.register("sfnnv14.1")
@section
class SfnnV14b(StockfishNet):
    """SFNNv14 with scales that are powers of two."""

    design: ClassVar = replace(
        SfnnV14.design, version=V2026, layouts=("thr2",), transformer_one=256, one=128, fc0_scale=128,
        output_scale=128 * 128,
    )  # fmt: skip
    l1: Width = 1024


@NETS.register("sfnnv15")
@section
class SfnnV15(StockfishNet):
    """SFNNv14.1 with [x², x] after both layers, both also inputs of the output layer: 32 → 64 → 32 → 64, 128 → 1."""

    design: ClassVar = replace(SfnnV14b.design, skip=2, dual=True, shared_fc0=True)
    l1: Width = 1024


@NETS.register("sfnnv16")
@section
class SfnnV16(StockfishNet):
    """Threats without those of pawns on pawns + pawn pairs + HalfKAv2_hm, layers as SFNNv15 (Stockfish 19)."""

    design: ClassVar = replace(
        SfnnV15.design, sets=("Full_Threats_v16", "PP_3Wide", "HalfKAv2_hm_11"), layouts=("thr2", "huffman")
    )
    l1: Width = 1024


@NETS.register("sfnnv17")
@section
class SfnnV17(StockfishNet):
    """SFNNv16 without PSQT columns."""

    design: ClassVar = replace(SfnnV16.design, psqt=False)
    l1: Width = 1024


@NETS.register("sfnnv18")
@section
class SfnnV18(StockfishNet):
    """SFNNv17 with K32Q2 in bytes for HalfKAv2_hm, and 32 stacks by pieces and queens: by public sources of October
    2026; no published net has been read."""

    design: ClassVar = replace(
        SfnnV17.design, sets=("Full_Threats_v16", "PP_3Wide", "K32Q2_11"), stacks=32,
        layouts=("raw", "thr2", "huffman"), queens=True, narrow=("K32Q2_11",), zlib=True,
    )  # fmt: skip
    l1: Width = 1024
