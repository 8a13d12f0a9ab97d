"""FEN to records and back, and the en-passant rule."""

import re

import pytest

from nnue_trainer.data import fens_from_records, records_from_fens
from nnue_trainer.errors import UserError

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


@pytest.mark.parametrize(
    "fen",
    [
        START,
        "r3k2r/8/8/8/8/8/8/R3K2R b Kq - 99 60",
        "4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1",
        "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1",
        "8/8/8/8/8/8/8/K1k5 w - - 150 8192",
    ],
)
def test_round_trip(fen: str) -> None:
    assert fens_from_records(records_from_fens([fen])) == [fen]


def test_counters_are_optional() -> None:
    assert fens_from_records(records_from_fens(["8/8/8/8/8/8/8/K1k5 b - -"])) == ["8/8/8/8/8/8/8/K1k5 b - - 0 1"]


def test_the_start_position_to_the_byte() -> None:
    record = records_from_fens([START])[0].tobytes()
    assert record[:8].hex() == "ffff00000000ffff"
    # R N B Q K B N R from a1, low nibble first, rooks that may castle as 13 and 14.
    assert record[8:12] == bytes([0x2D, 0x84, 0x4A, 0xD2])
    assert record[12:20].hex() == "0000000011111111"
    assert record[20:24] == bytes([0x3E, 0x95, 0x5B, 0xE3])
    assert record[24:] == bytes(8)


# FEN after the push with the pushed-over square claimed, and whether the rule keeps it.
EP_RULE = [
    ("8/2p5/3p4/KP5r/1R2Pp1k/8/6P1/8 b - e3 0 1", False),
    ("8/2p5/3p4/KP5r/1R3pPk/8/4P3/8 b - g3 0 1", False),
    ("8/8/3p4/KPp4r/1R3p1k/8/4P1P1/8 w - c6 0 2", False),
    ("4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1", True),
    ("4k3/8/8/8/4P3/8/8/4K3 b - e3 0 1", False),
    ("7k/8/8/4p3/2Pp4/8/8/B3K3 b - c3 0 1", True),
    ("7k/8/8/8/3pP3/8/8/B3K3 b - e3 0 1", False),
    ("7k/8/8/8/3pPp2/8/8/B3K3 b - e3 0 1", True),
    ("8/8/8/k7/3pP3/8/8/4B1K1 b - e3 0 1", False),
    ("3k4/8/8/8/3pP3/8/8/3RK3 b - e3 0 1", False),
    ("4k3/8/8/8/3pP3/8/4N3/4K3 b - e3 0 1", False),  # the pusher's origin is taken
    ("4k3/8/8/8/3pP3/4N3/8/4K3 b - e3 0 1", False),  # the square itself is taken
    ("4k3/8/8/8/3pP3/8/8/4K3 w - e3 0 1", False),  # of the wrong side
]


@pytest.mark.parametrize(("fen", "kept"), EP_RULE)
def test_en_passant_rule(fen: str, kept: bool) -> None:
    expected = fen if kept else re.sub(r" [a-h][36] ", " - ", fen)
    assert fens_from_records(records_from_fens([fen])) == [expected]


@pytest.mark.parametrize(
    ("fen", "reason"),
    [
        ("", "0 fields"),
        ("hello", "1 field,"),
        ("8/8/8/8/8/8/8/K1k5 w -", "3 fields"),
        ("8/8/8/8/8/8/8/K1k5 w - - 0 1 extra", "7 fields"),
        ("8/8/8/8/8/8/8/K1k4 w - - 0 1", "rank 1 after 7 squares"),
        ("8/8/8/8/8/8/8/K1k6 w - - 0 1", "rank 1 has more than 8 squares"),
        ("8/8/8/8/8/8/K1k5 w - - 0 1", "the board ends on rank 2"),
        ("8/8/8/8/8/8/8/8/K1k5 w - - 0 1", "more than 8 ranks"),
        ("7/8/8/8/8/8/8/K1k5 w - - 0 1", "rank 8 has 7 squares"),
        ("8/8/8/8/8/8/8/K1x5 w - - 0 1", "unknown piece 'x'"),
        ("8/8/8/8/8/8/8/K7 w - - 0 1", "0 black kings, expected 1"),
        ("8/8/8/8/8/8/8/KKk5 w - - 0 1", "2 white kings, expected 1"),
        ("8/8/8/8/8/8/8/K1k4P w - - 0 1", "a pawn on rank 1"),
        ("nnnnnnnn/nnnnnnnn/nnnnnnnn/nnnnnnnn/n7/8/8/K1k5 w - - 0 1", "more than 32 pieces"),
        ("8/pppppppp/pppppppp/P7/8/8/8/K1k5 w - - 0 1", "more than 16 pawns"),
        ("8/8/8/8/8/8/8/K1k5 x - - 0 1", "side to move 'x'"),
        ("8/8/8/8/8/8/8/K1k5 w KA - 0 1", "castling right K without king and rook on rank 1"),
        ("4k3/8/8/8/8/8/8/R3K3 w XQ - 0 1", "castling 'XQ'"),
        ("8/8/8/8/8/8/8/K1k5 w - e9 0 1", "en-passant square 'e9'"),
        ("8/8/8/8/8/8/8/K1k5 w - - x 1", "rule-50 counter 'x'"),
        ("8/8/8/8/8/8/8/K1k5 w - - 0 9000", "move number '9000'"),
    ],
)
def test_bad_fen_names_fen_and_reason(fen: str, reason: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"FEN '{fen}': ") + ".*" + re.escape(reason)):
        records_from_fens([START, fen])
