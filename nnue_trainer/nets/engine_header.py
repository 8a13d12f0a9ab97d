"""The C++ header with the sizes of a net, for the inference of examples/engine: of any net with an `integer_forward()`
whose feature sets that inference has."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from nnue_trainer.nets.integer_forward import INT16_MAX, MATERIALS, IntegerForward, IntegerLayer, depends_on_queens

_SCALARS = {"<i1": "kI8", "<i2": "kI16", "<i4": "kI32", "<f4": "kF32"}


def engine_header(
    net: Net, include: str = "nnue.h", namespace: str = "", *, skip: int = 0, align: int = 64
) -> str | None:
    """The header; None for a net without `integer_forward()`, or with parts that examples/engine does not have.
    `include` is the name of the inference in it, `namespace` one for what is declared.

    Raises:
        UserError: a feature set in Python that is not a table.
    """
    forward = net.integer_forward()
    if forward is None or not _is_known(forward):
        return None
    tensors = {tensor.name: tensor for tensor in net.tensors()}
    parts = parts_of(net, forward)
    inputs: list[str] = []
    structs: list[str] = []
    headers: list[str] = []
    for number, (part, name) in enumerate(zip(parts, forward.first.weights, strict=True)):
        known = _set_in_cpp(part, f"Set{number}")
        if known is None or tensors[name].shape != (part.num_features, width_of(forward, tensors)):
            return None
        bits = 8 * int(tensors[name].dtype[-1])
        inputs.append(f"Part<{known.type}, std::int{bits}_t>")
        structs += known.definition
        headers += [line for line in known.includes if line not in headers]
    body = [*structs, *_net(net, forward, tensors, inputs, places_in_file(net, skip, align))]
    text = "\n".join(
        [
            f"// The sizes of a net ({net.name}), written by nnue export for examples/engine/nnue.h. The weights are",
            "// in the raw file that was exported with it.",
            "#pragma once",
            "",
            f'#include "{include}"',
            *headers,
            "",
            *([f"namespace {namespace} {{", ""] if namespace else []),
            *body,
            *(["", f"}}  // namespace {namespace}"] if namespace else []),
        ]
    )
    return text + "\n"


def _is_known(forward: IntegerForward) -> bool:
    """Whether the inference can hold the first activations: 15 bits, or products of two accumulators that stay apart
    and are the only inputs of those layers that read them, as the evaluator also requires."""
    first = forward.first
    if first.activation == "crelu" or (first.product_shift and first.largest <= INT16_MAX):
        return True
    return all(layer.inputs == (0,) or 0 not in layer.inputs for layer in forward.layers)


def parts_of(net: Net, forward: IntegerForward) -> list[FeaturePart]:
    """The feature sets of a net, in the order of its first weights. UserError if there are more or fewer weights."""
    parts = sorted(find_feature_set(net.integer_feature_set).parts, key=lambda part: part.first_feature)
    if len(parts) != len(forward.first.weights):
        raise UserError(
            f"{net.name}: integer forward: {len(forward.first.weights)} first weights, expected {len(parts)}, one for "
            "each feature set of the sum"
        )
    return parts


def width_of(forward: IntegerForward, tensors: dict[str, NetTensor]) -> int:
    return math.prod(tensors[forward.first.bias].shape)


def _net(
    net: Net, forward: IntegerForward, tensors: dict[str, NetTensor], inputs: Sequence[str], places: dict[str, int]
) -> list[str]:
    first = forward.first
    layers = [_layer_in_cpp(forward, number, tensors) for number in range(len(forward.layers))]
    skips = [
        f"{{{skip.layer}, {skip.plus}, {-1 if skip.minus is None else skip.minus}, {skip.multiply}, {skip.divide}, "
        f"{str(skip.wraps).lower()}}}"
        for skip in forward.skips
    ]
    joined = (",\n" + " " * 32).join(f"{_LIBRARY}::{part}" for part in inputs)
    at = ", ".join(f"{{{places[layer.weight]}, {places[layer.bias]}}}" for layer in forward.layers)
    return [
        "struct Net {",
        f"    using Inputs = {_LIBRARY}::Inputs<{joined}>;",
        f"    static constexpr int kHidden = {width_of(forward, tensors)};",
        f"    static constexpr auto kActivation = {_LIBRARY}::Activation::k{first.activation.capitalize()};",
        f"    static constexpr auto kSides = {_LIBRARY}::Sides::k{first.sides.capitalize()};",
        f"    static constexpr int kClip = {first.clip}, kProductShift = {first.product_shift};",
        f"    static constexpr int kAccumulatorShift = {first.accumulator_shift};",
        f"    static constexpr bool kPsqt = {str(bool(first.psqt)).lower()};",
        *_buckets(forward, net.integer_feature_set),
        "    // vectors, inputs, columns, outputs, activated, activation, weights, biases, divide, shift, square",
        "    // shift, clip, is float, factor",
        f"    static constexpr int kNumLayers = {len(layers)};",
        f"    static constexpr {_LIBRARY}::Layer kLayers[] = {{",
        *[f"        {layer}," for layer in layers],
        "    };",
        f"    static constexpr int kNumSkips = {len(skips)};",
        f"    static constexpr {_LIBRARY}::Skip kSkips[] = {{{', '.join(skips or ['{}'])}}};",
        f"    static constexpr std::int64_t kMultiply = {forward.multiply}, kDivide = {forward.divide};",
        f"    static constexpr std::int64_t kScoreMultiply = {forward.score_multiply}, "
        f"kScoreDivide = {forward.score_divide};",
        f"    static constexpr bool kScoreApart = {str(forward.score_apart).lower()};",
        f"    static constexpr bool kWdl = {str(forward.head == 'wdl').lower()};",
        "    // Where each tensor begins in the file.",
        f"    static constexpr std::size_t kWeightsAt[] = {_list(places[name] for name in first.weights)};",
        f"    static constexpr std::size_t kBiasAt = {places[first.bias]}, kFileSize = {places['']};",
        f"    static constexpr std::size_t kPsqtAt[] = {_list([places[name] for name in first.psqt] or [0])};",
        f"    static constexpr std::size_t kLayersAt[][2] = {{{at}}};",
        "};",
    ]


_LIBRARY = "NNUE_NAMESPACE"  # a macro of nnue.h


def _list(values: Any) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def places_in_file(net: Net, skip: int, align: int) -> dict[str, int]:
    """Where each tensor begins in a raw file with `skip` bytes in front and an end that is a multiple of `align`, and
    under "" the size of the file."""
    places, offset = {}, skip
    for tensor in net.tensors():
        places[tensor.name] = offset
        offset += tensor.piece().size
    return places | {"": -(-offset // align) * align}


def _vector_sizes(forward: IntegerForward, width: int) -> list[int]:
    first = forward.first
    sizes = [first.num_sides * (width // 2 if first.activation == "pairwise" else width)]
    return sizes + [layer.activations for layer in forward.layers]


def _layer_in_cpp(forward: IntegerForward, number: int, tensors: dict[str, NetTensor]) -> str:
    """A `Layer` of examples/engine/nnue.h."""
    layer: IntegerLayer = forward.layers[number]
    weight, sizes = tensors[layer.weight], _vector_sizes(forward, width_of(forward, tensors))
    last = number == len(forward.layers) - 1
    fields = [
        f"{sum(1 << vector for vector in layer.inputs)}u",
        sum(sizes[vector] for vector in layer.inputs),
        weight.shape[-1],
        layer.outputs,
        0 if last else layer.activated,
        f"{_LIBRARY}::Activation::k{layer.activation.capitalize()}",
        f"{_LIBRARY}::Scalar::{_SCALARS[weight.dtype]}",
        f"{_LIBRARY}::Scalar::{_SCALARS[tensors[layer.bias].dtype]}",
        layer.divide,
        layer.shift,
        layer.square_shift,
        layer.clip,
        str(layer.factor is not None).lower(),
        repr(float(layer.factor or 0)),
    ]
    return _list(fields)


def _buckets(forward: IntegerForward, features: str) -> list[str]:
    """The bucket by number of pieces, by number of pieces and queens, or by weights of pieces, also on squares."""
    stacks = forward.stacks
    by, what, values, per_line = "kByPieces", "number of pieces", stacks[::MATERIALS], 33
    weights: Sequence[int] = forward.piece_weights or (0,) * 10
    squares: Sequence[int] = (0,)
    mirror = 0
    if len(weights) > 10:
        by, what, values = "kBySquares", "sum of weights of pieces on squares", stacks
        squares, weights, mirror = forward.piece_weights, (0,) * 10, bucket_mirror(features)
    elif forward.piece_weights:
        by, what, values = "kByWeights", "sum of weights of pieces", stacks
    elif depends_on_queens(stacks):
        by, what, values, per_line = "kByQueens", "number of pieces and queens", stacks, 16
    return [
        f"    static constexpr int kBuckets = {forward.num_stacks};",
        f"    static constexpr auto kBucketsBy = {_LIBRARY}::Buckets::{by};",
        f"    static constexpr int kPieceWeights[10] = {_list(weights)};",
        f"    static constexpr int kBucketMirror = {mirror};",
        f"    static constexpr std::uint16_t kSquareWeights[{len(squares)}] = {{",
        *_numbers(squares),
        "    };",
        f"    static constexpr int kBucketOf[{len(values)}] = {{  // by {what}",
        *_numbers(values, per_line),
        "    };",
    ]


def bucket_mirror(features: str) -> int:
    """Where the board is mirrored for the squares that choose the bucket (`PieceSquares`)."""
    part = piece_part(features)
    known = None if part is None else piece_squares(part)
    return 0 if known is None else known.mirror


def _numbers(values: Sequence[int], per_line: int = 16) -> list[str]:
    lines = [values[begin : begin + per_line] for begin in range(0, len(values), per_line)]
    return ["        " + ", ".join(map(str, line)) + "," for line in lines]


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


class _SetInCpp(NamedTuple):
    type: str
    definition: Sequence[str] = ()
    """lines that define the template argument of the type"""
    includes: Sequence[str] = ()


def _set_in_cpp(part: FeaturePart, name_of_struct: str) -> _SetInCpp | None:
    """A feature set in examples/engine/nnue.h; None for a set that examples/engine does not have."""
    name = part.name
    if name.startswith("Full_Threats_v"):
        return _SetInCpp(f"{_LIBRARY}::Threats<{_LIBRARY}::ThreatsV{name.removeprefix('Full_Threats_v')}>")
    if name == "PP_3Wide":
        return _SetInCpp(f"{_LIBRARY}::PawnPairs")
    outside = outside_set(name)
    if isinstance(outside, HeaderFeatures):
        planes = "::nnue::data::CodePlanes"
        includes = ['#include "features/general_set.h"', f'#include "{outside.header.name}"']
        return _SetInCpp(f"{_LIBRARY}::General<::{outside.struct}, {planes}>", includes=includes)
    if outside is not None:
        return _SetInCpp(f"{_LIBRARY}::Tabled<{name_of_struct}>", _table_in_cpp(part, name_of_struct))
    known = piece_squares(part)
    if known is None:
        return None
    title = re.sub(",kings=[0-9.]+", "", name)
    lines = [
        f"// {title}: the king bucket of each square, a1 first, as the perspective sees it",
        f"struct {name_of_struct} {{",
        f"    static constexpr int kPlanes = {known.planes}, kMirror = {known.mirror};",
        f"    static constexpr int kTurn = {known.turn}, kUnused = {known.unused};",
        f"    static constexpr int kBuckets = {max(known.kings) + 1}, kStates = {part.num_states};",
        *_counters_in_cpp(part.states),
        f"    static constexpr bool kInterleaved = {str(known.is_interleaved).lower()};",
        f"    static constexpr bool kEnemyFirst = {str(known.is_enemy_first).lower()};",
        "    static constexpr int kOfSquare[64] = {",
        *_numbers(known.kings, 8),
        "    };",
        "};",
        "",
    ]
    return _SetInCpp(f"{_LIBRARY}::PieceSquares<{name_of_struct}>", lines)


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


def _table_in_cpp(part: FeaturePart, name_of_struct: str) -> Sequence[str]:
    """The struct for `Tabled` of examples/engine/nnue.h."""
    table = table_of(part, "nnue.h")
    number = "std::int16_t" if part.num_features <= INT16_MAX else "std::int32_t"
    states = table.offsets.shape[1]
    rows = [
        f"        {{{', '.join('{' + ', '.join(map(str, squares)) + '}' for squares in pieces)}}},"
        for pieces in table.index.tolist()
    ]
    return [
        f"// {part.name}: the feature by square of the own king, piece and square, as the perspective sees them",
        f"struct {name_of_struct} {{",
        f"    static constexpr int kFeatures = {part.num_features}, kStates = {states};",
        *_counters_in_cpp(table.counters),
        f"    static constexpr {number} kIndex[64][12][64] = {{",
        *rows,
        "    };",
        "    // Offsets by square of the own king and state.",
        f"    static constexpr {number} kOffset[64][{states}] = {{",
        *[f"        {{{', '.join(map(str, row))}}}," for row in table.offsets.tolist()],
        "    };",
        "};",
        "",
    ]


def _counters_in_cpp(counters: Sequence[tuple[int, int]]) -> list[str]:
    listed = ", ".join(f"{{{pieces}, {most}}}" for pieces, most in counters)
    return [f"    static constexpr {_LIBRARY}::Counter kCounters[] = {{{listed}}};"] if counters else []
