"""Lists of positions and opening books: every form of a line, one reader for all commands, other kinds of files."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from data_commands import run

from nnue_trainer import _data
from nnue_trainer.data import PositionReader, RecordLoader
from nnue_trainer.data.books import Book, read_positions
from nnue_trainer.errors import UserError

WHITE = "r1bqkbnr/1ppp1ppp/p1n5/1B2p3/4P3/5N2/PPPP1PPP/RNBQK2R w KQkq -"
BLACK = "8/5k2/3p4/1p1Pp2p/pP2Pp1P/P4P1K/8/8 b - -"
FRC = "bbqnnrkr/pppppppp/8/8/8/8/PPPPPPPP/BBQNNRKR w HFhf - 0 1"


def read(path: Path, content: str, **options: Any) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Side, score and result of each position, and the notes."""
    path.write_text(content)
    with PositionReader(path, **options) as reader:
        rows = _data.describe(np.concatenate([np.empty((0, 32), np.uint8), *reader]))
        return [(fen.split()[1], score, result) for fen, _, score, _, result in rows], reader.notes


@pytest.mark.parametrize(
    ("white", "black"),
    [
        (f"{WHITE} 0 4 | 35 | 1.0", f"{BLACK} 99 50|-110|0-1"),
        (f"{WHITE} 0 4,35,1.0", f"{BLACK} 99 50,-110,0.0"),
        (f"{WHITE} 0 4;1-0;35;", f"{BLACK};0.0;-110"),
        (f"fen,score,result\n{WHITE} 0 4,35,1", f"{BLACK} 99 50,-110,0"),
        (f'# a list\n"Result";"FEN";"cp"\n1-0;"{WHITE}";35', f'0-1;"{BLACK} 99 50";-110'),
        (f"n\tfen\twdl\teval\n1\t{WHITE}\t1.0\t35", f"2\t{BLACK}\t0.0\t-110"),
        (f"{WHITE} 0 4 [1.0] 35", f"{BLACK} 99 50 [0.0] 110"),
        (f"{WHITE} [1.0] 35", f"{BLACK} 1 1 110 [0.0]"),
        (f'{WHITE} hmvc 0; fmvn 4; ce 35; id "R\u00e9ti"; c9 "1-0";', f'{BLACK} 99 50 ; c9 "0-1"; ce 110'),
    ],
)
def test_every_form_of_a_line(white: str, black: str, tmp_path: Path) -> None:
    # A pawn of 100 keeps the centipawns of EPD; other forms have no unit.
    assert read(tmp_path / "x", f"{white}\n\n{black}\n", pawn=100)[0] == [("w", 35, 1), ("b", 110, 1)]


def test_lines_without_a_score(tmp_path: Path) -> None:
    for line in (f"{WHITE} [0.5]", f"{WHITE} 0 4 1/2-1/2", f'{WHITE} "1/2-1/2";', f"fen;result\n{WHITE};0.5"):
        assert read(tmp_path / "x", line)[0] == [("w", 32002, 0)], line
    assert read(tmp_path / "x", f'{BLACK} c9 "0-1"; dm 3;')[0] == [("b", 31995, 1)]
    assert read(tmp_path / "x", f'{BLACK} dm 3; c9 "0-1"; ce 32763;')[0] == [("b", 31995, 1)]
    mates = "\n".join(f"{fen},{score},1" for fen, score in ((WHITE, "#3"), (BLACK, "#3"), (BLACK, "#-3")))
    found, _ = read(tmp_path / "x", f"fen,evaluation,result\n{mates}")
    assert [score for _, score, _ in found] == [31995, -31994, 31995]


def test_what_is_not_read_is_stated(tmp_path: Path) -> None:
    columns = f'fen,"a, note",score_stm,result\n{WHITE},"b, c",35,1.0'
    assert read(tmp_path / "x", columns)[1][1:] == [
        "no column with scores, expected one named score, cp or eval",
        "columns that are not read: 'a, note', 'score_stm'",
    ]
    found, notes = read(tmp_path / "x", f"fen,cp,mate,result\n{BLACK},,3,0-1\n{BLACK},35,,0-1")
    assert [score for _, score, _ in found] == [-31994, -35]
    assert len(notes) == 1
    for line, example in (
        (f"fen,score,result\n{WHITE},35,1.0\n{WHITE},,1.0\n{WHITE},,1.0", f"{WHITE},,1.0"),
        (f"{WHITE} [1.0]\n{WHITE} [1.0]", "[1.0]"),
        (f"{WHITE};1-0\n{WHITE};1-0", ";1-0"),
    ):
        assert read(tmp_path / "x", line)[1][-1] == f"positions without a score: 2, such as '{example}'"
    for operation in ("sc 35", "Eval +0.35", "[1.0]; 35"):
        assert read(tmp_path / "x", f'{WHITE} ; {operation}; c9 "1-0"; bm O-O; acd 9;')[1] == [
            "positions without ce, with an operation that is not understood as a score: 1, "
            f"such as '; {operation}; c9 \"1-0\"; bm O-O; acd 9;'"
        ]


def test_views_are_stated(tmp_path: Path) -> None:
    assert read(tmp_path / "x", f"{BLACK} [0.0] 5")[1] == [
        "lines of FEN [result] score, the score in the side to move's view, the result in White's: 1"
    ]
    assert read(tmp_path / "x", f"{BLACK},5,0.0")[1] == [
        "lines of separated values, scores and results in White's view: 1"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{WHITE},35,1", "line 1: values separated by ',' in ',35,1', which do not show which one is the result: put"),
        (f"fen,score\n{WHITE},35", "line 2: no column with results, expected one named result or wdl"),
        (
            f"fen,score,result\n{WHITE},35,0,5",
            f"line 2: 4 values in '{WHITE},35,0,5', expected 3, the number of names in",
        ),
        (f"fen,score,cp,result\n{WHITE},35,36,1.0", "line 2: two columns of one kind, 'score' and 'cp'"),
        (f'{WHITE} 0 -4 c9 "1-0";', "line 1: counter '-4', expected a whole number from 0, or an operation"),
        (f'{WHITE} ce 2; ce 35; c9 "1-0";', "line 1: two different values of ce, 2 and 35"),
        (f'{WHITE} c9 "1-0"; c8 "0-1";', "line 1: two different results, the second '0-1'"),
        (f"fen,score,result\n{WHITE},0.35,1.0", "line 2: score '0.35', expected"),
        (WHITE, "line 1: a position without a result, expected <FEN> | <score> | <result>, or an EPD operation"),
        (f"{WHITE} [2] 35", r"line 1: result '2', expected 1.0, 0.5 or 0.0"),
        (f"{WHITE} 0 1 3 [1.0] 35", "line 1: two values beside the result in"),
        (f"{WHITE} 35 [1.0]", "line 1: one number before the result in"),
        (f"fen,score,result\n{WHITE},1M2,1.0", "line 2: score '1M2', expected a whole number, or a mate such as #-3"),
        (f'{WHITE} hmvc x; c9 "1-0";', "line 1: hmvc 'x', expected a whole number from 0 to 65535"),
    ],
)
def test_lines_that_are_not_understood_are_named(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path / "x", content)
    assert f"x: {message}" in str(error.value)


def test_results_from_0_to_2_are_never_left_out(tmp_path: Path) -> None:
    """A 1 in the lines before would be a draw and not a win."""
    with pytest.raises(UserError, match=r"x: line 3: result '2', expected 1\.0"):
        read(tmp_path / "x", f"fen,score,result\n{WHITE},35,1\n{WHITE},35,2", skip_bad=True)


def test_missing_scores_are_not_in_the_mean(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"fen,score,result\n{WHITE},10,1.0\n{WHITE},40,1.0\n{WHITE},,1.0\n")
    text = run("info", path)
    assert "mean 25.0 without none; zero 0 (0.00%), none (32002) 1 (33.33%)" in text
    path.write_text(f"fen,score,result\n{WHITE},,1.0\n")
    assert "mean unknown without none" in run("info", path)


def test_names_of_columns_hold_for_every_chunk(tmp_path: Path) -> None:
    """Chunks have 1 MiB."""
    path = tmp_path / "x.txt"
    path.write_text("result,fen,score\n" + "".join(f"1-0,{WHITE},{number}\n" for number in range(20_000)))
    loader = RecordLoader(path, 1000, shuffle=False, threads=2)
    rows = _data.describe(np.concatenate([batch.numpy() for batch in loader]))
    assert [row[2] for row in rows] == list(range(20_000))


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("book.EPD", bytes),
    ("book.epd.gz", gzip.compress),
    ("book.epd.bz2", bz2.compress),
    ("book.epd.xz", lzma.compress),
    ("book.epd.zst", lambda data: zstandard.compress(data)),
    ("anything", bytes),
]


def book(path: Path, *, plies: int = 4, chess960: bool = False) -> list[tuple[str, tuple[str, ...]]]:
    found = Book(path, plies=plies, chess960=chess960, seed=1, count=9)
    return [found[number][:2] for number in range(len(found))]


@pytest.mark.parametrize(("name", "pack"), PACKED)
def test_books_are_recognised_by_content(name: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    lines = (
        f"{WHITE}\n# a comment\n\n{WHITE} 1 5\r\n{WHITE} 1 5;\n"
        f'{WHITE} hmvc 1; fmvn 5; bm nonsense;\n{WHITE} bm O-O; id "x";\n'
        f"{BLACK} 99 50 [0.5] 35\n{BLACK} 99 50,1,2\n{BLACK} 99 50 | 1 | 1.0\n{BLACK} 99 -"
    )
    (tmp_path / name).write_bytes(pack(lines.encode()))
    counters = ["0 1", "1 5", "1 5", "1 5", "0 1", "99 50", "99 50", "99 50", "99 1"]
    fens = [f"{WHITE if i < 5 else BLACK} {counter}" for i, counter in enumerate(counters)]
    assert list(read_positions(tmp_path / name)) == fens
    assert book(tmp_path / name) == [(fen, ()) for fen in fens]
    (tmp_path / name).write_bytes(pack(b'[Event "x"]\n\n1. e4 e5 *\n\n[Event "y"]\n\n1. d2d4 *\n'))
    assert [moves for _, moves in book(tmp_path / name)] == [("e2e4", "e7e5"), ("d2d4",)]
    with pytest.raises(UserError, match="games in PGN, expected positions"):
        list(read_positions(tmp_path / name))


def test_a_book_is_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x.pgn"
    path.write_text('[Event "x"]\n\n1. e4 e5 *\n\n[Event "y"]\n\n1. e4 Xx5 *\n')
    with pytest.raises(UserError, match=r"x.pgn: game 2: line 7: move 'Xx5' is not a move in "):
        book(path)
    assert book(path, plies=1)[1][1] == ("e2e4",)
    path.write_text('[Event "x"]\n[Variant "Atomic"]\n\n1. e4 e5 *\n')
    with pytest.raises(UserError, match=r"x.pgn: game 1: the variant 'atomic', expected chess or Chess960"):
        book(path)
    path.write_text('[Event "x"]\n[Variant "fischerandom"]\n\n1. e4 e5 *\n')
    assert len(book(path)) == 1
    path.write_text('[Event "x"]\n\n1. e4 -- *\n')
    with pytest.raises(UserError, match=r"game 1: line 3: the null move '--'"):
        book(path)
    path.write_text(f"{WHITE}\n{WHITE} 0 1 moves e1g1\n")
    with pytest.raises(UserError, match=r"x.pgn: line 2: moves after a position in 'moves e1g1', expected"):
        book(path)
    path.write_text(f"{WHITE} 0 -4\n")
    with pytest.raises(UserError, match=r"line 1: FEN '.* 0 -4': counter '-4', expected a whole number from 0"):
        book(path)
    path.write_text(f"{WHITE}\nnonsense\n")
    with pytest.raises(UserError, match=r"x.pgn: line 2: FEN 'nonsense': 1 field, expected board"):
        book(path)


@pytest.mark.parametrize("chess960", [False, True])
def test_an_opening_in_which_the_king_could_be_taken(chess960: bool, tmp_path: Path) -> None:
    """Engines would play on without their king, or end."""
    path = tmp_path / "x"
    illegal = "4k3/4R3/8/8/8/8/8/4K3 w - - 0 1"
    for content, where in (
        (f"{WHITE}\n{illegal}\n", "opening 2"),
        (f'[Event "x"]\n[FEN "{illegal}"]\n\n1. Ra7 *\n', "game 1"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=rf"x: {where}: the side that has just moved is in check in '4k3/4R3/"):
            book(path, chess960=chess960)


def test_a_score_is_no_counter(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(f"{WHITE} 35 [1.0]\n")
    with pytest.raises(UserError, match="x: line 1: one number before the result in"):
        list(read_positions(path))


def test_openings_of_chess960(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content, where in (
        (f"{WHITE}\n{FRC};\n", "opening 2"),
        (f'[Event "x"]\n[FEN "{FRC};"]\n\n1. e4 *\n', "game 1"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=rf"x: {where}: castling rights of Chess960 in .*: .* with --chess960"):
            book(path)
        assert book(path, chess960=True)[-1][0] == FRC
        assert Book(path, plies=4, chess960=True, seed=1, count=1).fens()[-1].startswith("bbqnnrkr/")


OTHERS = [
    (b"PK\x03\x04 and so on", "a zip archive: unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a rar archive"),
    (b"PAR1\x15\4", "a Parquet file"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"<!DOCTYPE html>\n<html>", "a web page"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS"),
    (b'{"fen":"8/8/8/8/8/8/8/8 w - -","evals":[{"pvs":[]}]}\n', "Lichess's evaluations as JSON"),
    (b'[{"position": 1}]', "JSON"),
    (rb"{\rtf1\ansi 1. e4 e5}", "a formatted text"),
    (b"".join(bytes([i, *range(7), 3, 28, 0, 1, 0, 0, 0, 0]) for i in range(9)), "a Polyglot book"),
    ("4k3".encode("utf-16"), "text in UTF-16"),
    (gzip.compress(gzip.compress(b"x")), "compressed twice with gzip"),
    (b"\x5d\0\0\x80\0" + bytes(range(60)), "compressed with lzma"),
    (gzip.compress(b"book.epd" + bytes(249) + b"ustar\x0000" + bytes(300)), "a tar archive: unpack it"),
    (b'\x40\0\0\0\0\0\0\0{"__metadata__":{}}', "a safetensors file"),
    (b"\xfa\x8a\x44\x6a\0\1\2\3\x0d\0\0\0sfnnv16-l1-32" + bytes(99), "a net, expected a file of positions or games"),
    (b"\x7fELF\2\1\1", "a program"),
]


@pytest.mark.parametrize(("content", "words"), OTHERS, ids=[words for _, words in OTHERS])
def test_other_kinds_of_files_are_named(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    uses: list[Callable[[], object]] = [
        lambda: PositionReader(path),
        lambda: book(path),
        lambda: list(read_positions(path)),
    ]
    for use in uses:
        with pytest.raises(UserError) as error:
            use()
        assert f"x.bin: {words}" in str(error.value)


def test_an_empty_book(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("# nothing\n")
    with pytest.raises(UserError, match="x: "):
        book(tmp_path / "x")
    (tmp_path / "x").write_text("")
    with pytest.raises(UserError, match="x: no openings"):
        book(tmp_path / "x")
    (tmp_path / "x").write_text(f'"FEN"\n"{WHITE}"\n')  # one column
    assert book(tmp_path / "x") == [(f"{WHITE} 0 1", ())]
    for content in ("\n", "\n\n"):
        (tmp_path / "x").write_text(content)
        with pytest.raises(UserError, match="x: "):
            book(tmp_path / "x")
