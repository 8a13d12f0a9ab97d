"""The C++ header with the sizes of a layered net, for the inference of examples/engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nnue_trainer.data.features import feature_set as find_feature_set
from nnue_trainer.nets.base import INT8_MAX
from nnue_trainer.nets.integer_forward import MATERIALS, depends_on_queens
from nnue_trainer.nets.layered import DTYPES, Layered


def engine_header(net: Layered) -> str | None:
    """The header; None for inputs that examples/engine does not know."""
    parts = find_feature_set(net.feature_set).parts
    sets = [_set_in_cpp(part.name, f"Kings{number}") for number, part in enumerate(parts)]
    first, plan = net.quantisation.first, net.plan()
    inputs, structs = [], []
    for part, known in zip(parts, sets, strict=True):
        if known is None:
            return None
        kind = first.type if part.bucket_size else first.unbucketed_type
        inputs.append(f"nnue::Part<{known[0]}, std::int{kind[1:]}_t>")
        structs += known[1]
    layers = [_layer_in_cpp(net, number) for number in range(len(plan.steps))]
    lines = [
        f"// The sizes of a net ({net.name}), written by nnue export for examples/engine/nnue.h. The weights are in",
        "// the raw file that was exported with it.",
        "#pragma once",
        "",
        '#include "nnue.h"',
        "",
        *structs,
        "struct Net {",
        f"    using Inputs = nnue::Inputs<{(',' + chr(10) + ' ' * 32).join(inputs)}>;",
        f"    static constexpr int kHidden = {net.hidden};",
        f"    static constexpr auto kActivation = nnue::Activation::k{net.activation.capitalize()};",
        f"    static constexpr int kClip = {plan.first_clip}, kProductShift = {first.product_shift};",
        f"    static constexpr bool kPsqt = {str(net.psqt).lower()};",
        f"    static constexpr int kBuckets = {net.num_stacks}, kScoreScale = {net.score_scale};",
        *_buckets(net.output_buckets.stacks),
        "    // inputs, outputs, activated, activation, skip, to output, bits of weights and biases, divide, one,",
        "    // shift, square shift, clip, inputs are bytes",
        f"    static constexpr int kNumLayers = {len(net.layers)};",
        f"    static constexpr nnue::Layer kLayers[{max(1, len(net.layers))}] = {{",
        *[f"        {layer}," for layer in layers[:-1] or ["{}"]],
        "    };",
        f"    static constexpr nnue::Layer kOutput = {layers[-1]};",
        "};",
    ]
    return "\n".join(lines) + "\n"


def _layer_in_cpp(net: Layered, number: int) -> str:
    """A `nnue::Layer` of examples/engine/nnue.h."""
    plan, out = net.plan(), net.quantisation.output
    step = plan.steps[number]
    seen = [plan.first_largest if number == 0 else plan.steps[number - 1].largest]
    signed = number > 0 and plan.steps[number - 1].activation == "none"
    if number == len(net.layers):
        kept = [index for index, layer in enumerate(net.layers[:-1]) if layer.to_output]
        seen += [plan.layers[index].largest for index in kept]
        signed |= any(plan.layers[index].activation == "none" for index in kept)
        fields = [1, 1, "Activation::kNone", "Skip::kNone", False, out.type, out.bias_type]
        kind = out.type
    else:
        layer = net.layers[number]
        fields = [layer.outputs, layer.activated, f"Activation::k{layer.activation.capitalize()}"]
        fields += [f"Skip::k{layer.skip.capitalize()}", layer.to_output, layer.type, "i32"]
        kind = layer.type
    are_bytes = max(seen) <= INT8_MAX and not signed and kind == "i8"
    numbers = [step.divide, step.one, step.shift, step.square_shift, step.clip, are_bytes]
    return "{" + ", ".join(_in_cpp(value) for value in [step.inputs, *fields, *numbers]) + "}"


def _in_cpp(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text[1:] if text in DTYPES else f"nnue::{text}" if "::" in text else text


def _buckets(stacks: Sequence[int]) -> list[str]:
    """The bucket by number of pieces, or by number of pieces and queens."""
    by_queens = depends_on_queens(stacks)
    what, values = ("pieces and queens", stacks) if by_queens else ("pieces", stacks[::MATERIALS])
    return [
        f"    static constexpr bool kByQueens = {str(by_queens).lower()};",
        f"    static constexpr int kBucketOf[{len(values)}] = {{  // by number of {what}",
        *_numbers(values, 16 if by_queens else 33),
        "    };",
    ]


def _numbers(values: Sequence[int], per_line: int = 16) -> list[str]:
    lines = [values[begin : begin + per_line] for begin in range(0, len(values), per_line)]
    return ["        " + ", ".join(map(str, line)) + "," for line in lines]


# Piece-square sets that examples/engine can be told of: planes, whether interleaved, mirror, bucket of each square.
_HM = [4 * (7 - square // 8) + 7 - square % 8 if square % 8 > 3 else 0 for square in range(64)]
_PIECE_SQUARES = {
    "Chess768": (12, False, "none", [0] * 64),
    "HalfKAv2": (11, True, "none", list(range(64))),
    "HalfKAv2_hm": (12, True, "e-h", _HM),
    "HalfKAv2_hm_11": (11, True, "e-h", _HM),
}
_K16 = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [8, 9, 10, 11], *2 * [[12, 12, 13, 13]], *2 * [[14, 14, 15, 15]]]
_K16_SQUARES = [bucket for row in _K16 for bucket in [0] * 4 + row]
for _name, _planes in (("", 12), ("_11", 11)):
    _PIECE_SQUARES[f"K32Q2{_name}"] = (_planes, True, "e-h", _HM)
    _PIECE_SQUARES[f"K16Q2{_name}"] = (_planes, True, "e-h", _K16_SQUARES)
_MIRRORS = ("none", "a-d", "e-h")


def _set_in_cpp(name: str, kings_name: str) -> tuple[str, list[str]] | None:
    """The type of a feature set in examples/engine/nnue.h and the lines that define its template argument; None for a
    set that examples/engine does not know."""
    if name.startswith("Full_Threats_v") and name != "Full_Threats_v2":
        return f"nnue::Threats<nnue::ThreatsV{name.removeprefix('Full_Threats_v')}>", []
    if name == "PP_3Wide":
        return "nnue::PawnPairs", []
    known = _declared(name) if name.startswith("PieceSquare(") else _PIECE_SQUARES.get(name)
    if known is None:
        return None
    (part,) = find_feature_set(name).parts
    counters = ", ".join(f"{{{pieces}, {most}}}" for pieces, most in part.states)
    planes, interleaved, mirror, kings = known
    title = re.sub(",kings=[0-9.]+", "", name)
    return f"nnue::PieceSquares<{kings_name}>", [
        f"// {title}: the king bucket of each square, a1 first, as the perspective sees it",
        f"struct {kings_name} {{",
        f"    static constexpr int kPlanes = {planes}, kMirror = {_MIRRORS.index(mirror)};",
        f"    static constexpr int kBuckets = {max(kings) + 1}, kStates = {part.num_states};",
        *([f"    static constexpr nnue::Counter kCounters[] = {{{counters}}};"] if counters else []),
        f"    static constexpr bool kInterleaved = {str(interleaved).lower()};",
        "    static constexpr int kOfSquare[64] = {",
        *_numbers(kings, 8),
        "    };",
        "};",
        "",
    ]


def _declared(name: str) -> tuple[int, bool, str, list[int]]:
    """Of a set whose name is its definition."""
    said = dict(field.split("=") for field in name.removeprefix("PieceSquare(").removesuffix(")").split(","))
    mirror = said.get("mirror", "none")
    kings = [int(bucket) for bucket in said["kings"].split(".")] if "kings" in said else [0] * 64
    if len(kings) == 32:
        first = 0 if mirror == "a-d" else 4
        rows = [kings[begin : begin + 4] for begin in range(0, 32, 4)]
        kings = [bucket for row in rows for bucket in [0] * first + row + [0] * (4 - first)]
    return int(said.get("planes", 12)), said.get("order", "grouped") == "interleaved", mirror, kings
