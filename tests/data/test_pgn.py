"""PGN: the vectors, the conventions, what is left out, and what is wrong; EPD; text with the marks of other systems."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data import PositionReader, RecordLoader
from nnue_trainer.data.transform import convert
from nnue_trainer.errors import UserError

VECTORS = Path(__file__).parents[1] / "vectors" / "data2"
EXPECTED: dict[str, Any] = json.loads((VECTORS / "vectors.json").read_text())["pgn"]
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


def read(path: Path, **options: Any) -> tuple[Records, list[str]]:
    with PositionReader(path, **options) as reader:
        records = np.concatenate([np.empty((0, 32), np.uint8), *reader])
        return records, reader.notes


def game(moves: str, result: str = "1-0", **tags: str) -> str:
    lines = [f'[{name} "{value}"]' for name, value in {"Event": "x", "Result": result, **tags}.items()]
    return "\n".join(lines) + f"\n\n{moves} {result}\n\n"


@pytest.mark.parametrize("name", ["pgn-fastchess.pgn", "pgn-lichess.pgn"])
def test_vectors(name: str) -> None:
    records, notes = read(VECTORS / name)
    vector = EXPECTED[name]
    expected = []
    for row in vector["positions"]:
        if row["score"] is None:
            continue
        kind, value = row["score"]
        if kind == "cp":
            score = round(value * 2.08)
        else:
            plies = abs(value) if "fastchess" in name else 2 * abs(value) - (value > 0)
            score = (1 if value > 0 else -1) * (32000 - plies)
        white = {"1-0": 1, "0-1": -1}[vector["result"]]
        expected.append((row["fen"], row["move"], score, white if " w " in row["fen"] else -white))
    assert [(fen, move, score, result) for fen, move, score, _, result in _data.describe(records)] == expected
    assert any("lichess" in note for note in notes) == ("lichess" in name)


def test_a_game_without_a_result_is_left_out_and_counted() -> None:
    records, notes = read(VECTORS / "pgn-chessbase.pgn")
    assert len(records) == 0
    assert notes == ["games left out, without a result: 1"]


def test_views_that_nothing_tells_must_be_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(game("1. d4 {[%eval 17,29]} d5 {[%eval -21,25]}"))
    with pytest.raises(UserError, match=r"x: line 1: game 0: .*--score-view white or mover"):
        read(path)
    scores = {}
    for view in ("white", "mover"):
        records, _ = read(path, settings={"score_view": view})
        ((_, move, score, _, result),) = _data.describe(records)
        assert (move, result) == ("d7d5", -1)
        scores[view] = score
    # 17 centipawns after white's move: for white as white's view, for white as the mover's.
    assert scores == {"white": -35, "mover": -35}
    records, _ = read(path, settings={"score_view": "mover", "score_place": "before", "pawn": "100"})
    assert [score for _, _, score, _, _ in _data.describe(records)] == [17, -21]
    with pytest.raises(UserError, match="score_view 'x', expected one of auto, mover, white"):
        read(path, settings={"score_view": "x"})


def test_whole_numbers_need_a_unit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(game("1. d4 {+17/9 0.1s}"))
    with pytest.raises(UserError, match="--score-unit pawns or cp"):
        read(path)
    assert [row[2] for row in _data.describe(read(path, settings={"score_unit": "cp"})[0])] == [35]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (game("1. e4 {+0.10/9} Ke7 {+0.10/9}"), "move 'Ke7' is not legal in "),
        (game("1. e4 {+0.10/9"), "a comment without an end"),
        (game("1. e4 (1. d4 {+0.10/9}"), "a variation without an end"),
        (game("1. e4 {+0.10/9}", FEN="8/8/8/8/8/8/8/8 w - - 0 1"), "kings"),
    ],
)
def test_a_game_that_breaks_is_named_and_left_out(tmp_path: Path, text: str, why: str) -> None:
    good = game("1. e4 {+0.10/9 0.1s} e5 {-0.20/9 0.1s}")
    path = tmp_path / "x"
    path.write_text(good + text + good)
    with pytest.raises(UserError, match=r"x: line 6: game 1: ") as error:
        read(path)
    assert why in str(error.value)
    with PositionReader(path, skip_bad=True) as reader:
        assert sum(map(len, reader)) == 4
        assert reader.skipped == 1


def test_what_games_say_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(
        game("1. e4 {+0.10/9}", Variant="Antichess")
        + game("1. e4 {+0.10/9}", Termination="time forfeit")
        + game("1. e4 e5")
        + game("1. e4 {book} e5 2. Nf3 {+0.10/9}")
        + game(
            "1. O-O-O {+0.10/9}",
            Variant="fischerandom",
            SetUp="1",
            FEN="bbqnnrkr/pppppppp/8/8/8/8/PPPPPPPP/BB3RKR w HFhf - 0 1",
        )
    )
    records, notes = read(path)
    assert [row[1] for row in _data.describe(records)] == ["g1f3", "g1f1"]
    assert set(notes) == {
        "games left out, of the variant 'Antichess': 1",
        "games left out, ended by time forfeit: 1",
        "games left out, without evaluations: 1",
        "positions left out, of the book: 1",
        "positions left out, without an evaluation: 1",
        "games with evaluations as in engine matches ({+0.35/12 0.05s}), the mover's view, of the position before the "
        "move: 2",
    }
    report = convert([path], tmp_path / "x.vf")
    assert report.notes == [f"{path}: {note}" for note in notes]
    assert report.positions == 2


def scores(path: Path, text: str, **settings: str) -> tuple[list[int], list[str]]:
    path.write_text(text)
    records, notes = read(path, settings=settings)
    return [row[2] for row in _data.describe(records)], notes


@pytest.mark.parametrize(
    ("comment", "score"),
    [
        # Programs that play matches: the mover's view of the position before the move.
        ("+0.57/17 0.583s", 57),
        ("+0.57 17/28 583 363004", 57),
        ("-0.57/17-28 583", -57),
        ("\u22120.57/12 0.1s", -57),
        (".57/12", 57),
        ("+0.57 0.5s", 57),
        ("(Nf3 d5 Bg5) +0.57/12 4", 57),
        ("(+0.57/12)", 57),
        ("+0.57/12 0.05s,\n White wins by adjudication", 57),
        ('+0.57/12 0.05s, n=300, pv="e4 e5", line="+9.99/1"', 57),
        ("+M5/20 0.1s", 32000 - 5),
        ("-M4/20 0.1s", -32000 + 4),
        ("M5/20", 32000 - 5),
        ("#3/20", 32000 - 5),
        ("-M0/1", -31999),
        ("ev=0.57, d=12, mt=00:00:01", 57),
        # TCEC: White's view.
        ("d=20, sd=40, pv=Nb3 Be7, tb=0, wv=0.57, R50=49, mb=+0+0+0+0+0,", 57),
        ("d=20,\nwv=-M12, R50=49", -32000 + 12),
        # Other programs.
        ("0.57", 57),
        ("d12 +0.57", 57),
        ("12/20 +0.57 0.1s", 57),
        ("+0.57 d12", 57),
        ("eval=0.57", 57),
        ("#-3", -32000 + 6),
        ("+m5/20", 32000 - 5),
        ("WV=0.57, R50=49", 57),
        ("\uff0b0.57/12", 57),
    ],
)
def test_notations_of_evaluations(tmp_path: Path, comment: str, score: int) -> None:
    text = game(f"1. e4 {{{comment}}}")
    settings = {"score_view": "white", "score_place": "before", "pawn": "100"}
    assert scores(tmp_path / "x", text, **settings)[0] == [score]


@pytest.mark.parametrize(
    ("command", "score"),
    [
        ("[%eval\n0.40]", 40),
        ("[%eval 0.40,29]", 40),
        ("[%eval 0.40/29] [%clk 0:01:00]", 40),
        ("[%clk 0:01:00] [%eval \u22120.40]", -40),
        ("[%Eval +0.40] good", 40),
        ("[%eval M3]", 32000 - 6),
        ("[%eval #3]", 32000 - 6),
        ("[%eval #-3]", -32000 + 5),
        ("[%eval -#3]", -32000 + 5),
        ("[%eval -M3,20]", -32000 + 5),
        ("[%eval 40,20]", 40),
    ],
)
def test_notations_of_commands(tmp_path: Path, command: str, score: int) -> None:
    """White's view of the position after the move, in which Black is to move. A mate counts moves."""
    found, _ = scores(tmp_path / "x", game(f"1. e4 {{{command}}} e5"), pawn="100", score_view="white")
    assert found == [-score]


@pytest.mark.parametrize(
    "comment",
    [
        "0/1 0.1s",
        "1/2 draw",
        "[%wdl 12,900,88]",
        "[%evp 0,20,19,32]",
        "[%eval good]",
        "[%eval 0,17/20]",
        "[%eval -0,35]",
        "[%eval 1,05]",
        "Eval:0.35",
        "+0.35 is better",
        "cp=35",
        "wv=x",
        "d=20, wv=0,35, R50=49",
        "+0.35@12",
        "+0.35|d12",
        "[+0.35/12]",
        "score: 35",
        "mate 5/20",
        "depth 12 score 35",
        "D:12 S:+0.35",
        "s=0.35 d=12",
        "250cp",
        "+5M/20",
        "0,35/12 0.1s",
        "12,5",
        "W+M5/20 0.1s",
        "black-0.35/12",
        "+1.5e1/12",
        "+inf/12",
        "+0.35:12",
        "+0.35=",
        "~0.35",
        ">0.35",
    ],
)
def test_what_is_not_understood_is_counted_apart(tmp_path: Path, comment: str) -> None:
    good = "1. e4 {+0.10/9 0.1s}"
    found, notes = scores(tmp_path / "x", game(f"{good} e5\n{{{comment}}} 2. Nf3 {{a pawn, 5 s}}"), pawn="100")
    assert found == [10]
    what = "positions left out, with a comment that is not understood as an evaluation"
    assert f"{what}: 1, such as line 5: '{{{comment}}}'" in notes
    assert "positions left out, without an evaluation: 1, such as line 5: '{a pawn, 5 s}'" in notes
    found, notes = scores(tmp_path / "x", game(f"1. e4 {{{comment}}}"))
    what = "games left out, with comments that are not understood as evaluations"
    assert (found, notes) == ([], [f"{what}: 1, such as line 4: '{{{comment}}}'"])


@pytest.mark.parametrize(
    "comment",
    [
        "book",
        "0.5s",
        "/15 1.2s",
        "ERR/0 0.1s",
        "[%clk 0:00:05]",
        "d=1, mt=0",
        "12. Nf3",
        "t=1.5, tl=0.25",
        "t:0:00:01.5",
        "S=",
        "mate in 3",
        "a score of 5",
        "Q=0.35",
        "W: 35%",
        "nan/12",
        "[% eval 0.4]",
    ],
)
def test_comments_without_an_evaluation_are_shown(tmp_path: Path, comment: str) -> None:
    example = "" if comment == "book" else f", such as line 4: '{{{comment}}}'"
    found = scores(tmp_path / "x", game(f"1. e4 {{{comment}}}"))
    assert found == ([], [f"games left out, without evaluations: 1{example}"])


@pytest.mark.parametrize("comment", ["1/2-1/2", "1/2", "½-½ agreed", "1½", "12/+0.35"])
def test_what_is_no_whole_number_of_pawns(tmp_path: Path, comment: str) -> None:
    """A result, and a depth before its score, even if numbers without a decimal point have a unit."""
    settings = {"score_unit": "pawns", "score_view": "mover", "score_place": "before", "pawn": "100"}
    found, notes = scores(tmp_path / "x", game(f"1. e4 {{1/2 0.1s}} e5 {{{comment}}}"), **settings)
    assert found == ([100, 150] if comment == "1½" else [100])
    assert comment == "1½" or "positions left out, with a comment that is not understood" in notes[1]


def test_evaluations_beyond_the_largest_are_counted(tmp_path: Path) -> None:
    """At 208 units, 153.84 pawns is 31,999, which stands for a mate, too; 153.8 is 31,990."""
    large = "evaluations of 31999 internal units or more, read as 31999"
    found, notes = scores(tmp_path / "x", game("1. e4 {+200.00/30 1s} e5 {-153.80/30 1s} 2. d4 {+M1/30 1s}"))
    assert found == [31999, -31990, 31999]
    assert notes[0] == f"{large}: 1, such as line 4: '{{+200.00/30 1s}}'"
    (tmp_path / "y").write_text(f'{START[:-4]} ce -20000; c9 "1-0";\n{START[:-4]} dm 1; c9 "1-0";\n')
    records, notes = read(tmp_path / "y")
    assert [row[2] for row in _data.describe(records)] == [-31999, 31999]
    assert notes == [f"{large}: 1"]


def test_results_of_the_header_and_of_the_end(tmp_path: Path) -> None:
    def results(header: str, end: str) -> list[int]:
        path = tmp_path / "x"
        path.write_text(f'[Event "x"]\n[Result "{header}"]\n\n1. e4 {{+0.10/9 0.1s}} {end}\n')
        return [row[4] for row in _data.describe(read(path)[0])]

    for header, end in (("?", "1-0"), ("*", "1-0"), ("1-0", "*"), ("1:0", ""), ("", "1-0"), ("1 - 0", "1-0")):
        assert results(header, end) == [1], (header, end)
    for header, end in (("1/2", "1/2-1/2"), ("½-½", "1/2"), ("*", "½-½")):
        assert results(header, end) == [0], (header, end)
    assert results("0-1", "1-0") == results("0-0", "*") == []
    _, notes = scores(tmp_path / "x", game("1. e4 {+0.10/9}", Result="0-1") + game("1. e4 {+0.1/9}", "*", Result="0-0"))
    assert notes == [
        "games left out, with one result in the header and another at the end: 1, such as line 4: '0-1'",
        "games left out, without a result: 1, such as line 9: '0-0'",
    ]
    _, notes = scores(tmp_path / "x", game("1. e4 {+0.10/9 0.1s}", Result="0-1 (time)"))
    what = "games with a result in the header that is not understood, so that the one at the end counts"
    assert f"{what}: 1, such as line 4: '0-1 (time)'" in notes


def test_a_game_that_was_cut_off_between_two_moves_is_counted(tmp_path: Path) -> None:
    whole = game("1. e4 {+0.10/9 0.1s} e5 {-0.10/9 0.1s}")
    cut = "games without a result after the moves, perhaps cut off: 1, such as line 9: '1-0'"
    for end, expected in (("1-0", 4), ("*", 4), ("", 4)):
        found, notes = scores(tmp_path / "x", whole + game("1. e4 {+0.10/9 0.1s} e5 {-0.10/9 0.1s}", end, Result="1-0"))
        assert (len(found), cut in notes) == (expected, not end), (end, notes)


@pytest.mark.parametrize(
    ("termination", "kind"),
    [
        ("rules infraction", "rules infraction"),
        ("Unterminated ", "unterminated"),
        ("Anna won on time", "time forfeit"),
        ("draw by timeout vs insufficient material", "time forfeit"),
        ("White's connection stalls", "stalled connection"),
        ("emergency", "emergency"),
        ("Ben won by resignation", None),
        ("adjudication", None),
    ],
)
def test_games_that_did_not_end_on_the_board(tmp_path: Path, termination: str, kind: str | None) -> None:
    found, notes = scores(tmp_path / "x", game("1. e4 {+0.10/9 0.1s}", Termination=termination), pawn="100")
    assert found == ([] if kind else [10])
    if kind:
        assert notes == [f"games left out, ended by {kind}: 1"]


def test_two_notations_in_one_game(tmp_path: Path) -> None:
    """Of other positions and views: White's after the move, and the mover's before it."""
    text = game("1. e4 {0.10} e5 {-0.20/9 0.1s} 2. Nf3 {[%eval 0.90]} Nc6 {-0.30/9 0.1s}")
    found, notes = scores(tmp_path / "x", text, pawn="100")
    assert found == [10, -20, -30]
    what = "positions left out, with an evaluation in another notation than the first one of the game"
    assert f"{what}: 1, such as line 4: '{{[%eval 0.90]}}'" in notes
    both = {"score_view": "mover", "score_place": "before"}
    assert scores(tmp_path / "x", text, pawn="100", **both)[0] == [10, -20, 90, -30]


def test_odd_games_end_no_conversion(tmp_path: Path) -> None:
    good = game("1. e4 {+0.10/9 0.1s}")
    unused = [
        game("1. e4 -- 2. d4"),
        game("1. e4 Z0 2. d4 {[%clk 0:00:01]}"),
        game("1. e4 Ke7"),
        game("1. e4 e5", FEN="not a position"),
        game("1. e4 {+0.10/9} Ke7", "*"),
    ]
    found, notes = scores(tmp_path / "x", "".join(text + good for text in unused))
    assert found == [21] * len(unused)
    assert {"games left out, without evaluations: 4", "games left out, without a result: 1"} < set(notes)
    found, notes = scores(tmp_path / "x", good + game("1. e4 {+0.20/9} --\n 2. d4 {+0.30/9}"), pawn="100")
    assert found == [10, 20]
    assert "games cut off at a null move: 1, such as line 9: the null move '--'" in notes
    for null in ("<>", "-", "NULL", "Pass", "z0", "e8e8"):  # without them, White would play Black's a3
        found, notes = scores(tmp_path / "x", game(f"1. e4 {{+0.20/9}} {null} 2. a3 {{+0.30/9}}"), pawn="100")
        assert found == [20]
        assert f"games cut off at a null move: 1, such as line 4: the null move '{null}'" in notes


def test_tags_before_the_event(tmp_path: Path) -> None:
    """Tags in another order belong to the game that follows, also in the ranges that a loader reads."""
    kings = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"
    text = f'[FEN "{kings}"]\n[Event "x"]\n[Result "1-0"]\n\n1. e4 {{+0.10/9 0.1s}} 1-0\n\n'
    path = tmp_path / "x.pgn"
    path.write_text(2 * text)
    records, notes = read(path)
    assert [row[0].split()[0] for row in _data.describe(records)] == 2 * [kings.split()[0]]
    assert notes == [
        "games with evaluations as in engine matches ({+0.35/12 0.05s}), the mover's view, of the position "
        "before the move: 2"
    ]
    path.write_text(20_000 * text)
    with pytest.raises(UserError, match=r"tag fen before the tag Event, expected it after"):
        for _ in RecordLoader(path, 1000, shuffle=False, threads=2):
            pass
    path.write_text(20_000 * text.replace("FEN", "Site"))
    assert sum(len(batch) for batch in RecordLoader(path, 1000, shuffle=False, threads=2)) == 20_000


def test_shapes_of_files(tmp_path: Path) -> None:
    """Games without tags or in one line, comments with tags, notes, escapes, variations, names of tags."""
    move = "1.e4!{+0.10/9}$1 e5$2 {+0.10/9} "
    for text, count in (
        (f"{move}1-0\n\n{move}0-1 {{the end}}\n{move}1/2-1/2", 6),
        (f'[Event "x"] [Result "1-0"] {move}', 2),
        (f'% a comment\n[event\t"x"]\n[RESULT "1-0"]\n% {{\n{move}; {{ ( 0.1\n 2. Nf3 {{+0.10/9}} 1-0\n\n', 3),
        (f'[Event "x"]\n[Result "1-0"]\n{{a line\n[of "tags"]}} {move}(1... c5 ; )\n 2. c3) 2... 1-0', 2),
        (f'\ufeff[FEN "{START};"]\r\n[Result "1-0"]\r\n\r\n{move}1-0\r\n', 2),
        (game(f"{move} 2. ♘f3 N {{+0.10/9}} 2…Nc6 +- {{+0.10/9}} <3. Bb5>"), 4),
        (game("1. e4+- {+0.10/9} e5± {+0.10/9} 2. Nf3+/= {+0.10/9}"), 3),
    ):
        assert len(scores(tmp_path / "x", text)[0]) == count, text


@pytest.mark.parametrize(
    "text",
    [
        "; from a site\n\n" + game("1. e4 {+0.10/9 0.1s}"),
        "{from a site,\nin 2 lines}\n" + game("1. e4 {+0.10/9 0.1s}"),
        game("1. e4 {+0.10/9 0.1s}") + "\x1a",
        game("1. e4 {+0.10/9 0.1s}") + "\0\0\0",
        game("1. e4 {+0.10/9 0.1s}") + "{the last one}\n",
    ],
)
def test_what_stands_between_games_is_no_game(tmp_path: Path, text: str) -> None:
    found, notes = scores(tmp_path / "x", text, pawn="100")
    assert (found, len(notes)) == ([10], 1), notes


def test_compressed_and_in_chunks(tmp_path: Path) -> None:
    many = "".join(game(f"1. e4 {{+0.{i:02}/9 0.1s}} e5 {{-0.20/9 0.1s}}", White=f"Jörg {i}") for i in range(100)) * 300
    content = many.encode()
    (tmp_path / "x.pgn").write_bytes(content)
    records, _ = read(tmp_path / "x.pgn")
    assert len(records) == 60_000
    half = len(content) // 2
    for packed in (
        gzip.compress(content[:half]) + gzip.compress(content[half:]),
        bz2.compress(content[:half]) + bz2.compress(content[half:]),
        lzma.compress(content[:half]) + bytes(8) + lzma.compress(content[half:]),
        zstandard.compress(content[:half]) + zstandard.compress(content[half:]),
    ):
        (tmp_path / "packed").write_bytes(packed)
        np.testing.assert_array_equal(read(tmp_path / "packed")[0], records)
    loader = RecordLoader(tmp_path / "x.pgn", 1000, shuffle=False, threads=2)
    assert len(loader.identities) == 1
    np.testing.assert_array_equal(np.concatenate([batch.numpy() for batch in loader]), records)


@pytest.mark.parametrize(
    ("fen", "san", "uci"),
    [
        (START, "Nf3", "g1f3"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "O-O-O+", "e1c1"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "0-0", "e1g1"),
        ("4k3/P7/8/8/8/8/8/4K3 w - - 0 1", "a8=N!", "a7a8n"),
        ("4k3/P7/8/8/8/8/8/4K3 w - - 0 1", "a8Q+", "a7a8q"),
        ("4k3/8/8/8/8/N7/8/N3K3 w - - 0 1", "N1c2", "a1c2"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "exd6", "e5d6"),
        (START, "e2e4", "e2e4"),
        (START, "e2-e4", "e2e4"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "e1g1", "e1g1"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "e1h1", "e1g1"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "e1a1+", "e1c1"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "o-o", "e1g1"),
        ("4k3/P7/8/8/8/8/8/4K3 w - - 0 1", "a7a8Q", "a7a8q"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "exd6e.p.", "e5d6"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "exd6e.p.+", "e5d6"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "exd6ep!", "e5d6"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "exd6 ep", "e5d6"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "exd6 e.p.+", "e5d6"),
        ("4k3/P7/8/8/8/8/8/4K3 w - - 0 1", "a8/Q+", "a7a8q"),
    ],
)
def test_san(tmp_path: Path, fen: str, san: str, uci: str) -> None:
    (tmp_path / "x").write_text(game(f"1. {san} {{+0.10/9}}", FEN=fen))
    assert [row[1] for row in _data.describe(read(tmp_path / "x")[0])] == [uci]


def test_ambiguous_san_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(game("1. Nc2 {+0.10/9}", FEN="4k3/8/8/8/8/N7/8/N3K3 w - - 0 1"))
    with pytest.raises(UserError, match="move 'Nc2' names 2 legal moves in "):
        read(tmp_path / "x")


def test_epd(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(
        'rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - bm Nf3; ce 35; c9 "1-0"; id "a;b";\n'
        '4k3/8/8/8/8/8/8/R3K3 b Q - c9 "1/2-1/2";\n'
    )
    with PositionReader(tmp_path / "x") as reader:
        assert reader.format == "epd"
        rows = _data.describe(np.concatenate(list(reader)))
    assert [row[1:3] + row[4:] for row in rows] == [("g1f3", 73, 1), ("0000", 32002, 0)]
    (tmp_path / "x").write_text("4k3/8/8/8/8/8/8/R3K3 b Q - bm Ke7;\n")
    with pytest.raises(UserError, match="x: line 1: a position without a result"):
        read(tmp_path / "x")


def test_text_with_the_marks_of_other_systems(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(f"\ufeff{START} | 12 | 1-0\r\n{START} | 12 | 1/2-1/2\r\n{START} | 12 | 0-1".encode())
    records, notes = read(tmp_path / "x")
    assert [row[4] for row in _data.describe(records)] == [1, 0, -1]
    assert notes == ["a byte-order mark", "lines that end in CR LF", "results 1-0, 1/2-1/2, 0-1"]
    (tmp_path / "x").write_text("4k3", encoding="utf-16")
    with pytest.raises(UserError, match="text in UTF-16, expected UTF-8"):
        read(tmp_path / "x")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, lambda data: zstandard.compress(data)])
def test_a_compressed_file_that_ends_too_early(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "games.pgn.packed"
    random = np.random.default_rng(1)  # evaluations that hardly compress, so that some games come before the end
    moves = "1. e4 {%+.2f/12 0.05s} e5 {%+.2f/12 0.05s}"
    whole = pack("".join(game(moves % tuple(random.normal(0, 9, 2))) for _ in range(40_000)).encode())
    path.write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(UserError, match=r"games.pgn.packed: not a valid .*; offset of the decompressed bytes: [\d,]+"):
        read(path)
    with PositionReader(path, skip_bad=True) as reader:
        positions = sum(map(len, reader))
        assert 20_000 < positions < 80_000
        assert reader.skipped > 0
        assert "not a valid" in reader.first_skipped
