"""Nets as engines have them: files that are made byte by byte here, read by their description, and evaluated.

The writer uses `struct` and plain lists; the reference walks over the pieces of a FEN. Neither uses the project's
feature sets, layouts or arithmetic.
"""

import math
import random
import struct
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import nnue

from nnue_trainer import data, nets
from nnue_trainer.errors import UserError
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.export.convert import exported, net_from_checkpoint, parse_format, read_format
from nnue_trainer.export.evaluate import evaluate
from nnue_trainer.files import checkpoint
from nnue_trainer.nets.base import StackedModel, parse
from nnue_trainer.nets.integer_forward import reference

FENS = [*CHECK_POSITIONS[::3], "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR b KQkq - 0 1"]
H = 16


@dataclass
class File:
    """A net file as its engine writes it, and what is in it."""

    chance: random.Random = field(default_factory=lambda: random.Random(7))
    data: bytearray = field(default_factory=bytearray)

    def put(self, kind: str, count: int, most: float) -> list[float]:
        """Random numbers of a `struct` kind behind what there is."""
        if kind == "f":
            # As fp32 holds them.
            values = [struct.unpack("<f", struct.pack("<f", self.chance.uniform(-most, most)))[0] for _ in range(count)]
        else:
            values = [self.chance.randint(-int(most), int(most)) for _ in range(count)]
        self.data += struct.pack(f"<{count}{kind}", *values)
        return values

    def end(self) -> bytes:
        return bytes(self.data) + bytes(-len(self.data) % 64)


def pieces_of(fen: str) -> tuple[list[tuple[int, int, int]], int]:
    """(type, colour, square) of each piece, and the side to move; white is 0."""
    rows, side = fen.split()[:2]
    found = []
    for number, row in enumerate(rows.split("/")):
        file = 0
        for letter in row:
            if letter.isdigit():
                file += int(letter)
                continue
            found.append(("pnbrqk".index(letter.lower()), int(letter.islower()), 8 * (7 - number) + file))
            file += 1
    return found, int(side == "b")


def accumulator(
    weight: list[float], bias: list[float], fen: str, view: int, *, enemy_first: bool = False, width: int = H
) -> list[int]:
    """Chess768 with own planes first, or the enemy's."""
    total = [int(value) for value in bias]
    for kind, colour, square in pieces_of(fen)[0]:
        second = (colour != view) != enemy_first
        row = 64 * (kind + 6 * second) + (square ^ (56 if view else 0))
        for j in range(width):
            total[j] += int(weight[row * width + j])
    assert all(-(2**15) <= value < 2**15 for value in total)
    return total


def tdiv(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


def scores_of(file: bytes, architecture: dict[str, Any], form: dict[str, Any] | None = None) -> list[int]:
    """Scores of FENS by the evaluator, of the file read by its description. The plain reference gives the same, and the
    file is written again byte for byte from a checkpoint."""
    net = parse({"kind": "layered", **architecture}, "test")
    raw = parse_format({"kind": "raw", **(form or {})}, "test")
    quantized, made = read_format(file, raw, net, "net.bin", lambda _: None)
    found = evaluate(quantized, FENS, every_stack=False).score.tolist()
    batch = data.expand(data.records_from_fens(FENS), net.integer_feature_set)
    forward = net.integer_forward()
    assert forward is not None
    values = reference(forward, quantized.tensors, batch)
    used = (np.arange(len(batch)), net.bucket(batch))
    assert forward.score(values.psqt[used], values.positional[used]).tolist() == found
    again = exported(net_from_checkpoint(made, "test"), made)
    assert raw.to_bytes(again, "test") == file
    assert len(set(found)) > 9
    return found


def test_enemy_planes_first() -> None:
    file = File()
    weight, bias = file.put("h", 768 * H, 60), file.put("h", H, 60)
    output, output_bias = file.put("h", 2 * H, 100), file.put("h", 1, 1000)
    expected = []
    for fen in FENS:
        us = pieces_of(fen)[1]
        sides = [accumulator(weight, bias, fen, view, enemy_first=True) for view in (us, 1 - us)]
        total = sum(
            min(max(value, 0), 255) ** 2 * int(output[side * H + j])
            for side, values in enumerate(sides)
            for j, value in enumerate(values)
        )
        expected.append(tdiv((tdiv(total, 255) + int(output_bias[0])) * 400, 255 * 64))
    assert scores_of(file.end(), {"inputs": {"order": "enemy-first"}, "hidden": H}) == expected


@pytest.mark.parametrize("perspectives", ["mover", "white"])
@pytest.mark.parametrize("activation", ["crelu", "pairwise"])
def test_one_perspective(perspectives: str, activation: str) -> None:
    file = File()
    weight, bias = file.put("h", 768 * H, 60), file.put("h", H, 60)
    n = H // 2 if activation == "pairwise" else H
    output, output_bias = file.put("h", n, 100), file.put("h", 1, 1000)
    expected = []
    for fen in FENS:
        us = pieces_of(fen)[1]
        clipped = [
            min(max(value, 0), 255) for value in accumulator(weight, bias, fen, us if perspectives == "mover" else 0)
        ]
        divide = 1
        if activation == "pairwise":
            clipped, divide = [clipped[j] * clipped[j + n] for j in range(n)], 255
        total = sum(value * int(output[j]) for j, value in enumerate(clipped))
        score = tdiv((tdiv(total, divide) + int(output_bias[0])) * 400, 255 * 64)
        expected.append(-score if perspectives == "white" and us else score)
    described = {"hidden": H, "activation": activation, "perspectives": perspectives}
    assert scores_of(file.end(), described) == expected


@pytest.mark.parametrize("own", [False, True])
def test_buckets_by_weights_of_pieces(own: bool) -> None:
    count, divisor = 4, 7
    weights = [0, 1, 1, 2, 4] + ([3, 1, 0, 2, 5] if own else [])
    file = File()
    weight, bias = file.put("h", 768 * H, 60), file.put("h", H, 60)
    output, output_bias = file.put("h", count * 2 * H, 100), file.put("h", count, 1000)
    table = [min(total // divisor, count - 1) for total in range(4 * divisor)]
    expected, used = [], set()
    for fen in FENS:
        pieces, us = pieces_of(fen)
        phase = sum((weights * 2)[kind + 5 * (colour != us)] for kind, colour, _ in pieces if kind < 5)
        bucket = min(phase // divisor, count - 1)
        used.add(bucket)
        sides = [accumulator(weight, bias, fen, view) for view in (us, 1 - us)]
        total = sum(
            min(max(value, 0), 255) * int(output[bucket * 2 * H + side * H + j])
            for side, values in enumerate(sides)
            for j, value in enumerate(values)
        )
        expected.append(tdiv((total + int(output_bias[bucket])) * 400, 255 * 64))
    assert len(used) == count
    buckets = {"count": count, "rule": "weights", "weights": weights, "table": table}
    assert scores_of(file.end(), {"hidden": H, "activation": "crelu", "output_buckets": buckets}) == expected


@pytest.mark.parametrize("mirror", ["none", "a-d", "e-h"])
def test_buckets_by_pieces_on_squares(mirror: str) -> None:
    squares = {"K": [square % 8 for square in range(64)], "k": [8 * (square // 16) for square in range(64)]}
    squares["p"] = [32 * (square == 35) for square in range(64)]
    kings = list(range(64)) if mirror == "none" else list(range(32))
    table = [(3 * total + 1) % 7 for total in range(60)]
    inputs = ["PP_3Wide", {"kings": kings, "mirror": mirror, "order": "interleaved-enemy-first"}, "Chess768"]
    buckets = {"count": 7, "rule": "squares", "squares": squares, "table": table}
    net = parse({"kind": "layered", "hidden": H, "inputs": inputs, "output_buckets": buckets}, "test")
    expected = []
    for fen in FENS:
        pieces, us = pieces_of(fen)
        file = next(square for kind, colour, square in pieces if kind == 5 and colour == us) % 8
        turned = (56 if us else 0) ^ (7 if {"none": False, "a-d": file > 3, "e-h": file < 4}[mirror] else 0)
        total = 0
        for kind, colour, square in pieces:
            letter = "PNBRQK"[kind] if colour == us else "pnbrqk"[kind]
            total += squares.get(letter, [0] * 64)[square ^ turned]
        expected.append(table[min(total, 59)])
    assert len(set(expected)) > 4
    assert net.bucket(data.expand(data.records_from_fens(FENS), net.feature_set)).tolist() == expected
    model = net.model()
    assert isinstance(model, StackedModel)
    assert model.buckets(data.expand(data.records_from_fens(FENS), net.feature_set)).tolist() == expected


def test_large_weights_of_the_first_layer() -> None:
    """Beyond ±1.984 · QA, the description states their limit; training keeps within it."""
    file = File()
    weight, bias = file.put("h", 768 * H, 900), file.put("h", H, 900)
    output, output_bias = file.put("h", 2 * H, 100), file.put("h", 1, 1000)
    expected = []
    for fen in FENS:
        us = pieces_of(fen)[1]
        sides = [accumulator(weight, bias, fen, view) for view in (us, 1 - us)]
        total = sum(
            min(max(value, 0), 255) * int(output[side * H + j])
            for side, values in enumerate(sides)
            for j, value in enumerate(values)
        )
        expected.append(tdiv((total + int(output_bias[0])) * 400, 255 * 64))
    described = {"hidden": H, "activation": "crelu", "quantisation": {"first": {"limit": 1000}}}
    assert scores_of(file.end(), described) == expected
    bounds = {bound.name: bound.high for bound in nets.build({"kind": "layered", **described}).weight_bounds()}
    assert bounds["feature_transformer.weight"] == pytest.approx(1000 / 255)
    with pytest.raises(UserError, match=r"limit ±1\.98431 \(506 steps.*model\.quantisation\.first\.limit in the"):
        scores_of(file.end(), {"hidden": H, "activation": "crelu"})


FLOATS: dict[str, dict[str, Any]] = {
    "floats behind integers": {
        "layers": [
            {"outputs": 6, "activation": "crelu", "type": "f32"},
            {"outputs": 5, "activation": "screlu", "type": "f32"},
        ],
        "quantisation": {"output": {"type": "f32"}},
    },
    "bytes, then floats": {
        "activation": "pairwise",
        "layers": [
            {"outputs": 8, "activation": "dual", "type": "i8", "bias_type": "f32", "skip": "last"},
            {"outputs": 5, "type": "f32", "activation": "crelu", "clip": 6},
        ],
        "quantisation": {"first": {"product_shift": 9}, "output": {"type": "f32"}},
    },
    "the output only": {"activation": "screlu", "quantisation": {"output": {"type": "f32"}}},
}  # fmt: skip


def float_net(name: str) -> tuple[bytes, dict[str, Any], list[Fraction]]:
    """The file, its description, and the exact outputs for FENS in engine units, except for activations of fp32."""
    described: dict[str, Any] = {"hidden": H, **FLOATS[name]}
    file = File()
    weight, bias = file.put("h", 768 * H, 60), file.put("h", H, 60)
    activation = described.get("activation", "screlu")
    n = H if activation == "pairwise" else 2 * H
    layers, inputs = [], n
    for layer in [*described.get("layers", []), {"outputs": 1, "activation": "none", "type": "f32"}]:
        outputs, kind = layer["outputs"], "b" if layer["type"] == "i8" else "f"
        values = file.put(kind, outputs * inputs, 120 if kind == "b" else 1.2)
        layers.append((layer, outputs, inputs, values, file.put("f", outputs, 0.2)))
        active = outputs - (layer.get("skip") == "last")
        inputs = active * (2 if layer["activation"] == "dual" else 1)
    results = []
    for fen in FENS:
        us = pieces_of(fen)[1]
        x: list[float] = []
        one = 255.0
        for view in (us, 1 - us):
            clipped = [min(max(value, 0), 255) for value in accumulator(weight, bias, fen, view)]
            if activation == "pairwise":
                x += [clipped[j] * clipped[j + H // 2] >> 9 for j in range(H // 2)]
                one = 255.0**2 / 512
            else:
                x += [value * value for value in clipped]
                one = 255.0**2
        skipped = Fraction(0)
        for layer, outputs, size, values, biases in layers:
            scale = one * (64 if layer["type"] == "i8" else 1)
            sums = []
            for o in range(outputs):
                total = sum(Fraction(values[o * size + i]) * Fraction(x[i]) for i in range(size))
                sums.append(total / Fraction(scale) + Fraction(biases[o]))
            one = 1.0
            if layer.get("skip") == "last":
                skipped += sums.pop()
            y = [struct.unpack("<f", struct.pack("<f", float(value)))[0] for value in sums]
            most = float(layer.get("clip", 1))
            clipped_y = [min(max(value, 0.0), most) for value in y]
            match layer["activation"]:
                case "crelu":
                    x = clipped_y
                case "screlu":
                    x = [struct.unpack("<f", struct.pack("<f", value * value))[0] for value in clipped_y]
                case "dual":
                    x = [min(struct.unpack("<f", struct.pack("<f", value * value))[0], most) for value in y] + clipped_y
        results.append((sums[0] + skipped) * 400)
    return file.end(), described, results


@pytest.mark.parametrize("name", FLOATS)
def test_layers_of_floats(name: str, tmp_path: Path) -> None:
    """The evaluator's outputs lie within 1 ulp of fp32 of the exact ones for the same activations, so a score is the
    whole part of the exact one, or where that is almost a whole number the next one."""
    file, described, exact = float_net(name)
    found = scores_of(file, described)
    for score, value in zip(found, exact, strict=True):
        slack = Fraction(math.ulp(1.0)) * 2**29 * 8 * (abs(value) + 400)  # 8 ulp of fp32
        assert value - slack - 1 < score < value + slack + 1, (score, float(value))
        if abs(value - round(value)) > slack:
            assert score == math.trunc(value)

    # The own container, and the float model with the first layer rounded.
    (tmp_path / "net.bin").write_bytes(file)
    net = parse({"kind": "layered", **described}, "test")
    raw = parse_format({"kind": "raw"}, "test")
    _, made = read_format(file, raw, net, "net.bin", lambda _: None)
    checkpoint.save(tmp_path / "c.safetensors", made)
    nnue("export", tmp_path / "c.safetensors", tmp_path / "net.nnue")
    nnue("import", tmp_path / "net.nnue", tmp_path / "again.safetensors")
    nnue("export", tmp_path / "again.safetensors", tmp_path / "again.nnue")
    assert (tmp_path / "again.nnue").read_bytes() == (tmp_path / "net.nnue").read_bytes()
    model = nets.build(net)
    model.load_state_dict(made.tensors["model"])
    batch = data.expand(data.records_from_fens(FENS), net.feature_set)
    with torch.no_grad(), model.rounding(True):
        rounded = (model(batch) * model.score_scale).round()
    assert rounded.tolist() == found
    with torch.no_grad():
        floats = model(batch) * model.score_scale
    difference = np.abs(floats.numpy() - [float(value) for value in exact])
    assert difference.max() < (60 if "bytes" in name else 0.01)  # products are rounded down to 7 bits


def test_floats_that_are_not_numbers_are_refused() -> None:
    file, described, _ = float_net("the output only")
    broken = bytearray(file)
    broken[2 * 769 * H + 4 : 2 * 769 * H + 8] = struct.pack("<f", math.nan)
    with pytest.raises(UserError, match=r"output\.weight has nan, expected finite numbers"):
        scores_of(bytes(broken), described)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"layers": [{"outputs": 4, "type": "f32"}]}, "quantisation.output.type: found i16 after a float layer"),
        (
            {
                "layers": [{"outputs": 4, "type": "f32"}, {"outputs": 4}],
                "quantisation": {"output": {"type": "f32"}},
            },
            "layers.1.type: found i16 after a float layer",
        ),
        ({"psqt": True, "quantisation": {"output": {"type": "f32"}}}, "psqt: found layers of floats"),
        ({"psqt": True, "perspectives": "white"}, "psqt: found perspectives: white"),
        ({"layers": [{"outputs": 4, "type": "f32", "limit": 3}]}, "limit: found 3, but the weights are floats"),
        ({"layers": [{"outputs": 4, "type": "f32", "shift": 3}]}, "shift: found 3, but the outputs are floats"),
        ({"output_buckets": {"rule": "weights"}}, "weights: found 0, expected 5"),
        ({"output_buckets": {"weights": [1, 1, 1, 1, 1]}}, "weights: found 5 with rule: stockfish"),
        ({"output_buckets": {"rule": "squares"}}, "squares: found 0 pieces with rule: squares"),
        ({"output_buckets": {"squares": {"K": [0] * 64}}}, "squares: found 1 pieces with rule: stockfish"),
        (
            {"output_buckets": {"rule": "squares", "squares": {"K": [0] * 63}}},
            "squares.K: found 63 numbers, expected 64",
        ),
        ({"output_buckets": {"rule": "squares", "squares": {"X": [0] * 64}}}, "squares"),
        ({"output_buckets": {"rule": "squares", "squares": {"P": [0] * 64}, "table": [1]}}, "bucket 1, expected 0 … 0"),
        (
            {"inputs": "HalfKAv2_hm_11", "output_buckets": {"rule": "squares", "squares": {"k": [1] * 64}}},
            "has no plane for each king",
        ),
        (
            {"inputs": "HalfKP", "output_buckets": {"rule": "weights", "weights": [1, 1, 1, 1, 1]}},
            "has no planes of pieces",
        ),
    ],
)
def test_descriptions_that_do_not_hold_together(described: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse({"kind": "layered", "hidden": H, **described}, "test")


@pytest.mark.parametrize(
    "described",
    [
        {"perspectives": "white", "output_buckets": {"count": 4, "rule": "weights", "weights": [0, 1, 1, 2, 4]}},
        {"perspectives": "mover", **FLOATS["bytes, then floats"]},
    ],
)
@pytest.mark.parametrize("aware", [False, True])
def test_they_learn(described: dict[str, Any], aware: bool) -> None:
    """Gradients reach every parameter, with rounding and without; White's output changes its sign with the side."""
    torch.manual_seed(3)
    model = nets.build({"kind": "layered", "hidden": H, **described})
    batch = data.expand(data.records_from_fens(FENS), model.feature_set)
    with model.rounding(aware):
        model(batch).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
