"""Chess960: FENs in both notations, moves, legality, what each format holds, self-play."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data import PositionReader, PositionWriter, expand, fields, records_from_fens
from nnue_trainer.data.files import FORMATS
from nnue_trainer.data.generate import start_position
from nnue_trainer.data.transform import convert, shuffle
from nnue_trainer.errors import UserError

VECTORS = Path(__file__).parents[1] / "vectors" / "data2"
EXPECTED: dict[str, Any] = json.loads((VECTORS / "vectors.json").read_text())
STANDARD = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


def read(path: Path) -> Records:
    with PositionReader(path) as reader:
        return np.concatenate([np.empty((0, 32), np.uint8), *reader])


@pytest.mark.parametrize("case", EXPECTED["chess960_fen"])
def test_fens_in_both_notations(case: dict[str, Any], tmp_path: Path) -> None:
    for fen in (case["in"], case["shredder"], case["xfen"]):
        record = records_from_fens([fen])
        assert [row[0] for row in _data.describe(record)] == [case["xfen"]]
        assert [row[0] for row in _data.describe(record, shredder=True)] == [case["shredder"]]
        squares = fields._nibbles_by_square(record)[0]
        rooks = {
            f"{'abcdefgh'[square % 8]}{square // 8 + 1}" for square in np.flatnonzero((squares == 14) | (squares == 15))
        }
        assert rooks == set(case["rook_squares"])
        for name in ("x.binpack", "x.bin"):
            if case["fits_binpack"]:
                with PositionWriter(tmp_path / name) as writer:
                    writer.write(record)
            else:
                with (
                    pytest.raises(UserError, match="position 0: castling rights of Chess960 in "),
                    PositionWriter(tmp_path / name) as writer,
                ):
                    writer.write(record)


@pytest.mark.parametrize(
    ("fen", "reason"),
    [
        ("4k3/8/8/8/8/8/8/4K3 w H - 0 1", "castling right H without king and rook on rank 1, the rook on file H"),
        ("4k3/8/8/8/8/8/4K3/R7 w A - 0 1", "castling right A without king and rook on rank 1"),
        ("4k3/8/8/8/8/8/8/RR2K3 w AB - 0 1", "with two rooks on one side of a king"),
        ("4k3/8/8/8/8/8/8/RR2K3 w Z - 0 1", "castling 'Z', expected - or some of KQkq, or letters"),
    ],
)
def test_rights_that_cannot_be_are_named(fen: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        records_from_fens([fen])


def test_all_start_positions() -> None:
    arrays = {start_position(number, number).split("/")[-1][:8] for number in range(960)}
    assert len(arrays) == 960
    assert "RNBQKBNR" in start_position(518, 518)
    for number in range(0, 960, 7):
        game = _data.Game(start_position(number, 959 - number))
        assert 18 <= len(game.legal_moves()) <= 22
        rights = fields.castling_rights(records_from_fens([start_position(number, 959 - number)]))
        assert rights.tolist() == [15]


# FEN, castling in UCI, the board after it; king and rook swap, one of them stays, the rook passes, the inner rook.
CASTLINGS = [
    ("bbqnnrkr/pppppppp/8/8/8/8/PPPPPPPP/BB3RKR w HFhf - 0 1", "g1f1", "BBKR3R"),
    ("4k3/8/8/8/8/8/8/6KR w H - 0 1", "g1h1", "5RK1"),
    ("4k3/8/8/8/8/8/8/5KR1 w G - 0 1", "f1g1", "5RK1"),
    ("4k3/8/8/8/8/8/8/1RK4R w B - 0 1", "c1b1", "2KR3R"),
    ("4k3/8/8/8/8/8/8/RK5R w HA - 0 1", "b1h1", "R4RK1"),
    ("4k3/8/8/8/8/8/8/R3K2R w HA - 0 1", "e1a1", "2KR3R"),
]


@pytest.mark.parametrize(("fen", "move", "rank"), CASTLINGS)
def test_castling_moves(fen: str, move: str, rank: str) -> None:
    game = _data.Game(fen, True)
    assert move in game.legal_moves()
    game.play(move)
    assert game.fen.split()[0].split("/")[-1] == rank


@pytest.mark.parametrize(
    ("fen", "move"),
    [
        ("4k3/8/8/8/8/8/8/5RKR w HF - 0 1", "g1h1"),  # the rook's new square is taken
        ("1r2k3/8/8/8/8/8/8/RK5R w HA - 0 1", "b1h1"),  # out of check
        ("3rk3/8/8/8/8/8/8/RK5R w HA - 0 1", "b1h1"),  # through d1
        ("4k3/8/8/8/8/8/8/RK1N3R w HA - 0 1", "b1h1"),  # a piece on the way
        ("4k3/8/8/8/8/8/8/qR1K4 w B - 0 1", "d1b1"),  # the rook is pinned before the king's new square
    ],
)
def test_castling_that_is_not_legal(fen: str, move: str) -> None:
    assert move not in _data.Game(fen, True).legal_moves()


def test_features_see_squares_alone() -> None:
    fen = "bbqnnrkr/pppppppp/8/8/8/8/PPPPPPPP/BBQNNRKR w {} - 0 1"
    with_rights, without = (expand(records_from_fens([fen.format(rights)]), "HalfKAv2_hm") for rights in ("HFhf", "-"))
    np.testing.assert_array_equal(with_rights.white.numpy(), without.white.numpy())


def test_formats_that_hold_the_rights_keep_them(tmp_path: Path) -> None:
    source = VECTORS / "vf-dfrc.vf"
    records = read(source)
    for name in ("x.plain", "x.vf"):
        assert not convert([source], tmp_path / name).losses
        np.testing.assert_array_equal(read(tmp_path / name), records)
    for name in ("x.marlin", "x.txt"):
        assert set(convert([source], tmp_path / name).losses) == {"moves"}
        np.testing.assert_array_equal(read(tmp_path / name)[:, :24], records[:, :24])
    assert set(convert([source], tmp_path / "x.bullet").losses) >= {"castling", "moves"}


@pytest.mark.parametrize("name", ["x.binpack", "x.bin"])
def test_formats_without_room_refuse_drop_or_skip(tmp_path: Path, name: str) -> None:
    source, out = VECTORS / "vf-dfrc.vf", tmp_path / name
    records = read(source)
    with pytest.raises(UserError, match=r"position 0: castling rights of Chess960 in .*--chess960"):
        convert([source], out)
    assert not out.exists()
    found, moves = _data.drop_chess960(records.copy())
    assert 0 < moves <= found.sum() < len(records)
    report = convert([source], out, chess960="drop-rights")
    assert report.losses == {"castling": found.sum(), "moves": moves}
    assert len(read(out)) == len(records)
    report = convert([source], out, chess960="skip", overwrite=True)
    assert report.losses == {"chess960": found.sum()}
    np.testing.assert_array_equal(read(out), records[~found])
    shuffle([source], out, chess960="skip", overwrite=True)
    assert len(read(out)) == (~found).sum()


def test_a_binpack_with_a_right_off_the_corners_is_refused(tmp_path: Path) -> None:
    record = records_from_fens(["4k3/8/8/8/8/8/8/5RKR w HF - 0 1"])
    path = tmp_path / "x.binpack"
    stem = record.tobytes() + b"\0\0"
    path.write_bytes(b"BINP" + len(stem).to_bytes(4, "little") + stem)
    with pytest.raises(UserError, match=r"x\.binpack: offset 8: .* a binpack holds no Chess960"):
        read(path)


# Set-ups that a reader could take for others: castling codes, bits and letters mean corner rooks and kings on e1 and e8
# in some formats, the outermost rook in others, the rook itself in the rest. Whether they are those of standard chess.
SET_UPS = {
    "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1": True,
    "4k3/8/8/8/8/8/8/R3K2R b Q - 0 1": True,
    "4k3/8/8/8/8/8/8/RR2K1RR w HA - 0 1": True,  # other rooks inside
    "4k3/8/8/8/8/8/8/1R2K1R1 w GB - 0 1": False,  # rooks off their corners
    "4k3/8/8/8/8/8/8/RR2K1RR w GB - 0 1": False,  # others in the corners
    "4k3/8/8/8/8/8/8/R4K1R w KQ - 0 1": False,  # rooks in the corners, king off e1
    "4k3/8/8/8/8/8/8/2RKR3 w EC - 0 1": False,
    "1r2kr2/8/8/8/8/8/8/R1K4R w HAfb - 0 1": False,
    "r1k4r/8/8/8/8/8/8/R3K2R w KQha - 0 1": False,  # of one side alone
}


@pytest.mark.parametrize(("fen", "is_standard"), SET_UPS.items())
@pytest.mark.parametrize("kind", FORMATS)
def test_no_format_misreads_a_set_up(kind: str, fen: str, is_standard: bool, tmp_path: Path) -> None:
    """It comes back as it was, or is refused by name. bulletformat has no castling rights, which is counted."""
    game = _data.Game(fen, True)
    game.record(game.legal_moves()[0], 12)  # viriformat holds no position without a move
    records = game.records(0)
    if kind in _data.only_standard_castling() and not is_standard:
        with (
            pytest.raises(UserError, match="position 0: castling rights of Chess960 in "),
            PositionWriter(tmp_path / "x", kind) as writer,
        ):
            writer.write(records)
        return
    with PositionWriter(tmp_path / "x", kind) as writer:
        writer.write(records)
    rows = [_data.describe(of)[0] for of in (read(tmp_path / "x"), records)]
    if kind == "bulletformat":
        assert writer.losses["castling"] == 1
    else:
        assert rows[0][0] == rows[1][0]
    if "moves" not in writer.losses:
        assert rows[0] == rows[1]


def test_uci_is_read_both_ways() -> None:
    for move in ("e1g1", "e1h1"):
        game = _data.Game("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1")
        game.play(move)
        assert game.fen.split()[0].endswith("R4RK1")
    assert STANDARD.split()[0] == _data.Game(STANDARD).fen.split()[0]


def test_convert_writes_shredder_fens(tmp_path: Path) -> None:
    start = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    (tmp_path / "in.txt").write_text(f"{start} | 0 | 0.5\n")
    for name in ("out.txt", "out.plain"):
        convert([tmp_path / "in.txt"], tmp_path / name, fen="shredder")
        assert "w HAha -" in (tmp_path / name).read_text()
        convert([tmp_path / name], tmp_path / "back.txt", overwrite=True)
        assert (tmp_path / "back.txt").read_text() == (tmp_path / "in.txt").read_text()
    with pytest.raises(UserError, match="bin has no FENs"):
        convert([tmp_path / "in.txt"], tmp_path / "out.bin", fen="shredder")
