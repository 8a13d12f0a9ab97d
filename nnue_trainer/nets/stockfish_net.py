"""The common parts of all Stockfish nets: names, integers, integer forward and file, by the facts of a `Design`.

The file to the byte: docs/net-files.md. The arithmetic in words: docs/net-arithmetic.md.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, ValidationInfo, model_validator

from nnue_trainer.data.features import FeaturePart
from nnue_trainer.data.features import feature_set as find_feature_set
from nnue_trainer.data.piece_squares import piece_square_table
from nnue_trainer.data.probe import OWN_KING
from nnue_trainer.errors import UserError
from nnue_trainer.nets.base import INT8_MAX, INT16_MAX, INT32_MAX, Net, NetTensor
from nnue_trainer.nets.integer_forward import FirstLayer, IntegerForward, IntegerLayer, Skip
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
from nnue_trainer.nets.stockfish_design import (
    OUTPUT_STEPS,
    SCORE_SCALE,
    SQUARES,
    TRAINED,
    Design,
)
from nnue_trainer.nets.stockfish_model import StockfishModel
from nnue_trainer.nnue_file.layout import Block, Coding, FileLayout, Word
from nnue_trainer.registry import TRUSTED
from nnue_trainer.schema import section, validate


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
    releases: ClassVar[str] = ""
    """the releases of Stockfish that read the net; "": only versions between releases"""

    l1: Width
    """outputs of the feature transformer per perspective, a multiple of 32; Stockfish reads only the version's
    width"""
    l2: Outputs = None
    """outputs of the first layer after the transformer, including the skip connection's: 16 is 15+1; null: the
    version's size, the only one that Stockfish reads"""
    l3: Outputs = None
    """outputs of the second layer after the transformer; null: the version's size, the only one that Stockfish reads"""
    output_buckets: OutputBuckets | None = None
    """the stacks of layers, and the PSQT columns, by pieces and queens; null: the version's, the only
    ones that Stockfish reads"""
    quantisation: QatConfig = Field(default_factory=QatConfig)

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> StockfishNet:
        skip = self._of_version.skip
        try:
            self._of_version.with_full_names(may_import=bool((info.context or {}).get(TRUSTED, False)))
        except UserError as error:
            raise ValueError(str(error)) from None
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
        d = self._of_version.with_full_names()
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
        """Whether the stacks differ from the version's."""
        own, d = self.output_buckets, self._of_version
        return own is not None and (own.count, own.stacks) != (d.stacks, d.stack_table)

    @property
    def architecture(self) -> dict[str, Any]:
        """`Net.architecture` without sizes and stacks that equal the version's."""
        data, d = super().architecture, self._of_version
        for name, usual in (("l2", d.l2), ("l3", d.l3)):
            if data[name] in (None, usual):
                del data[name]
        if not self._has_own_stacks:
            del data["output_buckets"]
        return data

    def _other_sizes(self) -> list[tuple[str, int, int]]:
        """Sizes of layers that differ from the version's: name, size, the version's size."""
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
    def num_stacks(self) -> int:
        return self.facts.stacks

    @property
    def accumulator_limit(self) -> int:
        return INT16_MAX // 2 if self.facts.doubled else INT16_MAX

    @property
    def name(self) -> str:
        name = self.kind if self.l1 == default_width(type(self)) else f"{self.kind}-l1-{self.l1}"
        return name + self._sizes_in_name()

    @property
    def name_with_sizes(self) -> str:
        return f"{self.kind}-l1-{self.l1}-l2-{self.facts.l2}-l3-{self.facts.l3}"

    def _sizes_in_name(self) -> str:
        sizes = "".join(f"-{name}-{size}" for name, size, _ in self._other_sizes())
        return f"{sizes}-stacks-{self.facts.stacks}" if self._has_own_stacks else sizes

    @property
    def engines(self) -> str:
        if self.unreadable is not None:
            return f"no Stockfish reads it: {self.unreadable}"
        releases = self._releases
        return f"{self.name} is for {f'Stockfish {releases}' if releases else 'versions between releases of Stockfish'}"

    @property
    def _releases(self) -> str:
        return self.releases

    @property
    def unreadable(self) -> str | None:
        width = default_width(type(self))
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
                l1 = (transformer_hash ^ words[_FIRST_HASH] ^ 2 * default_width(cls)) // 2
                if layout.version == version and 32 <= l1 <= _MOST_WIDTH and l1 % 32 == 0:
                    return (validate(cls, {"l1": l1}, lambda _: cls.kind),)
        return ()

    @classmethod
    def named(cls, name: str) -> Net | None:
        sizes = name.removeprefix(cls.kind)
        if not re.fullmatch("(-l[123]-[0-9]+)+", sizes) or sizes == name:
            return None
        data = {"l1": default_width(cls)} | {key: int(size) for key, size in re.findall("(l[123])-([0-9]+)", sizes)}
        net: Net = validate(cls, data, lambda _: f"--arch {name}")
        return net

    def model(self) -> StockfishModel:
        return StockfishModel(self, self.facts, self.l1)

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
        """The name of the part of a tensor that belongs to a set."""
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
            range_of_rows: dict[str, Any] = {"first_row": part.first_feature, "rows": part.num_features}
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
            # Nets with threats were at first hashed only by their first set.
            for feature_set in d.sets[:1] if name.endswith("first hash") else d.sets:
                features = (features << 1 & 0xFFFFFFFF | features >> 31) ^ d.feature_hash(feature_set)
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


def default_width(kind: type[StockfishNet]) -> int:
    """The width of the first layer that the version has; every version has its own."""
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
    table = piece_square_table(name)
    assert table is not None
    squares = range(SQUARES)
    found = [(int(table.buckets[0, king, 0]), int(table.places[0, king, OWN_KING, king])) for king in squares]
    return {(bucket, place % SQUARES) for bucket, place in found if place // SQUARES == plane}
