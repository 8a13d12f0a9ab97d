"""The meaning of a net's parameters, so that weights of one net can start another: see
training/warm_start.py.

A parameter has axes. Along an axis lie input features, buckets of the number of pieces, or units: neurons, named by
keys that mean the same in every net. A key begins with the name of the layer that the unit belongs to: "hidden" is the
first layer, "layers.N" the N-th after it.

An axis of units holds either outputs of a layer or its inputs. The weights of a new output keep their fresh values;
those of a known output for a new input start at 0. So a net with more units computes what it did before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from nnue_trainer.nets.integer_forward import PIECE_COUNTS, stack_table

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class Features:
    """Along this axis lie the features of the set of this name."""

    name: str


@dataclass(frozen=True)
class Buckets:
    """Along this axis lie buckets: a position takes bucket `table[entry]`, see `integer_forward.stack_table`; with
    `weights`, `table[sum]`, see `IntegerForward.piece_weights`."""

    count: int
    table: tuple[int, ...]
    weights: tuple[int, ...] = ()


@dataclass(frozen=True)
class Units:
    """Along this axis lie units, outputs of the layer or its inputs. Outputs in `to_output` are part of the net's
    output as they are: where they are new, all their weights start at 0."""

    keys: tuple[Key, ...]
    outputs: bool = False
    to_output: frozenset[Key] = field(default_factory=frozenset)


Axis = Features | Buckets | Units


@dataclass(frozen=True)
class Meaning:
    """The meaning of one parameter. Two parameters of nets that have the same `role` are the same thing; the parameter
    is seen in the shape of its axes. `to_output`: its values are part of the net's output as they are, such as PSQT
    columns."""

    role: str
    axes: tuple[Axis, ...]
    to_output: bool = False


@dataclass(frozen=True)
class NetMeaning:
    """The meaning of each parameter of a net, by name, and in words what else decides what a weight is worth."""

    parameters: Mapping[str, Meaning]
    facts: Mapping[str, str]


OUTPUT = Units((("output",),), outputs=True)
OUTPUTS_OF_WDL = Units((("output", "loss"), ("output", "draw"), ("output", "win")), outputs=True)


def buckets(table: Iterable[int], count: int, weights: tuple[int, ...] = ()) -> Buckets:
    """`table` is one of `integer_forward.stack_table`, or has a bucket for each number of pieces, 0 … 32; with
    `weights`, for each sum of weights of pieces."""
    found = tuple(table)
    return Buckets(count, stack_table(found) if len(found) == PIECE_COUNTS and not weights else found, weights)


def first_layer(features: str, hidden: int, activation: str, psqt: Buckets | None = None) -> dict[str, Meaning]:
    """The meaning of the parameters of a `PerspectiveTransformer` that is called feature_transformer."""
    if activation == "pairwise":
        # An output is the product of two units: a wider layer must keep the pairs together.
        units: list[Key] = [("hidden", half, unit) for half in range(2) for unit in range(hidden // 2)]
    else:
        units = [("hidden", unit) for unit in range(hidden)]
    outputs = Units(tuple(units), outputs=True)
    found = {
        "weight": Meaning("feature_transformer.weight", (Features(features), outputs)),
        "bias": Meaning("feature_transformer.bias", (outputs,)),
    }
    if psqt is not None:
        found["psqt"] = Meaning("feature_transformer.psqt", (Features(features), psqt), to_output=True)
    return {f"feature_transformer.{name}": meaning for name, meaning in found.items()}


def first_activations(hidden: int, activation: str, perspectives: str = "both") -> list[Key]:
    """The units that the first layer hands on, side to move first; `perspectives` as `FirstLayer.sides`."""
    what, count = ("product", hidden // 2) if activation == "pairwise" else ("value", hidden)
    sides = {"both": ("us", "them"), "mover": ("us",), "white": ("white",)}[perspectives]
    return [("hidden", side, what, unit) for side in sides for unit in range(count)]


def layer_outputs(layer: str, outputs: int, skipped: int) -> Units:
    """Outputs of a layer, of which the last `skipped` go straight to the net's output."""
    skips: list[Key] = [(layer, "skip", unit) for unit in range(skipped)]
    units: list[Key] = [(layer, unit) for unit in range(outputs - skipped)]
    return Units((*units, *skips), outputs=True, to_output=frozenset(skips))


def activations(units: Iterable[Key], *, squares: bool) -> list[Key]:
    """The units that a layer hands on of these: with `squares` the square of each, and then each value."""
    units = list(units)
    squared: list[Key] = [(*unit, "square") for unit in units] if squares else []
    return squared + [(*unit, "value") for unit in units]


def stacked(name: str, role: str, inputs: Iterable[Key], outputs: Units, stacks: Buckets) -> dict[str, Meaning]:
    """The meaning of weight and bias of a layer that has one set of weights per bucket."""
    return {
        f"{name}.weight": Meaning(f"{role}.weight", (stacks, outputs, Units(tuple(inputs)))),
        f"{name}.bias": Meaning(f"{role}.bias", (stacks, outputs)),
    }
