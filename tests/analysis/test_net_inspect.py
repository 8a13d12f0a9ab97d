"""`nnue inspect`: for every net of the registry and for one from outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typed import present

from nnue_trainer import data, nets
from nnue_trainer.analysis import net_inspect, net_page
from nnue_trainer.analysis.agreement import Positions, built_in_positions, spread
from nnue_trainer.analysis.planes import WeightMap, is_piece_square, weight_map
from nnue_trainer.data import feature_set
from nnue_trainer.data.features import BASIC_FEATURE_SETS, FeaturePart
from nnue_trainer.data.info import king_bucket
from nnue_trainer.errors import UserError
from nnue_trainer.export import net_from_checkpoint, read_net, write_net
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.files.pages.page import as_text, render
from nnue_trainer.registry import load_plugin

SIZES = {"simple": {"hidden": 16}, "layered": {"hidden": 16}}
# Those whose files are small enough to test each; the rest of the family shares their code.
KINDS = ["simple", "layered", "sfnnv1", "sfnnv2", "sfnnv5", "small128", "sfnnv10", "sfnnv17"]
PIECES = ["pawn", "knight", "bishop", "rook", "queen"]


def few() -> Positions:
    return Positions(built_in_positions().records[:40], "40 positions")


def saved(path: Path, architecture: dict, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    model = nets.build(architecture)
    checkpoint.save(path, Checkpoint(model.architecture, {"model": model.state_dict()}))
    return path


def architecture_of(kind: str) -> dict:
    return {"kind": kind, **SIZES.get(kind, {"l1": 32})}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_net_and_its_checkpoint_show_the_same(kind, tmp_path):
    path = saved(tmp_path / "c.safetensors", architecture_of(kind))
    quantized = net_from_checkpoint(checkpoint.load(path), kind, any_l1=True)
    net = tmp_path / "n.nnue"
    write_net(quantized, net)
    of_checkpoint, of_net = (net_inspect.inspect(file, few()) for file in (path, net))
    integers = read_net(net).tensors
    by_name = {tensor.name: tensor for tensor in quantized.net.tensors()}
    for facts, rounded in zip(of_net.tensors, of_checkpoint.tensors, strict=True):
        tensor = by_name[facts.name]
        steps = integers[facts.name]
        steps = steps if tensor.columns is None else steps[..., : tensor.columns]
        assert (facts.low, facts.high) == (steps.min(), steps.max())
        assert facts.mean == pytest.approx(steps.mean(dtype=np.float64), abs=1e-9)
        assert facts.deviation == pytest.approx(steps.std(dtype=np.float64), abs=1e-6)
        assert facts.zeros == pytest.approx((steps == 0).mean())
        assert sum(facts.histogram) == steps.size
        assert facts.reach == pytest.approx(np.abs(steps.astype(np.int64)).max() / tensor.limit)
        assert rounded.low == pytest.approx(facts.low, abs=0.51)
        assert rounded.zeros == pytest.approx(facts.zeros, abs=1e-6)
        assert rounded.beyond == facts.beyond == 0
    assert np.array_equal(of_net.scores, of_checkpoint.scores)
    assert present(of_net.first).neurons == present(of_checkpoint.first).neurons
    assert of_net.layers
    page = render(net_page.page(of_net))
    assert "Weights of each neuron" in page
    json.dumps(net_page.as_dict(of_net), allow_nan=False)
    assert kind.split("-")[0][:5] in as_text(net_page.page(of_net))


def labels(part: FeaturePart) -> WeightMap:
    return weight_map(part, torch.zeros(part.first_feature + part.num_features, 1))


def test_every_registered_net_has_what_inspect_needs():
    for kind in nets.NETS.kinds():
        net = nets.parse(architecture_of(kind), kind)
        assert net.tensors()
        for part in feature_set(net.feature_set).parts:
            if part.bucket_size:
                names = labels(part).planes
                assert not any(name.startswith("plane") for name in names), (kind, names)


def test_a_net_from_outside(tmp_path):
    source = Path(__file__).resolve().parents[1] / "nets" / "my_net.py"
    plugin = tmp_path / "their_net.py"
    shutil.copy(source, plugin)
    load_plugin(plugin)
    path = saved(tmp_path / "c.safetensors", {"kind": f"{plugin}:MyNet", "hidden": 16})
    found = net_inspect.inspect(path, few())
    first = present(found.first)
    assert first.neurons == 16
    assert [each.part for each in first.maps] == ["HalfKAv2_hm"]
    assert found.agreement is not None
    render(net_page.page(found))


@pytest.mark.parametrize("name", [*BASIC_FEATURE_SETS, data.piece_square_set(), data.piece_square_set(planes=10)])
def test_planes_and_buckets_are_those_of_the_set(name):
    for part in feature_set(name).parts:
        if not is_piece_square(part):
            continue
        found = labels(part)
        names, buckets = found.planes, found.king_buckets
        for piece in PIECES:
            assert names.count(f"own {piece}") == names.count(f"enemy {piece}") == 1
        grouped = "".join(names[:2]) == "own pawnown knight"
        assert names.index("enemy pawn") == (5 if grouped and len(names) == 10 else 6 if grouped else 1)
        assert buckets.max() < part.num_features // part.bucket_size // part.num_states
        assert found.states == (["enemy queens 0", "enemy queens 1+"] if name.startswith(("K32", "K16")) else [""])
        if name in ("HalfKAv2_hm", "K32Q2"):
            assert buckets.tolist() == [king_bucket(square) for square in range(64)]


IN_PYTHON = """
import numpy as np

from nnue_trainer.data.feature_sets import Features, View, left_packed
from nnue_trainer.schema import section


@section
class ByQueens(Features):
    num_features = 2 * 3 * 768
    max_active = 32
    bucket_size = 768

    def indices(self, view: View):
        queens = np.minimum((view.piece == 9).sum(axis=1), 2)
        bucket = 3 * (view.king // 32) + queens
        plane = view.piece // 2 + 6 * (view.piece % 2)
        return left_packed(np.where(view.present, 768 * bucket[:, None] + 64 * plane + view.square, -1))


@section
class ByMinors(Features):
    num_features = 3 * 768
    max_active = 32
    bucket_size = 768

    def indices(self, view: View):
        bucket = 2 - np.minimum(((view.piece == 2) | (view.piece == 4)).sum(axis=1), 2)
        plane = view.piece // 2 + 6 * (view.piece % 2)
        return left_packed(np.where(view.present, 768 * bucket[:, None] + 64 * plane + view.square, -1))


@section
class ByKings(Features):
    num_features = 4 * 768
    max_active = 32
    bucket_size = 768

    def indices(self, view: View):
        plane = view.piece // 2 + 6 * (view.piece % 2)
        return left_packed(np.where(view.present, 768 * (view.king // 16)[:, None] + 64 * plane + view.square, -1))


@section
class ByPlace(Features):
    num_features = 2 * 768
    max_active = 32
    bucket_size = 768

    def indices(self, view: View):
        plane = view.piece // 2 + 6 * (view.piece % 2)
        bucket = (view.board[:, 28] == 0) * 1
        return left_packed(np.where(view.present, 768 * bucket[:, None] + 64 * plane + view.square, -1))
"""
IN_A_HEADER = """
#include "features/general_set.h"

// Planes as HalfKAv2_hm has them; buckets by the half of the board and by own rooks.
struct ByRooks {
    using Board = nnue::data::CodePlanes;
    static constexpr int kNumFeatures = 4 * 768, kMaxActive = 32, kBucketSize = 768, kNumVirtual = 768;

    NNUE_HOST_DEVICE static int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static int offset(int perspective, int king, const Board& board) {
        return 768 * (2 * ((king & 7) > 3) + (board.of(6 ^ perspective) != 0));
    }
    NNUE_HOST_DEVICE static nnue::data::Bitboard partners(const Board&, int, int square) {
        return nnue::data::bit(square);
    }
    NNUE_HOST_DEVICE static int index(int piece, int from, int, int) { return 64 * piece + from; }
};
"""
PLAIN = ["pawn", "knight", "bishop", "rook", "queen", "king"]
GROUPED = [f"{side} {piece}" for side in ("own", "enemy") for piece in PLAIN]
INTERLEAVED = [f"{side} {piece}" for piece in PLAIN for side in ("own", "enemy")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "states", "bucket_of", "planes"),
    [
        (
            "sets.py:ByQueens",
            ["enemy queens 0", "enemy queens 1", "enemy queens 2+"],
            lambda square: square // 32,
            GROUPED,
        ),
        (
            "sets.py:ByMinors",
            ["own knights and own bishops 2+", "own knights and own bishops 1", "own knights and own bishops 0"],
            lambda square: 0 * square,
            GROUPED,
        ),
        ("sets.py:ByKings", [""], lambda square: square // 16, GROUPED),
        (
            data.piece_square_set([square % 2 for square in range(64)], states=["oQ:1", "eR:1"]),
            [f"own queens {own}, enemy rooks {enemy}" for own in ("0", "1+") for enemy in ("0", "1+")],
            lambda square: square % 2,
            GROUPED,
        ),
        pytest.param(
            "sets.h:ByRooks",
            ["own rooks 0", "own rooks 1+"],
            lambda square: square % 8 // 4,
            INTERLEAVED,
            marks=pytest.mark.compiler,
        ),
    ],
    ids=["Python", "Python, two kinds", "Python, kings only", "declared", "header"],
)
def test_labels_of_sets_with_states(name, states, bucket_of, planes, tmp_path):
    """The labels of planes, king buckets and states, of sets from outside and of declared ones."""
    for file, text in (("sets.py", IN_PYTHON), ("sets.h", IN_A_HEADER)):
        (tmp_path / file).write_text(text)
    (part,) = feature_set(name if name.startswith("Piece") else f"{tmp_path}/{name}", may_import=True).parts
    weight = torch.randn(part.num_features, 4)
    found = weight_map(part, weight)
    assert found.states == states
    assert found.planes == planes
    assert found.king_buckets.tolist() == [bucket_of(square) for square in range(64)]
    # A knight on d4 of the perspective whose king is on g6, in each state.
    boards = {0: "8/8/6K1/8/3N4/8/8/k7"}
    if "ByMinors" in name:
        boards = {1: boards[0], 0: "8/8/6K1/8/3N4/B7/8/k7"}
    if "ByQueens" in name:
        boards |= {1: "8/8/6K1/8/3N4/q7/8/k7", 2: "8/8/6K1/8/3N4/qqq5/8/k7"}
    elif "ByRooks" in name:
        boards |= {1: "8/8/6K1/8/3N4/8/8/kR6"}
    elif "Piece" in name:
        boards |= {1: "8/8/6K1/8/3N4/r7/8/k7", 2: "8/8/6K1/8/3N4/Q7/8/k7", 3: "8/8/6K1/8/3N4/Q7/r7/k7"}
    for state, board in boards.items():
        row = data.expand(data.records_from_fens([f"{board} w - - 0 1"]), part.name).white[0].tolist()
        bucket = len(states) * bucket_of(46) + state
        expected = bucket * part.bucket_size + 64 * planes.index("own knight") + 27
        assert expected in row
        assert found.sizes[bucket, planes.index("own knight"), 27] == pytest.approx(
            weight[expected].abs().mean().item()
        )


def test_a_bucket_by_the_place_of_a_piece_is_not_labelled(tmp_path):
    """Neither the own king nor counts of pieces select its buckets."""
    (tmp_path / "sets.py").write_text(IN_PYTHON)
    (part,) = feature_set(f"{tmp_path}/sets.py:ByPlace", may_import=True).parts
    found = weight_map(part, torch.randn(part.num_features, 4))
    assert found.planes == GROUPED
    assert (found.states, set(found.king_buckets.tolist())) == ([""], {-1})


def test_weight_maps_are_means_of_magnitudes():
    (part,) = feature_set("HalfKAv2_hm").parts
    weight = torch.randn(part.num_features, 4)
    found = weight_map(part, weight)
    assert found.sizes.shape == (32, 12, 64)
    bucket, plane, square = 7, 3, 42
    row = bucket * part.bucket_size + plane * 64 + square
    assert found.sizes[bucket, plane, square] == pytest.approx(weight[row].abs().mean().item())
    # The plane of the own queen is where a queen's features are.
    batch = data.expand(data.records_from_fens(["4k3/8/8/8/3Q4/8/8/4K3 w - - 0 1"]), part.name)
    planes = {index % part.bucket_size // 64 for index in batch.white[0].tolist() if index >= 0}
    assert planes == {found.planes.index(piece) for piece in ("own queen", "own king", "enemy king")}


def test_dead_neurons_and_wide_weights_are_named(tmp_path):
    torch.manual_seed(0)
    model = nets.build({"kind": "simple", "hidden": 16})
    with torch.no_grad():
        bias = model.get_parameter("feature_transformer.bias")
        bias[3], bias[9] = -60.0, 60.0
        model.get_parameter("output.weight")[0, 0] = 100.0
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, Checkpoint(model.architecture, {"model": model.state_dict()}))
    found = net_inspect.inspect(path, few())
    assert found.quantized is None
    assert any("never above 0 on these positions: 3" in line for line in found.warnings)
    assert any("always at their upper limit on these positions: 9" in line for line in found.warnings)
    assert any("does not fit the integers" in line for line in found.warnings)
    assert any(line.startswith("output.weight: 1 values beyond the limit") for line in found.warnings)
    assert net_page.as_dict(found)["activity"]["dead"] == [3]
    assert net_page.as_dict(found)["activity"]["stuck"] == [9]
    assert "float_against_integers" in net_page.as_dict(found)
    render(net_page.page(found))


def test_differences_of_two_nets(tmp_path):
    one = saved(tmp_path / "one.safetensors", {"kind": "simple", "hidden": 16})
    loaded = checkpoint.load(one)
    loaded.tensors["model"]["output.weight"][0, 5] += 3 / 64  # three steps
    checkpoint.save(tmp_path / "two.safetensors", loaded)
    found = net_inspect.inspect(one, few(), against=tmp_path / "two.safetensors")
    by_name = {difference.name: difference for difference in found.differences}
    assert by_name["output.weight"].largest == pytest.approx(3, abs=1e-3)
    assert by_name["output.weight"].changed == pytest.approx(1 / 32)
    assert by_name["feature_transformer.weight"].largest == 0
    assert by_name["feature_transformer.weight"].correlation == pytest.approx(1)
    assert "Scores of both nets" in render(net_page.page(found))
    itself = net_inspect.inspect(one, few(), against=one)
    assert present(itself.other_scores).tolist() == itself.scores.tolist()
    wider = saved(tmp_path / "three.safetensors", {"kind": "simple", "hidden": 32})
    other = net_inspect.inspect(one, few(), against=wider)
    assert other.differences == []
    assert any("another architecture" in line for line in other.warnings)


def test_positions_are_spread_over_the_beginning_of_a_file(project_root):
    found = spread(project_root / "samples" / "val.binpack", 100)
    with data.PositionReader(project_root / "samples" / "val.binpack") as reader:
        first = next(iter(reader))
    assert np.array_equal(found, first[: 16 * 100 : 16])
    assert len(spread(project_root / "samples" / "val.binpack", 20_000)) == 20_000


@pytest.mark.slow
def test_the_command(trained, tmp_path, project_root, nnue):
    run = trained("$x$ <run>")
    pages = ["--html", tmp_path / "i.html", "--png", tmp_path / "i.png"]
    sample = project_root / "samples" / "val.binpack"
    status, out, err = nnue("inspect", run, "--data", sample, "--positions", "300", "--neuron", "3", *pages)
    assert (status, err) == (0, "")
    assert "300 positions of val.binpack" in out
    text = (tmp_path / "i.html").read_text()
    assert "<h3>Neuron 3</h3>" in text
    assert (tmp_path / "i.png").read_bytes().startswith(b"\x89PNG")
    status, out, _ = nnue("inspect", run / "checkpoints" / "last.safetensors", "--json")
    assert json.loads(out)["architecture"]["kind"] == "layered"
    for arguments, message in (
        ([tmp_path], "not the folder of a run: expected checkpoints/last.safetensors in it"),
        ([tmp_path / "nothing.nnue"], "nothing.nnue"),
        ([run, "--neuron", "99"], "the first layer has 32 neurons"),
        ([run, "--data", tmp_path / "none.binpack"], "none.binpack"),
        ([run, "--png", tmp_path / "i.png"], "exists already"),
        ([sample], "val.binpack"),
    ):
        status, _, err = nnue("inspect", *arguments)
        assert (status, err.count("\n")) == (1, 1), arguments
        assert message in err


def test_inspect_and_report_count_neurons_on_the_same_positions(trained, nnue):
    """The figures of a validation, which `nnue report` shows, are those of its checkpoint."""
    run = trained("run", "model.hidden=96", "data.validation_positions=3500", "data.batch_size=1500")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["event"] == "validation"][-1]
    status, out, err = nnue("inspect", run / "checkpoints" / "last.safetensors", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["positions"]["count"] == 750 + 750 + 500
    assert "validation positions of val.binpack" in found["positions"]["from"]
    neurons = found["activity"]
    assert len(neurons["dead"]) / 96 == last["dead_neurons"]
    assert len(neurons["stuck"]) / 96 == last["stuck_neurons"]
    assert np.mean(neurons["saturated"]) == pytest.approx(last["saturated"])
    # Files that are gone are named, and the positions are built in.
    moved = checkpoint.load(run / "checkpoints" / "last.safetensors")
    assert moved.recipe is not None
    moved.recipe["data"]["validation"] = ["gone.binpack"]
    checkpoint.save(run / "moved.safetensors", moved)
    status, out, err = nnue("inspect", run / "moved.safetensors", "--json")
    assert status == 0
    assert "built-in" in json.loads(out)["positions"]["from"]
    assert "gone.binpack" in err


def test_a_page_of_a_damaged_checkpoint_is_an_error(tmp_path):
    path = saved(tmp_path / "c.safetensors", {"kind": "simple", "hidden": 16})
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match="not a readable safetensors checkpoint"):
        net_inspect.inspect(path, few())
