"""Feature sets from outside: functions in Python and C++ headers, against plain Python and against built-in sets."""

import re
import shutil
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import no_tool, require

from nnue_trainer import ops, registry
from nnue_trainer.data import (
    Batch,
    Loader,
    LoaderOptions,
    RecordLoader,
    expand,
    feature_set,
    fens_from_records,
    fields,
    records_from_fens,
)
from nnue_trainer.data.feature_sets import FEATURE_SETS, View, header, left_packed
from nnue_trainer.data.feature_sets.base import terms
from nnue_trainer.errors import UserError
from nnue_trainer.ops.expand import Expander

ROOT = Path(__file__).resolve().parents[2]
WALKS = ROOT / "examples" / "extending"
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
FENS = [
    START,
    "4k3/8/8/8/8/8/8/4K3 w - - 0 1",
    "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 3 9",  # castling rooks and a king to move: nibbles 13, 14, 15
    "rnbqkbnr/ppp1pppp/8/8/3pP3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 3",  # a white pawn that has just moved two squares
    "rnbqkbnr/pppp1ppp/8/3Pp3/8/8/PPP1PPPP/RNBQKBNR w KQkq e6 0 3",  # a black one
    "7K/8/8/8/8/8/8/k7 b - - 0 1",
]


@pytest.fixture
def records() -> np.ndarray:
    """2,000 positions of games, and the special ones."""
    loader = RecordLoader(ROOT / "samples" / "val.binpack", 2_000, shuffle=False, threads=1)
    games = next(iter(loader)).clone().numpy()
    loader.close()
    return np.concatenate([records_from_fens(FENS), games])


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache folder for all tests of a session, so that a header is compiled once."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


Positions = list[tuple[dict[int, int], tuple[int, int]]]


def decoded(records: np.ndarray) -> Positions:
    """Piece codes by square, and the kings' squares."""
    positions = []
    for board in fields.boards(records):
        pieces = {square: int(code) - 1 for square, code in enumerate(board) if code}
        squares = {code: square for square, code in pieces.items()}
        positions.append((pieces, (squares[10], squares[11])))
    return positions


def seen(pieces: dict[int, int], perspective: int) -> dict[int, int]:
    return {square ^ (56 * perspective): code ^ perspective for square, code in pieces.items()}


def distance(a: int, b: int) -> int:
    return max(abs(a % 8 - b % 8), abs(a // 8 - b // 8))


def king_distances(pieces: dict[int, int], kings: tuple[int, int], perspective: int, both: bool) -> list[int]:
    own, enemy = (kings[perspective ^ side] ^ (56 * perspective) for side in (0, 1))
    found = []
    for square, piece in seen(pieces, perspective).items():
        found.append(8 * piece + distance(square, own))
        if both:
            found.append(96 + 8 * piece + distance(square, enemy))
    return sorted(found)


def neighbours(pieces: dict[int, int], perspective: int) -> list[int]:
    board = seen(pieces, perspective)
    found = []
    for square, piece in board.items():
        for other, partner in board.items():
            if square < other and distance(square, other) == 1:
                found.append(4 * (12 * piece + partner) + {1: 0, 7: 1, 8: 2, 9: 3}[other - square])
    return sorted(found)


def assert_rows(batch: Batch, first: int, size: int, expected: list[list[list[int]]]) -> None:
    """The features of one part, first … first + size − 1, of white and black; rows are left-packed."""
    for rows, wanted in zip((batch.white, batch.black), expected, strict=True):
        active = rows >= 0
        assert not (active[:, 1:] & ~active[:, :-1]).any()
        for row, features in zip(rows.tolist(), wanted, strict=True):
            assert sorted(x - first for x in row if first <= x < first + size) == features
    longest = torch.maximum((batch.white >= 0).sum(1), (batch.black >= 0).sum(1))
    assert torch.equal(batch.counts.long(), longest)


def known(name: str) -> str:
    """The set of a walk, loaded as a recipe would."""
    return feature_set(name.replace("my_features", str(WALKS / "my_features")), may_import=True).name


# ---- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("both", [False, True])
def test_a_set_in_python_equals_a_reference(records: np.ndarray, both: bool) -> None:
    name = known("my_features.py:KingDistance" + ("(both_kings=true)" if both else ""))
    assert name == f"my_features.py:KingDistance(both_kings={'true' if both else 'false'})"
    (part,) = feature_set(name).parts
    features = 192 if both else 96
    assert part[1:7] == (0, features, 64 if both else 32, 0, 0, features)
    assert tuple(part.states) == ()
    positions = decoded(records)
    expected = [[king_distances(*position, c, both) for position in positions] for c in (0, 1)]
    assert_rows(expand(records, name, threads=2), 0, part.num_features, expected)


def test_sums_in_any_order(records: np.ndarray) -> None:
    positions = decoded(records)
    distances = [[king_distances(*position, c, False) for position in positions] for c in (0, 1)]
    alone = {name: expand(records, name) for name in ("HalfKAv2_hm", "PP_3Wide")}
    for terms_of_sum in (
        ["HalfKAv2_hm", "my_features.py:KingDistance"],
        ["my_features.py:KingDistance", "HalfKAv2_hm"],
        ["PP_3Wide", "my_features.py:KingDistance", "HalfKAv2_hm", "my_features.py:KingDistance(both_kings=true)"],
    ):
        name = known(" + ".join(terms_of_sum))
        chosen, batch = feature_set(name), expand(records, name)
        assert [part.first_feature for part in chosen.parts] == np.cumsum(
            [0, *(part.num_features for part in chosen.parts[:-1])]
        ).tolist()
        for part in chosen.parts:
            if part.name in alone:
                wanted = [
                    [sorted(x for x in row if x >= 0) for row in rows.tolist()]
                    for rows in (alone[part.name].white, alone[part.name].black)
                ]
            elif "true" in part.name:
                wanted = [[king_distances(*position, c, True) for position in positions] for c in (0, 1)]
            else:
                wanted = distances
            assert_rows(batch, part.first_feature, part.num_features, wanted)


def test_what_a_view_says(records: np.ndarray) -> None:
    for perspective in (0, 1):
        view = View(records, perspective)
        for i, (pieces, kings) in enumerate(decoded(records)):
            board = seen(pieces, perspective)
            assert dict(zip(view.square[i, : view.count[i]].tolist(), view.piece[i].tolist(), strict=False)) == board
            assert (view.square[i, view.count[i] :] == -1).all()
            assert (view.piece[i, view.count[i] :] == -1).all()
            assert view.board[i].tolist() == [board.get(square, -1) for square in range(64)]
            assert (view.king[i], view.enemy_king[i]) == tuple(
                kings[perspective ^ side] ^ (56 * perspective) for side in (0, 1)
            )
        black = np.array([" b " in fen for fen in fens_from_records(records)])
        np.testing.assert_array_equal(view.to_move, black == bool(perspective))


def test_the_loader_gives_the_rows_of_a_set_in_python(records: np.ndarray) -> None:
    name = known("HalfKAv2_hm+my_features.py:KingDistance")
    options: LoaderOptions = {"seed": 3, "shuffle_buffer": 4096, "threads": 2}
    packed = RecordLoader(ROOT / "samples" / "val.binpack", 500, **options)
    with Loader(ROOT / "samples" / "val.binpack", name, 500, **options) as loader, packed:
        for batch, same, _ in zip(loader, packed, range(8), strict=False):
            expected = expand(same.numpy(), name)
            for field, array in expected.arrays().items():
                np.testing.assert_array_equal(batch.arrays()[field], array)


def test_operators_refuse_a_set_in_python() -> None:
    name = known("my_features.py:KingDistance")
    records = torch.from_numpy(records_from_fens(FENS))
    with pytest.raises(RuntimeError, match=r"a set in Python, which nnue_trainer\.data\.expand expands"):
        ops.expand_features(records, name)
    assert feature_set(name).prepare("cpu")
    assert not feature_set(name).prepare("cuda")


def test_an_expander_makes_rows_on_the_host_where_operators_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    name = known("PP_3Wide+my_features.py:KingDistance")
    records = torch.from_numpy(records_from_fens(FENS))
    monkeypatch.setattr("nnue_trainer.data.features.FeatureSet.prepare", lambda *_: False)
    batch, expected = Expander(name, "cpu")(records), expand(records.numpy(), name)
    assert not batch.is_legal  # so its rows are checked
    for field in ops.Expanded._fields:
        assert torch.equal(getattr(batch, field), getattr(expected, field)), field


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["my_features.py:KingDistance", "HalfKAv2_hm+my_features.py:KingDistance"])
def test_an_expander_copies_rows_to_the_gpu(records: np.ndarray, name: str) -> None:
    batch, expected = Expander(known(name), "cuda")(torch.from_numpy(records)), expand(records, known(name))
    for field in ops.Expanded._fields:
        assert torch.equal(getattr(batch, field).cpu(), getattr(expected, field)), field


WRONG = """
import numpy as np
from nnue_trainer.data.feature_sets import Features
from nnue_trainer.schema import section

@section
class Wrong(Features):
    row: int = 0
    bucket: int = 0
    num_features, max_active = 10, 3

    @property
    def bucket_size(self):
        return self.bucket

    def indices(self, view):
        rows = [[10], [-2], [1, -1, 2], [1, 2, 3, 4], [0.5], [4, 5], [1, 6]]
        if self.row == 7:
            return np.zeros((len(view), 3, 1), int)
        if self.row == 8:
            raise KeyError("what")
        return np.repeat([rows[self.row]], len(view), axis=0)
"""


WHERE = r"^feature set 'wrong\.py:Wrong\(row=.*\)': \S+/wrong\.py(:\d+)?: Wrong\.indices:? "


@pytest.mark.parametrize(
    ("fields_of_set", "message"),
    [
        ("row=0", r"white has feature 10, expected 0 to 9, or -1 for none in 4k3/8/8/8/8/8/8/4K3 w - - 0 1"),
        ("row=1", r"white has feature -2, expected 0 to 9, or -1 for none in "),
        ("row=2", r"white has a feature after a -1, expected -1 at the end \(left_packed does that\) in "),
        ("row=3", r"white has 4 features, expected at most 3 in "),
        ("row=4", r"returned ndarray of float64 \[1, 1\], expected integers \[1, K\]$"),
        ("row=7", r"returned ndarray of int64 \[1, 3, 1\], expected integers \[1, K\]$"),
        ("row=8", r"KeyError: 'what'$"),
        ("row=6,bucket=5", r"white has features of king buckets \[0, 1\], expected one in "),
    ],
)
def test_rows_that_do_not_fit_are_one_line(tmp_path: Path, fields_of_set: str, message: str) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    name = feature_set(f"{tmp_path}/wrong.py:Wrong({fields_of_set})", may_import=True).name
    with pytest.raises(UserError, match=WHERE + message) as caught:
        expand(records_from_fens(FENS[1:2]), name, threads=1)
    assert "\n" not in str(caught.value)
    with (
        Loader(ROOT / "samples" / "val.binpack", name, 100, threads=1) as loader,
        pytest.raises(UserError, match="feature set "),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("num_features, max_active = 0, 3", "the number of features is 0, expected 1 to "),
        ("num_features, max_active = 10, 5000", "the largest number of active features is 5000, expected 1 to 4096"),
        ("num_features, max_active, num_virtual = 10, 3, 4", "10 features with a number of 4 .virtual rows."),
        ("num_features, max_active, bucket_size = 10, 3, 11", "the bucket size is 11, expected 0 to 10"),
        ("num_features, max_active = 10, 'x'", "max_active returned 'x', expected a 32-bit number"),
    ],
)
def test_sizes_that_cannot_be(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "sizes.py").write_text(
        "from nnue_trainer.data.feature_sets import Features\nfrom nnue_trainer.schema import section\n"
        f"@section\nclass Sizes(Features):\n    {lines}\n    def indices(self, view):\n        return None\n"
    )
    with pytest.raises(UserError, match=rf"(feature set 'sizes\.py:Sizes': |/sizes\.py: Sizes\.){message}"):
        feature_set(f"{tmp_path}/sizes.py:Sizes", may_import=True)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_no_name_loads_a_file() -> None:
    for name in ("my_features.py:KingDistance", "my_features.h:Neighbours", "HalfKP+my_features.py:KingDistance"):
        with pytest.raises(UserError, match=r"files do not make it import code: name the file with --plugin my_feat"):
            feature_set(name)
    registry.load_plugin(WALKS / "my_features.py")
    assert feature_set("my_features.py:KingDistance").num_features == 96
    registry.forget_plugins()
    with pytest.raises(UserError, match="files do not make it import code"):
        feature_set("my_features.py:KingDistance")


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ("my_features.py:Nope", r"has no class 'Nope'"),
        ("my_features.py:KingDistance(both_king=true)", r"both_king: unknown key \(did you mean 'both_kings'\?\)"),
        ("my_features.py:KingDistance(both_kings=2)", r"both_kings: found 2, expected a valid boolean"),
        ("my_features.py:KingDistance(both_kings", r"expected a '\)' at its end"),
        ("my_features.py:KingDistance(true)", r"found 'true', expected field=value"),
        ("my_features.h:Nope", r"has no class 'Nope'"),
        ("my_features.h:Neighbours(x=1)", r"x: unknown key"),
        ("KingDistance", r"unknown feature set 'KingDistance' in .*, expected one of Chess768, "),
    ],
)
def test_a_wrong_name_says_what_is_wrong(term: str, message: str) -> None:
    for file in ("my_features.py", "my_features.h"):
        registry.load_plugin(WALKS / file)
    with pytest.raises(UserError, match=message) as caught:
        feature_set(f"HalfKP+{term}")
    assert "\n" not in str(caught.value)


def test_a_file_that_was_changed_and_loaded_anew(tmp_path: Path) -> None:
    """Rows follow the file that is loaded now, also in sums."""
    text = (WALKS / "my_features.py").read_text()
    (tmp_path / "own.py").write_text(text)
    records = records_from_fens(FENS)
    name = feature_set(f"PP_3Wide+{tmp_path}/own.py:KingDistance", may_import=True).name
    before = expand(records, name)
    registry.forget_plugins()
    (tmp_path / "own.py").write_text(text.replace("np.maximum(files, ranks)", "files"))
    registry.load_plugin(tmp_path / "own.py")
    after = expand(records, name)
    assert before.white.shape == after.white.shape
    assert not torch.equal(before.white, after.white)


def test_terms_of_a_sum() -> None:
    assert terms("A + B(x=1+2) +C") == ["A", "B(x=1+2)", "C"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(-1, 5), min_size=4, max_size=4), min_size=1, max_size=8))
def test_left_packed(rows: list[list[int]]) -> None:
    packed = left_packed(np.array(rows))
    for row, found in zip(rows, packed.tolist(), strict=True):
        kept = [x for x in row if x >= 0]
        assert found == kept + [-1] * (4 - len(kept))


# ---- C++ headers -----------------------------------------------------------------------------------------------------


@pytest.mark.compiler
def test_a_set_in_a_header_equals_a_reference(records: np.ndarray, cache: Path) -> None:
    name = known("my_features.h:Neighbours")
    assert name == "my_features.h:Neighbours"
    (part,) = feature_set(name).parts
    assert part[1:7] == (0, 576, 128, 0, 0, 576)
    assert tuple(part.states) == ()
    expected = [[neighbours(pieces, c) for pieces, _ in decoded(records)] for c in (0, 1)]
    assert_rows(expand(records, name, threads=2), 0, 576, expected)
    total = known("my_features.h:Neighbours + HalfKAv2_hm + my_features.py:KingDistance")
    assert_rows(expand(records, total), 0, 576, expected)


FOUR = """
#include "features/general_set.h"
using namespace nnue::data;

struct Squares {  // Chess768
    static constexpr int kNumFeatures = 768, kMaxActive = 32, kBucketSize = 768, kNumVirtual = 0;
    NNUE_HOST_DEVICE static int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static int offset(int, int) { return 0; }
    NNUE_HOST_DEVICE static Bitboard partners(const CodePlanes&, int, int square) { return bit(square); }
    NNUE_HOST_DEVICE static int index(int piece, int from, int, int) {
        return 64 * (piece / 2 + 6 * (piece % 2)) + from;
    }
};

struct Buckets {  // HalfKAv2_hm
    static constexpr int kNumFeatures = 32 * 768, kMaxActive = 32, kBucketSize = 768, kNumVirtual = 768;
    NNUE_HOST_DEVICE static int orientation(int perspective, int king) {
        return (perspective ? 56 : 0) ^ ((king & 7) < 4 ? 7 : 0);
    }
    NNUE_HOST_DEVICE static int offset(int perspective, int king) {
        const int seen = king ^ orientation(perspective, king);
        return 768 * (4 * (7 - seen / 8) + 7 - seen % 8);
    }
    NNUE_HOST_DEVICE static Bitboard partners(const CodePlanes&, int, int square) { return bit(square); }
    NNUE_HOST_DEVICE static int index(int piece, int from, int, int) { return 64 * piece + from; }
};

struct Queens : Buckets {  // K32Q2
    static constexpr int kNumFeatures = 64 * 768;
    NNUE_HOST_DEVICE static int offset(int perspective, int king, const CodePlanes& board) {
        const bool has_queen = board.of(2 * kQueen + (perspective ^ 1)) != 0;
        return 2 * Buckets::offset(perspective, king) + 768 * has_queen;
    }
};

struct Pawns {  // PP_3Wide
    static constexpr int kNumFeatures = 4560, kMaxActive = 96, kBucketSize = 0, kNumVirtual = 0;
    NNUE_HOST_DEVICE static int orientation(int perspective, int king) { return threat_orientation(perspective, king); }
    NNUE_HOST_DEVICE static int offset(int, int) { return 0; }
    NNUE_HOST_DEVICE static Bitboard partners(const CodePlanes& board, int code, int square) {
        return code < 2 ? pawn_partners(board.pawns(), square) : 0;
    }
    NNUE_HOST_DEVICE static int index(int piece, int from, int partner, int to) {
        return pawn_pair_index(48 * (piece & 1) + from - 8, 48 * (partner & 1) + to - 8);
    }
};

struct OwnOnly {  // Rows of different lengths, and empty squares as partners: what the own rooks have in front of them.
    static constexpr int kNumFeatures = 13 * 64, kMaxActive = 20, kBucketSize = 0, kNumVirtual = 0;
    NNUE_HOST_DEVICE static int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static int offset(int, int) { return 0; }
    NNUE_HOST_DEVICE static Bitboard partners(const CodePlanes& board, int code, int square) {
        return code / 2 == kRook ? (code & 1 ? bit(square) >> 8 : bit(square) << 8) : 0;
    }
    NNUE_HOST_DEVICE static int index(int piece, int, int partner, int to) {
        return piece % 2 ? -1 : 64 * partner + to;
    }
};
"""
SAME = {"Squares": "Chess768", "Buckets": "HalfKAv2_hm", "Queens": "K32Q2", "Pawns": "PP_3Wide"}


@pytest.fixture
def four(tmp_path: Path, cache: Path) -> Path:
    path = tmp_path / "four.h"
    path.write_text(FOUR)
    return path


@pytest.mark.slow
@pytest.mark.compiler
def test_headers_equal_built_in_sets(four: Path, records: np.ndarray) -> None:
    for struct, built_in in SAME.items():
        own, same = feature_set(f"{four}:{struct}", may_import=True), feature_set(built_in)
        assert own.parts[0][2:7] == same.parts[0][2:7]
        batch, expected = expand(records, own), expand(records, same)
        for field in ops.Expanded._fields:
            one, other = getattr(batch, field), getattr(expected, field)
            if field in ("white", "black"):  # the set decides the order
                one, other = one.sort(1).values, other.sort(1).values
            assert torch.equal(one, other), (struct, field)


def rooks_look(pieces: dict[int, int], perspective: int) -> list[int]:
    board = seen(pieces, perspective)
    return sorted(64 * board.get(s + 8, 12) + s + 8 for s, piece in board.items() if piece == 6 and s < 56)


@pytest.mark.slow
@pytest.mark.compiler
def test_rows_of_different_lengths(four: Path, records: np.ndarray) -> None:
    name = feature_set(f"{four}:OwnOnly", may_import=True).name
    expected = [[rooks_look(pieces, c) for pieces, _ in decoded(records)] for c in (0, 1)]
    batch = expand(records, name)
    assert_rows(batch, 0, 832, expected)
    assert not torch.equal((batch.white >= 0).sum(1), (batch.black >= 0).sum(1))
    total = feature_set(f"{name}+Chess768+{four}:Pawns", may_import=True)
    assert_rows(expand(records, total), 0, 832, expected)


@pytest.mark.slow
@pytest.mark.compiler
def test_the_operator_expands_sets_of_headers(four: Path, records: np.ndarray, device: torch.device) -> None:
    here = torch.from_numpy(records).to(device)
    for terms_of_sum in (["OwnOnly"], ["Chess768", "OwnOnly"], ["Pawns", "HalfKAv2_hm", "OwnOnly", "PP_3Wide"]):
        known_terms = [
            term if term in ("Chess768", "HalfKAv2_hm", "PP_3Wide") else f"{four}:{term}" for term in terms_of_sum
        ]
        name = feature_set("+".join(known_terms), may_import=True).name
        batch, expected = ops.expand_features(here, name), expand(records, name)
        for field in ops.Expanded._fields:
            assert torch.equal(getattr(batch, field).cpu(), getattr(expected, field)), field
        into = Expander(name, device)(torch.from_numpy(records))
        assert torch.equal(into.white.cpu(), expected.white)


@pytest.mark.compiler
def test_exported_graphs_and_compile_know_headers(
    tmp_path: Path, four: Path, records: np.ndarray, device: torch.device
) -> None:
    name = feature_set(f"HalfKP+{four}:OwnOnly", may_import=True).name
    feature_set(name).prepare(device)

    class Rows(torch.nn.Module):
        def forward(self, packed: torch.Tensor) -> torch.Tensor:
            rows = ops.expand_features(packed, name)
            return rows[0].sum(1) + rows[1].sum(1)

    here = torch.from_numpy(records[:200]).to(device)
    expected = Rows()(here)
    assert torch.equal(torch.compile(Rows(), fullgraph=True, backend="aot_eager")(here), expected)
    torch.export.save(torch.export.export(Rows(), (here,)), tmp_path / "rows.pt2")
    assert torch.equal(torch.export.load(tmp_path / "rows.pt2").module()(here), expected)


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("64 * partner + to", "64 * partner + to + 800"), r"has feature \d{3,4}, expected 0 to 831"),
        (("kMaxActive = 20", "kMaxActive = 1"), r"has 2 features or more, expected at most 1"),
        (
            (
                "kNumFeatures = 13 * 64, kMaxActive = 20, kBucketSize = 0",
                "kNumFeatures = 13 * 64, kMaxActive = 20, kBucketSize = 1",
            ),
            r"has feature \d+, which lies in another king bucket than those before it",
        ),
    ],
)
def test_rows_of_headers_are_checked(
    tmp_path: Path, cache: Path, device: torch.device, change: tuple[str, str], message: str
) -> None:
    assert FOUR.count(change[0]) == 1
    (tmp_path / "bad.h").write_text(FOUR.replace(*change))
    name = feature_set(f"{tmp_path}/bad.h:OwnOnly", may_import=True).name
    records = records_from_fens([FENS[1], "4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1"])
    with pytest.raises(UserError, match=rf"feature set 'bad\.h:OwnOnly': white {message} in 4k3/8/8/8/8/8/8/R3K2R w"):
        expand(records, name)
    with pytest.raises(RuntimeError, match=r"feature set .* in row 1"):
        ops.expand_features(torch.from_numpy(records).to(device), name)


@pytest.mark.slow
@pytest.mark.compiler
def test_compiled_once_and_again_where_something_changed(
    four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "own-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (tmp_path / "part.h").write_text("static constexpr int kSize = 768;\n")
    four.write_text('#include "part.h"\n' + FOUR.replace("kNumFeatures = 768", "kNumFeatures = kSize"))
    folder = cache / "torch-nnue" / "feature-sets"
    first = header.compiled(four, "Squares")
    said = capfd.readouterr().err
    assert said.startswith(f"nnue: four.h:Squares: compiling for the CPU, once; kept in {folder}\n")
    assert first.parent == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert header.compiled(four, "Squares") == first
    assert capfd.readouterr().err == ""
    (tmp_path / "part.h").write_text("static constexpr int kSize = 2 * 384;\n")
    assert header.compiled(four, "Squares") != first
    assert header.compiled(four, "Pawns") != first
    assert sorted(path.suffix for path in folder.iterdir()) == [".sha256"] * 3 + [".so"] * 3


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("struct Own { int x }\n", r"g\+\+: .*own\.h:1:\d+: error: expected"),
        ('#include "nowhere.h"\nstruct Own {};\n', r"own\.h:1:\d+: fatal error: nowhere\.h: No such file"),
        (
            FOUR.replace("struct OwnOnly", "struct Own").replace(
                "static int index(int piece, int, int partner, int to)",
                "static int number(int piece, int, int partner, int to)",
            ),
            r"a feature set needs: NNUE_HOST_DEVICE static int index\(int piece, int from, int partner, int to\)",
        ),
    ],
)
def test_compile_errors_are_one_line(tmp_path: Path, cache: Path, text: str, message: str) -> None:
    (tmp_path / "own.h").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        feature_set(f"{tmp_path}/own.h:Own", may_import=True)
    assert str(caught.value).startswith("feature set own.h:Own: ")
    assert "\n" not in str(caught.value)
    folder = cache / "torch-nnue" / "feature-sets"
    assert {path.suffix for path in folder.iterdir()} <= {".so", ".sha256"}, "nothing half-written"


@pytest.mark.slow
@pytest.mark.compiler
def test_a_copy_of_features_beside_a_header(
    tmp_path: Path, project_root: Path, records: np.ndarray, cache: Path
) -> None:
    """The copy is for nnue.h. The header gets the package's own files. Where another file beside the header includes
    them, it would get the copy, which is refused."""
    shutil.copytree(project_root / "examples" / "engine" / "features", tmp_path / "features")
    (tmp_path / "board.h").write_text("inline constexpr int kSquares = 64;\n")
    (tmp_path / "own.h").write_text('#pragma once\n#include "board.h"\nstatic_assert(kSquares == 64);\n' + FOUR)
    name = known(f"{tmp_path}/own.h:Squares")
    assert torch.equal(expand(records, name).white, expand(records, "Chess768").white)
    (tmp_path / "other.h").write_text(FOUR.replace("struct Squares", "struct Others"))
    (tmp_path / "nested.h").write_text('#include "other.h"\n')
    with pytest.raises(
        UserError, match=r"nested\.h:Others: .*/features/general_set\.h is included in place of features/"
    ):
        header.compiled(tmp_path / "nested.h", "Others")


def test_no_compiler_is_one_line(four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"need a C\+\+20 compiler: no g\+\+, c\+\+ or clang\+\+; install g\+\+$"):
        feature_set(f"{four}:Squares", may_import=True)
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(UserError, match=r"\$CXX is 'no-such-compiler -m64', which does not exist"):
        feature_set(f"{four}:Squares", may_import=True)


@pytest.mark.compiler
def test_a_cache_that_cannot_be_written(four: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        UserError, match=r"feature-sets: cannot be written: Not a directory; set XDG_CACHE_HOME to another"
    ):
        feature_set(f"{four}:Squares", may_import=True)


@pytest.mark.slow
@pytest.mark.compiler
def test_headers_compile_for_cuda(cache: Path) -> None:
    require(no_tool("nvcc")())
    library = header.compiled_for_cuda(WALKS / "my_features.h", "Neighbours", ["80", "90"], header.find_nvcc())
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert re.search(r" T nnue_append_features$", symbols, re.MULTILINE)
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "cudart" not in needed, "free of the machine's CUDA runtime"


def test_the_registry_lists_what_was_loaded() -> None:
    registry.load_plugin(WALKS / "my_features.py")
    assert [kind for kind, _ in FEATURE_SETS] == [f"{WALKS}/my_features.py:KingDistance"]
    assert "my_features.py" in registry.plugins()
