"""Between floating point and integers: rounding, king planes, refusals, import → export as the same file."""

import re

import numpy as np
import pytest
import torch
from golden import golden_net
from net_support import batch_of, random_checkpoint
from typed import instance

from nnue_trainer import data, nets
from nnue_trainer.errors import UserError
from nnue_trainer.export import checkpoint_from_net, evaluate, net_from_checkpoint, read_net, to_bytes, write_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint
from nnue_trainer.nets.stockfish import SfnnV5
from nnue_trainer.nets.stockfish_net import king_plane_rows

SMALL = {"kind": "sfnnv5", "l1": 128}
KING_ROWS = king_plane_rows(*(data.feature_set(name).parts[0] for name in ("HalfKAv2_hm", "HalfKAv2_hm_11")))


def test_merging_king_planes_changes_no_position() -> None:
    """Rows of 12 planes summed over a position's 12-plane indices = merged rows over its 11-plane indices."""
    rows = np.random.default_rng(5).integers(-1000, 1000, (24576, 3))
    records = data.records_from_fens(list(CHECK_POSITIONS))
    wide, narrow = data.expand(records, "HalfKAv2_hm"), data.expand(records, "HalfKAv2_hm_11")
    merged = rows[KING_ROWS]
    assert merged.shape == (22528, 3)
    for twelve, eleven in ((wide.white, narrow.white), (wide.black, narrow.black)):
        for a, b in zip(twelve.numpy(), eleven.numpy(), strict=True):
            np.testing.assert_array_equal(rows[a[a >= 0]].sum(0), merged[b[b >= 0]].sum(0))


def test_no_two_merged_rows_come_from_one() -> None:
    """Import can therefore put each row back where it came from."""
    assert np.unique(KING_ROWS).size == 22528


@pytest.mark.parametrize("name", ["sfnnv5", "small128"])
def test_import_then_export_is_the_same_file(name: str, tmp_path) -> None:
    net = golden_net(name)
    net.tensors["fc1.weight"][2, 5, 30:] = [17, -3]
    write_net(net, tmp_path / "in.nnue")
    imported = checkpoint_from_net(read_net(tmp_path / "in.nnue"), "in.nnue")
    checkpoint.save(tmp_path / "c.safetensors", imported)
    exported = net_from_checkpoint(checkpoint.load(tmp_path / "c.safetensors"), "c")
    assert to_bytes(exported) == (tmp_path / "in.nnue").read_bytes()


def test_import_then_export_of_a_simple_net_is_the_same_file(tmp_path) -> None:
    net = net_from_checkpoint(random_checkpoint({"kind": "simple", "hidden": 24}), "c")
    write_net(net, tmp_path / "in.nnue")
    again = net_from_checkpoint(checkpoint_from_net(read_net(tmp_path / "in.nnue"), "in"), "c")
    assert to_bytes(again) == (tmp_path / "in.nnue").read_bytes()


@pytest.mark.parametrize(("architecture", "layout"), [(SMALL, "leb"), ({"kind": "sfnnv5", "l1": 1024}, "raw")])
def test_the_layout_of_an_imported_net_is_kept(architecture: dict, layout: str) -> None:
    source = random_checkpoint(architecture)
    source.state["net"] = {"name": "any", "description": "as it was", "layout": layout}
    net = net_from_checkpoint(source, "c")
    assert net.description == b"as it was"
    assert net.layout == layout


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (7, "state.net is 7, expected a mapping"),
        ({"layout": "zip"}, "state.net.layout is 'zip', expected one of leb, raw"),
        ({"description": "\u20ac"}, "state.net.description holds characters that are not bytes"),
    ],
)
def test_damaged_metadata_of_an_imported_net_is_one_line(origin, words: str) -> None:
    source = random_checkpoint(SMALL)
    source.state["net"] = origin
    with pytest.raises(UserError, match=re.escape(words)):
        net_from_checkpoint(source, "c")


@pytest.mark.parametrize(("name", "limit"), [("sfnnv5", 30), ("small128", 60)])
def test_imported_float_model_agrees_with_the_integers(name: str, limit: float) -> None:
    """The rest is the rounding down of activations; a wrong scale or order would cost thousands of units."""
    net = golden_net(name)
    imported = checkpoint_from_net(net, name)
    model = nets.build(imported.architecture)
    model.load_state_dict(imported.tensors["model"])
    fens = list(CHECK_POSITIONS)
    with torch.no_grad():
        floating = model(data.expand(data.records_from_fens(fens), model.feature_set)).double().numpy()
    integer = evaluate(net, batch_of(net, fens)).score
    difference = floating * model.score_scale - integer
    assert np.sqrt(np.mean(difference**2)) < limit
    assert np.std(integer) > 1000


def test_imported_simple_model_agrees_with_the_integers() -> None:
    net = net_from_checkpoint(random_checkpoint({"kind": "simple", "hidden": 64}), "c")
    imported = checkpoint_from_net(net, "simple")
    model = nets.build(imported.architecture)
    model.load_state_dict(imported.tensors["model"])
    fens = list(CHECK_POSITIONS)
    with torch.no_grad():
        floating = model(data.expand(data.records_from_fens(fens), model.feature_set)).double().numpy()
    integer = evaluate(net, batch_of(net, fens)).score
    assert np.abs(floating * model.score_scale - integer).max() < 1.1
    assert np.std(integer) > 30


def test_values_round_to_nearest() -> None:
    source = random_checkpoint(SMALL)
    model = source.tensors["model"]
    model["fc0.weight"][1, 2, 3] = 10.49 / 64
    model["fc0.weight"][1, 2, 4] = -10.51 / 64
    model["fc2.weight"][0, 0, 0] = 127 * 127 / 9600
    model["fc2.bias"][4, 0] = 3.4 / 9600
    model["feature_transformer.bias"][5] = -20.6 / 127
    model["feature_transformer.psqt"][3, 2] = 77.7 / 9600
    net = net_from_checkpoint(source, "c")
    assert net.tensors["fc0.weight"][1, 2, 3:5].tolist() == [10, -11]
    assert net.tensors["fc2.weight"][0, 0, 0] == 127
    assert net.tensors["fc2.bias"][4].tolist() == [3]
    assert net.tensors["feature_transformer.bias"][5] == -21
    assert net.tensors["feature_transformer.psqt"][3, 2] == 78
    assert not net.tensors["fc1.weight"][:, :, 30:].any()


@pytest.mark.parametrize(
    ("name", "index", "value", "words"),
    [
        ("fc0.weight", (1, 2, 3), 2.0, ["fc0.weight[1, 2, 3]", "is 2,", "±1.98438", "127 steps"]),
        ("fc0.weight", (0, 0, 0), -2.01, ["fc0.weight[0, 0, 0]", "is -2.01,"]),
        ("fc2.weight", (7, 0, 31), 1.69, ["fc2.weight[7, 0, 31]", "1.69", "±1.6801 "]),
        ("fc1.bias", (3, 9), float("nan"), ["fc1.bias[3, 9]", "nan"]),
        (
            "feature_transformer.weight",
            (20000, 5),
            259.0,
            ["feature_transformer.weight[20000, 5]", "259", "±129 (16383 steps"],
        ),
        ("feature_transformer.psqt", (5, 5), float("inf"), ["feature_transformer.psqt[5, 5]", "inf"]),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, index, value, words) -> None:
    source = random_checkpoint(SMALL)
    source.tensors["model"][name][index] = value
    with pytest.raises(UserError) as caught:
        net_from_checkpoint(source, "run/c.safetensors")
    message = str(caught.value)
    assert message.startswith("run/c.safetensors: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_weights_clipped_to_the_bounds_always_export() -> None:
    for architecture in (SMALL, {"kind": "simple", "hidden": 8}):
        model = nets.build(architecture)
        with torch.no_grad():
            for bound in model.weight_bounds():
                bound.parameter.uniform_(-1000, 1000).clamp_(bound.low, bound.high)
        source = checkpoint.Checkpoint(model.architecture, {"model": model.state_dict()})
        net = net_from_checkpoint(source, "c")
        largest = np.abs(net.tensors["feature_transformer.weight"].astype(int)).max()
        assert largest > 500 if architecture["kind"] == "simple" else largest == 16383


@pytest.mark.parametrize(
    ("architecture", "limit"),
    [
        ({"kind": "sfnnv9", "l1": 64}, 16383),  # Stockfish 17 and later double weights and biases in 16 bits
        ({"kind": "sfnnv5", "l1": 3072}, 16383),
        ({"kind": "small128"}, 16383),
        ({"kind": "sfnnv8", "l1": 64}, 32767),
        ({"kind": "sfnnv16", "l1": 64}, 32767),
    ],
)
def test_what_the_engine_doubles_at_load_has_half_the_range(architecture: dict, limit: int) -> None:
    net = nets.parse(architecture, "test")
    for tensor in net.tensors():
        if tensor.dtype == "<i2":
            assert tensor.limit == limit, tensor.name
    assert net.accumulator_limit == limit


def test_wrong_checkpoints_are_named(tmp_path) -> None:
    source = random_checkpoint(SMALL)
    source.tensors["model"]["fc1.weight"] = torch.zeros(8, 32, 15)
    with pytest.raises(UserError, match=r"c: tensor model/fc1.weight has shape \[8, 32, 15\], expected \[8, 32, 30\]"):
        net_from_checkpoint(source, "c")
    del source.tensors["model"]["fc1.weight"]
    with pytest.raises(UserError, match=r"c: tensor model/fc1\.weight is missing"):
        net_from_checkpoint(source, "c")
    source = random_checkpoint(SMALL)
    source.tensors["model"]["extra"] = torch.zeros(1)
    with pytest.raises(UserError, match="c: tensor model/extra is unknown"):
        net_from_checkpoint(source, "c")


def test_a_width_that_no_release_reads_must_be_asked_for() -> None:
    source = random_checkpoint({"kind": "sfnnv5", "l1": 64})
    with pytest.raises(UserError, match=r"c: architecture.l1 is 64, .*128 \(small128\), 1024 \(sfnnv5\).*--any-l1"):
        net_from_checkpoint(source, "c")
    assert instance(SfnnV5, net_from_checkpoint(source, "c", any_l1=True).net).l1 == 64


def test_a_bias_beyond_32_bit_floats_is_not_imported() -> None:
    net = golden_net("small128")
    net.tensors["fc0.bias"][6, 3] = 2**31 - 1
    with pytest.raises(UserError, match=r"n: fc0.bias\[6, 3\] is 2147483647, too large"):
        checkpoint_from_net(net, "n")
