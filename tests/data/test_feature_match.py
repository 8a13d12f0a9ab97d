"""Which features of one set are which of another, held against what both sets make of real positions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nnue_trainer import _data
from nnue_trainer.data import RecordLoader, expand, feature_set, piece_square_set
from nnue_trainer.data.feature_match import match_features
from nnue_trainer.data.piece_squares import _holds, _probed, piece_square_table
from nnue_trainer.data.probe import counters_of
from nnue_trainer.registry import load_plugin

OF_PHASES = "queen_buckets.py:Phases"
OUTSIDE = "queen_buckets.py:QueenBuckets"
KINGS = [0, 1, 2, 2] + [3] * 12 + [4] * 16


@pytest.fixture(scope="module")
def records(project_root: Path) -> np.ndarray:
    return next(iter(RecordLoader([str(project_root / "samples" / "val.binpack")], 2000, seed=3))).numpy().copy()


@pytest.fixture(autouse=True)
def outside(tmp_path: Path) -> None:
    """K32Q2 as a set in Python: only its indices show that its buckets depend on queens."""
    path = tmp_path / "queen_buckets.py"
    path.write_text(
        """
import numpy as np
from nnue_trainer.data.feature_sets import Features
from nnue_trainer.schema import section

@section
class QueenBuckets(Features):
    num_features, max_active, bucket_size, num_virtual = 49152, 32, 768, 768

    def indices(self, view):
        turn = np.where(view.king % 8 < 4, 7, 0)
        king = view.king ^ turn
        bucket = 2 * (4 * (7 - king // 8) + 7 - king % 8) + (view.piece == 9).any(1)
        index = 768 * bucket[:, None] + 64 * view.piece + (view.square ^ turn[:, None])
        return np.where(view.present, index, -1)

@section
class PawnBuckets(Features):
    num_features, max_active, bucket_size, num_virtual = 1536, 32, 768, 768

    def indices(self, view):
        bucket = view.board[:, 35] == 0
        return np.where(view.present, 768 * bucket[:, None] + 64 * view.piece + view.square, -1)

@section
class RookBuckets(Features):
    num_features, max_active, bucket_size, num_virtual = 1536, 32, 768, 768

    def indices(self, view):
        bucket = (view.present & (view.piece == 6)).sum(1) >= 2
        return np.where(view.present, 768 * bucket[:, None] + 64 * view.piece + view.square, -1)

@section
class FewRooks(Features):
    num_features, max_active, bucket_size, num_virtual = 128, 4, 128, 0

    def indices(self, view):
        rooks = view.present & (view.piece // 2 == 3)
        found = -np.sort(-np.where(rooks, 64 * (view.piece % 2) + view.square, -1), axis=1)
        return found[:, : rooks.sum(1).max(initial=4)]

@section
class Phases(Features):
    num_features, max_active, bucket_size, num_virtual = 3072, 32, 768, 768

    def indices(self, view):
        bucket = 3 - np.minimum((view.present & (view.piece // 2 == 4)).sum(1), 3)
        return np.where(view.present, 768 * bucket[:, None] + 64 * view.piece + view.square, -1)
"""
    )
    load_plugin(str(path))


def test_buckets_by_what_no_count_shows_are_not_matched() -> None:
    """A pawn on d5 decides: no piece-square set of any other net has that."""
    outside = "queen_buckets.py:PawnBuckets"
    for name, other in [("HalfKAv2_hm", outside), (outside, "HalfKAv2_hm")]:
        match = match_features(name, other)
        assert (match.source == -1).all()
        assert match.notes == (f"{name}: new", f"{other}: left out")


def test_a_set_that_refuses_positions_has_no_known_states() -> None:
    """More rooks than it has room for: no error of a warm start or of the inspector."""
    assert counters_of("queen_buckets.py:FewRooks") is None
    assert counters_of("queen_buckets.py:Phases") == ((3 << 8, 3),)


def test_rows_of_states_that_a_set_does_not_distinguish_are_means() -> None:
    match = match_features("HalfKAv2_hm", "K32Q2")
    rows, sources, shares = match.averaged
    king, pawn = 9, 64 * 0 + 8
    here = rows == 768 * king + pawn
    assert sources[here].tolist() == [768 * 2 * king + pawn, 768 * (2 * king + 1) + pawn]
    np.testing.assert_allclose(shares[here], [0.5, 0.5])
    queen = 768 * king + 64 * 9 + 30  # an enemy queen is only seen where there is one
    assert match.source[queen] == 768 * (2 * king + 1) + 64 * 9 + 30
    assert queen not in rows


def test_states_of_two_sets_are_matched_in_pairs() -> None:
    """A row for boards with an enemy queen is the mean over all numbers of pawns, not of that without pawns."""
    match = match_features(piece_square_set(states=["eQ:1"]), piece_square_set(states=["oP:3"]))
    rows, sources, shares = match.averaged
    rook = 64 * 3 + 8
    for queens in range(2):
        here = rows == 768 * queens + rook
        assert sources[here].tolist() == [768 * pawns + rook for pawns in range(4)]
        np.testing.assert_allclose(shares[here], 4 * [0.25])


def test_pairs_of_states_whose_counters_overlap_are_all_found() -> None:
    """With an enemy queen and an own pawn, the first set is in state 1 and the second in its state (0, 1)."""
    any_queen, own_pieces = piece_square_set(states=["oQeQ:1"]), piece_square_set(states=["oQ:1", "oP:1"])
    rook = 64 * 3 + 8
    for name, other, expected in (
        (own_pieces, any_queen, {0: [0, 1], 1: [0, 1], 2: [1], 3: [1]}),  # 2 · (own queen) + (own pawn)
        (any_queen, own_pieces, {0: [0, 1], 1: [0, 1, 2, 3]}),
    ):
        match = match_features(name, other)
        rows, sources, shares = match.averaged
        for state, states in expected.items():
            here = rows == 768 * state + rook
            if len(states) == 1:
                assert not here.any()
                assert match.source[768 * state + rook] == 768 * states[0] + rook
            else:
                assert sources[here].tolist() == [768 * one + rook for one in states]
                np.testing.assert_allclose(shares[here], 1 / len(states))


def rows(records: np.ndarray, name: str) -> list[list[int]]:
    """Features of each position and perspective, sorted."""
    batch = expand(records, name)
    return [sorted(row[row >= 0].tolist()) for row in np.concatenate([batch.white.numpy(), batch.black.numpy()])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other"),
    [
        (piece_square_set([0] * 20 + [1] * 44), "Chess768"),
        (piece_square_set(KINGS, mirror="a-d"), piece_square_set([0] * 32, mirror="e-h", order="interleaved")),
        ("HalfKAv2_hm_11", "HalfKAv2_hm"),
        ("HalfKAv2_hm", "HalfKAv2_hm_11"),
        ("HalfKAv2", piece_square_set(KINGS, mirror="a-d", planes=11)),
        ("HalfKAv2_hm+PP_3Wide", "PP_3Wide+HalfKAv2_hm"),
        ("K32Q2", "HalfKAv2_hm"),
        ("K32Q2", "K16Q2"),
        ("K32Q2_11", "K32Q2"),
        (piece_square_set(KINGS, mirror="a-d", states=["oReR:3"]), piece_square_set(KINGS, mirror="a-d")),
        (piece_square_set(states=["oR:1", "eR:1"]), piece_square_set(states=["eR:1"])),
        (OUTSIDE, "K32Q2"),
        ("K32Q2", OUTSIDE),
        (piece_square_set(order="interleaved", states=["oR:2"]), "queen_buckets.py:RookBuckets"),
        (OF_PHASES, piece_square_set(order="interleaved", states=["oQeQ:3"])),
    ],
)
def test_positions_have_the_very_features_that_they_had(name: str, other: str, records: np.ndarray) -> None:
    match = match_features(name, other)
    assert match.averaged[0].size == 0
    assert [sorted(match.source[row].tolist()) for row in rows(records, name)] == rows(records, other)


@pytest.mark.parametrize("other", ["v12", "v10"])
def test_merged_threats_are_those_of_the_other_versions(other: str, records: np.ndarray) -> None:
    match = match_features("Full_Threats_v2", f"Full_Threats_{other}")
    assert (match.source >= 0).all()
    shared = set(match.source.tolist())
    for ours, theirs in zip(rows(records, "Full_Threats_v2"), rows(records, f"Full_Threats_{other}"), strict=True):
        assert sorted(match.source[ours].tolist()) == [feature for feature in theirs if feature in shared]
        assert other != "v12" or len(ours) == len(theirs)


@pytest.mark.parametrize(("name", "other"), [("v16", "v10"), ("v10", "v16"), ("v12", "v14"), ("v11", "v10")])
def test_versions_of_threats_share_the_threats_of_both(name: str, other: str, records: np.ndarray) -> None:
    match = match_features(f"Full_Threats_{name}", f"Full_Threats_{other}")
    shared = set(match.source[match.source >= 0].tolist())
    found = 0
    for ours, theirs in zip(rows(records, f"Full_Threats_{name}"), rows(records, f"Full_Threats_{other}"), strict=True):
        known = sorted(source for source in match.source[ours].tolist() if source >= 0)
        assert known == [feature for feature in theirs if feature in shared]
        found += len(known)
    assert found > 10_000


def test_a_feature_that_stands_for_several_is_their_mean() -> None:
    match = match_features(piece_square_set([0] * 64), piece_square_set([0] * 48 + [1] * 16))
    rows, sources, shares = match.averaged
    pawn = 64 * 0 + 8  # own pawn on a2
    here = rows == pawn
    assert sources[here].tolist() == [pawn, 768 + pawn]
    np.testing.assert_allclose(shares[here], [47 / 63, 16 / 63], atol=5e-3)  # squares that the king can stand on
    assert match.notes[0].endswith("features are means of several")


def test_what_is_new_and_what_is_left_out_is_said() -> None:
    match = match_features("HalfKAv2_hm+Full_Threats_v16", "HalfKAv2_hm+PP_3Wide")
    assert match.notes == ("HalfKAv2_hm: the same", "Full_Threats_v16: new", "PP_3Wide: left out")
    assert (match.source[24576:] == -1).all()
    without = match_features(piece_square_set(planes=10), "Chess768")
    assert without.notes == (
        "PieceSquare(planes=10,order=grouped,mirror=none): from Chess768, 128 features of it are left out",
    )
    within = match_features("Chess768", piece_square_set(planes=10))
    assert within.notes[0].endswith("128 features are new")


def test_threats_have_the_indices_of_the_documentation() -> None:
    """The knight on b1 that protects the pawn on d2: 3696 is the first index of own bishops in v16."""
    features = _data.threat_features("Full_Threats_v16")
    assert features is not None
    assert features[2, 1, 0, 11] == 336 + 2
    assert np.argwhere(features == 3696)[0, 0] == 4
    assert np.array_equal(np.unique(features), np.arange(-1, feature_set("Full_Threats_v16").num_features))
    assert _data.threat_features("PP_3Wide") is None
    assert _data.threat_features("Full_Threats_v99") is None


@pytest.mark.parametrize("name", ["HalfKAv2_hm", "HalfKP", "Chess768"])
def test_a_table_names_every_feature_once(name: str) -> None:
    found = piece_square_table(name)
    assert found is not None
    table = found.features(np.zeros((1, 12), np.int64))
    assert table.max() < feature_set(name).num_features
    assert (table[0] == table[1]).all() == (name != "HalfKP"), "HalfKP turns the board, the others flip it"


@pytest.mark.parametrize(
    "name",
    [
        "HalfKP", "HalfKAv2", "K16Q2_11", "K32Q2",
        piece_square_set(KINGS, mirror="a-d", order="interleaved-enemy-first", states=["oReR:2"]),
        piece_square_set([*range(60)] + [0] * 4, planes=10, order="enemy-first", states=["oQ:1", "eP:1"]),
    ],
)  # fmt: skip
def test_what_a_set_states_is_what_it_does(name: str) -> None:
    """The table that a set states, against random positions."""
    table, (part,) = piece_square_table(name), feature_set(name).parts
    assert table is not None
    assert _holds(part, table)
    assert not _holds(part, replace(table, places=np.where(table.places >= 0, table.places ^ 1, -1)))


def test_a_set_from_outside_is_found_as_a_set_states_it() -> None:
    """K32Q2 in Python, without and with its statement."""
    (part,) = feature_set(OUTSIDE).parts
    found, stated = _probed(part), piece_square_table("K32Q2")
    assert found is not None
    assert stated is not None
    assert found.counters == stated.counters
    assert np.array_equal(found.places, stated.places)
    assert np.array_equal(found.buckets, stated.buckets)
