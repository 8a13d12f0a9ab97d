"""The layered net: integers equal to arithmetic written out one position at a time, floats that agree with them, and
the nets of others that it can be."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from net_support import batch_of, random_checkpoint
from typed import instance

from nnue_trainer import data, nets
from nnue_trainer.errors import UserError
from nnue_trainer.export import QuantizedNet, checkpoint_from_net, evaluate, net_from_checkpoint, read_net, write_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets import VirtualRows
from nnue_trainer.nets.layered import Layered, LayeredModel
from nnue_trainer.nets.output_buckets import OutputBuckets

FENS = list(CHECK_POSITIONS)
KINGS = [0, 1, 2, 2] + [1] * 4 + [2] * 24
BYTES = {"first": {"product_shift": 9, "unbucketed_type": "i8"}, "output": {"type": "i8", "bias_type": "i32"}}

SIMPLE: dict[str, Any] = {"kind": "layered", "hidden": 16}
BUCKETS = {
    **SIMPLE,
    "inputs": {"kings": KINGS, "mirror": "a-d"},
    "output_buckets": {"count": 8, "rule": "bullet"},
}
DEEP = {
    "kind": "layered",
    "inputs": ["PP_3Wide", {"kings": KINGS, "mirror": "e-h", "order": "interleaved"}],
    "hidden": 32,
    "activation": "pairwise",
    "psqt": True,
    "output_buckets": {"count": 4},
    "layers": [
        {"outputs": 8, "activation": "dual", "skip": "last", "type": "i8", "to_output": True},
        {"outputs": 12, "activation": "screlu", "scale": 128},
        {"outputs": 6, "activation": "crelu", "type": "i8", "skip": "difference", "skip_activated": True},
    ],
    "shared": True,
    "quantisation": BYTES,
}
TABLE = {
    **SIMPLE,
    "activation": "crelu",
    "output_buckets": {"count": 3, "rule": "table", "table": [0] * 10 + [2] * 12 + [1] * 11},
    "layers": [{"outputs": 5, "activation": "none"}, {"outputs": 4, "shift": 7, "clip": 100, "skip": "last"}],
}
WHOLE_PRODUCTS = {
    **SIMPLE,
    "activation": "pairwise",
    "layers": [{"outputs": 8, "activation": "screlu"}, {"outputs": 8, "activation": "dual", "to_output": True}],
}
QUEENS = {
    **SIMPLE,
    "inputs": {"kings": KINGS, "mirror": "a-d", "states": ["eQ:1"], "virtual": "kings"},
    "psqt": True,
    "output_buckets": {"count": 8, "rule": "queens"},
}
WDL = {**BUCKETS, "head": "wdl"}
UNCLIPPED = {**SIMPLE, "quantisation": {"first": {"scale": 255, "clip": 32767, "limit": 1000}}}
ALL = {
    "simple": SIMPLE,
    "buckets": BUCKETS,
    "deep": DEEP,
    "table": TABLE,
    "whole products": WHOLE_PRODUCTS,
    "queens": QUEENS,
    "win, draw, loss": WDL,
    "win, draw, loss behind layers": {**DEEP, "psqt": False, "head": "wdl", "layers": [{"outputs": 8, "type": "i8"}]},
    "squares of 17 bits": {**SIMPLE, "quantisation": {"first": {"scale": 256}}},
    "squared relu": UNCLIPPED,
    "relu": {**UNCLIPPED, "activation": "crelu"},
}


def made(architecture: dict[str, Any]) -> tuple[Checkpoint, QuantizedNet]:
    checkpoint = random_checkpoint(architecture)
    weights = checkpoint.tensors["model"]["feature_transformer.weight"]
    for tensor in nets.parse(architecture, "test").tensors():  # pawn pairs of bytes have a smaller range
        if tensor.source_parameter == "feature_transformer.weight" and tensor.limit < 255:
            weights[tensor.first_row : tensor.first_row + tensor.shape[0]].clamp_(-0.2, 0.2)
    return checkpoint, net_from_checkpoint(checkpoint, "c")


def to_zero(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


def dot(weight: list[int], x: list[int]) -> int:
    return sum(w * v for w, v in zip(weight, x, strict=True))


def by_hand(net: QuantizedNet, us: list[int], them: list[int], stack: int) -> tuple[int, int]:
    """docs/layered-nets.md, with Python's integers: (PSQT, positional)."""
    layered = net.net
    assert isinstance(layered, Layered)
    first = layered.quantisation.first
    rows = [r for t in net.net.tensors() if ".weight" in t.name[:26] for r in net.tensors[t.name].tolist()]
    bias = net.tensors["feature_transformer.bias"].tolist()
    unit, x, divide = float(first.scale), [], 1
    for side in (us, them):
        acc = [b + sum(rows[k][j] for k in side) for j, b in enumerate(bias)]
        clipped = [min(max(a, 0), first.clip or first.scale) for a in acc]
        half = len(acc) // 2
        if layered.activation == "screlu":
            clipped = [a * a >> first.product_shift for a in clipped]
        if layered.activation == "pairwise":
            clipped = [clipped[j] * clipped[j + half] >> first.product_shift for j in range(half)]
        x += clipped
    if layered.activation != "crelu":
        unit = first.scale**2 / 2**first.product_shift
        divide = 1 if first.product_shift else first.scale
    skips, kept = [], []
    for number, layer in enumerate(layered.layers):
        one = round(unit * layer.scale / divide)
        weight, bias = (net.tensors[f"layers.{number}.{part}"][stack].tolist() for part in ("weight", "bias"))
        y = [to_zero(dot(w, x), divide) + b for w, b in zip(weight, bias, strict=True)]
        if layer.skip != "none":
            skips.append((y[-1] if layer.skip == "last" else y[-2] - y[-1], one))
        y = y[: layer.activated]
        shift = layer.scale.bit_length() - 1 if layer.shift is None else layer.shift
        unit, divide = one / 2**shift, 1
        clip = layer.clip or int(unit)
        square = round(np.log2(unit))
        clamped = [min(max(v >> shift, 0), clip) for v in y]
        match layer.activation:
            case "crelu":
                x = clamped
            case "screlu":
                x = [min(max(v, 0), clip << shift) ** 2 >> 2 * shift + square for v in y]
                unit = unit**2 / 2**square
            case "dual":
                x = [min(v * v >> 2 * shift + square, clip) for v in y] + clamped
            case "none":
                x = [min(max(v >> shift, -32768), 32767) for v in y]
        if layer.to_output and number < len(layered.layers) - 1:
            kept += x
    out = layered.quantisation.output
    one = round(unit * out.scale / divide)
    if layered.head == "wdl":
        outputs = zip(
            net.tensors["output.weight"][stack].tolist(), net.tensors["output.bias"][stack].tolist(), strict=True
        )
        lost, drawn, won = (math.exp((to_zero(dot(weight, kept + x), divide) + b) / one) for weight, b in outputs)
        points = (won + drawn / 2) / (won + drawn + lost)
        return 0, int(400 * math.log(points / (1 - points)))
    weight, (b,) = net.tensors["output.weight"][stack][0].tolist(), net.tensors["output.bias"][stack].tolist()
    positional = to_zero(dot(weight, kept + x), divide) + b
    positional += sum(to_zero(skip * one, of) for skip, of in skips)
    psqt = 0
    if layered.psqt:
        column = [r[stack] for t in net.net.tensors() if ".psqt" in t.name for r in net.tensors[t.name].tolist()]
        psqt = to_zero(sum(column[k] for k in us) - sum(column[k] for k in them), 2)
    return psqt, positional


@pytest.mark.parametrize("architecture", ALL.values(), ids=ALL)
def test_integers_are_the_written_out_arithmetic(architecture: dict[str, Any]) -> None:
    _, net = made(architecture)
    assert isinstance(net.net, Layered)
    fens = FENS[::6]
    batch = batch_of(net, fens)
    found = evaluate(net, batch)
    one = net.net.plan().output.one
    for i, fen in enumerate(fens):
        sides = [[k for k in rows[i].tolist() if k >= 0] for rows in (batch.white, batch.black)]
        us, them = reversed(sides) if fen.split()[1] == "b" else sides
        psqt, positional = by_hand(net, us, them, int(found.bucket[i]))
        assert found.psqt_raw[i, found.bucket[i]] == psqt
        assert found.positional_raw[i, found.bucket[i]] == positional
        assert found.score[i] == (positional if net.net.head == "wdl" else to_zero((psqt + positional) * 400, one))
    assert len(set(found.score.tolist())) > 10


@pytest.mark.parametrize("architecture", ALL.values(), ids=ALL)
def test_floats_agree_with_the_integers(architecture: dict[str, Any]) -> None:
    checkpoint, net = made(architecture)
    model = nets.build(architecture)
    model.load_state_dict(checkpoint.tensors["model"])
    batch = data.expand(data.records_from_fens(FENS), model.feature_set)
    with torch.no_grad():
        floats = model(batch).double().numpy() * model.score_scale
    score = evaluate(net, batch_of(net, FENS)).score
    spread = floats.std()
    assert spread > 10
    # The rest is rounding: of weights, and down to whole steps in every layer.
    assert np.sqrt(np.mean((floats - score) ** 2)) < 0.06 * spread


@pytest.mark.parametrize("architecture", ALL.values(), ids=ALL)
def test_export_import_and_the_file_keep_every_integer(architecture: dict[str, Any], tmp_path) -> None:
    _, net = made(architecture)
    write_net(net, tmp_path / "net.nnue")
    again = read_net(tmp_path / "net.nnue")
    assert again.net == net.net
    write_net(net_from_checkpoint(checkpoint_from_net(again, "n"), "c"), tmp_path / "again.nnue")
    assert (tmp_path / "again.nnue").read_bytes() == (tmp_path / "net.nnue").read_bytes()


@pytest.mark.parametrize("activation", ["crelu", "screlu"])
def test_without_layers_and_buckets_it_is_the_simple_net(activation: str) -> None:
    simple = net_from_checkpoint(random_checkpoint({"kind": "simple", "hidden": 32, "activation": activation}), "c")
    layered = nets.parse({"kind": "layered", "hidden": 32, "activation": activation}, "test")
    found = {(t.name, t.dtype, t.scale, t.limit) for t in layered.tensors()}
    assert found == {(t.name, t.dtype, t.scale, t.limit) for t in simple.net.tensors()}
    tensors = {t.name: simple.tensors[t.name].reshape(t.shape) for t in layered.tensors()}
    ours = evaluate(QuantizedNet(layered, b"", tensors, "own"), batch_of(simple, FENS))
    theirs = evaluate(simple, batch_of(simple, FENS))
    np.testing.assert_array_equal(ours.positional_raw, theirs.positional_raw)
    np.testing.assert_array_equal(ours.score, theirs.score)


def test_it_can_be_the_net_of_stockfish_19() -> None:
    """SFNNv16 in a recipe's words, with the integers of such a net: dual layers, skip connection, PSQT, all stacks."""
    source = nets.parse({"kind": "sfnnv16", "l1": 32}, "test")
    generator = np.random.default_rng(1)
    tensors = {}
    for tensor in source.tensors():
        spread = {"<i1": 30, "<i2": 60, "<i4": 9000}[tensor.dtype]
        tensors[tensor.name] = generator.integers(-spread, spread, tensor.shape).astype(tensor.dtype)
    stockfish = QuantizedNet(source, b"", tensors, source.layouts()[0].name)
    layered = nets.parse(
        {
            "kind": "layered",
            "inputs": ["HalfKAv2_hm_11", "Full_Threats_v16", "PP_3Wide"],
            "hidden": 32,
            "activation": "pairwise",
            "psqt": True,
            "output_buckets": {"count": 8},
            "layers": [
                {"outputs": 32, "activation": "dual", "skip": "difference", "skip_activated": True, "scale": 128,
                 "type": "i8", "to_output": True, "clip": 127},
                {"outputs": 32, "activation": "dual", "type": "i8", "clip": 127},
            ],
            "quantisation": {
                "first": {"scale": 256, "clip": 255, "product_shift": 9, "unbucketed_type": "i8"},
                "output": {"scale": 128, "type": "i8", "bias_type": "i32"},
            },
            "score_scale": 600,
        },
        "test",
    )  # fmt: skip
    names = {"layers.0": "fc0", "layers.1": "fc1", "output": "fc2"}
    ours = {}
    for tensor in layered.tensors():
        name = tensor.name
        for old, new in names.items():
            name = name.replace(old, new)
        ours[tensor.name] = tensors[name].reshape(tensor.shape)
    theirs = evaluate(stockfish, batch_of(stockfish, FENS))
    found = evaluate(QuantizedNet(layered, b"", ours, "own"), batch_of(stockfish, FENS))
    np.testing.assert_array_equal(found.bucket, theirs.bucket)
    used = (np.arange(len(FENS)), theirs.bucket)
    np.testing.assert_array_equal(found.psqt_raw, theirs.psqt_raw)
    found_positional = found.positional_raw[used]
    # Stockfish has the output in sixteenths of its units already.
    as_theirs = np.sign(found_positional) * (np.abs(found_positional) * 9600 // 16384)
    np.testing.assert_array_equal(as_theirs, theirs.positional_raw[used])
    assert np.abs(as_theirs).max() > 1000


def test_output_buckets_follow_the_rules_of_the_field() -> None:
    stockfish = OutputBuckets(count=8).stacks[::16]
    assert [stockfish[n] for n in (2, 4, 5, 8, 9, 32)] == [0, 0, 1, 1, 2, 7]
    bullet = OutputBuckets(count=8, rule="bullet").stacks[::16]
    assert [bullet[n] for n in (2, 5, 6, 9, 10, 32)] == [0, 0, 1, 1, 2, 7]
    for count in range(1, 33):
        for rule in ("stockfish", "bullet"):
            table = OutputBuckets(count=count, rule=rule).stacks
            assert len(table) == 33 * 16
            assert 0 <= min(table) <= max(table) < count
    of_pieces = [0] * 10 + [2] * 12 + [1] * 11
    assert OutputBuckets(count=3, rule="table", table=of_pieces).stacks == tuple(np.repeat(of_pieces, 16))
    by_queens = OutputBuckets(count=32, rule="queens").stacks
    assert by_queens == OutputBuckets(count=32, rule="table", table=list(by_queens)).stacks
    # 10 pieces; neither side, the other side, the side to move (with three), both have queens.
    assert [by_queens[16 * 10 + material] for material in (0, 2, 12, 5)] == [8, 9, 10, 11]
    with pytest.raises(ValueError, match="expected a multiple of 4"):
        OutputBuckets(count=6, rule="queens")


def test_bounds_follow_from_the_quantisation_and_cover_every_parameter() -> None:
    model = nets.build(DEEP)
    bounds: dict[str, list[Any]] = {}
    for bound in model.weight_bounds():
        bounds.setdefault(bound.name, []).append(bound)
    bucketed, pairs = bounds["feature_transformer.weight"]
    assert (bucketed.first_row, bucketed.rows, bucketed.high) == (0, 3 * 768, 506 / 255)
    assert (pairs.first_row, pairs.rows, pairs.high) == (3 * 768, 4560, 127 / 255)
    assert bounds["layers.0.weight"][0].high == pytest.approx(127 / 64, rel=1e-3)
    # Words of 16 bits at a scale of 128 may go as far as the field clips them, bytes would not.
    assert bounds["layers.1.weight"][0].high == pytest.approx(127 / 64, rel=1e-3)
    assert "feature_transformer.psqt" not in bounds
    assert not {name for name, _ in model.named_parameters()} - bounds.keys() - {
        "feature_transformer.psqt", "layers.0.bias", "layers.1.bias", "layers.2.bias", "output.bias",
    }  # fmt: skip


def test_virtual_rows_of_king_buckets_and_of_the_shared_layer() -> None:
    rows = [VirtualRows(0, 3 * 768, 768)]
    shared = [VirtualRows(0, 4, 1)]
    assert nets.build(DEEP).factorised() == {
        "feature_transformer.weight": rows,
        "feature_transformer.psqt": rows,
        "layers.0.weight": shared,
        "layers.0.bias": shared,
    }
    assert nets.build({**BUCKETS, "factorised": False}).factorised() == {}
    assert nets.build({**BUCKETS, "factorised": False, "shared": True}).factorised().keys() == {
        "output.weight",
        "output.bias",
    }


def test_every_parameter_learns_and_stacks_start_alike() -> None:
    model = instance(LayeredModel, nets.build(DEEP))
    for layer in (*model.layers, model.output):
        assert torch.equal(layer.weight, layer.weight[:1].expand_as(layer.weight))
    model.load_state_dict(made(DEEP)[0].tensors["model"])
    batch = data.expand(data.records_from_fens(FENS), model.feature_set)
    model(batch).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": "Chess769"}, "architecture.inputs: unknown feature set 'Chess769', expected one of"),
        ({"inputs": [{"kings": [0] * 31, "mirror": "a-d"}]}, "kings has 31 buckets, expected 64, or 32"),
        ({"inputs": [{"kingz": []}]}, "architecture.inputs.0.kingz: unknown key (did you mean 'kings'?)"),
        ({"inputs": []}, "architecture.inputs: found [], expected at least 1 item"),
        ({"hidden": 24, "activation": "pairwise"}, "hidden: found 24, expected a multiple of 16 for pairwise"),
        ({"layers": [{"outputs": 0}]}, "architecture.layers.0.outputs: found 0, expected greater than"),
        ({"layers": [{"outputs": 1, "skip": "last"}]}, "architecture.layers.0: outputs: found 1, expected more than"),
        (
            {"layers": [{"outputs": 4, "skip_activated": True}]},
            "architecture.layers.0: skip_activated: found true without",
        ),
        ({"head": "wdl", "psqt": True}, "head: found wdl with psqt, expected neither psqt nor skip connections"),
        ({"head": "wdl", "layers": [{"outputs": 4, "skip": "last"}]}, "head: found wdl with a skip connection"),
        ({"layers": [{"outputs": 4, "shift": 20}]}, "layers.0: 1.0 of its outputs is less than one integer step"),
        ({"output_buckets": {"count": 2, "rule": "table", "table": [2] * 33}}, "bucket 2, expected 0 … 1, below count"),
        ({"output_buckets": {"count": 2, "rule": "table", "table": [0]}}, "table: found 1 numbers, expected 33"),
        (
            {"output_buckets": {"count": 2, "table": [0] * 33}},
            "found 33 numbers with rule: stockfish, expected rule: table",
        ),
        ({"quantisation": {"first": {"scale": 300, "product_shift": 1}}}, "may reach 45000, expected at most 32767"),
        ({"activation": "crelu", "quantisation": {"first": {"product_shift": 9}}}, "crelu makes no products"),
    ],
)
def test_wrong_architectures_are_named_in_one_line(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        nets.build({**SIMPLE, **change})
    assert "\n" not in str(caught.value)
    assert words in str(caught.value)
