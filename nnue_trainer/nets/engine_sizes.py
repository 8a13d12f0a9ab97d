"""The sizes of a net as source code for the inference of examples/engine, of any net with an `integer_forward()` whose
feature sets that inference has. `templates/` has the C++ header (engine_header.py) and the Rust file (engine_rust.py);
their variables are computed here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.data.feature_sets.header import HeaderFeatures
from nnue_trainer.data.features import FeaturePart, outside_set
from nnue_trainer.data.features import feature_set as find_feature_set
from nnue_trainer.data.piece_squares import piece_square_table
from nnue_trainer.data.piece_weights import piece_part
from nnue_trainer.data.probe import Counters
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.nets.base import Net, NetTensor
from nnue_trainer.nets.integer_forward import MATERIALS, IntegerForward, depends_on_queens

if TYPE_CHECKING:
    import jinja2

_SCALARS = {"<i1": "I8", "<i2": "I16", "<i4": "I32", "<f4": "F32"}


@cache
def _templates() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nnue_trainer.nets", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # C++ and Rust have the usual marks of templates themselves.
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="${",
        variable_end_string="}",
    )
    environment.filters["braced"] = lambda values: f"{{{', '.join(map(str, values))}}}"
    return environment


def rendered(template: str, **variables: Any) -> str:
    """The text of a template with these variables."""
    return _templates().get_template(template).render(variables)


def variables_of(net: Net, forward: IntegerForward, skip: int, align: int) -> dict[str, Any]:
    """The variables of both templates; a file has `skip` bytes in front and an end that is a multiple of `align`.
    UserError if there are more or fewer first weights than feature sets."""
    first, tensors = forward.first, {tensor.name: tensor for tensor in net.tensors()}
    parts = sorted(find_feature_set(net.integer_feature_set).parts, key=lambda part: part.first_feature)
    if len(parts) != len(first.weights):
        raise UserError(
            f"{net.name}: integer forward: {len(first.weights)} first weights, expected {len(parts)}, one for each "
            "feature set of the sum"
        )
    places, end = {}, skip
    for tensor in net.tensors():
        places[tensor.name] = end
        end += tensor.piece().size
    return {
        "net": net,
        "forward": forward,
        "first": first,
        "hidden": math.prod(tensors[first.bias].shape),
        "parts": [
            {
                "part": part,
                "features": part.num_features,
                "shape": tensors[name].shape,
                "bits": 8 * int(tensors[name].dtype[-1]),
                "scalar": _SCALARS[tensors[name].dtype],
                "at": places[name],
            }
            for part, name in zip(parts, first.weights, strict=True)
        ],
        "psqt_at": [places[name] for name in first.psqt],
        "buckets": _buckets(forward, net.integer_feature_set),
        "layers": list(_layers(forward, tensors, places)),
        "bias_at": places[first.bias],
        "file_size": -(-end // align) * align,
    }


def _layers(forward: IntegerForward, tensors: dict[str, NetTensor], places: dict[str, int]) -> Iterator[dict[str, Any]]:
    first = forward.first
    width = math.prod(tensors[first.bias].shape)
    sizes = [first.num_sides * (width // 2 if first.activation == "pairwise" else width)]
    for layer in forward.layers:
        weight = tensors[layer.weight]
        yield {
            "vectors": sum(1 << vector for vector in layer.inputs),
            "inputs": sum(sizes[vector] for vector in layer.inputs),
            "columns": weight.shape[-1],
            "outputs": layer.outputs,
            "activated": layer.activated,
            "activation": layer.activation.capitalize(),
            "weights": _SCALARS[weight.dtype],
            "biases": _SCALARS[tensors[layer.bias].dtype],
            "divide": layer.divide,
            "shift": layer.shift,
            "square_shift": layer.square_shift,
            "clip": layer.clip,
            "is_float": str(layer.factor is not None).lower(),
            "factor": float(layer.factor or 0),
            "at": places[layer.weight],
            "bias_at": places[layer.bias],
        }
        sizes.append(layer.activations)


class _Buckets(NamedTuple):
    """How the pieces on the board choose the bucket: `of` has the bucket for each number of pieces, of pieces and
    queens, or sum of weights of pieces, also on squares."""

    by: str
    what: str
    of: list[int]
    weights: list[int]
    squares: list[int]
    mirror: int
    """where the board is mirrored for the squares (`PieceSquares`)"""


def _buckets(forward: IntegerForward, features: str) -> _Buckets:
    stacks, weights, none = list(forward.stacks), list(forward.piece_weights), [0] * 10
    if len(weights) > 10:
        part = piece_part(features)
        known = None if part is None else piece_squares(part)
        mirror = 0 if known is None else known.mirror
        return _Buckets("Squares", "sum of weights of pieces on squares", stacks, none, weights, mirror)
    if weights:
        return _Buckets("Weights", "sum of weights of pieces", stacks, weights, [], 0)
    if depends_on_queens(stacks):
        return _Buckets("Queens", "number of pieces and queens", stacks, none, [], 0)
    return _Buckets("Pieces", "number of pieces", stacks[::MATERIALS], none, [], 0)


class PieceSquares(NamedTuple):
    """A piece-square set of examples/engine."""

    planes: int
    is_interleaved: bool
    is_enemy_first: bool
    mirror: int
    """where the own king always stands: 0 anywhere, 1 on files a–d, 2 on files e–h"""
    kings: list[int]
    """bucket of each square"""
    unused: int
    """features in front of the planes of a bucket"""
    turn: int
    """what Black's squares are xored with"""


def piece_squares(part: FeaturePart) -> PieceSquares | None:
    """The definition of a piece-square set; None for another set."""
    tables = _data.piece_square_tables(part.name)
    if tables is None:
        return None
    offset, (plane, _), orientation = tables
    a1, h1 = int(orientation[0][0]), int(orientation[0][7])
    buckets = offset[0] // part.bucket_size // part.num_states
    return PieceSquares(
        part.bucket_size // 64,
        abs(int(plane[2] - plane[0])) == 2 * 64,  # own pawn and own knight
        bool(plane[1] < plane[0]),
        2 if a1 else 1 if h1 else 0,
        np.where(orientation[0] == 0, buckets, 0).tolist(),
        part.bucket_size % 64,
        int(orientation[1][0]) ^ a1,
    )


@dataclass(frozen=True)
class FeatureTable:
    """A set in which each piece makes at most one feature: index[own king, piece, square] + offsets[own king, state].
    Squares are those that the perspective sees: black's board is upside down."""

    index: npt.NDArray[np.int64]
    """[64, 12, 64]: pieces are 2 · type + (0 own, 1 enemy); -1 for no feature"""
    counters: Counters
    """what the state counts on the board, as in `FeaturePart.states`"""
    offsets: npt.NDArray[np.int64]
    """[64, states]"""


def table_of(part: FeaturePart, program: str) -> FeatureTable:
    """The features of a set from outside as a table. UserError if it is none, or if the perspectives differ; `program`
    is that of examples/engine which needs it."""
    table = piece_square_table(part.name)
    if table is not None and table.counters is not None:
        (places, others), (buckets, other_buckets) = table.places, table.buckets
        if np.array_equal(places, others) and np.array_equal(buckets, other_buckets):
            return FeatureTable(places, table.counters, buckets * table.bucket_size)
    is_header = isinstance(outside_set(part.name), HeaderFeatures)
    remedy = "export it for nnue.h" if is_header else "write it as a C++ header (docs/own-features.md)"
    raise UserError(
        f"feature set {quoted(part.name)}: found features that depend on more than a piece, its square, the own "
        f"king and counts of pieces, but {program} reads the set from a table of these; {remedy}"
    )
