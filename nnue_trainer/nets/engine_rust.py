"""The Rust file with the sizes of a net, for the inference examples/engine/nnue.rs: as `engine_header` is for C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnue_trainer.data.features import FeaturePart, outside_set
from nnue_trainer.nets.base import Net, NetTensor
from nnue_trainer.nets.engine_header import bucket_mirror, parts_of, piece_squares, places_in_file, table_of, width_of
from nnue_trainer.nets.integer_forward import MATERIALS, IntegerForward, depends_on_queens

_SCALARS = {"<i1": "Scalar::I8", "<i2": "Scalar::I16", "<i4": "Scalar::I32", "<f4": "Scalar::F32"}

_BLOCKS = tuple[list[int], list[list[int]]]


def _blocks_of_both_sides(slots: Sequence[int], victims: Sequence[Sequence[int]]) -> _BLOCKS:
    """How many blocks each attacker P p N n … K k has, and the block of each such victim. `slots` count the blocks of
    P N B R Q K, own victims before the enemy's; `victims` number the own ones, -1 for a pair that is not a feature."""
    rows = [
        [-1 if of[v // 2] < 0 else v % 2 * count // 2 + of[v // 2] for v in range(12)]
        for count, of in zip(slots, victims, strict=True)
    ]
    return [slots[code // 2] for code in range(12)], [rows[code // 2] for code in range(12)]


_THREATS: dict[str, _BLOCKS] = {
    "Full_Threats_v2": (
        [5, 6, 9, 9, 7, 7, 7, 7, 9, 9, 0, 0],
        [
            [0, -1, 1, 3, -1, -1, 2, 4, -1, -1, -1, -1],
            [0, 3, 1, 4, -1, -1, 2, 5, -1, -1, -1, -1],
            *2 * [[0, 5, 1, 1, 2, 6, 3, 7, 4, 8, -1, -1]],
            *2 * [[0, 4, 1, 5, 2, 2, 3, 6, -1, -1, -1, -1]],
            *2 * [[0, 4, 1, 5, 2, 6, 3, 3, -1, -1, -1, -1]],
            *2 * [[0, 5, 1, 6, 2, 7, 3, 8, 4, 4, -1, -1]],
            *2 * [[-1] * 12],
        ],
    )
}
_PIECES: dict[str, tuple[list[int], list[Sequence[int]]]] = {
    "v10": ([6, 12, 10, 10, 12, 8], [[0, 1, -1, 2, -1, -1], range(6), [0, 1, 2, 3, -1, 4], [0, 1, 2, 3, -1, 4],
                                     range(6), [0, 1, 2, 3, -1, -1]]),
    "v11": ([6, 10, 8, 8, 10, 8], [[0, 1, -1, 2, -1, -1], [0, 1, 2, 3, 4, -1], *2 * [[0, 1, 2, 3, -1, -1]],
                                   [0, 1, 2, 3, 4, -1], [0, 1, 2, 3, -1, -1]]),
    "v12": ([6, 10, 8, 8, 10, 0], [[0, 1, -1, 2, -1, -1], [0, 1, 2, 3, 4, -1], *2 * [[0, 1, 2, 3, -1, -1]],
                                   [0, 1, 2, 3, 4, -1], [-1] * 6]),
    "v16": ([4, 10, 8, 8, 10, 0], [[-1, 0, -1, 1, -1, -1], [0, 1, 2, 3, 4, -1], *2 * [[0, 1, 2, 3, -1, -1]],
                                   [0, 1, 2, 3, 4, -1], [-1] * 6]),
}  # fmt: skip
_PIECES["v14"] = _PIECES["v12"]
_THREATS |= {f"Full_Threats_{name}": _blocks_of_both_sides(*pieces) for name, pieces in _PIECES.items()}


def engine_rust(net: Net, *, skip: int = 0, align: int = 64) -> str | None:
    """The file; None for a net without `integer_forward()`, or with feature sets that the inference does not have."""
    forward = net.integer_forward()
    if forward is None:
        return None
    tensors = {tensor.name: tensor for tensor in net.tensors()}
    parts = parts_of(net, forward)
    sets = [_set(part) for part in parts]
    if any(one is None for one in sets):
        return None
    places, first = places_in_file(net, skip, align), forward.first
    lines = []
    for number, (part, text, name) in enumerate(zip(parts, sets, first.weights, strict=True)):
        psqt = places[first.psqt[number]] if first.psqt else 0
        lines += [
            "        Part {",
            f"            set: {text},",
            f"            features: {part.num_features},",
            f"            weights: {_SCALARS[tensors[name].dtype]},",
            f"            at: {places[name]},",
            f"            psqt_at: {psqt},",
            "        },",
        ]
    by, bucket_of = _buckets(forward)
    of_squares = by == "Squares"
    weights = list(forward.piece_weights) if forward.piece_weights and not of_squares else [0] * 10
    squares = list(forward.piece_weights) if of_squares else []
    mirror = bucket_mirror(net.integer_feature_set) if of_squares else 0
    skips = [
        f"        Skip {{ layer: {skip.layer}, plus: {skip.plus}, "
        f"minus: {'None' if skip.minus is None else f'Some({skip.minus})'}, multiply: {skip.multiply}, "
        f"divide: {skip.divide}, wraps: {_word(skip.wraps)} }},"
        for skip in forward.skips
    ]
    text = "\n".join(
        [
            f"//! The sizes of a net ({net.name}), written by nnue export for examples/engine/nnue.rs. The weights are",
            "//! in the raw file that was exported with it.",
            "",
            "use crate::nnue::*;",
            "",
            "pub static NET: Net = Net {",
            "    parts: &[",
            *lines,
            "    ],",
            f"    hidden: {width_of(forward, tensors)},",
            f"    activation: Activation::{first.activation.capitalize()},",
            f"    sides: Sides::{first.sides.capitalize()},",
            f"    clip: {first.clip},",
            f"    product_shift: {first.product_shift},",
            f"    accumulator_shift: {first.accumulator_shift},",
            f"    psqt: {_word(bool(first.psqt))},",
            f"    buckets: {forward.num_stacks},",
            f"    buckets_by: BucketsBy::{by},",
            f"    piece_weights: {weights},",
            f"    square_weights: &{squares},",
            f"    bucket_mirror: {mirror},",
            f"    bucket_of: &{list(bucket_of)},",
            "    layers: &[",
            *[line for number in range(len(forward.layers)) for line in _layer(forward, number, tensors, places)],
            "    ],",
            "    skips: &[",
            *skips,
            "    ],",
            f"    multiply: {forward.multiply},",
            f"    divide: {forward.divide},",
            f"    score_multiply: {forward.score_multiply},",
            f"    score_divide: {forward.score_divide},",
            f"    score_apart: {_word(forward.score_apart)},",
            f"    wdl: {_word(forward.head == 'wdl')},",
            f"    bias_at: {places[first.bias]},",
            f"    file_size: {places['']},",
            "};",
        ]
    )
    return text + "\n"


def _word(value: bool) -> str:
    return str(value).lower()


def _layer(
    forward: IntegerForward, number: int, tensors: dict[str, NetTensor], places: dict[str, int]
) -> Sequence[str]:
    layer = forward.layers[number]
    weight = tensors[layer.weight]
    fields: dict[str, Any] = {
        "vectors": sum(1 << vector for vector in layer.inputs),
        "columns": weight.shape[-1],
        "outputs": layer.outputs,
        "activated": layer.activated,
        "activation": f"Activation::{layer.activation.capitalize()}",
        "weights": _SCALARS[weight.dtype],
        "biases": _SCALARS[tensors[layer.bias].dtype],
        "divide": layer.divide,
        "shift": layer.shift,
        "square_shift": layer.square_shift,
        "clip": layer.clip,
        "is_float": _word(layer.factor is not None),
        "factor": repr(float(layer.factor or 0)),
        "at": places[layer.weight],
        "bias_at": places[layer.bias],
    }
    return ["        Layer {", *(f"            {key}: {value}," for key, value in fields.items()), "        },"]


def _buckets(forward: IntegerForward) -> tuple[str, Sequence[int]]:
    if forward.piece_weights:
        return "Squares" if len(forward.piece_weights) > 10 else "Weights", forward.stacks
    if depends_on_queens(forward.stacks):
        return "Queens", forward.stacks
    return "Pieces", forward.stacks[::MATERIALS]


def _set(part: FeaturePart) -> str | None:
    if part.name in _THREATS:
        slots, blocks = _THREATS[part.name]
        pushes, merged = _word(part.name == "Full_Threats_v14"), _word(part.name == "Full_Threats_v2")
        return f"Set::Threats {{ slots: {slots}, blocks: {blocks}, pushes: {pushes}, merged: {merged} }}"
    if part.name == "PP_3Wide":
        return "Set::PawnPairs"
    if outside_set(part.name) is not None:
        table = table_of(part, "nnue.rs")
        return (
            f"Set::Table {{ index: &{table.index.tolist()}, counters: &{list(table.counters)}, "
            f"offsets: &{table.offsets.reshape(-1).tolist()} }}"
        )
    known = piece_squares(part)
    if known is None:
        return None
    return (
        f"Set::PieceSquares {{ planes: {known.planes}, unused: {known.unused}, turn: {known.turn}, "
        f"mirror: {known.mirror}, "
        f"interleaved: {_word(known.is_interleaved)}, enemy_first: {_word(known.is_enemy_first)}, "
        f"states: {part.num_states}, counters: &{list(part.states)}, of_square: {known.kings} }}"
    )
