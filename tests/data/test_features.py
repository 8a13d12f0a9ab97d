"""Feature sets against the vectors that engines printed, and the shape rules of rows."""

import dataclasses
import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from typed import batch_from

from nnue_trainer import _data
from nnue_trainer.data import Batch, RecordLoader, expand, feature_set, fields, piece_square_set, records_from_fens
from nnue_trainer.data.features import BASIC_FEATURE_SETS
from nnue_trainer.errors import UserError
from nnue_trainer.nets.base import virtual_rows

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


SUMS = ["HalfKAv2_hm+Full_Threats_v16+PP_3Wide", "PP_3Wide+Full_Threats_v10+HalfKAv2_hm"]


def test_sizes() -> None:
    sizes = {name: feature_set(name).parts[0][2:6] for name in BASIC_FEATURE_SETS}
    assert sizes == {
        "Chess768": (768, 32, 768, 0),
        "HalfKP": (41_024, 30, 641, 641),
        "HalfKA": (49_216, 32, 769, 769),
        "HalfKAv2": (45_056, 32, 704, 704),
        "HalfKAv2_hm": (24_576, 32, 768, 768),
        "HalfKAv2_hm_11": (22_528, 32, 704, 704),
        "K32Q2": (49_152, 32, 768, 768),
        "K32Q2_11": (45_056, 32, 704, 704),
        "K16Q2": (24_576, 32, 768, 768),
        "K16Q2_11": (22_528, 32, 704, 704),
        "Full_Threats_v2": (53_564, 160, 0, 0),
        "Full_Threats_v10": (79_856, 192, 0, 0),
        "Full_Threats_v11": (66_864, 168, 0, 0),
        "Full_Threats_v12": (60_144, 160, 0, 0),
        "Full_Threats_v14": (60_720, 160, 0, 0),
        "Full_Threats_v16": (59_808, 160, 0, 0),
        "PP_3Wide": (4_560, 96, 0, 0),
    }
    full = feature_set("HalfKAv2_hm+Full_Threats_v16+PP_3Wide")
    assert (full.num_features, full.max_active) == (88_944, 288)
    assert [part[:3] for part in full.parts] == [
        ("HalfKAv2_hm", 0, 24_576),
        ("Full_Threats_v16", 24_576, 59_808),
        ("PP_3Wide", 84_384, 4_560),
    ]


def test_a_declared_set_says_itself() -> None:
    kings = [0, 0, 1, 1] + 28 * [2]
    name = piece_square_set(kings, mirror="a-d")
    assert name == "PieceSquare(planes=12,order=grouped,mirror=a-d,kings=" + ".".join(map(str, kings)) + ")"
    (part,) = feature_set(name).parts
    assert part[2:] == (3 * 768, 32, 768, 768, 3 * 768, ())
    # King e1 stands for d1 with files swapped: bucket 1. The pawn on a2 is seen on h2.
    batch = expand(records_from_fens(["4k3/8/8/8/8/8/P7/4K3 w - - 0 1"]), name)
    assert batch.white[0, :4].tolist() == [768 + 64 * 5 + 3, 768 + 15, 768 + 64 * 11 + 59, -1]
    assert batch.black[0, :4].tolist() == [768 + 64 * 11 + 59, 768 + 64 * 6 + 55, 768 + 64 * 5 + 3, -1]
    with pytest.raises(UserError, match="kings has 32 buckets, expected 64, or 32 where the board is mirrored"):
        piece_square_set(kings)
    with pytest.raises(UserError, match="kings has '-1', expected king buckets from 0 to 63"):
        piece_square_set([-1] * 64)


def test_states_count_pieces_as_the_side_sees_them() -> None:
    name = piece_square_set(states=["oQ:1", "eQ:1"])
    assert name == "PieceSquare(planes=12,order=grouped,mirror=none,states=oQ:1.eQ:1)"
    (part,) = feature_set(name).parts
    assert part[2:] == (4 * 768, 32, 768, 768, 4 * 768, ((1 << 8, 1), (1 << 9, 1)))
    fens = [
        f"{board} w - - 0 1" for board in ("4k3/8/8/8/8/8/8/4K3", "4k3/8/8/3Q4/8/8/8/4K3", "4k3/8/8/qqQQ4/8/8/8/4K3")
    ]
    batch = expand(records_from_fens(fens), name)
    assert (batch.white[:, 0] // 768).tolist() == [0, 2, 3]
    assert (batch.black[:, 0] // 768).tolist() == [0, 1, 3]
    counted = piece_square_set([0] * 32 + [1] * 32, states=["eReQ:3"])
    fens = ["4k3/8/8/q7/8/8/8/r3K3 w - - 0 1", "4k3/8/8/qq6/8/8/8/rr2K3 w - - 0 1"]
    assert (expand(records_from_fens(fens), counted).white[:, 0] // 768).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (["eK:1"], "states has 'eK:1', expected one or two counters"),
        (["Q:1"], "states has 'Q:1'"),
        (["eQ:0"], "states has 'eQ:0'"),
        (["eQ:4"], "states has 'eQ:4'"),
        (["eQ:3", "oQ:1"], "states gives 8 states, expected at most 4"),
        (["eQ:1", "eQ:1"], "states counts the same pieces twice, in 'eQ:1' and 'eQ:1'"),
        (["eReQ:1", "eQeR:1"], "states counts the same pieces twice, in 'eReQ:1' and 'eQeR:1'"),
        (["eQ:1", "oQ:1", "eR:1"], "states has 'eQ:1.oQ:1.eR:1'"),
    ],
)
def test_wrong_states_are_refused(states: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        piece_square_set(states=states)


def test_a_field_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UserError, match="has states= twice; expected each field once"):
        feature_set("PieceSquare(states=eQ:1,planes=11,states=oQ:1)")


def test_too_many_buckets_are_refused() -> None:
    with pytest.raises(UserError, match="kings and states give 256 buckets, expected at most 255"):
        piece_square_set(range(64), states=["eQ:3"])


@pytest.mark.parametrize("virtual", ["both", "kings", "states"])
def test_virtual_rows_are_shared_by_what_the_set_says(virtual: Literal["both", "kings", "states"]) -> None:
    """Rows of a group share a virtual row, for 2 king buckets with 4 states each."""
    name = piece_square_set([0] * 32 + [1] * 32, states=["eQ:3"], virtual=virtual)
    groups: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for number, part in enumerate(virtual_rows(name)):
        for row in range(part.first, part.first + part.rows):
            king, state = divmod(row // 768, 4)
            groups.setdefault((number, (row - part.first) % part.virtual), set()).add((king, state))
    every = [{(king, state) for king in range(2) for state in range(4)}]
    by_state = [{place for place in every[0] if place[1] == state} for state in range(4)]
    by_king = [{place for place in every[0] if place[0] == king} for king in range(2)]
    expected = {"both": every, "kings": by_state, "states": by_king}[virtual]
    assert sorted(map(sorted, {frozenset(group) for group in groups.values()})) == sorted(map(sorted, expected))
    assert len(groups) == 768 * len(expected)


def test_queens_of_both_sides_are_in_the_batch(project_root: Path) -> None:
    fens = [
        "4k3/8/8/3Q4/8/8/8/4K3 w - - 0 1",
        "4k3/8/8/3Q4/8/8/8/4K3 b - - 0 1",
        "4k3/8/8/qqqqq3/8/8/QQQ5/r3K2R b - - 0 1",
        "4k3/8/8/qqqq4/8/8/QQ6/r3K2R w K - 0 1",
    ]
    assert expand(records_from_fens(fens), "HalfKP").material.tolist() == [4, 1, 15, 11]
    batch = next(iter(RecordLoader([str(project_root / "samples" / "val.binpack")], 500, seed=3))).numpy().copy()
    squares, black = fields.boards(batch), fields.black_to_move(batch)
    queens = [np.minimum((squares == 9 + (black ^ side)[:, None]).sum(1), 3) for side in (False, True)]
    found = expand(batch, "HalfKP")
    assert found.material.tolist() == (4 * queens[0] + queens[1]).tolist()
    assert found.stack_entry.tolist() == (16 * found.piece_count.long() + found.material).tolist()


@pytest.mark.parametrize("name", ["K32Q2_11", "K32Q2", "K16Q2", "Full_Threats_v2"])
def test_vectors_of_sets_with_states(project_root: Path, name: str) -> None:
    positions = json.loads((project_root / "tests" / "vectors" / "features_next.json").read_text())["positions"]
    batch = expand(records_from_fens([p["fen"] for p in positions]), name)
    for i, position in enumerate(positions):
        for perspective in ("white", "black"):
            row = getattr(batch, perspective)[i]
            assert sorted(row[row >= 0].tolist()) == position[perspective][name], (position["fen"], perspective)


@pytest.mark.parametrize("name", ["K32Q2", "K16Q2", "K32Q2_11"])
def test_sets_with_states_can_be_declared(project_root: Path, name: str) -> None:
    files = list(range(4))
    if name == "K16Q2":
        kings = [*files, *(4 + f for f in files), *(8 + f for f in files), *(8 + f for f in files)]
        kings += [12, 12, 13, 13] * 2 + [14, 14, 15, 15] * 2
    else:
        kings = [4 * (7 - rank) + 3 - f for rank in range(8) for f in files]
    planes: Literal[11, 12] = 11 if name.endswith("_11") else 12
    declared = piece_square_set(kings, mirror="e-h", planes=planes, order="interleaved", states=["eQ:1"])
    records = next(iter(RecordLoader([str(project_root / "samples" / "val.binpack")], 2000, seed=3))).numpy().copy()
    one, other = expand(records, name), expand(records, declared)
    assert torch.equal(one.white, other.white)
    assert torch.equal(one.black, other.black)
    assert feature_set(name).parts[0][2:] == feature_set(declared).parts[0][2:]


@pytest.mark.parametrize(
    ("name", "source", "key"),
    [
        ("HalfKAv2_hm_11", "engine", "HalfKAv2_hm"),
        ("HalfKP", "reference", "HalfKP"),
        ("HalfKAv2", "reference", "HalfKAv2"),
        ("Full_Threats_v10", "reference", "Full_Threats_v10"),
        ("Full_Threats_v11", "reference", "Full_Threats_v11"),
        ("Full_Threats_v12", "reference", "Full_Threats_v12_v13"),
        ("Full_Threats_v14", "reference", "Full_Threats_v14_v15"),
        ("Full_Threats_v16", "engine", "Full_Threats"),
        ("PP_3Wide", "engine", "PP_3Wide"),
    ],
)
def test_vectors(project_root: Path, name: str, source: str, key: str) -> None:
    positions = json.loads((project_root / "tests" / "vectors" / "features.json").read_text())["positions"]
    batch = expand(records_from_fens([p["fen"] for p in positions]), name)
    for i, position in enumerate(positions):
        for perspective in ("white", "black"):
            row = getattr(batch, perspective)[i].tolist()
            assert sorted(x for x in row if x >= 0) == position[perspective][source][key]
        assert batch.piece_count[i] == position["piece_count"]
        assert batch.black_to_move[i] == (position["stm"] == "b")


def test_chess768_by_hand() -> None:
    # white: king e1, pawn a2; black: king e8. 64·(type + 6·enemy) + square, ranks flipped for black.
    batch = expand(records_from_fens(["4k3/8/8/8/8/8/P7/4K3 b - - 0 1"]), "Chess768")
    assert batch.white[0, :4].tolist() == [64 * 5 + 4, 8, 64 * 11 + 60, -1]
    assert batch.black[0, :4].tolist() == [64 * 11 + 60, 64 * 6 + 48, 64 * 5 + 4, -1]


def test_twelve_planes_merge_to_eleven() -> None:
    fens = [START, "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1"]
    for perspective in ("white", "black"):
        twelve = getattr(expand(records_from_fens(fens), "HalfKAv2_hm"), perspective)
        eleven = getattr(expand(records_from_fens(fens), "HalfKAv2_hm_11"), perspective)
        plane = twelve % 768 // 64
        merged = torch.where(twelve < 0, -1, twelve // 768 * 704 + plane.clamp(max=10) * 64 + twelve % 64)
        assert torch.equal(merged.int(), eleven)


@pytest.mark.parametrize("name", [*BASIC_FEATURE_SETS, *SUMS])
def test_rows_are_left_packed_and_in_range(name: str) -> None:
    fens = [START, "4k3/8/8/8/8/8/8/4K3 w - - 0 1", "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 3 9"]
    of_part = {
        "HalfKP": [30, 0, 4],
        "PP_3Wide": [36, 0, 0],
        "Full_Threats_v10": [38, 0, 6],
        "Full_Threats_v11": [36, 0, 2],
    }
    of_part |= {f"Full_Threats_v{version}": [28, 0, 2] for version in (2, 12, 14, 16)}
    counts = np.sum([of_part.get(part, [32, 2, 6]) for part in name.split("+")], axis=0).tolist()
    batch = expand(records_from_fens(fens), name)
    for rows in (batch.white, batch.black):
        active = rows >= 0
        assert torch.equal(active.sum(1), batch.counts.long())
        assert active.sum(1).tolist() == counts
        assert not (active[:, 1:] & ~active[:, :-1]).any()
        assert rows.max() < feature_set(name).num_features
        assert rows.min() >= -1


def test_threads_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    records = np.repeat(records_from_fens([START, "4k3/8/8/8/8/8/P7/4K3 b - - 0 1"]), 10_000, axis=0)
    rng.shuffle(records)
    one, three = expand(records, "HalfKAv2_hm", threads=1), expand(records, "HalfKAv2_hm", threads=3)
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, three.arrays()[name])


def test_bad_input_is_one_line() -> None:
    with pytest.raises(UserError, match="unknown feature set 'HalfKX', expected one of Chess768"):
        expand(records_from_fens([START]), "HalfKX")
    with pytest.raises(UserError, match=r"expected \[n, 32\]"):
        expand(np.zeros((3, 31), np.uint8), "Chess768")
    with pytest.raises(UserError, match="record 1: not one king of each side"):
        expand(np.vstack([records_from_fens([START]), np.zeros((1, 32), np.uint8)]), "Chess768")
    noise = np.random.default_rng(0).integers(0, 256, (2000, 32), dtype=np.uint8)
    for record in noise:
        with pytest.raises(UserError, match="record 0: "):
            expand(record[None], "HalfKAv2_hm")


def test_a_field_that_was_replaced_moves_along() -> None:
    """It is not in the allocation of the others, which alone was copied before."""
    batch = Batch.allocate(5, 4)
    for tensor in batch.fields().values():
        tensor.zero_()
    changed = dataclasses.replace(batch, score=torch.arange(5, dtype=torch.int16))
    for moved in (changed.clone(), changed.to("cpu")):
        assert moved.score.tolist() == [0, 1, 2, 3, 4]
    assert changed.to("meta").storage is None
    assert changed.allocation() is None
    assert batch.allocation() is batch.storage


def test_batch_is_one_allocation_and_moves_in_one_copy() -> None:
    batch = expand(records_from_fens([START]), "HalfKAv2_hm")
    assert batch.storage is not None
    start, size = batch.storage.data_ptr(), batch.storage.numel()
    for array in batch.arrays().values():
        assert start <= array.ctypes.data < start + size
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.white.shape == batch.white.shape
    assert moved.score.dtype == torch.int16
    separate = batch_from({name: torch.from_numpy(array) for name, array in batch.arrays().items()})
    assert separate.to("meta").black.device.type == "meta"


def test_a_batch_has_the_fields_of_the_table() -> None:
    table, size = _data.batch_layout(5, 30)
    names = [name for name, *_ in table]
    assert {field.name for field in dataclasses.fields(Batch)} == {
        *names,
        "storage",
        "buffer",
        "plans",
        "records",
        "spare",
        "is_legal",
    }
    batch = Batch.allocate(5, 30)
    assert set(batch.fields()) == set(names)
    assert batch.storage is not None
    assert batch.storage.numel() == size
    end = 0
    for name, dtype, offset, shape in table:
        tensor = getattr(batch, name)
        assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{dtype}", shape)
        assert tensor.data_ptr() - batch.storage.data_ptr() == offset
        assert offset % 256 == 0
        assert offset >= end, "fields do not overlap"
        end = offset + tensor.nbytes
    assert end <= size


def test_empty() -> None:
    assert len(expand(records_from_fens([]), "Chess768")) == 0
