"""New parts of SFNNv18: buckets by king and queens, their weights in bytes, and stacks by pieces and queens."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from nnue_trainer import data, nets
from nnue_trainer.data import RecordLoader, feature_set
from nnue_trainer.nets.base import StackedModel
from nnue_trainer.nets.stockfish import SfnnV17
from nnue_trainer.nets.stockfish_net import king_plane_rows


def test_stacks_of_v18_follow_pieces_and_queens() -> None:
    net = nets.parse({"kind": "sfnnv18", "l1": 32}, "test")
    fens = {
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1": 4 * 7 + 3,
        "4k3/8/8/3Q4/8/8/8/4K3 w - - 0 1": 2,
        "4k3/8/8/3Q4/8/8/8/4K3 b - - 0 1": 1,
        "4k3/8/8/8/8/8/PP6/4K2R b - - 0 1": 4,
        "qqqk4/8/8/8/8/8/8/4K3 b - - 0 1": 6,
    }
    batch = data.expand(data.records_from_fens(list(fens)), net.feature_set)
    model = net.model()
    assert isinstance(model, StackedModel)
    assert model.buckets(batch).tolist() == list(fens.values())
    forward = net.integer_forward()
    assert forward is not None
    assert forward.stack(batch).tolist() == list(fens.values())


@pytest.mark.parametrize(("stacks", "queens"), [(32, False), (8, True), (16, False), (64, True)])
def test_a_design_with_stacks_that_nothing_chooses_is_refused(stacks: int, queens: bool) -> None:
    with pytest.raises(ValueError, match=f"a design with {stacks} stacks, expected"):
        dataclasses.replace(SfnnV17.design, stacks=stacks, queens=queens)


def test_bytes_are_a_fact_of_a_set() -> None:
    """v18: rows and virtual rows together stay within ±127/256."""
    net = nets.parse({"kind": "sfnnv18", "l1": 32}, "test")
    tensors = {tensor.name: tensor for tensor in net.tensors()}
    weight = tensors["feature_transformer.weight.K32Q2_11"]
    assert (weight.dtype, weight.limit, weight.scale) == ("<i1", 127, 256)
    assert tensors["feature_transformer.bias"].dtype == "<i2"
    model = net.model()
    bounds = {bound.first_row: (bound.low, bound.high) for bound in model.weight_bounds() if bound.rows}
    assert bounds[0] == (-127 / 256, 127 / 256)
    (shared,) = model.factorised()["feature_transformer.weight"]
    assert shared == (0, 49_152, 768)


@pytest.mark.parametrize(("trained", "read"), [("K32Q2", "K32Q2_11"), ("K16Q2", "K16Q2_11")])
def test_shared_king_planes_hold_what_positions_need(trained: str, read: str, project_root: Path) -> None:
    rows = king_plane_rows(feature_set(trained).parts[0], feature_set(read).parts[0])
    records = next(iter(RecordLoader([str(project_root / "samples" / "val.binpack")], 2000, seed=3))).numpy().copy()
    one, other = data.expand(records, trained), data.expand(records, read)
    for ours, theirs in ((one.white, other.white), (one.black, other.black)):
        np.testing.assert_array_equal(np.where(theirs >= 0, rows[theirs], -1), ours)
